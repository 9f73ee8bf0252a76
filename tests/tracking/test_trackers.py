"""Trackio and TensorBoard take the same rounds as the run's files, once each, and cannot stop a run."""

import errno
import importlib.util
import json
import logging
import math
import os
import sqlite3
import sys
import threading
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from fedlab_runner.tracking import trackio_run
from fedlab_runner.tracking.label import Label
from fedlab_runner.tracking.logger import Logger, TensorboardLogger, TrackioLogger
from fedlab_runner.tracking.recorder import Recorder
from fedlab_runner.tracking.service_calls import ServiceCalls, need
from fedlab_runner.tracking.tensorboard_run import TensorboardTracker
from fedlab_runner.utils.errors import UserError

LABEL = Label("FedAvg seed=3", "FedAvg", ("dataset=digits",), "FedAvg 1a2b", {"choices": {"algorithm": "fedavg"}})


def record(folder: Path, logger: Logger, start: int, rounds: int = 4) -> list[dict[str, Any]]:
    """A session of a run from a round on: its rows on file."""
    Image.new("RGB", (4, 4)).save(folder / "picture.png")
    how: dict[str, Any] = {"run_id": "fedavg-1", "config": {"seed": 3}, "rounds": rounds, "commit": "c0ffee"}
    with Recorder(folder / "run", logger, label=LABEL, show_summary=False, **how) as recorder:
        recorder.start(start)
        recorder.table("partition", ["client", "note"], [[0, "a|b"], [1, None]])
        for round in range(start + 1, rounds + 1):
            recorder.log(round, {"test/accuracy": round / 7, "late/staleness_count/3": 1.0}, {"time/wall": 0.5})
        recorder.image("curves", folder / "picture.png")
        recorder.finish({"objective": 0.5, "metric": "test/accuracy"})
        return recorder.rows()


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    logger = TensorboardLogger(False, None, False, str(tmp_path / "events"))
    record(tmp_path, logger, -1, 3)
    rows = record(tmp_path, logger, 2)
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    assert len(list((tmp_path / "events" / "fedavg-1").iterdir())) == 1, "a continued run has one file"
    found = accumulator.EventAccumulator(str(tmp_path / "events" / "fedavg-1")).Reload()
    tags = found.Tags()
    assert set(tags["scalars"]) == {"test/accuracy", "time/wall", "summary/objective"}
    points = [(one.step, one.value) for one in found.Scalars("test/accuracy")]
    assert [step for step, _ in points] == [row["round"] for row in rows]
    assert all(
        math.isclose(value, row["test/accuracy"], rel_tol=1e-6) for (_, value), row in zip(points, rows, strict=True)
    )
    assert tags["images"] == ["curves"]
    assert [one.step for one in found.Scalars("summary/objective")] == [rows[-1]["round"]]
    assert {"about", "config", "partition", "summary"} <= {tag.partition("/")[0] for tag in tags["tensors"]}


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("trackio") is None:
        pytest.skip("needs the extra trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # which the run sets before it imports Trackio
    logger = TrackioLogger(False, None, False, "tests", None, str(tmp_path / "trackio"))
    record(tmp_path, logger, -1, 3)
    rows = record(tmp_path, logger, 2)
    with sqlite3.connect(next((tmp_path / "trackio").glob("*.db"))) as base:
        logged = [(step, json.loads(text)) for step, text in base.execute("select step, metrics from metrics")]
        ((config,),) = base.execute("select config from configs")
    accuracies = [(step, values["test/accuracy"]) for step, values in logged if "test/accuracy" in values]
    assert sorted(accuracies) == [(row["round"], row["test/accuracy"]) for row in rows], "each round once"
    keys = set().union(*(values for _, values in logged))
    assert [step for step, values in logged if "partition" in values] == [3], "with the next round"
    assert {"time/wall", "partition", "curves", "summary/objective"} <= keys
    assert not any(key.startswith("late/staleness_count") for key in keys)
    about = json.loads(config)
    assert (about["seed"], about["_Group"], about["commit"]) == (3, "FedAvg 1a2b", "c0ffee")
    assert about["choices"] == {"algorithm": "fedavg"}


def test_trackio_replaces_the_run_of_this_id_whatever_its_name_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name for people follows the order of the overrides."""
    left = ["seed=3 FedAvg (fedavg-1)", "fedavg-1", "FedAvg (fedavg-12)", "FedAvg (other-fedavg-1)"]
    runs = [SimpleNamespace(name=name, delete=partial(left.remove, name)) for name in left]
    fake = SimpleNamespace(Api=lambda: SimpleNamespace(runs=lambda project: runs), init=lambda **_: None)
    monkeypatch.setattr(trackio_run, "need", lambda *_: None)
    monkeypatch.setitem(sys.modules, "trackio", fake)  # type: ignore[arg-type]  # what of the module is called
    monkeypatch.setenv("TRACKIO_DIR", "")  # which the run sets
    logger = TrackioLogger(False, None, False, "tests", None, str(tmp_path))
    tracker = trackio_run.TrackioTracker(logger, run_id="fedavg-1", config={}, label=LABEL, commit=None)
    tracker.start([])
    tracker.finish(0)
    assert left == ["FedAvg (fedavg-12)", "FedAvg (other-fedavg-1)"]


def test_commands_are_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(trackio_run, "need", lambda *_: None)
    monkeypatch.setattr(trackio_run.TrackioTracker, "_open", lambda self: SimpleNamespace())
    monkeypatch.setattr(trackio_run, "_close", lambda run: None)
    logger = TrackioLogger(False, None, False, "my tests", None, str(tmp_path / "my runs"))
    tracker = trackio_run.TrackioTracker(logger, run_id="a", config={}, label=LABEL, commit=None)
    tracker.start([])
    tracker.finish(0)
    command = f"TRACKIO_DIR='{tmp_path}/my runs' trackio show --project 'my tests'"
    assert caplog.messages == [f"Trackio: `{command}` shows all runs"]


def test_a_missing_extra_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='logger=trackio needs an extra: pip install "fedlab-runner'):
        need("there_is_no_such_package", "trackio")


def test_a_failure_is_told_once_and_does_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trackio_run, "need", lambda *_: None)
    monkeypatch.setattr(trackio_run.TrackioTracker, "_open", lambda self: 1 / 0)
    with caplog.at_level(logging.WARNING):
        rows = record(tmp_path, TrackioLogger(False, None, False, "tests", None, str(tmp_path)), -1)
    assert len(rows) == 5
    assert caplog.messages == [
        f"Trackio in {tmp_path} could not be started (division by zero): the run's own files are not affected"
    ]
    call = ServiceCalls("A service")
    for _ in range(2):
        assert call(lambda: [][0], "did not take it") is None
    assert len(caplog.messages) == 2


def test_a_full_disk_is_one_line_of_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its thread ended in a traceback. Errors of other threads are shown as before."""
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    caplog.set_level(logging.WARNING, "fedlab_runner")
    others = list[threading.ExceptHookArgs]()
    monkeypatch.setattr(threading, "excepthook", others.append)
    writer: Any = importlib.import_module("tensorboard.summary.writer.record_writer").RecordWriter
    monkeypatch.setattr(writer, "write", full)
    tracker = TensorboardTracker(
        TensorboardLogger(False, None, False, str(tmp_path)), run_id="a", config={}, label=LABEL, commit=None
    )
    tracker.start([{"round": 0, "test/accuracy": 0.5}])
    other = threading.Thread(target=lambda: 1 / 0)
    other.start()
    other.join()
    tracker.finish(0)
    assert [one.exc_type for one in others] == [ZeroDivisionError] and threading.excepthook == others.append
    told = f"TensorBoard in {tmp_path}/a did not take a round ([Errno 28] No space left on device)"
    assert caplog.messages == [f"{told}: the run's own files are not affected"]


def test_what_trackio_warns_of_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It says with warnings alone that its folder is full or read-only, in each run of a process, where Python shows a
    warning once. Warnings of others are shown as before.
    """
    pytest.importorskip("trackio", reason="needs the extra trackio")

    seen: dict[str, dict[Any, Any]] = {"trackio": {}, "other": {}}

    def write(values: dict[str, Any], step: int) -> None:
        print("* Trackio's line")
        for name, shown in seen.items():
            words, file = f"Read-only file system: {step}", f"/python/{name}/utils.py"
            warnings.warn_explicit(words, UserWarning, file, 1, f"{name}.utils", shown)

    caplog.set_level(logging.WARNING, "fedlab_runner")
    console = logging.StreamHandler(sys.stdout)
    monkeypatch.setattr(console, "emit", lambda record: print(record.getMessage()))  # on the output of the moment
    monkeypatch.setattr(logging.getLogger("fedlab_runner"), "handlers", [console])
    monkeypatch.setattr(trackio_run, "need", lambda *_: None)
    monkeypatch.setattr(trackio_run.TrackioTracker, "_open", lambda self: SimpleNamespace(log=write))
    monkeypatch.setattr(trackio_run, "_close", lambda run: None)
    others = list[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        monkeypatch.setattr(warnings, "showwarning", lambda message, category, file, *_: others.append(file))
        before = warnings.showwarning
        for _ in range(2):
            record(tmp_path, TrackioLogger(False, None, False, "tests", None, str(tmp_path)), -1, 1)
        assert warnings.showwarning == before and set(others) == {"/python/other/utils.py"}
    told = (
        f"Trackio in {tmp_path} did not take a round (Read-only file system: 0): the run's own files are not affected"
    )
    assert caplog.messages == [told, told]
    assert capsys.readouterr().out == f"{told}\n" * 2, "neither Trackio's own lines nor silence"
