"""Estimates before the first round of a run: its time, from a few local steps; its peak memory, from the tensors of a
round; and its disk space, from the clients' rows on disk and from the checkpoints.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.algorithm import Algorithm, DecentralizedAlgorithm
from fedlab_runner.core.client_state import FOLDER as ROWS
from fedlab_runner.core.client_state import PLACES
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import (
    FEWER,
    Footprint,
    MemoryItem,
    RoundLoad,
    fewer_models,
    models_at_once,
    rows_of_each,
)
from fedlab_runner.core.global_rng import own_generators
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.round_cost import local_operations
from fedlab_runner.core.work import Work
from fedlab_runner.executors._chunks import wait_for
from fedlab_runner.executors.loop import Loop
from fedlab_runner.experiment.round_loads import load_of, rounds_ahead
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.system import free_disk_bytes, memory_bytes, resident_bytes

_log = logging.getLogger(__name__)
SAMPLE_SECONDS, MAX_SAMPLE_STEPS = 0.3, 8  # of the timed sample of local training
HOST_OVERHEAD_BYTES = 2e8  # pictures, buffers of files and other needs after the start
GPU_OVERHEAD_BYTES = 5e8  # the workspaces of the GPU's libraries
MIN_REFUSED_BYTES = 2**28  # of need, below which no run is refused
MIN_REPORTED_DISK_BYTES = 2**28  # of a run's files, below which the log does not mention them
SMALLER_CHUNK = "lower executor.chunk_size or workers"  # another one


class Need(NamedTuple):
    """Bytes that a run will hold for one purpose, and the remedy if they are too many."""

    bytes: float
    what: str
    remedy: str
    place: str = "device"  # or host (main memory, which is the device too without a GPU), or disk
    saved: float = 0.0  # bytes that a checkpoint holds
    renewed: float = 0.0  # the share on disk that clients replace when they take part


def check_needs(
    algorithm: Algorithm[Any], fed: Federation, rounds: int, folder: Path, checkpoints: int, between: int | None = None
) -> str:
    """The memory and disk space that a run of `rounds` rounds takes, in words. Raises UserError if less is free.

    `checkpoints`: how many the run keeps at once in its `folder`, including the one that it writes. `between`: the
    rounds from one checkpoint to the next (None: one, the least).
    """
    needs = _needs(algorithm, fed, rounds)
    again = (checkpoints - 1) * _renewed(algorithm, fed, rounds, min(rounds, between or 1))
    needs = [n._replace(bytes=n.bytes * (1 + again * n.renewed)) for n in needs]
    at = {place: [need for need in needs if need.bytes and need.place == place] for place in PLACES}
    words = [_fitting(at["host"], "", resident_bytes() or 0, memory_bytes(), HOST_OVERHEAD_BYTES)]
    if fed.family.device.type != "cpu":
        words.append(_fitting(at["device"], " of the GPU", *gpu_bytes(fed.family.device), GPU_OVERHEAD_BYTES))
    saved = checkpoints * (fed.family.size * fed.family.dtype.itemsize + sum(need.saved for need in needs))
    files = Need(saved, f"{checkpoints} checkpoints", "lower checkpoint.keep or take a disk with more room", "disk")
    return "; ".join([*words, *_on_disk([*at["disk"], files], folder)])


def _on_disk(needs: Sequence[Need], folder: Path) -> list[str]:
    """The disk space that a run's files take, in words if it is large. Raises UserError if less is free."""
    there = sum(path.stat().st_blocks * 512 for path in (*folder.glob("checkpoints/*"), *folder.glob(f"{ROWS}/*")))
    more, free = sum(need.bytes for need in needs) - there, free_disk_bytes(folder)
    _refuse_beyond(more, free, needs, " on disk")
    return [f"disk about {more / 1e9:.2g} GB ({free / 1e9:.1f} GB free)"] if more >= MIN_REPORTED_DISK_BYTES else []


def _refuse_beyond(more: float, free: int, needs: Sequence[Need], where: str) -> None:
    """Raises UserError if the `more` bytes that a run needs are not free."""
    if more > max(free, MIN_REFUSED_BYTES):
        largest = sorted(needs, key=lambda need: -need.bytes)
        parts = ", ".join(f"{need.bytes / 1e9:.1f} GB for {need.what}" for need in largest)
        ways = "; or ".join(dict.fromkeys(need.remedy for need in largest if need.bytes > 0.1 * more))
        raise UserError(
            f"the run needs {more / 1e9:.1f} GB more{where} ({parts}), and {free / 1e9:.1f} GB are free: {ways}"
        )


