"""Mutual learning shared among processes: the bits of one process, and no less when a worker dies."""

import os
import signal
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedlab_runner.algorithms.shared import mutual_learning as mutual_learning_module
from fedlab_runner.executors._fork import processes as fork_processes
from fedlab_runner.executors._fork.lockstep import SharedRows, in_step
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import Processes
from tests.helpers.mixed import KINDS
from tests.helpers.mutual import learnt
from tests.helpers.toy import local, mlp

LOOP = Loop(compile=False)


@pytest.fixture(autouse=True)
def _worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutual_learning_module, "MIN_SHARED_SECONDS", 0.0)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The workers of a test."""
    fork, pids = os.fork, list[int]()

    def noted() -> int:
        pids.append(fork())
        return pids[-1]

    monkeypatch.setattr(os, "fork", noted)
    return pids


def shared(workers: int, **how: Any) -> tuple[list[Tensor], float]:
    return learnt(Processes(workers, LOOP), **how)


# A product of the single example of client 2's last minibatch depends on where the model begins in memory.
ONE_EXAMPLE = {"builds": (mlp,), "sizes": (5, 5, 9, 5, 5), "training": local(batch_size=4)}


@pytest.mark.parametrize("workers", [2, 3, 20])
@pytest.mark.parametrize("how", [{}, {"taught": True}, ONE_EXAMPLE])
def test_the_bits_are_those_of_one_process(how: dict[str, Any], workers: int, forked: list[int]) -> None:
    expected, operations = shared(1, **how)
    assert not forked
    found, counted = shared(workers, **how)
    assert forked and all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
    assert counted == operations
    for pid in forked:
        with pytest.raises(ChildProcessError):  # it has been waited for
            os.waitpid(pid, os.WNOHANG)


def in_workers_only(act: Any) -> Any:
    parent = os.getpid()
    return lambda: act() if os.getpid() != parent else None


@pytest.mark.parametrize("end", ["killed", "error", "hangs"])
def test_what_a_dead_worker_leaves_is_learnt_again(
    end: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def act() -> None:
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        assert end != "error", "of the worker's own"
        time.sleep(60)

    monkeypatch.setattr(fork_processes, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(fork_processes, "STUCK_SECONDS", 0.5)
    expected, _ = shared(1)
    found, _ = shared(3, act=in_workers_only(act))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
    said = {"killed": "was killed by SIGKILL", "error": "of the worker's own", "hangs": "has stood still"}
    assert said[end] in caplog.text and "done again in one process" in caplog.text


def test_an_error_of_the_objective_is_the_callers(forked: list[int]) -> None:
    def act() -> None:
        raise ArithmeticError("no such loss")

    with pytest.raises(ArithmeticError, match="no such loss"):
        shared(2, act=act)
    assert forked


def test_dropout_draws_from_one_stream_in_one_process(forked: list[int]) -> None:
    builds = (*KINDS[:2], lambda: nn.Sequential(mlp(), nn.Dropout(0.1)))
    shared(3, builds=builds)
    assert not forked


def test_what_takes_no_time_is_not_shared(forked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutual_learning_module, "MIN_SHARED_SECONDS", 1.0)
    shared(3)
    assert not forked


@pytest.mark.parametrize(("threads", "forks"), [(1, 1), (2, 0)])
def test_processes_leave_large_models_to_threads(
    threads: int, forks: int, forked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutual_learning_module, "MIN_SHARED_FLOPS", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        shared(2)
    finally:
        torch.set_num_threads(before)
    assert len(forked) == forks


def test_each_part_reads_what_all_have_written_in_its_step() -> None:
    parts, steps = 3, 200
    seen = torch.zeros(parts, steps, parts).share_memory_()

    def run(part: int, table: SharedRows) -> None:
        for step in range(steps):
            mine = torch.full((1, 1 + step % 2), float(100 * step + part))
            seen[part, step] = table.complete(torch.tensor([part]), mine)[:, -1]

    assert in_step(parts, (parts, 2), torch.float32, run)
    expected = 100.0 * torch.arange(steps).unsqueeze(1) + torch.arange(parts)
    assert torch.equal(seen, expected.expand(parts, -1, -1))
