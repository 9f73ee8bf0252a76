"""Names of runs for people: the same setting has one group whatever its seed, and a run knows its sweeps."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from fedlab_runner.config.build import check
from fedlab_runner.experiment import labelling
from fedlab_runner.experiment.labelling import label_of
from fedlab_runner.methods.registry import method_style
from fedlab_runner.sweep.records import GRID, varying
from fedlab_runner.tracking.label import Label
from fedlab_runner.utils.sweep_job import SWEEPS, note_sweep, sweeps_of
from tests.helpers.composed import composed


def label(folder: Path, *overrides: str) -> Label:
    checked = check(composed("model=logistic", *overrides))
    return label_of(folder, checked.values, checked.fingerprint)


def test_a_label_of_a_config(tmp_path: Path) -> None:
    one = label(tmp_path, "algorithm=fedwalk", "algorithm@algorithm.base=scaffold", "server_data=none", "seed=4")
    assert (one.name, one.method) == ("SCAFFOLD + FedWalk seed=4", "SCAFFOLD + FedWalk")
    assert one.config["choices"]["algorithm.base"] == "scaffold" and one.config["sweeps"] == []
    assert {"model=logistic", "SCAFFOLD + FedWalk"} <= set(one.tags)
    assert not any(tag.endswith("=none") for tag in one.tags)


def test_seeds_share_a_group_and_other_settings_do_not(tmp_path: Path) -> None:
    base, seed, lr, rounds, name = (
        label(tmp_path, "algorithm=fedavg", *more).group
        for more in ((), ("seed=9",), ("local.lr=0.7",), ("rounds=77",), ("logger=none",))
    )
    assert base == seed == name and len({base, lr, rounds}) == 3


def test_of_a_sweep_only_what_differs_is_in_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = [
        ["dataset=digits", f"+algorithm.lam={lam}", f"server_data={data}", "rounds=3"]
        for lam in (0, 1)
        for data in "ab"
    ]
    (tmp_path / GRID).write_text(json.dumps(grid))
    assert varying(tmp_path) == {"algorithm.lam", "server_data"} and varying(tmp_path / "none") == set()
    task = ["dataset=digits", "+algorithm.lam=1", "server_data=in_domain", "rounds=3", "logger.mode=offline", "seed=1"]
    hydra: Any = OmegaConf.create({"overrides": {"task": task}})
    monkeypatch.setattr(labelling.HydraConfig, "get", staticmethod(lambda: hydra))
    method = method_style("feddle", {"server_data": "in_domain"})
    monkeypatch.setenv("FEDLAB_SWEEP_FOLDER", str(tmp_path))
    assert labelling._differing(method) == ["algorithm.lam=1"], "the name tells the server's data"
    monkeypatch.delenv("FEDLAB_SWEEP_FOLDER")
    assert labelling._differing(method) == ["dataset=digits", "algorithm.lam=1"]


def test_a_long_name_keeps_its_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labelling, "_is_commanded", lambda folder: True)
    names = set[str]()
    for seed in (3, 4):
        task = ["num_clients=20", f"dataset.folder={'a/long/way/' * 12}", f"seed={seed}"]
        runtime = {"config_sources": [], "choices": {"algorithm": "fedavg"}}
        hydra: Any = OmegaConf.create({"overrides": {"task": task}, "runtime": runtime})
        monkeypatch.setattr(labelling.HydraConfig, "get", staticmethod(lambda hydra=hydra: hydra))
        names.add(label(tmp_path, "algorithm=fedavg", f"seed={seed}").name)
    start = f"FedAvg num_clients=20 dataset.folder={'a/long/way/' * 12}"[:91]
    assert {re.sub("\N{HORIZONTAL ELLIPSIS}[0-9a-f]{8}", "", name) for name in names} == {
        f"{start} seed={seed}" for seed in (3, 4)
    }


def test_a_run_notes_every_sweep_that_it_belongs_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second", "first"):
        monkeypatch.setenv("FEDLAB_SWEEP", name)
        note_sweep(tmp_path)
    assert (tmp_path / SWEEPS).read_text() == "first\nsecond\n"
    monkeypatch.setenv("FEDLAB_SWEEP", "third")
    assert sweeps_of(tmp_path) == ("first", "second", "third"), "with the one at work"
    assert {"sweep=second", "sweep=third"} <= set(label(tmp_path, "algorithm=fedavg").tags)