def _fitting(needs: Sequence[Need], where: str, now: int, free: int | None, rest: float) -> str:
    """The peak memory in words. Raises UserError if less is free."""
    more = sum(need.bytes for need in needs)
    if free is not None:
        _refuse_beyond(more, free, needs, where)
    found = f"peak memory{where} about {(now + more + rest) / 1e9:.2g} GB"
    return found + (f" ({free / 1e9:.1f} GB free)" if free else "")


def gpu_bytes(device: torch.device) -> tuple[int, int]:
    """The bytes of a GPU that this process uses for data and models, and the bytes that it can still get."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch keeps them for new tensors
    return torch.cuda.memory_allocated(device), torch.cuda.mem_get_info(device)[0] + kept


def expected_bytes(algorithm: Algorithm[Any], fed: Federation, rounds: int) -> float:
    """The bytes that a run of `rounds` rounds will add on its device, without the workspaces of libraries."""
    place = "host" if fed.family.device.type == "cpu" else "device"
    return sum(need.bytes for need in _needs(algorithm, fed, rounds) if need.place == place)


def _needs(algorithm: Algorithm[Any], fed: Federation, rounds: int) -> list[Need]:
    """What a run holds throughout, and what it holds besides in the largest part of a round."""
    family = max(fed.families, key=lambda family: family.size)
    each_round = rounds_ahead(algorithm, fed, rounds)
    load = load_of(algorithm, fed, rounds, each_round)
    footprint, at_home = algorithm.footprint(fed, load), 0 if algorithm.decentralized else fed.home.size
    if at_home:
        rows = rows_of_each(fed.home.place, load, at_home, "home")
        footprint = footprint._replace(held=[*footprint.held, *rows])
    value, model = family.dtype.itemsize, family.size * family.dtype.itemsize
    # Minibatches have one size, so that their activations do not depend on the round.
    minibatch = _saved_bytes(family, fed) if load.starting else 0
    serves = fed.server_data is not None and not algorithm.decentralized
    trains = serves and algorithm.operations(fed, 0.0) > 0
    how = model, minibatch, at_home, trains, fewer_models(fed, algorithm.takes_sums())
    parts = [part for now in each_round for part in _parts(footprint, fed, now, *how)]
    needs = [Need(model, "the server's model", "take a smaller model")]
    needs += [_of_item(each, value) for each in footprint.held if not each.merging]
    moments = fed.server_steps.held * value  # a step makes new moments while it holds the old ones
    needs.append(Need(2 * moments, "the server optimiser's moments", "set server_optimizer=none", saved=moments))
    if load.late:  # the checkpoints' copies
        late = load.late * footprint.payload_copies * model
        needs.append(Need(0.0, f"{load.late} late updates", "lower the delay", saved=late))
    if fed.family.device.type == "cpu":
        needs, *parts = ([n._replace(place="host") if n.place == "device" else n for n in p] for p in (needs, *parts))
    for place in PLACES:
        needs += max(([need for need in part if need.place == place] for part in parts), key=_total, default=[])
    return needs


def _of_item(item: MemoryItem, value: int) -> Need:
    """What an algorithm holds, in values of `value` bytes."""
    size = item.values * value
    saved = size if item.saved and item.place != "disk" else 0.0
    renewed = item.renewed if item.place == "disk" else 0.0
    return Need(size, item.what, item.remedy, item.place, saved, renewed)


def _parts(
    footprint: Footprint,
    fed: Federation,
    now: RoundLoad,
    model: int,
    minibatch: int,
    at_home: int,
    trains: bool,
    fewer: str,
) -> list[list[Need]]:
    """What a round holds while clients train, when they make their updates, when these arrive, while the server merges
    them, and while it trains (`trains`).

    `model` and `minibatch` are the bytes of a model and of the activations of a minibatch. `at_home`: values of each
    client's model that stay at home. `fewer`: the remedy for too many models.
    """
    copies, sent, value = footprint.model_copies, footprint.payload_copies, fed.family.dtype.itemsize
    at_once = models_at_once(fed, now.starting)
    (side, activations, outside), slots = fed.executor.parallel(at_once), fed.local.make_optimizer().slots
    named = f"the models of {at_once} clients"
    training = Need(footprint.training_copies * at_once * model, named, fewer)
    a_step = (2 + slots + footprint.step_copies) * side + outside  # the gradient and its parts; their models
    steps = Need(a_step * model, f"{side} clients in training", SMALLER_CHUNK)
    # Parts at home are read from elsewhere for training, or are on the device, where training makes new ones.
    apart = Need(now.starting * at_home * value, "the parts of their models that stay at home", FEWER)
    read, written = ([], [apart]) if fed.home.place == "device" else ([apart], [])
    batches = Need(activations * minibatch, "their activations", "lower local.batch_size or executor.chunk_size")
    new, old = now.starting - now.on_time, now.arriving - now.on_time  # late updates
    before, between, after = (
        Need(late * sent * model, f"{late} late updates", f"{FEWER} or the delay")
        for late in (now.late, now.late + new, now.late + new - old)
    )
    made = Need(copies * at_once * model, named, fewer)
    summed, arriving = fed.at_once is not None, now.arriving
    if summed:  # two means stand for those on time
        before, arriving = between, old + 2
    sums = Need(summed * 2 * sent * model, "sums of updates", FEWER)
    copied = at_once if summed else now.arriving
    chosen = at_once + copied * bool(new or old)  # all, and copies of those that arrive
    arrived = f"{arriving} updates that are merged"
    collected = Need(chosen * sent * model, arrived, fewer)
    merged = Need(max(copies, sent) * arriving * model, arrived, fewer)
    own = [_of_item(each, value) for each in footprint.held if each.merging]
    anew = [
        _of_item(each._replace(values=each.anew, what=f"new values of {each.what}", saved=False), value)
        for each in footprint.held
    ]
    found = []
    if copies:
        found.append([before, training, steps, batches, sums, *read])
        found.append([before, made, sums, *written])
        found.append([between, collected, sums, *written])
        if summed:
            found.append([between, merged, sums])
        found.append([after, merged, *own, *anew])
    if trains:  # model, the optimiser's slots and the update, and each thread's gradient
        threads = torch.get_num_threads() if fed.family.device.type == "cpu" else 1
        remedy = "lower threads or take a smaller model"
        found.append([after, Need((7 + threads) * model, "training on the server", remedy), merged, *anew])
    return found


def _total(needs: Iterable[Need]) -> float:
    return sum(need.bytes for need in needs)


def _renewed(algorithm: Algorithm[Any], fed: Federation, rounds: int, between: int) -> float:
    """The share of the clients' rows that `between` rounds replace; the last checkpoint still holds the old rows."""
    load = load_of(algorithm, fed, rounds)
    a_round = algorithm.changing(fed) if isinstance(algorithm, DecentralizedAlgorithm) else load.starting
    return 1 - (1 - min(1.0, a_round / load.ever)) ** between if load.ever else 0.0


