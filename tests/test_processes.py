"""Worker processes: the inner executor's bits, whatever happens to a worker, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from composed import composed
from torch import Tensor
from toy import RAGGED, federation, normed

from fedlab_runner.config import build
from fedlab_runner.errors import UserError
from fedlab_runner.executors import processes
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.pieces import InPieces
from fedlab_runner.executors.processes import Processes
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.federation import Cohort, Federation

LOOP = Loop(compile=False)


def train(fed: Federation, start: Tensor | None = None, **how: Any) -> tuple[Tensor, Tensor]:
    cohort = Cohort(fed, np.arange(len(RAGGED)), due=np.zeros(len(RAGGED), np.int64))
    y = cohort.train(fed.task.init(0) if start is None else start, **how)
    assert cohort.last_loss is not None
    return y, cohort.last_loss


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The workers of a test; other tests may have left processes of their own."""
    fork, pids = os.fork, list[int]()

    def noted() -> int:
        pid = fork()
        pids.append(pid)
        return pid

    monkeypatch.setattr(os, "fork", noted)
    return pids


def is_gone(pid: int) -> bool:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def nobody_is_left(forked: list[int]) -> bool:
    """No worker is there but those that have reported, which the next round collects."""
    while processes._ending:
        os.waitpid(processes._ending.pop(), 0)
    return all([is_gone(pid) for pid in forked])


@pytest.mark.parametrize("workers", [1, 2, 5, 50])
@pytest.mark.parametrize("inner", [LOOP, Vectorized(chunk_size=3, compile=False)])
def test_the_bits_are_the_inner_executors(inner: InPieces, workers: int, forked: list[int]) -> None:
    """With closures over tensors, which the workers were never sent."""
    shared, own = federation(build=normed).task.init(1), torch.linspace(0.1, 0.5, len(RAGGED), dtype=torch.float64)
    how: dict[str, Any] = {"correct": lambda g, pull: g - pull * shared[: len(g)], "per_client": (own,)}
    expected = train(federation(executor=inner, build=normed), **how)
    result = train(federation(executor=Processes(workers, inner), build=normed), **how)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(result, expected, strict=True))
    assert nobody_is_left(forked)


def test_more_pieces_than_tickets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MOST_TICKETS", 3)
    expected = train(federation())
    assert torch.equal(train(federation(executor=Processes(2, LOOP)))[0], expected[0])


def in_workers_only(act: Callable[[], object]) -> Callable[..., Tensor]:
    """A correction that changes nothing, but for what a worker does in it."""
    parent = os.getpid()

    def correct(g: Tensor) -> Tensor:
        if os.getpid() != parent:
            act()
        else:
            time.sleep(0.01)  # so that the workers get something to do
        return g

    return correct


def test_what_dead_workers_leave_is_trained_again(caplog: pytest.LogCaptureFixture, forked: list[int]) -> None:
    kill = in_workers_only(lambda: os.kill(os.getpid(), signal.SIGKILL))
    result = train(federation(executor=Processes(3, LOOP)), correct=kill)
    assert torch.equal(result[0], train(federation())[0])
    assert "ended early (signal 9)" in caplog.text and "are trained again" in caplog.text and nobody_is_left(forked)


def test_a_worker_that_stands_still_is_given_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, forked: list[int]
) -> None:
    monkeypatch.setattr(processes, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(processes, "STUCK_SECONDS", 0.2)
    result = train(federation(executor=Processes(2, LOOP)), correct=in_workers_only(lambda: time.sleep(60)))
    assert torch.equal(result[0], train(federation())[0])
    assert "has stood still" in caplog.text and nobody_is_left(forked)


def test_an_error_in_a_workers_share_is_the_callers(caplog: pytest.LogCaptureFixture, forked: list[int]) -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        raise ArithmeticError("no such loss")

    with pytest.raises(ArithmeticError, match="no such loss"):
        train(federation(executor=Processes(3, LOOP)), loss=loss)
    assert nobody_is_left(forked)


PROGRAM = """
import os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job begins with it ignored
from toy import federation
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import Processes
from test_processes import train
PARENT = os.getpid()
def correct(g):
    if os.getpid() != PARENT:  # which also counts the operations of a step, before the others are there
        os.write(1, b"at work\\n")
        time.sleep(60)
    return g
train(federation(executor=Processes(3, Loop(compile=False))), correct=correct)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_its_parent(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=Path(__file__).parent,
    )
    assert process.stdout is not None
    for _ in range(2):  # the third worker is the parent
        assert process.stdout.readline() == b"at work\n"
    process.send_signal(number)
    assert process.wait(30) != 0
    deadline = time.monotonic() + 30
    with pytest.raises(ProcessLookupError):  # the group is empty
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.05)
    process.stdout.close()


def test_bad_values() -> None:
    with pytest.raises(ValueError, match=r"^workers must be >= 1 or null, got 0$"):
        Processes(0, LOOP)
    with pytest.raises(ValueError, match=r"^inner must be loop or vectorized, got processes$"):
        Processes(2, Processes(2, LOOP))  # type: ignore[arg-type]


def test_a_gpu_is_refused_in_one_line() -> None:
    work: Any = SimpleNamespace(task=SimpleNamespace(device=torch.device("cuda")))
    with pytest.raises(UserError, match=r"^executor=processes needs device=cpu, got cuda: take loop or vectorized$"):
        Processes(2, LOOP).train(work)


def test_the_command_line_chooses_what_workers_do() -> None:
    assert build(composed("executor=processes")).executor == Processes(None, LOOP)
    words = ("executor=processes", "executor.workers=2", "+executor@executor.inner=vectorized")
    assert build(composed(*words)).executor == Processes(2, Vectorized(chunk_size=10, compile=False))
