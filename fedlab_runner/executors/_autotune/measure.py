"""Tries executors on a sample of a cohort's work, to learn whether they agree and how long they take."""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.executor import Executor
from fedlab_runner.core.network_trial import tolerance_of
from fedlab_runner.core.work import Work
from fedlab_runner.executors._chunks import wait_for
from fedlab_runner.executors.graphs import whole_graphs
from fedlab_runner.utils import exhaustion
from fedlab_runner.utils.system import busy_cores

_log = logging.getLogger(__name__)
STEP_SECONDS, FLOPS_A_SECOND = 3e-4, 2e10  # a small step's time and a large step's speed, on one core
BUSY_CORES = 0.3  # cores that other processes use, from which on the machine counts as busy
OTHERS_BYTES = 2**30  # of a GPU's memory that other processes hold, above which the GPU counts as busy
SAMPLE_SECONDS = 1.0  # expected time of the sample
MAX_SAMPLE_STEPS = 8  # local steps of a client in the sample
REPETITIONS = 2  # of each measurement; the fastest counts
FEW_STEPS = 2, 1  # in which executors are compared where all steps of the sample amplify rounding
MARGIN = 10.0  # rounding may change models so many times less than what counts as another result


def expected_seconds(work: Work) -> float:
    """The time of a cohort's local training to an order of magnitude, without a measurement."""
    return float(work.num_steps.sum()) * max(operation_seconds(work), STEP_SECONDS)


def operation_seconds(work: Work) -> float:
    """The expected time of the matrix products and convolutions of one local step."""
    example = work.family.normalize(work.client_data.inputs[:1], work.family.dtype)
    return work.family.flops(example).step * work.local.batch_size / FLOPS_A_SECOND


def sample(work: Work, seconds: float) -> Work:
    """A sample of about `seconds`: some of the clients, large and small, and some of their steps."""
    if seconds <= SAMPLE_SECONDS:
        return work
    most = int(work.num_steps.max())
    short = most > MAX_SAMPLE_STEPS
    seconds *= MAX_SAMPLE_STEPS / most if short else 1.0
    count = int(np.clip(len(work.ids) * SAMPLE_SECONDS / seconds, min(20, len(work.ids)), len(work.ids)))
    order = np.concatenate([rows for _, rows in work.groups()])
    rows = np.sort(order[np.linspace(0, len(order) - 1, count).astype(np.int64)])
    part = work.select(rows)
    return _of_steps(part, MAX_SAMPLE_STEPS) if short else part


def _of_steps(work: Work, steps: int) -> Work:
    """The first steps of each client."""
    local = work.local.for_steps(steps)
    return replace(work, local=local, num_steps=work.client_data.num_steps(work.ids, local, work.family.has_batch_norm))


class Cost(NamedTuple):
    """The seconds that an executor needs for a kind of work."""

    once: float  # to compile or warm up
    a_step: float | None  # for one local step; None: the executor cannot do the work


def is_busy(device: torch.device) -> bool:
    """Whether other processes use this machine's cores or the device, which would disturb a measurement."""
    if busy_cores() >= BUSY_CORES:
        return True
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device) > OTHERS_BYTES


def agrees(work: Work, name: str, executor: Executor, reference: Executor) -> bool:
    """Whether an executor can do the work and agrees with the reference up to rounding. If not, it logs why."""
    return _agreeing(work, {"loop": reference, name: executor}).get(name) is not None


def measure(work: Work, executors: Mapping[str, Executor]) -> dict[str, Cost]:
    """The cost of each executor on this work. Executors take turns, so that other load on the machine slows them all.

    The first executor is the reference. An executor that fails, or whose models do not agree with the reference's, has
    no cost for a step. An executor for which the machine runs out of memory, say, is left out, as it may do the work
    another time; all are left out if the reference fails.
    """
    once = _agreeing(work, executors)
    times: dict[str, list[float]] = {name: [] for name, seconds in once.items() if seconds is not None}
    for _ in range(REPETITIONS):
        for name in times:
            _trained(executors[name], work)  # starts workers and warms caches
            began = time.perf_counter()
            _trained(executors[name], work)
            times[name].append(time.perf_counter() - began)
    return {name: Cost(0.0, None) if s is None else _cost(work, s, times[name]) for name, s in once.items()}


def _agreeing(work: Work, executors: Mapping[str, Executor]) -> dict[str, float | None]:
    """The seconds of each executor's first turn, 0 for the first; None for one that cannot do the work or does not
    agree with the first. It leaves out an executor for which the machine runs out of something, and all if the first
    fails.
    """
    once: dict[str, float | None] = {}
    expected: _Expected | None = None
    for name, executor in executors.items():
        began = time.perf_counter()
        try:
            with whole_graphs():
                if expected is None:
                    expected, began = _expected(work, executor), time.perf_counter()
                elif not _apart(expected.work, _trained(executor, expected.work), expected.models) <= expected.bound:
                    _log.warning("executor=%s does not agree with %s on this work", name, next(iter(once)))
                    once[name] = None
                    continue
                elif expected.work is not work:
                    _trained(executor, work)
        except Exception as error:  # the compiler failed, or memory is too small: other executors remain
            _log.warning(
                "executor=%s cannot carry out this work: %s", name, (str(error).splitlines() or [repr(error)])[0]
            )
            if expected is None:
                break
            if exhaustion.explain(error) is None:  # otherwise it may have what it needs another time
                once[name] = None
        else:
            once[name] = time.perf_counter() - began
    return once


class _Expected(NamedTuple):
    """What executors must agree with."""

    work: Work
    models: Tensor  # [K, D]
    bound: float  # how far apart models may be, relative to their way


def _expected(work: Work, reference: Executor) -> _Expected:
    """The reference's models, after fewer steps than those of the work if these amplify rounding. Training with batch
    norm does: within eight steps, what one more unit in the last place of the start changes can grow to a tenth of the
    way.
    """
    tolerance = tolerance_of(work.family)
    for part in (work, *(_of_steps(work, steps) for steps in FEW_STEPS)):
        models = _trained(reference, part)
        rounding = MARGIN * _apart(part, _trained(reference, _nudged(part)), models)
        if rounding <= tolerance:
            break
    return _Expected(part, models, max(tolerance, rounding))


def _nudged(work: Work) -> Work:
    """The work from starts that differ in the last place."""
    start = work.start
    noise = torch.rand(start.shape, generator=torch.Generator(start.device).manual_seed(0), device=start.device)
    return replace(work, start=start * (1 + torch.finfo(start.dtype).eps * (2 * noise - 1)).to(start.dtype))


def _trained(executor: Executor, work: Work) -> Tensor:
    """The trained models of a fresh copy of the cohort, without cached plans, as in each round."""
    y, _ = executor.train(replace(work))
    wait_for(work.family.device)
    return y


def _apart(work: Work, y: Tensor, reference: Tensor) -> float:
    """How far apart models [K, D] are, relative to their way. The median client counts, as training amplifies rounding
    in some.
    """
    moved = torch.linalg.vector_norm(reference - work.starts(), dim=-1)
    apart = torch.linalg.vector_norm(y - reference, dim=-1) / moved.clamp_min(torch.finfo(y.dtype).tiny)
    return float(apart.median())


def _cost(work: Work, once: float, times: list[float]) -> Cost:
    return Cost(max(0.0, once - min(times)), min(times) / int(work.num_steps.sum()))
