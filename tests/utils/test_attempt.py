"""A run that was killed says so when it is called again: by what, and in which part of which round."""

import os
import re
import signal
from pathlib import Path

import pytest

from fedlab_runner.utils import attempt
from fedlab_runner.utils.attempt import NOTE_FILE, STACK_FILE, Attempt
from tests.helpers.crash import Template

PARTS = {  # and what is called in it: the number of a call in a round of the run's first two
    "local training": (
        "executors.loop",
        "Loop.train_chunk",
        6,
    ),  # some are of the time estimate
    "algorithm": ("algorithms.fedavg", "FedAvg.server_step", 2),
    "evaluation": ("evaluation.evaluator", "Evaluation.evaluate", 2),
    "checkpoint": ("checkpoints.store", "CheckpointStore.save", 1),
}
# What a run executes before it begins: it dies in one of the calls.
DIE = """
import ctypes, importlib, os
module, name, number = {place!r}
owner = importlib.import_module("fedlab_runner." + module)
for part in name.split(".")[:-1]:
    owner = getattr(owner, part)
last, calls = name.rpartition(".")[2], []
real = getattr(owner, last)
def dying(*args, **named):
    calls.append(None)
    if len(calls) == number:
        {act}
    return real(*args, **named)
setattr(owner, last, dying)
"""
SEGV = "ctypes.string_at(0)"
ABORT = "os.abort()"


def said_next(template: Template, folder: Path, part: str, act: str, status: int) -> str:
    """The line of the next attempt about one that dies in a part."""
    ended = template.run(folder, "algorithm=fedavg", code=DIE.format(place=PARTS[part], act=act))
    assert ended.status == status and (folder / NOTE_FILE).is_file(), ended.said
    again = template.run(folder, "algorithm=fedavg")
    assert again.status == 0, again.said
    assert not (folder / NOTE_FILE).exists(), "it came to its end"
    (line,) = [line for line in again.said.splitlines() if "the last attempt" in line]
    return line


@pytest.mark.parametrize("part", PARTS)
def test_where_it_was_killed(part: str, template: Template, tmp_path: Path) -> None:
    line = said_next(template, tmp_path / "run", part, "os.kill(os.getpid(), 9)", -signal.SIGKILL)
    words = r"the last attempt left no reason for its end .*: process \d+ on \S+ in round [12] \(" + part + r"\)$"
    assert re.search(words, line)


@pytest.mark.parametrize("number, act", [(signal.SIGSEGV, SEGV), (signal.SIGABRT, ABORT)], ids=["segv", "abort"])
def test_the_signal_and_the_stack(number: signal.Signals, act: str, template: Template, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    line = said_next(template, folder, "local training", act, -number)
    assert f"was killed by {number.name}: process" in line and "(local training); its stack is in" in line
    assert "in dying" in (folder / STACK_FILE).read_text()


def test_its_last_checkpoint_is_left(template: Template, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code = DIE.format(place=(*PARTS["algorithm"][:2], 4), act=SEGV)
    assert template.run(folder, "algorithm=fedavg", code=code).status == -signal.SIGSEGV
    assert "continues after round 2" in template.run(folder, "algorithm=fedavg").said


@pytest.mark.parametrize("act", ["raise OSError(28, 'No space left on device')", "os.kill(os.getpid(), 2)"])
def test_an_end_that_is_told_leaves_no_note(act: str, template: Template, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ended = template.run(folder, "algorithm=fedavg", code=DIE.format(place=PARTS["evaluation"], act=act))
    assert ended.status > 0 and not (folder / NOTE_FILE).exists(), ended.said
    assert "the last attempt" not in template.run(folder, "algorithm=fedavg").said


def nothing(path: Path) -> None: ...


def garbage(path: Path) -> None:
    path.write_bytes(b"\x1b[31mprocess 1 on x in round 2 (local training)\xff" * 100)


def link(path: Path) -> None:
    path.symlink_to(path.with_name("precious"))


def hard_link(path: Path) -> None:
    path.hardlink_to(path.with_name("precious"))


def folder(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("found", [nothing, garbage, link, hard_link, folder, pipe])
def test_what_is_no_note_is_passed_over(found: object, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert callable(found)
    precious = tmp_path / "precious"
    precious.write_text("process 1 on x in preparation\n" if found is link else "mine")
    before = precious.read_bytes()
    found(tmp_path / NOTE_FILE)
    with Attempt(tmp_path, list):
        attempt.at("evaluation", 3)
        is_note = (tmp_path / NOTE_FILE).is_file()
        assert not is_note or b"round 3 (evaluation)" in (tmp_path / NOTE_FILE).read_bytes()
    assert precious.read_bytes() == before and not caplog.records
    assert is_note == (found is not folder)


def test_a_folder_that_takes_no_note(tmp_path: Path) -> None:
    with Attempt(tmp_path / "none", list):
        attempt.at("evaluation", 1)
    assert not list(tmp_path.iterdir())


def test_a_worker_writes_nothing(tmp_path: Path) -> None:
    with Attempt(tmp_path, list):
        attempt.at("evaluation", 3)
        if not (child := os.fork()):
            attempt.at("local training", 9)
            os._exit(0)
        os.waitpid(child, 0)
        assert b"round 3 (evaluation)" in (tmp_path / NOTE_FILE).read_bytes()


def test_what_the_same_command_does_next(tmp_path: Path) -> None:
    rounds: list[int] = []
    with Attempt(tmp_path, lambda: rounds):
        assert attempt.next_start() == "the same command begins again"
        rounds.append(3)
        assert attempt.next_start() == "the same command continues from the last checkpoint"
    assert attempt.next_start().endswith("continues from the last checkpoint"), "an error is shown after its run"
    with Attempt(tmp_path, list):
        assert attempt.next_start() == "the same command begins again", "another run"
