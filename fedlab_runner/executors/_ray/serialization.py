"""A cohort's work as it travels to other machines: what lasts is sent once, what all clients share once a round, and
what a client has of its own with the client.
"""

import importlib
import io
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.augment.base import Augment
from fedlab_runner.core.client_data import ClientData, Streams
from fedlab_runner.core.work import Work, own_generator
from fedlab_runner.executors._chunks import Chunk, ChunkedExecutor
from fedlab_runner.utils.system import keep_freed_memory

Ref = Any  # where something lies in the cluster's object store
MAX_KEPT_OBJECTS = 8  # things that a worker process keeps for the next rounds


class Round(NamedTuple):
    """What all clients of a round share, put into the object store."""

    work: Ref  # the Work of no clients, pickled, with gaps where it refers to what lasts
    lasting: list[Ref]  # the population, the module's own tensors


class ClientShare(NamedTuple):
    """What some of the clients have of their own."""

    rows: np.ndarray  # [k] of the cohort
    ids: np.ndarray  # [k]
    num_steps: np.ndarray  # [k]
    start: Tensor | None  # [k, D]; None: they start from the round's model
    per_client: tuple[Tensor, ...]  # each [k, ...]
    chunks: list[Chunk]  # rows of the share


def packed_population(client_data: ClientData) -> "Packed":
    """For the object store."""
    members, _ = client_data.assignment
    inputs, targets = client_data.inputs.numpy(), client_data.targets.numpy()
    return Packed(inputs, targets, members, client_data.num_examples, client_data.streams, client_data.augment)


def own_tensors(work: Work) -> list[Tensor]:
    """The values that the module has beside those of the models, for the object store."""
    module = work.family.module
    return [*module.parameters(), *module.buffers()]


def pickled(work: Work) -> bytes:
    """The work of no clients, with gaps where it refers to its population and the module's own tensors; closures are
    sent with the code that they need.
    """
    places: dict[int, Any] = {id(tensor): number for number, tensor in enumerate(own_tensors(work))}
    places[id(work.client_data)] = "population"
    base: Any = importlib.import_module("ray.cloudpickle").Pickler

    class Pickler(base):  # type: ignore[misc]  # of a library that may be missing
        def persistent_id(self, thing: object) -> Any:
            return places.get(id(thing))

    file = io.BytesIO()
    Pickler(file).dump(replace(work.select(np.empty(0, np.int64)), per_step=work.per_step))
    return file.getvalue()


def shares_of(work: Work, chunks: list[Chunk], count: int) -> list[ClientShare]:
    """The chunks (longest first) dealt out to so many shares that have nearly the same number of local steps."""
    loads, dealt = np.zeros(count), [list[Chunk]() for _ in range(count)]
    for chunk in chunks:
        least = int(loads.argmin())
        loads[least] += work.num_steps[chunk.rows].sum()
        dealt[least].append(chunk)
    return [_share(work, dealt[i]) for i in np.argsort(-loads, kind="stable").tolist() if dealt[i]]


def _share(work: Work, chunks: list[Chunk]) -> ClientShare:
    rows = np.concatenate([chunk.rows for chunk in chunks])
    part, ends = work.select(rows), np.cumsum([len(chunk.rows) for chunk in chunks]).tolist()
    own = [Chunk(np.arange(end - len(p.rows), end), p.frozen_norm) for p, end in zip(chunks, ends, strict=True)]
    return ClientShare(
        rows, part.ids, part.num_steps, part.start if part.start.dim() == 2 else None, part.per_client, own
    )


def train_share(inner: ChunkedExecutor, round: Round, share: ClientShare) -> tuple[np.ndarray, np.ndarray]:
    """In a worker process: the models [k, D] and mean losses [k] of a share's clients."""
    torch.set_num_threads(1)
    keep_freed_memory()
    whole: Work = _received(round.work, lambda content: _unpickled(content, round.lasting))
    per_step = whole.per_step
    work = replace(
        whole,
        ids=share.ids,
        num_steps=share.num_steps,
        start=whole.start if share.start is None else share.start,
        per_client=share.per_client,
        per_step=None if per_step is None else lambda some, step: per_step(share.rows[some], step),
    )
    y = torch.empty(len(share.ids), work.family.size, dtype=work.family.dtype)
    losses = y.new_zeros(len(share.ids))
    with own_generator(work):
        for chunk in share.chunks:
            inner.train_chunk(work, chunk, y, losses)
    return y.numpy(), losses.numpy()


_kept: OrderedDict[str, Any] = OrderedDict()  # of this worker process, by reference


def _received(ref: Ref, unpack: Callable[[Any], Any]) -> Any:
    name = ref.hex()
    if name not in _kept:
        _kept[name] = unpack(importlib.import_module("ray").get(ref))
        if len(_kept) > MAX_KEPT_OBJECTS:
            _kept.popitem(last=False)
    _kept.move_to_end(name)
    return _kept[name]


class Packed(NamedTuple):
    """A population as arrays, which the processes of a machine share without a copy."""

    inputs: np.ndarray
    targets: np.ndarray
    members: np.ndarray
    num_examples: np.ndarray
    streams: Streams
    augment: Augment | None


def _population(packed: Packed) -> ClientData:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the arrays may not be written into: nobody does
        inputs, targets = torch.from_numpy(packed.inputs), torch.from_numpy(packed.targets)
    split = np.split(packed.members, np.cumsum(packed.num_examples)[:-1])
    return ClientData(inputs, targets, split, torch.device("cpu"), packed.streams, packed.augment)


def _unpickled(content: bytes, lasting: list[Ref]) -> Work:
    client_data, tensors = _received(lasting[0], _population), _received(lasting[1], lambda found: found)

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, place: Any) -> Any:
            return client_data if place == "population" else tensors[place]

    work: Work = Unpickler(io.BytesIO(content)).load()
    return work
