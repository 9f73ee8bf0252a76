"""`fedlab-verify`: what holds is said to hold, and what was changed is found, also by who makes all hashes again."""

import hashlib
import json
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedlab_runner.config import schema
from fedlab_runner.config.build import run_id
from fedlab_runner.executors.auto import Auto
from fedlab_runner.experiment.run import run_in
from fedlab_runner.report import bundle
from fedlab_runner.report.folders import find
from fedlab_runner.report.grouping import group
from fedlab_runner.utils import checksummed_json
from fedlab_runner.utils.durations import duration
from fedlab_runner.utils.errors import Interrupted
from fedlab_runner.verify import cli, environment, recompute
from fedlab_runner.verify.recompute import choose
from fedlab_runner.verify.verification import _size
from tests.helpers.bundles import contents, write
from tests.helpers.composed import composed
from tests.helpers.report_files import write_run

ACCURACY = "test/accuracy"  # the metric of the objectives
Verify = Callable[..., tuple[int, str]]


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Verify:
    """The exit code of the command, and all that it prints in lines that a terminal can show."""

    def run(*arguments: object) -> tuple[int, str]:
        code = cli.main([str(each) for each in arguments])
        shown = capsys.readouterr()
        text = shown.out + shown.err
        assert all(each.isprintable() or each == "\n" for each in text)
        return code, text

    return run


def changed(path: Path, bundled: Path, name: str, old: str, new: str, **how: bool) -> Path:
    """A copy of a bundle in which the files whose names end so have another text."""
    files = contents(bundled)
    for each in [each for each in files if each.endswith(name)]:
        text = files[each].decode()
        assert re.search(old, text), each
        files[each] = re.sub(old, new, text, count=1).encode()
    return write(path, files, **how)


def test_a_bundle_holds_and_its_runs_are_equal_to_the_bit(bundled: Path, verify: Verify) -> None:
    code, text = verify(bundled, "--cells", 2)
    assert code == 0 and text.endswith("all 6 checks hold\n")
    assert text.count("equal: each of ") == 2 and text.count("to the bit") == 2
    assert len(set(re.findall(r"run \d/2 +(fedavg|fedprox)-", text))) == 2, "one run of each setting"
    assert "3 rounds, which took" in text
    named = set(re.findall(r"environment (\w+)", text))
    assert named <= {"as", "commit", "code"}, (
        "but for the commit, which may be made while the tests run, all is as here"
    )
    assert hashlib.sha256(contents(bundled)[bundle.MANIFEST]).hexdigest() in text


def test_without_cells_nothing_is_computed(bundled: Path, verify: Verify, monkeypatch: pytest.MonkeyPatch) -> None:
    """And each config is checked once, which takes longer than all else."""
    checks: list[Any] = []
    real = schema.convert_fields
    monkeypatch.setattr(schema, "convert_fields", lambda *of: [checks.append(of), real(*of)][1])
    monkeypatch.setattr(recompute, "run_whole", None)  # would be an error if called
    code, text = verify(bundled)
    assert sum(path == "" for _, _, path, *_ in checks) == 4
    assert code == 0 and "none computed again; --cells 3 computes 3 of 4" in text and "all 4 checks hold" in text


def test_fewer_rounds_and_another_executor(bundled: Path, verify: Verify) -> None:
    code, text = verify(bundled, "--cells", "fedavg", "--rounds", 2, "executor=vectorized", "executor.chunk_size=2")
    assert code == 0 and text.count("2 rounds") == 2 and "objective" not in text
    assert re.search(r"equal|within tolerance: of \d+ values the largest difference is", text)


# What is wrong, and how it is found.


def test_a_changed_file_is_found_by_its_hash(bundled: Path, tmp_path: Path, verify: Verify) -> None:
    path = changed(tmp_path / "b.zip", bundled, "partition.csv", r"\d", "77", listed=False)
    code, text = verify(path)
    assert code == 1 and text.count("partition.csv is not as it was when the bundle was made") == 3
    assert "WRONG: 1 more" in text and "1 of 4 checks do not hold" in text
    files = contents(bundled)
    run = next(name for name in files if name.endswith("timings.jsonl"))
    code, text = verify(write(tmp_path / "c.zip", files | {run: None, "outputs/x/clients.csv": b"1"}, listed=False))
    assert code == 1 and f"{run} is listed but missing" in text and "outputs/x/clients.csv is not listed" in text


