"""A cohort on all GPUs of a machine, with a device map of processors that stand for GPUs."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedlab_runner.config.build import build
from fedlab_runner.core import additions_trial
from fedlab_runner.core.additions_trial import draws
from fedlab_runner.executors import processes
from fedlab_runner.executors._chunks import ChunkedExecutor
from fedlab_runner.executors._gpus.team import GpuTeam
from fedlab_runner.executors._gpus.worker import TrainShare
from fedlab_runner.executors._shares import divided, trained
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import GPUS, Processes
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.utils.errors import UserError
from tests.executors.test_contract import dropping
from tests.executors.test_processes import train
from tests.helpers import pretended
from tests.helpers.composed import composed
from tests.helpers.kinds import by_kind
from tests.helpers.toy import ALGORITHMS, algorithm, check_homes, federation, normed, run, tensors
from tests.helpers.work import work_of

CPU, LOOP = torch.device("cpu"), Loop(compile=False)


@pytest.fixture(scope="module")
def shared() -> Iterator[Processes]:
    """One executor for all tests: its processes take seconds to start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "gpus", lambda: [CPU] * 3)
        executor = Processes(GPUS, LOOP)
        yield executor
        if "_gpu_team" in executor.__dict__:
            team(executor).close()


def team(executor: Processes) -> GpuTeam:
    found: GpuTeam = executor.__dict__["_gpu_team"]
    return found


def test_the_key() -> None:
    assert build(composed("executor=processes", "executor.workers=gpus")).executor == Processes(GPUS, LOOP)
    with pytest.raises(UserError, match=r"^executor.workers must be a whole number or one of gpus or null, got 'all'$"):
        build(composed("executor=processes", "executor.workers=all"))
    with pytest.raises(UserError, match=r"^executor.workers=gpus needs device=cuda, got cpu$"):
        train(federation(executor=Processes(GPUS, LOOP)))


def test_the_estimate_counts_the_clients_of_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "gpus", lambda: [CPU] * 3)
    assert Processes(GPUS, Vectorized(None, compile=False)).parallel(10) == (4, 8, 0)
    assert Processes(GPUS, LOOP).parallel(10) == (1, 1, 1) and Processes(GPUS, LOOP).num_processes() == 1


