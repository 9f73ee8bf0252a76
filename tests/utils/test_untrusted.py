"""Files of strangers: whatever they are, reading them ends soon, in their content or in one line."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlab_runner import api
from fedlab_runner.config.build import conf_dir
from fedlab_runner.experiment import pruner
from fedlab_runner.sweep import plots, records
from fedlab_runner.sweep.table import refresh
from fedlab_runner.utils import checksummed_json, untrusted
from fedlab_runner.utils.untrusted import Unreadable
from tests.helpers.composed import SMALL


def bomb(levels: int = 12, width: int = 9) -> bytes:
    """A few lines of YAML that stand for width ** levels values."""
    rows = [f"a0: &a0 [{', '.join('x' * width)}]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join(rows).encode()


def special(path: Path) -> list[Callable[[], object]]:
    """Ways to put something other than a plain file at a path."""
    return [
        lambda: os.mkfifo(path),
        lambda: path.mkdir(),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to(path.name),  # to itself
    ]


@pytest.mark.parametrize("kind", range(4), ids=["fifo", "folder", "device", "loop"])
def test_what_is_no_plain_file_is_not_read(kind: int, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    special(path)[kind]()
    for read in (untrusted.read_bytes, untrusted.read_json, untrusted.read_yaml, lambda each: [*untrusted.lines(each)]):
        with pytest.raises(Unreadable, match=r"^(is not a plain file|cannot be read \()"):
            read(path)
    with pytest.raises(checksummed_json.Damaged):
        checksummed_json.read(path)
    assert pruner.read_note(tmp_path) == {}


def test_what_is_not_there_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "none", tmp_path / "file" / "none"):
        with pytest.raises(FileNotFoundError):
            untrusted.read_bytes(path)


def test_large_files_are_not_taken_into_memory(tmp_path: Path) -> None:
    """Files of holes: of any size at no cost of their own."""
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(2**40)
    for read in (untrusted.read_json, untrusted.read_yaml, lambda each: [*untrusted.lines(each)]):
        with pytest.raises(Unreadable, match=r"^(is larger|has a line longer) than \d+ MiB$"):
            read(path)


def test_many_lines_are_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "MAX_LINES_BYTES", 30)
    (tmp_path / "a").write_bytes(b"0123456789\n" * 3)
    with pytest.raises(Unreadable, match="is larger than"):
        list(untrusted.lines(tmp_path / "a"))
    monkeypatch.setattr(untrusted, "MAX_LINES_BYTES", 33)
    assert len(list(untrusted.lines(tmp_path / "a"))) == 3


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"[" * 1_000_000, "nested deeper than 50 levels"),
        (b'{"a":' * 900 + b"1" + b"}" * 900, "nested deeper than 50 levels"),
        (b"[" * 51 + b"]" * 51, "nested deeper than 50 levels"),
        (b"9" * 5000, "a number of more than 40 digits"),
        (b'{"a": -' + b"9" * 41 + b"}", "a number of more than 40 digits"),
        (b'{"a": "\xff"}', "is not JSON"),
        (b"", "is not JSON"),
        (b"{} {}", "is not JSON"),
        (b"\xef\xbb\xbf{}", "is not JSON"),
    ],
)
def test_json_beyond_the_limits(text: bytes, fault: str) -> None:
    with pytest.raises(Unreadable, match=fault):
        untrusted.parse_json(text)


def test_json_within_the_limits() -> None:
    value: Any = {"a": [1.5, None, True, "\ud800", -(10**39)], "b": "[" * 100}
    for _ in range(48):
        value = [value]
    assert untrusted.parse_json(json.dumps(value).encode()) == value
    assert untrusted.parse_json(b'{"a": 1, "a": 2}') == {"a": 2}
    assert untrusted.parse_json(b"[Infinity, 1e999]") == [float("inf")] * 2


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (bomb(), "stands for more than 100,000 values"),
        (
            b"a0: &a0 {}\n" + b"".join(b"a%d: &a%d {<<: [*a%d, *a%d]}\n" % (i, i, i - 1, i - 1) for i in range(1, 40)),
            "more",
        ),
        (b'a: &a "' + b"x" * 100_000 + b'"\nb: [' + b"*a, " * 500 + b"]", "stands for more than"),
        (b"a: &a [*a]", "an alias within the value that it repeats"),
        (b"a: *b", "is not YAML"),
        (b"x:\n" + b"- " * 100_000 + b"a", "nested deeper than 50 levels"),  # libyaml's loader dies of it
        (b"[" * 900, "nested deeper than 50 levels"),
        (b"[" * 100_000, "nested deeper than 50 levels|is not YAML"),  # libyaml takes a minute; since 0.2.6 it refuses
        (b"{a: " * 100_000, "nested deeper than 50 levels"),
        (b"x: 0x" + b"f" * 5000, "a number of more than 40 digits"),
        (b"x: " + b"9" * 5000, "is not YAML"),
        (b"x: " + b":".join([b"59"] * 100), "a number of more than 40 digits"),
        (b"x: " + b"1:" * 300 + b"1.5", "a number of more than 40 digits"),
        (b"x: " + b"1:" * 500_000 + b"1", "a number of more than 40 digits"),
        (b"x: !!bool maybe", "has a tag before a value"),
        (b"x: !!int ''", "has a tag before a value"),
        (b"x: !!timestamp never", "has a tag before a value"),
        (b"x: !!set {a, b}", "has a tag before a value"),
        (b"x: !!python/object/apply:os.mkdir [harm]", "has a tag before a value"),
        (b"x: \xff", "is not YAML"),
        (b"x: \x00", "is not YAML"),
        (b"--- a\n--- b", "is not YAML"),
        (b"x: " + b"a" * 2**20, "is larger than 1 MiB"),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_yaml_beyond_the_limits(text: bytes, fault: str) -> None:
    with pytest.raises(Unreadable, match=fault):
        untrusted.parse_yaml(text)


def test_yaml_within_the_limits() -> None:
    text = b"a: &a [1, 2.5, 1.0e-05]\nb: {c: *a, 3: null}\nd: 2020-01-01\ne: &b x\nf: [*b, *b]\n"
    text += b"g: !!str 5\nh: 1:30\ni: '" + b":" * 50 + b"'"
    assert untrusted.parse_yaml(text) == {
        **{"a": [1, 2.5, 1e-5], "b": {"c": [1, 2.5, 1e-5], "3": None}},
        **{"d": "2020-01-01", "e": "x", "f": ["x", "x"], "g": "5", "h": 90, "i": ":" * 50},
    }
    assert untrusted.parse_yaml(b"") is None


@given(st.text("0123456789.:_-+~<=xeoinftrunayd \n{}[]#,?!&*|>'\"%@`b", max_size=20))
@settings(deadline=None)
def test_any_yaml_is_read_or_unreadable(text: str) -> None:
    for each in (text, f"a: {text}", f"{text}: a", f"a: !!{text}"):
        with suppress(Unreadable):
            untrusted.parse_yaml(each.encode())


def test_every_config_of_the_package_is_within_the_limits() -> None:
    files = list(conf_dir().rglob("*.yaml"))
    assert len(files) > 100
    for file in files:
        untrusted.check_yaml(file.read_bytes())
        assert yaml.safe_load(file.read_bytes()) == yaml.load(file.read_bytes(), Loader=untrusted._loader())


def config_folder(folder: Path, text: bytes) -> Path:
    (folder / "experiment").mkdir(parents=True)
    (folder / "experiment" / "mine.yaml").write_bytes(b"# @package _global_\n" + text)
    return folder


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (bomb(), "stands for more than 100,000 values"),
        (b"logger:\n  tags:\n    " + b"- " * 100_000 + b"a", "is nested deeper than 50 levels"),
        (b"a: &a [*a]", "has an alias within the value that it repeats"),
        (b"a: !!bool maybe", "has a tag before a value, such as !!float (remove it: only !!str is read)"),
    ],
    ids=["aliases", "depth", "itself", "tag"],
)
@pytest.mark.parametrize("way", ["--config-dir={}", "hydra.searchpath=[file://{}]"])
def test_an_experiment_of_a_stranger_is_one_line(way: str, text: bytes, fault: str, tmp_path: Path) -> None:
    folder = config_folder(tmp_path / "theirs", text)
    start = [sys.executable, "-m", "fedlab_runner", way.format(folder), "experiment=mine", "rounds=1"]
    ran = subprocess.run(start, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"error: {folder / 'experiment' / 'mine.yaml'} {fault}: it is not loaded\n"
    assert not (tmp_path / "outputs").exists()


def test_records_of_a_sweep_are_what_they_say_or_do_not_count(tmp_path: Path) -> None:
    job = {"overrides": ["x=1"], "seed": 0, "status": "finished", "objective": 0.5, "folder": "outputs/a"}
    job |= {"summary": {}, "error": None, "seconds": 2.5}
    wrong = [
        {"overrides": "x=1"},
        {"overrides": [["x"]]},
        {"folder": 5},
        {"status": []},
        {"status": "done"},
        {"seconds": "2.5"},
        {"objective": "0.5"},
        {"summary": [1]},
        {"error": 5},
    ]
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "good.json").write_text(checksummed_json.text(job))
    for i, change in enumerate(wrong):
        (tmp_path / "jobs" / f"{i}.json").write_text(checksummed_json.text(job | change))
    os.mkfifo(tmp_path / "jobs" / "fifo.json")
    (tmp_path / "jobs" / "deep.json").write_text("[" * 100_000)
    assert [len(row.jobs) for row in refresh(tmp_path)] == [1]
    for grid in ([1], {"a": 1}, [["a", 1]], "text", None):
        (tmp_path / "grid.json").write_text(json.dumps(grid))
        assert [len(row.jobs) for row in records.read(tmp_path)] == [1]


def test_settings_with_numbers_of_any_length_have_an_order() -> None:
    settings = [(f"a={number}",) for number in ("20", "5", "9" * 5000, "007", "x", "\N{SUPERSCRIPT TWO}")]
    ordered = [each[0].removeprefix("a=") for each in sorted(settings, key=records.natural)]
    assert [each for each in ordered if each.isdecimal()] == ["5", "007", "20", "9" * 5000]


@pytest.mark.parametrize(
    "row",
    [
        '{"round": -1}',
        '{"round": true}',
        '{"round": 0, "a": "text"}',
        '{"round": 0, "a": [1]}',
        '{"round": 0, "a": {}}',
        "[0]",
        '{"round": 0, "a": ' + "[" * 10_000 + "}",
        '{"round": 0, "a": ' + "9" * 5000 + "}",
        '{"round": 0, "a": "\\ud800"}',
    ],
    ids=lambda row: row[:24],
)
def test_rows_of_strangers_are_no_rows(row: str, tmp_path: Path) -> None:
    from fedlab_runner.tracking.jsonl import JsonLines, decode

    with pytest.raises(ValueError):
        decode(row.encode())
    (tmp_path / "metrics.jsonl").write_text(row + "\n")
    assert JsonLines(tmp_path / "metrics.jsonl").find_damage(0, None)
    job = records.Job([], None, "finished", None, str(tmp_path))
    assert plots._metrics(job, {"a"}) == [] == pruner._rows(tmp_path / "metrics.jsonl")


def test_a_summary_that_claims_anything_is_written_anew(tmp_path: Path) -> None:
    """Any number of rounds, levels, digits, or no object at all: the run continues from its checkpoint."""
    cfg = api.compose(*SMALL, "algorithm=fedavg", "rounds=1", "logger=none")
    wanted = api.run(cfg, tmp_path).objective
    whole = (tmp_path / "summary.json").read_bytes()
    summary = json.loads(whole)
    texts = [json.dumps(summary | {"rounds": rounds}) for rounds in (10**30, -5, "3", None, 1.5, [], True)]
    for text in [*texts, "[" * 100_000, "9" * 5000, "[]", "5", "", '{"rounds": NaN}']:
        (tmp_path / "summary.json").write_text(text)
        assert api.run(cfg, tmp_path).objective == wanted
        assert (tmp_path / "summary.json").read_bytes() == whole, text[:40]