def test_metrics_that_were_changed_with_their_hashes_are_found(bundled: Path, tmp_path: Path, verify: Verify) -> None:
    path = changed(
        tmp_path / "b.zip", bundled, "metrics.jsonl", r'(?s)(.*)"test/accuracy": 0\.', r'\1"test/accuracy": 0.9'
    )
    code, text = verify(path)
    assert code == 1, text
    assert re.search(r"hashes +\d+ files as in manifest", text)
    assert re.search(r"tables +WRONG: settings\.csv, line 2, seeds finished: 2 there, 0 follows", text)
    assert re.search(r"summaries +WRONG: fed\w+-\w+: damaged: metrics\.jsonl is not as the run left it", text)


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("tables/settings.csv", r"0\.\d+", "0.987", "settings.csv, line 2, mean: 0.987 there, 0."),
        ("tables/runs.csv", "finished", "failed", "runs.csv, line 2, status: failed there, finished follows"),
        ("tables/runs.csv", r"\Z", '"x"\n', "runs.csv, line 6, run: x there, nothing follows"),
        ("summary.json", r'"objective": 0\.', '"objective": 0.9', "objective in summary.json does not follow"),
        (
            "summary.json",
            r'"test/accuracy": 0\.',
            '"test/accuracy": 0.9',
            "at_best in summary.json does not follow",
        ),
        ("summary.json", r'("at_best": {)', r'\1"test/auc": 0.9,', "at_best in summary.json does not follow"),
        ("config.yaml", "lr: [0-9.]+", "lr: 0.77", "its config is that of fed"),
        ("bundle.json", r'"fedavg-', '"fedavg2-', " is in bundle.json but missing"),
        ("bundle.json", r'"fedavg-\w+",\s+', "", " is not in bundle.json"),
    ],
)
def test_what_does_not_follow_is_found(
    name: str, old: str, new: str, words: str, bundled: Path, tmp_path: Path, verify: Verify
) -> None:
    code, text = verify(changed(tmp_path / "b.zip", bundled, name, old, new))
    assert code == 1 and words in text and "WRONG" in text


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tables/runs.csv", None, "runs.csv is missing"),
        ("tables/more.csv", b"a\n1\n", "more.csv does not follow from the metrics"),
        (bundle.MANIFEST, b"a comment\n", f"{bundle.MANIFEST} has lines that list no file"),
    ],
)
def test_what_is_missing_or_too_much_is_found(
    name: str, content: bytes | None, words: str, bundled: Path, tmp_path: Path, verify: Verify
) -> None:
    files, of_manifest = contents(bundled), name == bundle.MANIFEST
    path = write(
        tmp_path / "b.zip",
        {**files, name: files[name] + (content or b"") if of_manifest else content},
        listed=not of_manifest,
    )
    code, text = verify(path)
    assert code == 1 and f"WRONG: {words}" in text


def forge(outputs: Path, path: Path, change: Callable[[list[dict[str, float]]], object], rounds: int = 3) -> Path:
    """A bundle in which metrics, summary, tables and hashes fit each other, and the metrics are invented. `rounds`:
    those that its configs name.
    """
    shutil.copytree(outputs, path.parent / "outputs")
    for run in sorted((path.parent / "outputs").glob("fed*-*")):
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        change(rows)
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        (run / "metrics.jsonl").write_text(text)
        summary = json.loads((run / "summary.json").read_text())
        summary["metrics_sha256"] = hashlib.sha256(text.encode()).hexdigest()
        (run / "summary.json").write_text(json.dumps(summary | find([run]).runs[0].summary))
        config = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(config.replace("rounds: 3\n", f"rounds: {rounds}\n"))
    bundle.write(path, [path.parent / "outputs"])
    return path


