"""The note of the error that ended a run: when a folder has one, what it says, and what a report makes of it."""

import logging
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from fedlab_runner.algorithms.fedavg import FedAvg
from fedlab_runner.experiment import failure
from fedlab_runner.experiment.failure import NOTE_FILE, noted, read
from fedlab_runner.experiment.lock import RunLock
from fedlab_runner.experiment.run import run_in, run_whole
from fedlab_runner.report.folders import find
from fedlab_runner.report.runs import Run
from fedlab_runner.sweep import states
from fedlab_runner.utils.errors import Diverged, Interrupted, Pruned, RunFailed, UserError
from tests.helpers.composed import composed
from tests.helpers.in_process import own_handlers

DIVERGES = ("algorithm=fedavg", "rounds=20", "evaluation.every=1", "local.lr=1e38", "delay=none")


def raising(error: BaseException, *args: object) -> None:
    raise error


def reported(folder: Path) -> Run:
    """The run as a report sees it, which knows it by its `.hydra`."""
    (folder / ".hydra").mkdir(exist_ok=True)
    (run,) = find([folder]).runs
    return run


@pytest.mark.parametrize("run", [run_in, run_whole])
def test_a_failed_run_says_why_in_its_folder_until_it_goes_on(
    run: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The line names the folder in which `nonfinite=drop` continues. A start removes the note."""
    folder = tmp_path / "run"
    with pytest.raises(Diverged) as error:
        run(folder, composed(*DIVERGES))
    told = str(error.value)
    assert told.endswith(f"with hydra.run.dir={folder}") and "this run's folder" not in told
    (logged,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert (logged.getMessage(), hasattr(logged, "file_only")) == (told, True)
    assert (reported(folder).state, reported(folder).error) == (states.FAILED, told)
    with monkeypatch.context() as stopping, pytest.raises(Interrupted):
        stopping.setattr(FedAvg, "round", lambda *_: raising(Interrupted(2)))
        run(folder, composed(*DIVERGES, "nonfinite=drop"))
    assert not (folder / NOTE_FILE).exists() and reported(folder).state == states.UNFINISHED
    run(folder, composed(*DIVERGES, "nonfinite=drop"))
    assert not (folder / NOTE_FILE).exists() and reported(folder).state == states.FINISHED


TIMED_OUT = type("UncompletedJobError", (RuntimeError,), {"__module__": "submitit.core.utils"})  # as submitit's


@pytest.mark.parametrize(("end", "line"), [(SystemExit(3), r".*sys\.exit, code 3"), (TIMED_OUT(), "the job timed out")])
@pytest.mark.parametrize("run", [run_in, run_whole])
def test_the_line_of_an_error_is_that_of_the_note(
    run: Callable[..., object], end: BaseException, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Own code that ends the process, and submitit's error, end the run as failed."""
    monkeypatch.setattr(FedAvg, "round", lambda *_: raising(end))
    with pytest.raises(RunFailed, match=f"^{line}") as error:
        run(tmp_path, composed("algorithm=fedavg", "rounds=1", "delay=none"))
    assert read(tmp_path) == str(error.value)


def test_what_a_compiler_prints_fills_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has it."""
    printed = RuntimeError("C++ compile error: " + "note: declared here " * 10_000)
    monkeypatch.setattr(FedAvg, "round", lambda *_: raising(printed))
    with pytest.raises(RuntimeError):
        run_in(tmp_path, composed("algorithm=fedavg", "rounds=1", "delay=none"))
    noted = read(tmp_path) or ""
    assert noted.startswith("RuntimeError('C++ compile error: note") and noted.endswith("... (all of it: train.log)")
    assert len(noted) < 600


def test_a_job_of_a_sweep_is_told_to_leave_out_m(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With which `hydra.run.dir` is an error."""
    monkeypatch.setenv("FEDLAB_SWEEP_FOLDER", str(tmp_path / "sweeps" / "a"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Diverged, match=r"continues from here with hydra\.run\.dir='a run' and without -m$"):
        run_in(tmp_path / "a run", composed(*DIVERGES))


def test_an_unknown_metric_is_refused_before_there_are_rows_and_a_tracker(tmp_path: Path) -> None:
    wandb = ("logger=wandb", "logger.mode=offline", f"logger.dir={tmp_path}")
    with pytest.raises(UserError, match=r"^evaluation\.metric must be one of"):
        run_in(tmp_path / "run", composed("evaluation.metric=test/acc", *wandb))
    assert not (tmp_path / "wandb").exists() and not (tmp_path / "run" / "metrics.jsonl").exists()
    run = reported(tmp_path / "run")
    assert run.status == "failed: evaluation.metric must be one of test/accuracy, test/loss, got test/acc"


def no_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "write_text_atomically", partial(raising, OSError(28, "No space left on device")))


def other_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.rename(folder.with_name("moved"))
    folder.mkdir()
    (folder / "theirs").touch()


@pytest.mark.parametrize("breaking", [no_room, other_folder])
def test_a_note_that_cannot_be_written_does_not_hide_the_error(
    breaking: Callable[[Path, pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it written into a folder that has taken the place of the run's."""
    folder = tmp_path / "run"
    with pytest.raises(RunFailed, match=r"^first$"), RunLock(folder) as lock, noted(folder, lock):
        breaking(folder, monkeypatch)
        raise RunFailed("first")
    assert read(folder) is None


def test_an_end_that_is_no_failure_leaves_no_note(tmp_path: Path) -> None:
    requeue = subprocess.CalledProcessError(-15, ["scontrol", "requeue", "6"])
    for end in (KeyboardInterrupt(), Interrupted(15), Pruned(1, 0.5, "behind"), requeue):
        with pytest.raises(type(end)), RunLock(tmp_path) as lock, noted(tmp_path, lock):
            raise end
        assert not (tmp_path / NOTE_FILE).exists(), end


def test_a_bug_has_its_traceback_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(IndexError), RunLock(tmp_path) as lock, noted(tmp_path, lock):
        raise IndexError("a bug")
    assert "Traceback" in caplog.text and read(tmp_path) == "IndexError('a bug')"


@pytest.mark.parametrize("handlers", [list, lambda: [logging.StreamHandler()]], ids=["none", "stderr"])
def test_a_program_that_catches_an_error_prints_nothing_of_it(
    handlers: Callable[[], list[logging.Handler]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From Python the log has no file of the run."""
    with own_handlers():
        logging.root.handlers[:] = handlers()
        with pytest.raises(IndexError), RunLock(tmp_path) as lock, noted(tmp_path, lock):
            raise IndexError("a bug")
    assert capsys.readouterr().err == "" and read(tmp_path) == "IndexError('a bug')"


@pytest.mark.parametrize("content", ["", '{"error": 5}', "[]", "\x00"])
def test_a_note_that_cannot_be_read_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / NOTE_FILE).write_text(content)
    assert read(tmp_path) is None
