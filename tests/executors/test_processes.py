"""Worker processes: the inner executor's bits, whatever happens to a worker, and nothing left behind."""

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedlab_runner.config.build import build
from fedlab_runner.core.client_state import RowRef
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.federation import Federation
from fedlab_runner.executors import graphs, processes
from fedlab_runner.executors._chunks import ChunkedExecutor
from fedlab_runner.executors._fork import pool
from fedlab_runner.executors._fork import processes as fork_processes
from fedlab_runner.executors._fork.buffers import Arena, Buffer
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import Processes
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.utils.errors import UserError
from tests.executors.test_contract import dropping
from tests.helpers.added import ADDED, corrected, data, draws, scaled
from tests.helpers.composed import composed
from tests.helpers.paths import ROOT
from tests.helpers.toy import RAGGED, asked, federation, home, mlp, normed

LOOP = Loop(compile=False)


def train(fed: Federation, start: Tensor | None = None, **how: Any) -> tuple[Tensor, Tensor]:
    cohort = fed.cohort(np.arange(len(RAGGED)))
    y = cohort.train(fed.family.init(0) if start is None else start, **how)
    assert cohort.last_loss is not None
    return y, cohort.last_loss


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The workers of a test; others may have left processes of their own, and more memory than workers may keep."""
    monkeypatch.setattr(processes, "KEPT_BYTES", float("inf"))
    monkeypatch.setattr(processes, "SHARED", Buffer(shared=True))
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
    processes.dismiss()
    pool.collect()
    return all([is_gone(pid) for pid in forked])


@pytest.mark.parametrize("workers", [1, 2, 5, 50])
@pytest.mark.parametrize("inner", [LOOP, Vectorized(chunk_size=3, compile=False)])
def test_the_bits_are_the_inner_executors(inner: ChunkedExecutor, workers: int, forked: list[int]) -> None:
    """With closures over tensors, which the workers were never sent."""
    shared, own = federation(build=normed).family.init(1)[0], torch.linspace(0.1, 0.5, len(RAGGED), dtype=torch.float64)
    how: dict[str, Any] = {"correct": lambda g, pull: g - pull * shared, "per_client": (own,)}
    expected = train(federation(executor=inner, build=normed), **how)
    result = train(federation(executor=Processes(workers, inner), build=normed), **how)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(result, expected, strict=True))
    assert nobody_is_left(forked)


@pytest.mark.parametrize("inner", [Loop(compile=True), Vectorized(chunk_size=3, compile=True)])
@pytest.mark.parametrize("build", [normed, dropping, mlp])
def test_no_fork_is_left_to_compile(
    build: Callable[[], nn.Module], inner: ChunkedExecutor, forked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each size of a minibatch, and more, may need a graph of its own."""
    monkeypatch.setattr(graphs, "graph_of", lambda step, **_: step)
    how: dict[str, Any] = {"correct": lambda g: 2 * g} if build is mlp else {}
    expected = train(federation(executor=inner, build=build), **how)
    result = train(federation(executor=Processes(2, inner), build=build), **how)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(result, expected, strict=True))
    assert not forked


def rounds(executor: Executor, cohorts: Sequence[Sequence[int]], **how: Any) -> list[Tensor]:
    """The models of cohorts in rounds of their own, each trained from the mean of those before."""
    fed = federation(executor=executor, **how)
    w, found, losses = fed.family.init(0), [], list[tuple[Tensor, Tensor]]()
    for round, ids in enumerate(cohorts):
        fed.begin(round, 1.0 / (1 + round))
        cohort = asked(fed, ids)
        y = cohort.train(w)
        assert cohort.last_loss is not None
        w = y.mean(0)
        found.append(y.clone())
        losses.append((cohort.last_loss, cohort.last_loss.clone()))
        del y  # the memory of a cohort's models is used again
    assert all(torch.equal(kept, then) for kept, then in losses), "later rounds have written over losses"
    return found