@pytest.mark.parametrize("inner", [LOOP, Vectorized(chunk_size=3, compile=False)], ids=["loop", "vectorized"])
def test_the_bits_are_the_inner_executors(
    inner: ChunkedExecutor, shared: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rows that each client has of its own, and batch norm."""
    monkeypatch.setitem(shared.__dict__, "inner", inner)
    expected = train(federation(executor=inner, build=normed))
    for _ in range(2):
        result = train(federation(executor=shared, build=normed))
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(result, expected, strict=True))
    starts = torch.stack([federation(build=normed).family.init(seed) for seed in range(len(expected[0]))])
    expected = train(federation(executor=inner, build=normed), starts)
    result = train(federation(executor=shared, build=normed), starts)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(result, expected, strict=True))


def test_a_cohort_that_trains_in_one_call_is_divided(shared: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Vectorized(chunk_size=None, compile=False)
    monkeypatch.setitem(shared.__dict__, "inner", whole)
    train(federation(executor=shared))  # starts the processes
    sent, send = list[Any](), GpuTeam._send
    monkeypatch.setattr(GpuTeam, "_send", staticmethod(lambda worker, what: sent.append(what) or send(worker, what)))
    result, expected = train(federation(executor=shared)), train(federation(executor=whole))
    theirs_of = [len(each.share.ids) for each in sent if isinstance(each, TrainShare)]
    assert len(theirs_of) == 2 and min(theirs_of) > 0 and sum(theirs_of) < len(result[0])
    for mine, theirs in zip(result, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_parts_of_clients_that_train_in_one_call_keep_what_batch_norm_does() -> None:
    """A client of one example trains with the stored statistics."""
    work, inner = work_of(federation(build=normed)), Vectorized(chunk_size=None, compile=False)
    whole = {row: chunk.frozen_norm for chunk in inner.chunks(work) for row in chunk.rows.tolist()}
    shares = divided(inner, work, 3)
    pairs = [(share.rows[chunk.rows].tolist(), chunk.frozen_norm) for share in shares for chunk in share.chunks]
    assert {row: frozen for rows, frozen in pairs for row in rows} == whole and {*whole.values()} == {False, True}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_masks_of_dropout_do_not_depend_on_the_number_of_gpus(count: int) -> None:
    work, inner = work_of(federation(build=dropping)), Vectorized(chunk_size=None, compile=False)
    y, losses = (each.clone() for each in inner.train(work))
    for share in divided(inner, work, count):
        for mine, whole in zip(trained(work.select(np.empty(0, np.int64)), inner, share), (y, losses), strict=True):
            torch.testing.assert_close(mine, whole[share.rows], rtol=0, atol=1e-12)


def noisy(g: Tensor) -> Tensor:
    return g * np.random.rand()


def test_a_process_knows_which_functions_draw() -> None:
    """A compiled or recorded step would draw other numbers."""
    work = work_of(federation(), correct=noisy)
    (share,) = divided(LOOP, work, 1)
    del additions_trial._tried[work.family]  # another process has tried nothing
    assert not draws(work)
    trained(work.select(np.empty(0, np.int64)), LOOP, share)
    assert draws(work)


def test_tensors_of_a_type_that_numpy_lacks_go_with_their_clients() -> None:
    work = work_of(federation())
    starts = torch.randn(len(work.ids), work.family.size).bfloat16()
    work = replace(work, start=starts, per_client=(starts,))
    (share,) = divided(LOOP, work, 1)
    for mine, theirs in ((share.start, work.start), (share.per_client[0], work.per_client[0])):
        assert isinstance(mine, Tensor) and torch.equal(mine, theirs[share.rows])
    whole = work.select(np.empty(0, np.int64))
    y, _ = LOOP.train(work)
    assert torch.equal(trained(whole, LOOP, share)[0], y[share.rows])


def test_what_clients_have_at_home_goes_with_them(shared: Processes) -> None:
    check_homes(LOOP, shared)


@pytest.mark.parametrize("name", by_kind(ALGORITHMS))
def test_every_algorithm(name: str, shared: Processes) -> None:
    built = algorithm(name)
    expected = tensors(run(built, federation(cohort=4, std=1.0), 3))
    result = tensors(run(built, federation(cohort=4, std=1.0, executor=shared), 3))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(result, expected, strict=True))


def test_a_process_that_dies(shared: Processes, caplog: pytest.LogCaptureFixture) -> None:
    """Its clients are trained here, and the next cohort has a new process."""
    expected = train(federation())
    train(federation(executor=shared))
    victim = team(shared)._workers[0].process
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    for _ in range(2):
        result = train(federation(executor=shared))
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(result, expected, strict=True))
    assert caplog.text.count("round 1: the process for cpu has ended (exit code -9): its clients are trained") == 1
    assert len(team(shared)._workers) == 2


def test_an_error_in_a_process_is_the_callers(shared: Processes) -> None:
    here = os.getpid()

    def correct(g: Tensor) -> Tensor:
        if os.getpid() != here:
            raise ArithmeticError("no such gradient")
        return g

    with pytest.raises(ArithmeticError, match=r"^no such gradient\nraised in a worker:\n(?s:.*), in correct\n"):
        train(federation(executor=shared), correct=correct)


@pytest.mark.slow  # two more processes that import torch
def test_models_are_sent_where_no_memory_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(processes, "gpus", lambda: [CPU] * 2)
    executor = Processes(GPUS, LOOP)
    expected, result = train(federation()), train(federation(executor=executor))
    team(executor).close()
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(result, expected, strict=True))


@pytest.mark.parametrize("most", [0, pytest.param(2**30, marks=pytest.mark.slow)])
def test_the_runs_own_gpu_keeps_its_tensors(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """The run is on a pretended GPU; no tensor of it gets to another device but by a copy to the host."""
    monkeypatch.setattr("fedlab_runner.executors._blocks.MAX_STAGED_BYTES", most)
    expected = train(federation(build=normed))
    with pretended.gpu() as device:
        monkeypatch.setattr(processes, "gpus", lambda: [device, CPU])
        executor = Processes(GPUS, LOOP)
        found = train(federation(build=normed, device=device, executor=executor))
        assert all(each.device == device for each in found)
        team(executor).close()
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine.cpu(), theirs, rtol=0, atol=1e-9)
