"""docs/referee.md is that of the tests and of what `make referee` recorded."""

import json
from pathlib import Path
from typing import Any

import pytest

from docs.generate import markdown, referee


def test_the_page_is_that_of_the_tests_and_the_record() -> None:
    assert referee.PAGE.read_text(encoding="utf-8") == referee.page(), "run: make docs"


def test_every_method_has_its_row() -> None:
    rows = {row[0].strip("`"): row[1:] for row in markdown.rows(referee.methods_table())}
    assert sorted(rows) == referee.methods()
    loop = "[fedavg.py](../tests/reference/fedavg.py): Algorithm 1; Feddle, Eq 1 and 3; Feddle, Eq 2"
    assert rows["fedavg"][0].startswith(loop)
    assert rows["fedprox"][1] == "[test_fedprox.py](../tests/algorithms/test_fedprox.py)"
    assert "fluke: 2e-16" in rows["fedprox"][2] and "(results.md#feddle-table-7" in rows["fedavg"][3]
    assert "(results.md#flamby-" in rows["scaffold"][3] and "(results.md#fedavgs-own-table-1-" in rows["fedavg"][3]
    assert "(results.md#pfllib-" in rows["ditto"][3] and "(results.md#dfml-" in rows["def_kt"][3]


def test_the_page_follows_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, Any]] = [
        {"method": "fedavg", "setting": "", "rounds": 6, "difference": 2e-16},
        {"method": "fedavg", "setting": "late", "round": 1, "step": 2, "difference": 0.03, "cause": "theirs <adds>"},
    ]
    measured = {"version": "fluke-fl==9", "commit": "a" * 40, "seed": 0, "python": "3", "torch": "2"}
    found = {"fluke": measured | {"rows": rows, "findings": {"fluke_steps": ["steps: 7"]}}}
    (tmp_path / "referee.json").write_text(json.dumps({"oracles": found}))
    monkeypatch.setattr(referee, "RECORD", tmp_path / "referee.json")
    assert referee.oracle_cells() == {"fedavg": "fluke: 2e-16, parts in 1 of 2 settings"}
    table = referee.oracle_tables()[2].splitlines()
    assert table[-2:] == [
        "| `fedavg` |  | 2e-16 |  |",
        "| `fedavg` | late | parts in round 1 (from 2 local steps on), by 3e-02 | theirs &lt;adds> |",
    ]
    chapter = referee.findings()
    assert chapter[0] == "### fluke-fl: FedNova counts a step that a client did not take"
    assert chapter[-1] == "```text\nsteps: 7\n```" and "FastDataLoader(" in chapter[-2]