COHORTS = [[0, 1, 2, 3, 4], [5, 6, 7], [7, 1, 3, 0, 2], [4], [2, 3, 4, 5, 6, 7, 0, 1], [1, 0]]


@pytest.mark.parametrize("inner", [LOOP, Vectorized(chunk_size=2, compile=False)])
@pytest.mark.parametrize("build", [mlp, normed])
def test_workers_stay_for_plain_training(
    build: Callable[[], nn.Module], inner: ChunkedExecutor, forked: list[int]
) -> None:
    """In rounds of other clients, learning rates and starts, with fewer and with more clients than before."""
    expected = rounds(inner, COHORTS, build=build)
    found = rounds(Processes(3, inner), COHORTS, build=build)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
    assert len(forked) == 4, "two for the first cohort, two more for the first larger one"
    assert nobody_is_left(forked)


@pytest.mark.parametrize("inner", [LOOP, Vectorized(chunk_size=2, compile=False)])
@pytest.mark.parametrize("kept", ["head", "body", "norm"])
def test_workers_stay_where_clients_keep_something_at_home(
    kept: str, inner: ChunkedExecutor, forked: list[int]
) -> None:
    """Also where clients train again, and where what they keep is at several places of a model."""
    how: dict[str, Any] = {"home": home(kept), "build": normed}
    expected = rounds(inner, COHORTS, **how)
    found = rounds(Processes(3, inner), COHORTS, **how)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
    assert len(forked) == 4, "as where they keep nothing"
    assert nobody_is_left(forked)


@pytest.mark.parametrize("inner", [LOOP, Vectorized(chunk_size=2, compile=False)])
def test_workers_stay_for_what_algorithms_add(inner: ChunkedExecutor, forked: list[int]) -> None:
    """Functions of this module, with data that changes from round to round; each kind of work in turns."""

    def several(executor: Executor) -> list[Tensor]:
        fed, found = federation(executor=executor, build=normed), list[Tensor]()
        for round, ids in enumerate(COHORTS[:3] * 2):
            fed.begin(round, 1.0 / (1 + round))
            x, cohort = fed.family.init(round), asked(fed, ids)
            pulled = cohort.train(x, **ADDED["all"], **data(fed, len(ids), 0.1 * round))
            drawn = cohort.train(pulled, loss=scaled, per_step=draws, common=(x.new_tensor(0.5),))
            found += [pulled.clone(), drawn.clone()]
            del pulled, drawn  # the memory of a cohort's models is used again
            found += [cohort.train(x, frozen=("0.weight",)).clone(), cohort.gradients(x).clone()]
        return found

    expected = several(inner)
    found = several(Processes(3, inner))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
    assert len(forked) == 4, "two, and two more who know the second block of memory"
    assert nobody_is_left(forked)


