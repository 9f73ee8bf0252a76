"""What a run will take, before its first round: time, from a few steps of local training and the first evaluation, and
the most memory, from the sizes of all that a round holds at once.
"""

import logging
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.algorithm import Algorithm
from fedlab_runner.errors import UserError
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.work import Work
from fedlab_runner.federation import Federation
from fedlab_runner.system import memory_bytes, resident_bytes
from fedlab_runner.task import Task

_log = logging.getLogger(__name__)
AHEAD = 50  # rounds whose cohorts are looked at
SAMPLE_SECONDS, MOST_STEPS = 0.3, 8
REST = 2e8  # bytes: pictures, buffers of files and what else comes after the start
WORTH_REFUSING = 2**28  # bytes; smaller runs are not held up by what the system says


class Need(NamedTuple):
    """Bytes of one kind that a run comes to hold, and how to need fewer."""

    bytes: float
    what: str
    way_out: str


def check_memory(algorithm: Algorithm[Any], fed: Federation, rounds_left: int) -> str:
    """The most memory that the run will hold, in words; UserError where that cannot fit into what is free."""
    needs = [need for need in _needs(algorithm, fed, rounds_left) if need.bytes]
    more, free, now = sum(need.bytes for need in needs), memory_bytes(), resident_bytes() or 0
    if free is not None and more > max(free, WORTH_REFUSING):
        largest = sorted(needs, key=lambda need: -need.bytes)
        parts = ", ".join(f"{need.bytes / 1e9:.1f} GB for {need.what}" for need in largest)
        ways = "; or ".join(dict.fromkeys(need.way_out for need in largest if need.bytes > 0.1 * more))
        raise UserError(f"the run needs {more / 1e9:.1f} GB more ({parts}), and {free / 1e9:.1f} GB are free: {ways}")
    return f"peak memory about {(now + more + REST) / 1e9:.2g} GB" + (f" ({free / 1e9:.1f} GB free)" if free else "")


def _needs(algorithm: Algorithm[Any], fed: Federation, rounds_left: int) -> list[Need]:
    if fed.task.device.type != "cpu":
        return []  # what fits on a GPU its own allocator says
    task, cohort, flying, everyone = max(fed.tasks, key=lambda task: task.size), fed.cohort_size, 0, 0
    if algorithm.heterogeneous:  # a State has the models of all clients, and a round makes the next State
        everyone = 2 * sum(fed.tasks[i % len(fed.tasks)].size for i in range(fed.num_clients))
    else:
        cohort, flying = _most_at_once(fed, rounds_left)
    model, side = task.size * task.dtype.itemsize, fed.executor.at_once(cohort)
    slots = fed.local.make_optimizer().slots
    fewer = "lower participation.cohort_size"
    return [
        Need(everyone * task.dtype.itemsize, f"the models of all {fed.num_clients} clients", "lower num_clients"),
        Need((algorithm.copies + bool(flying)) * cohort * model, f"the models of {cohort} clients", fewer),
        Need(flying * model, f"{flying} late updates", f"{fewer} or the delay"),
        *(
            Need(values * task.dtype.itemsize, f"the table of algorithm.{field}", f"set algorithm.{field}=disk")
            for field, values in algorithm.tables(fed).items()
        ),
        # Of each client that trains: its model, gradient, the update and the optimiser's slots.
        Need((3 + slots) * side * model, f"{side} clients in training", "lower executor.chunk_size or workers"),
        Need(side * _saved_bytes(task, fed), "their activations", "lower local.batch_size or executor.chunk_size"),
    ]


def _most_at_once(fed: Federation, rounds_left: int) -> tuple[int, int]:
    """The most clients that start in a round of the next ones, and the most that are late at the end of one."""
    largest, late, due = 0, 0, np.empty(0, np.int64)
    for round, starts in enumerate(fed.ahead(min(AHEAD, rounds_left)), fed.round):
        due = np.concatenate([due[due > round], starts.due[starts.due > round]])
        largest, late = max(largest, len(starts.ids)), max(late, len(due))
    return largest, late


def _saved_bytes(task: Task, fed: Federation) -> int:
    """What a step keeps of one minibatch for its backward pass."""
    seen: dict[int, int] = {}

    def note(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return saved

    size = fed.local.batch_size
    inputs, targets = fed.population.inputs[:size].clone(), fed.population.targets[:size]
    with task.bound(task.init(fed.seed)) as leaves:
        own = {leaf.untyped_storage().data_ptr() for leaf in leaves}
        task.mode(True, frozen_norm=True)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved), torch.random.fork_rng(devices=[]):
            task.bound_loss(task.normalize(inputs, task.dtype), targets, None)
    return sum(size for place, size in seen.items() if place not in own)


def seconds_a_round(fed: Federation) -> float:
    """Of local training, one client after another in this process: what no executor should exceed; from a few steps of
    the client with the most examples.
    """
    client = np.array([int(fed.population.num_examples.argmax())])
    if not fed.population.num_examples[client[0]]:
        return 0.0
    a_step = []
    for task in fed.tasks:
        _timed(_steps_of(task, fed, client, 1))  # warms up
        once = _timed(_steps_of(task, fed, client, 1))
        steps = int(np.clip(SAMPLE_SECONDS / max(once, 1e-6), 1, MOST_STEPS))
        a_step.append(_timed(_steps_of(task, fed, client, steps)) / steps)
    trained = np.flatnonzero(fed.population.num_examples)
    steps = fed.population.num_steps(trained, fed.local, fed.task.has_batch_norm).mean()
    return float(np.mean(a_step) * steps * fed.cohort_size)


def _steps_of(task: Task, fed: Federation, client: np.ndarray, steps: int) -> Work:
    local = fed.local.for_steps(steps)
    return Work(task, fed.population, client, np.array([steps]), local, fed.lr, fed.seed, 0, task.init(fed.seed))


def _timed(work: Work) -> float:
    began = time.perf_counter()
    Loop(compile=False).train(work)
    return time.perf_counter() - began