@pytest.fixture(scope="module")
def forged(outputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return forge(outputs, tmp_path_factory.mktemp("forged") / "b.zip", lambda rows: rows[2].update({ACCURACY: 0.99}))


def test_invented_metrics_are_found_by_computing_them(forged: Path, verify: Verify) -> None:
    code, text = verify(forged)
    assert code == 0, "all files fit each other"
    code, text = verify(forged, "--cells", 1)
    assert code == 1 and "1 of 5 checks do not hold" in text, text
    assert re.search(r"DIFFERENT: 1 of \d+ values, the first test/accuracy in round 2: 0\.99 there, 0\.\d+ here", text)
    assert re.search(r"objective 0\.99 there, 0\.\d+ here", text)
    assert verify(forged, "--cells", 1, "--rounds", 1)[0] == 0, "the round before is as it was"
    assert verify(forged, "--cells", 1, "--tolerance", 0.999)[0] == 0


def test_a_tolerance_of_zero_is_none(outputs: Path, tmp_path: Path, verify: Verify) -> None:
    near = forge(
        outputs, tmp_path / "near" / "b.zip", lambda rows: rows[2].update({ACCURACY: rows[2][ACCURACY] + 0.004})
    )
    assert verify(near, "--cells", 1)[0] == 0
    assert verify(near, "--cells", 1, "--tolerance", 0)[0] == 1


def test_an_objective_of_other_evaluations_is_found(tmp_path: Path, verify: Verify) -> None:
    """Those of the last round are no due ones here. The config may also name another last round than the run had."""
    cfg = composed(
        "algorithm=fedavg",
        "delay=none",
        "executor=loop",
        "threads=1",
        "rounds=3",
        "evaluation.every=2",
        "evaluation.summary=last",
        "evaluation.last=1",
        "evaluation.target=0.1",
    )
    run_in(tmp_path / "outputs" / run_id(cfg), cfg)
    fewer, shorter = (tmp_path / name / "b.zip" for name in ("fewer", "shorter"))
    forge(tmp_path / "outputs", fewer, lambda rows: rows[3].pop(ACCURACY))
    forge(tmp_path / "outputs", shorter, lambda rows: rows[1].update({ACCURACY: 0.99}), rounds=1)
    assert verify(fewer)[0] == verify(shorter)[0] == 0, "all files fit each other"
    code, text = verify(fewer, "--cells", 1)
    assert code == 1 and re.search(r"to the bit\n +DIFFERENT: objective 0\.\d+ there, 0\.\d+ here", text), text
    code, text = verify(changed(tmp_path / "target.zip", fewer, "summary.json", r'_target": \w+', '_target": 77'))
    assert code == 1 and "rounds_to_target in summary.json does not follow" in text
    code, text = verify(shorter, "--cells", 1)
    assert code == 1 and re.search(r"DIFFERENT: 1 of \d+ values, the first test/accuracy in round 1: 0\.99", text), text


def test_other_examples_are_named(bundled: Path, tmp_path: Path, verify: Verify) -> None:
    path = changed(tmp_path / "b.zip", bundled, "partition.csv", r"\d", "77")
    code, text = verify(path, "--cells", 1, "--rounds", 1)
    assert code == 0 and "the clients have other examples: partition.csv differs" in text


def test_what_differs_in_the_environment_is_named(
    bundled: Path, tmp_path: Path, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = contents(bundled)
    for number, name in enumerate(each for each in sorted(files) if each.endswith("commands.jsonl")):
        start = json.loads(files[name])
        start["versions"]["torch"] = "1.0.0"
        start["machine"]["processor"] = "Z80"
        start["machine"]["gpu"] = "an old one"
        start["commit"] = "c" * 40
        if "fedavg-" in name:
            start["code"]["fedlab_runner.algorithms.fedavg"] = "0" * 12
        if number == 0:
            start["versions"]["numpy"] = "\x1b[2J"
        files[name] = json.dumps(start).encode() + b"\n"
    _, text = verify(write(tmp_path / "b.zip", files))
    assert re.search(r"environment torch: 1\.0\.0 there, \d", text)
    assert re.search(r"environment processor: Z80 there, ", text)
    assert re.search(r"environment numpy: .*\(1 run\) there, \d", text)
    assert re.search(r"environment gpu: an old one there, ", text)
    assert f"environment commit: {'c' * 8} there, " in text
    assert "environment code: fedlab_runner.algorithms.fedavg differ (2 runs)" in text
    ours = environment.here()
    monkeypatch.setattr(environment, "here", lambda: ours | {"gpu": "an old one"})
    assert "environment gpu" not in verify(tmp_path / "b.zip")[1]


# Which runs, where, with whose code.


def test_runs_are_drawn_from_all_settings_in_turn(outputs: Path) -> None:
    groups = group(find([outputs]).runs)
    two = [{run.name for run in choose(groups, "2", draw)} for draw in range(20)]
    assert all(len({name.partition("-")[0] for name in names}) == 2 for names in two)
    assert len({frozenset(names) for names in two}) == 4, "another draw, other seeds"
    assert len(choose(groups, "99", 0)) == 4 and choose(groups, "0", 0) == []


def test_the_command_passes_its_draw_on(bundled: Path, verify: Verify, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("fedlab_runner.verify.verification.choose", lambda groups, *how: seen.append(how) or [])
    assert verify(bundled, "--cells", 2, "--draw", 5)[0] == 0 and seen == [("2", 5)]


def test_a_name_that_begins_another_is_that_of_its_run(tmp_path: Path) -> None:
    for seed, name in ((0, "run1"), (1, "run10")):
        write_run(tmp_path, f"seed={seed}", rows=[{ACCURACY: 0.1}]).rename(tmp_path / name)
    groups = group(find([tmp_path]).runs)
    told = {words: [run.name for run in choose(groups, words, 0)] for words in ("run1", "run", "run10,run1,run")}
    assert told == {"run1": ["run1"], "run": ["run1", "run10"], "run10,run1,run": ["run10", "run1"]}


def test_the_time_that_is_told_is_that_of_the_last_round() -> None:
    timings = [{"round": round, "time/wall": 3600.0 * round} for round in range(4)]
    run: Any = SimpleNamespace(done=3, rounds=3, timings=timings)
    assert _size(run, 2) == f"2 rounds, which took {duration(7200)} there"


def test_runs_that_are_kept_are_not_computed_again(bundled: Path, tmp_path: Path, verify: Verify) -> None:
    kept = (bundled, "--cells", "fedavg", "--out", tmp_path / "kept")
    assert verify(*kept, "--rounds", 1)[0] == 0
    (one, _) = sorted((tmp_path / "kept").iterdir())
    before = (one / "metrics.jsonl").read_bytes()
    code, text = verify(*kept)
    assert code == 0 and text.count("equal: each of") == 2
    assert (one / "metrics.jsonl").read_bytes().startswith(before)
    assert len((one / "timings.jsonl").read_text().splitlines()) == 4
    assert len((one / "commands.jsonl").read_text().splitlines()) == 2, "the second start went on"


OWN = """from dataclasses import dataclass
from fedlab_runner.delays.none import NoDelay

@dataclass(frozen=True)
class Mine(NoDelay):
    pass
"""


def test_own_code_is_taken_from_the_folder_that_is_given(
    tmp_path: Path, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own_delay_of_a_bundle.py").write_text(OWN)
    outputs = tmp_path / "outputs"
    cfg = composed("delay=none", "rounds=1", "executor=loop", "threads=1")
    cfg.delay._target_ = "own_delay_of_a_bundle.Mine"
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    import own_delay_of_a_bundle  # type: ignore[import-not-found]  # as the program that runs it has

    assert own_delay_of_a_bundle
    run_in(outputs / run_id(cfg), cfg)
    bundle.write(tmp_path / "b.zip", [outputs])
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, "own_delay_of_a_bundle", raising=False)
    sys.modules.pop("own_delay_of_a_bundle", None)
    sys.path[:] = [each for each in sys.path if each != str(tmp_path / "mine")]
    code, text = verify(tmp_path / "b.zip", "--cells", 1)
    assert code == 1 and "NOT COMPUTED" in text and "own_delay_of_a_bundle" in text
    assert text.count("if it is your own, give --config-dir FOLDER, its folder") == 2
    code, text = verify(tmp_path / "b.zip", "--cells", 1, "--config-dir", tmp_path / "mine")
    assert code == 0 and "equal: each of" in text


def test_the_executor_that_was_chosen_there_computes_here(
    tmp_path: Path, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    """executor=auto notes its choice by machine; another machine takes it over where it has what it needs."""
    cfg = composed("delay=none", "rounds=1", "executor=auto", "threads=1")
    folder = tmp_path / "outputs" / run_id(cfg)
    run_in(folder, cfg)
    notes = checksummed_json.read(folder / "executor.json")
    (kind,) = [kind for each in notes.values() for kind in each["executors"]]
    auto = Auto(30.0, None, True)
    names = {
        "loop": "loop",
        "processes": "processes",
        "cuda_graph executor.chunk_size=1": None,
        "no such thing": None,
    }
    for there, here in names.items():
        path = tmp_path / "theirs.json"
        later = {"executors": {kind: "vectorized executor.chunk_size=null"}}
        path.write_text(checksummed_json.text({"another machine": {"executors": {kind: there}}, "a later one": later}))
        target = tmp_path / there.replace(" ", "_")
        target.mkdir()
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        auto.adopt(path, target)
        found = checksummed_json.read(target / "executor.json") if here else {}
        assert [each["executors"][kind] for each in found.values()] == ([here] if here else []), there
        assert (target / "executor.json").exists() == bool(here)
    (chosen,) = [each["executors"][kind] for each in notes.values()]
    other = "loop" if chosen != "loop" else "processes"
    (folder / "executor.json").write_text(checksummed_json.text({"another machine": {"executors": {kind: other}}}))
    bundle.write(tmp_path / "b.zip", [tmp_path / "outputs"])
    assert verify(tmp_path / "b.zip", "--cells", 1, "--out", tmp_path / "kept")[0] == 0
    (note,) = (tmp_path / "kept").glob("*/executor.json")
    assert [each["executors"] for each in checksummed_json.read(note).values()] == [{kind: other}]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--cells", "nothing"), "--cells must be a number or names of runs with rounds, got 'nothing'"),
        (("--rounds", "-1"), "--rounds must be >= 0, got -1"),
        (("--tolerance", "nan"), "--tolerance must be in [0, 1), got nan"),
        (("--tolerance", "1"), "--tolerance must be in [0, 1), got 1"),
        (("--cells", "00", "--rounds", "1"), "--rounds needs --cells: without it no run is computed again"),
        (("--tolerance", "0.1"), "--tolerance needs --cells: without it no run is computed again"),
        (("--rounds", "0"), "--rounds needs --cells"),
        (("--draw", "0", "--cells", "0"), "--draw needs --cells"),
        (("--out", "there"), "--out needs --cells"),
        (("--config-dir", "."), "--config-dir needs --cells"),
        (("device=cpu",), "device=cpu needs --cells"),
        (("--cells", "1", "--config-dir", "/no/such"), "--config-dir must be a folder, got /no/such"),
        (("--cells", "1", "seed=1"), "seed cannot be set: only keys of device, threads, executor"),
        (("--cells", "1", "logger=wandb"), "logger cannot be set"),
        (("--cells", "1", "dataset=mnist"), "dataset cannot be set"),
        (("--cells", "1", "hydra.run.dir=/x"), "hydra.run.dir cannot be set"),
        (("device",), "cannot read 'device': expected key=value"),
        (("--cells", "1", "executor=lop"), "executor=lop is not a choice: did you mean loop?"),
    ],
)
def test_a_faulty_command_is_one_line(arguments: tuple[str, ...], words: str, bundled: Path, verify: Verify) -> None:
    code, text = verify(bundled, *arguments)
    assert code == 2 and text.splitlines()[-1].startswith("error: ") and words in text


@pytest.mark.parametrize(
    "content",
    [b"[]", b"{", b'{"format": 2}', b'{"format": 1, "experiment": 3, "targets": [], "runs": []}', b"[" * 99, b"\xff"],
)
def test_another_format_is_one_line(content: bytes, bundled: Path, tmp_path: Path, verify: Verify) -> None:
    code, text = verify(write(tmp_path / "b.zip", contents(bundled) | {bundle.ABOUT: content}))
    assert code == 2 and text.count("\n") == 1 and text.startswith("error: bundle.json ")


def test_a_signal_ends_it_with_the_signals_exit_code(
    bundled: Path, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any) -> bool:
        raise Interrupted(signal.SIGTERM)

    monkeypatch.setattr("fedlab_runner.verify.verification.verify", stopped)
    code, text = verify(bundled)
    assert code == 128 + signal.SIGTERM and "the same command begins again" in text


def test_a_bundle_without_runs_is_one_line(bundled: Path, tmp_path: Path, verify: Verify) -> None:
    files = {name: each for name, each in contents(bundled).items() if not name.startswith("outputs/")}
    code, text = verify(write(tmp_path / "b.zip", files))
    assert code == 2 and text.startswith("error: ") and text.endswith("b.zip holds no runs\n")


def test_a_run_that_had_not_begun_cannot_be_drawn(bundled: Path, tmp_path: Path, verify: Verify) -> None:
    files = contents(bundled)
    lost = next(name for name in files if name.endswith("metrics.jsonl"))
    code, text = verify(write(tmp_path / "b.zip", files | {lost: b""}), "--cells", 4)
    assert code == 1 and text.count("equal: each of") == 3 and "run 3/3" in text