def test_workers_read_stacked_rows_where_they_lie(monkeypatch: pytest.MonkeyPatch, forked: list[int]) -> None:
    """No copy of the clients' own rows is made for them, nor of models that they have trained."""
    sent = list[tuple[int, ...]]()
    room = Arena.room

    def noted(self: Arena, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[int, Tensor]:
        sent.append(shape)
        return room(self, shape, dtype)

    monkeypatch.setattr(Arena, "room", noted)

    def several(executor: Executor) -> list[Tensor]:
        fed, found, rows = federation(executor=executor), list[Tensor](), dict[int, RowRef]()
        x = fed.family.init(0)
        for round, ids in enumerate(COHORTS[:3]):
            fed.begin(round, 1.0)
            cohort = asked(fed, ids)
            store = cohort.row_store("device", len(x))
            own = store.stacked(rows, ids, x)
            y = cohort.train(own, correct=corrected, per_client=(own,), common=(x, x.new_tensor(0.1)))
            found += [y.clone(), cohort.train(y).clone()]
            store.replace_all(rows, ids, y)
            del own, y  # the memory is used again
        return found

    expected = several(LOOP)
    assert all(map(torch.equal, several(Processes(3, LOOP)), expected))
    assert sent and all(len(shape) < 2 for shape in sent) and nobody_is_left(forked)


def test_workers_get_what_they_do_not_know_when_it_comes_again(forked: list[int]) -> None:
    """The clients' data of a second training is new to them; of data that is drawn again in each round they get the
    numbers of the examples.
    """
    fed = federation(executor=Processes(2, LOOP))
    x, counts = fed.family.init(0), []
    for round in range(4):
        fed.begin(round, 1.0)
        cohort = asked(fed, [1, 2, 3])
        expected = asked(federation(), [1, 2, 3]).train(x) if round == 0 else None
        first = cohort.train(x)
        assert expected is None or torch.equal(first, expected)
        del first
        cohort.again(fed.local).train(x)
        counts.append(len(forked))
    assert counts == [2, 3, 3, 3], "workers, some for the unknown, and such as know both"
    alone = federation()
    alone.begin(3, 1.0)
    some, expected = (asked(each, [1, 2, 3]).again(each.local, 0.5).train(x) for each in (fed, alone))
    assert torch.equal(some, expected) and len(forked) == 3 and nobody_is_left(forked)


def test_what_is_too_large_to_be_sent_is_forked(monkeypatch: pytest.MonkeyPatch, forked: list[int]) -> None:
    monkeypatch.setattr(processes, "MAX_SENT_BYTES", 100)
    found = rounds(Processes(2, LOOP), COHORTS[:2])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, rounds(LOOP, COHORTS[:2]), strict=True))
    assert len(forked) == 2 and nobody_is_left(forked)


def test_waiting_workers_take_work_with_another_home(forked: list[int]) -> None:
    """The same clients train with what they keep at home, and then without."""

    def twice(executor: Executor) -> list[Tensor]:
        fed = federation(executor=executor, home=home("head"))
        start, cohort = fed.family.init(0), asked(fed, [1, 2])
        return [each.train(start).clone() for each in (cohort, cohort, cohort.alone())]

    found, expected = twice(Processes(2, LOOP)), twice(LOOP)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
    assert len(forked) == 1 and nobody_is_left(forked)


def test_a_cohort_whose_models_are_kept_takes_nothing_from_the_next(forked: list[int]) -> None:
    fed = federation(executor=Processes(2, LOOP))
    first, _ = train(fed)
    kept = first.clone()
    fed.begin(1, 0.5)
    second, _ = train(fed)
    assert torch.equal(first, kept) and not torch.equal(first, second)
    assert len(forked) == 2 and nobody_is_left(forked)


def test_waiting_workers_that_die_are_replaced(forked: list[int], caplog: pytest.LogCaptureFixture) -> None:
    expected = rounds(LOOP, COHORTS[:1] * 3)
    fed, w = federation(executor=Processes(3, LOOP)), federation().family.init(0)
    for round in range(3):
        fed.begin(round, 1.0 / (1 + round))
        y = fed.cohort(np.arange(5)).train(w)
        assert torch.equal(y, expected[round])
        w = y.mean(0)
        del y
        os.kill(forked[-1], signal.SIGKILL)
        os.waitid(os.P_PID, forked[-1], os.WEXITED | os.WNOWAIT)  # its line is closed by then
    assert len(forked) == 6 and nobody_is_left(forked) and "trained again" not in caplog.text


def test_workers_go_with_the_clients(forked: list[int]) -> None:
    fed = federation(executor=Processes(3, LOOP))
    train(fed)
    assert len(forked) == 2 and not any(is_gone(pid) for pid in forked)
    del fed
    gc.collect()
    pool.collect()
    assert all(is_gone(pid) for pid in forked)


@pytest.mark.parametrize(("free", "forks"), [(0, 3), (2**50, 1)])
def test_workers_do_not_stay_where_they_would_keep_much(
    free: int, forks: int, monkeypatch: pytest.MonkeyPatch, forked: list[int]
) -> None:
    monkeypatch.setattr(processes, "KEPT_BYTES", 1)
    monkeypatch.setattr(processes, "memory_bytes", lambda: free)
    rounds(Processes(2, LOOP), COHORTS[:1] * 3)
    assert len(forked) == forks and nobody_is_left(forked)


