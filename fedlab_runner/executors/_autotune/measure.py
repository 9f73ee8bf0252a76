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
from fedlab_runner.utils.system import busy_cores

_log = logging.getLogger(__name__)
STEP_SECONDS, FLOPS_A_SECOND = 3e-4, 2e10  # a small step's time and a large step's speed, on one core
BUSY_CORES = 0.3  # cores that other processes use, from which on the machine counts as busy
OTHERS_BYTES = 2**30  # of a GPU's memory that other processes hold, above which the GPU counts as busy
SAMPLE_SECONDS = 1.0  # expected time of the sample
MAX_SAMPLE_STEPS = 8  # local steps of a client in the sample
REPETITIONS = 2  # of each measurement; the fastest counts


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
    if (work.num_steps > MAX_SAMPLE_STEPS).any():
        seconds *= MAX_SAMPLE_STEPS / most
        local = replace(work.local, epochs=None, steps=MAX_SAMPLE_STEPS)
    else:
        local = work.local
    count = int(np.clip(len(work.ids) * SAMPLE_SECONDS / seconds, min(20, len(work.ids)), len(work.ids)))
    order = np.concatenate([rows for _, rows in work.groups()])
    rows = np.sort(order[np.linspace(0, len(order) - 1, count).astype(np.int64)])
    part = work.select(rows)
    return replace(part, local=local, num_steps=work.client_data.num_steps(part.ids, local, work.family.has_batch_norm))


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
    models = _tried(work, {"loop": reference, name: executor}, {})
    return name in models


def measure(work: Work, executors: Mapping[str, Executor]) -> dict[str, Cost]:
    """The cost of each executor on this work. Executors take turns, so that other load on the machine slows them all.

    The first executor is the reference. An executor that fails, or whose models do not agree with the reference's, has
    no cost for a step.
    """
    once: dict[str, float] = {}
    times: dict[str, list[float]] = {name: [] for name in _tried(work, executors, once)}
    for _ in range(REPETITIONS):
        for name in times:
            _trained(executors[name], work)  # starts workers and warms caches
            began = time.perf_counter()
            _trained(executors[name], work)
            times[name].append(time.perf_counter() - began)
    return {name: _cost(work, once[name], times.get(name)) for name in executors}


def _tried(work: Work, executors: Mapping[str, Executor], once: dict[str, float]) -> dict[str, Tensor]:
    """The models of each executor that can do the work and agrees with the first. The seconds go into `once`."""
    models: dict[str, Tensor] = {}
    for name, executor in executors.items():
        began = time.perf_counter()
        try:
            with whole_graphs():
                models[name] = _trained(executor, work)
        except Exception as error:  # the compiler failed, or memory is too small: other executors remain
            _log.warning(
                "executor=%s cannot carry out this work: %s", name, (str(error).splitlines() or [repr(error)])[0]
            )
        else:
            if not _agree(work, models[name], next(iter(models.values()))):
                _log.warning("executor=%s does not agree with %s on this work", name, next(iter(models)))
                del models[name]
        once[name] = time.perf_counter() - began
    return models


def _trained(executor: Executor, work: Work) -> Tensor:
    """The trained models of a fresh copy of the cohort, without cached plans, as in each round."""
    y, _ = executor.train(replace(work))
    wait_for(work.family.device)
    return y


def _agree(work: Work, y: Tensor, reference: Tensor) -> bool:
    """Whether models [K, D] are equal up to rounding. The median client counts, as training amplifies rounding in
    some.
    """
    if torch.equal(y, reference):
        return True
    tolerance = tolerance_of(work.family)
    moved = torch.linalg.vector_norm(reference - work.starts(), dim=-1)
    apart = torch.linalg.vector_norm(y - reference, dim=-1) / moved.clamp_min(torch.finfo(y.dtype).tiny)
    return bool(apart.median() <= tolerance)


def _cost(work: Work, once: float, times: list[float] | None) -> Cost:
    steps = int(work.num_steps.sum())
    return Cost(once, None) if times is None else Cost(max(0.0, once - min(times)), min(times) / steps)