def _saved_bytes(family: ModelFamily, fed: Federation) -> int:
    """The bytes that a local step keeps of one minibatch for its backward pass."""
    seen: dict[int, int] = {}

    def note(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return saved.detach()  # the tensor itself may refer to its node, so that neither would be freed

    size = fed.local.batch_size
    inputs, targets = fed.client_data.inputs[:size].clone(), fed.client_data.targets[:size]
    with family.bound(family.vector(family.module)) as leaves:  # a fresh model would have to be drawn
        lasting = [*leaves, *family.module.parameters(), *family.module.buffers()]
        known = {value.untyped_storage().data_ptr() for value in lasting}
        family.mode(True, frozen_norm=True)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved), own_generators(family.device):
            family.bound_loss(family.normalize(inputs, family.dtype), targets, None)
    return sum(size for place, size in seen.items() if place not in known)


def seconds_a_round(algorithm: Algorithm[Any], fed: Federation) -> float:
    """The seconds of a round in which clients and server compute one after another in this process.

    It scales the time of a few steps of local training of the client with the most examples.
    """
    client = np.array([int(fed.client_data.num_examples.argmax())])
    if not fed.client_data.num_examples[client[0]]:
        return 0.0
    a_step = []
    for family in fed.families:
        _timed(_steps_of(family, fed, client, 1))  # warms up
        once = _timed(_steps_of(family, fed, client, 1))
        steps = int(np.clip(SAMPLE_SECONDS / max(once, 1e-6), 1, MAX_SAMPLE_STEPS))
        a_step.append(_timed(_steps_of(family, fed, client, steps)) / steps)
    trained = np.flatnonzero(fed.client_data.num_examples)
    steps = fed.client_data.num_steps(trained, fed.local, fed.family.has_batch_norm).mean()
    training, local = float(np.mean(a_step) * steps * fed.cohort_size), local_operations(fed)
    return training * algorithm.operations(fed, local) / local if local else training


def _steps_of(family: ModelFamily, fed: Federation, client: np.ndarray, steps: int) -> Work:
    local = fed.local.for_steps(steps)
    start = family.vector(family.module)
    return Work(family, fed.client_data, client, np.array([steps]), local, fed.lr, fed.seed, 0, start)


def _timed(work: Work) -> float:
    began = time.perf_counter()
    Loop(compile=False).train(work)
    wait_for(work.family.device)
    return time.perf_counter() - began