def test_more_pieces_than_tickets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_TICKETS", 3)
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
    assert "was killed by SIGKILL in round 1 (local training)" in caplog.text
    assert "are trained again" in caplog.text and nobody_is_left(forked)


def test_a_worker_that_stands_still_is_given_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, forked: list[int]
) -> None:
    monkeypatch.setattr(fork_processes, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(fork_processes, "STUCK_SECONDS", 0.2)
    result = train(federation(executor=Processes(2, LOOP)), correct=in_workers_only(lambda: time.sleep(60)))
    assert torch.equal(result[0], train(federation())[0])
    assert "has stood still" in caplog.text and nobody_is_left(forked)


def test_an_error_in_a_workers_share_is_the_callers(caplog: pytest.LogCaptureFixture, forked: list[int]) -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        raise ArithmeticError("no such loss")

    with pytest.raises(ArithmeticError, match="no such loss"):
        train(federation(executor=Processes(3, LOOP)), loss=loss)
    assert nobody_is_left(forked)


def test_an_error_of_workers_alone_is_told(caplog: pytest.LogCaptureFixture, forked: list[int]) -> None:
    def fail() -> None:
        raise ArithmeticError("not here")

    result = train(federation(executor=Processes(2, LOOP)), correct=in_workers_only(fail))
    assert torch.equal(result[0], train(federation())[0])
    assert "ended early in round 1 (local training) (ArithmeticError: not here)" in caplog.text and nobody_is_left(
        forked
    )


PROGRAM = """
import os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job begins with it ignored
from tests.helpers.toy import federation
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import Processes
from tests.executors.test_processes import train
PARENT = os.getpid()
def correct(g):
    if os.getpid() != PARENT:  # which also counts the operations of a step, before the others are there
        os.write(1, b"at work\\n")
        time.sleep(60)
    return g
train(federation(executor=Processes(3, Loop(compile=False))), correct=correct)
"""


SOFTER = (pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGINT))


@pytest.mark.parametrize("number", [signal.SIGKILL, *SOFTER])
def test_no_worker_outlives_its_parent(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=ROOT,
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
    with pytest.raises(ValueError, match=r"^workers must be >= 1, got 0$"):
        Processes(0, LOOP)
    with pytest.raises(ValueError, match=r"^inner must be loop or vectorized, got processes$"):
        Processes(2, Processes(2, LOOP))  # type: ignore[arg-type]


def test_a_gpu_is_refused_in_one_line() -> None:
    family: Any = SimpleNamespace(device=torch.device("cuda:0"))
    with pytest.raises(
        UserError,
        match=r"^executor=processes needs device=cpu, got cuda:0: take executor.workers=gpus, or loop or vectorized$",
    ):
        Processes(2, LOOP).check(family)


def test_the_command_line_chooses_what_workers_do() -> None:
    assert build(composed("executor=processes")).executor == Processes(None, LOOP)
    words = ("executor=processes", "executor.workers=2", "+executor@executor.inner=vectorized")
    assert build(composed(*words)).executor == Processes(2, Vectorized(chunk_size=10, compile=False))


AFTER_COMPILING = """
import torch
from tests.helpers.toy import federation
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import Processes
from tests.executors.test_processes import train
compiled = train(federation(executor=Loop(compile=True)))[0]  # the first gradient of this process
eager = train(federation(executor=Processes(2, Loop(compile=False))))[0]
assert torch.allclose(eager, compiled, rtol=0, atol=1e-9)
"""


@pytest.mark.slow
def test_workers_have_autograd_after_the_compiler_was_at_work() -> None:
    process = subprocess.run([sys.executable, "-c", AFTER_COMPILING], capture_output=True, text=True, cwd=ROOT)
    assert process.returncode == 0 and "trained again" not in process.stderr, process.stderr
