"""A cohort's work in the form that goes to other machines: the clients' data once, the shared work once a round, and a
client's own tensors with the client.
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
from fedlab_runner.core.own_values import Own
from fedlab_runner.core.work import Work, own_generator
from fedlab_runner.executors._chunks import Chunk, ChunkedExecutor
from fedlab_runner.utils import own_modules
from fedlab_runner.utils.system import keep_freed_memory

Ref = Any  # a reference to an object in the cluster's object store
MAX_KEPT_OBJECTS = 8  # that a worker process keeps for later rounds


class Round(NamedTuple):
    """The parts of the work that all clients of a round share, in the object store."""

    job: Ref  # the inner executor and the Work of no clients, pickled, with references to the lasting objects
    lasting: list[Ref]  # the clients' data, the module's own tensors


class ClientShare(NamedTuple):
    """Some of the clients, with their own tensors."""

    rows: np.ndarray  # [k] in the cohort
    ids: np.ndarray  # [k]
    num_steps: np.ndarray  # [k]
    start: Tensor | None  # [k, D]; None: they start from the round's model
    own_start: Own | None
    per_client: tuple[Tensor, ...]  # each [k, ...]
    chunks: list[Chunk]  # rows of the share


def packed_client_data(client_data: ClientData) -> "Packed":
    """The clients' data as arrays, for the object store."""
    members, _ = client_data.assignment
    inputs, targets = client_data.inputs.numpy(), client_data.targets.numpy()
    file = io.BytesIO()
    _pickler()(file).dump(client_data.augment)
    return Packed(inputs, targets, members, client_data.num_examples, client_data.streams, file.getvalue())


def own_tensors(work: Work) -> list[Tensor]:
    """The module's parameters and buffers that are not in the models' vectors, for the object store."""
    module = work.family.module
    return [*module.parameters(), *module.buffers()]


def _pickler() -> Any:
    """Ray's pickler. It sends closures with the code that they need, and the user's own modules whole, so that other
    machines need not have their files.
    """
    cloudpickle: Any = importlib.import_module("ray.cloudpickle")
    for module in own_modules.loaded():
        cloudpickle.register_pickle_by_value(module)
    return cloudpickle.Pickler


def pickled(work: Work, inner: ChunkedExecutor) -> bytes:
    """The inner executor and the work without clients, pickled with references in place of the clients' data and the
    module's tensors.
    """
    places: dict[int, Any] = {id(tensor): number for number, tensor in enumerate(own_tensors(work))}
    places[id(work.client_data)] = "client_data"
    base: Any = _pickler()

    class WorkPickler(base):  # type: ignore[misc]  # of a library that may be missing
        def persistent_id(self, thing: object) -> Any:
            return places.get(id(thing))

    file = io.BytesIO()
    WorkPickler(file).dump((inner, work.select(np.empty(0, np.int64))))
    return file.getvalue()


def shares_of(work: Work, chunks: list[Chunk], count: int) -> list[ClientShare]:
    """The chunks (longest first), divided into `count` shares with nearly equal numbers of local steps."""
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
    start = part.start if part.start.dim() == 2 else None
    return ClientShare(rows, part.ids, part.num_steps, start, part.own_start, part.per_client, own)


def train_share(round: Round, share: ClientShare) -> tuple[np.ndarray, np.ndarray]:
    """Trains a share in a worker process and returns the models [k, D] and mean losses [k] of its clients."""
    torch.set_num_threads(1)
    keep_freed_memory()
    inner, whole = _received(round.job, lambda content: _unpickled(content, round.lasting))
    work = replace(
        whole,
        ids=share.ids,
        num_steps=share.num_steps,
        start=whole.start if share.start is None else share.start,
        own_start=share.own_start,
        per_client=share.per_client,
    )
    y = torch.empty(len(share.ids), work.family.size, dtype=work.family.dtype)
    losses = y.new_zeros(len(share.ids))
    with own_generator(work):
        for chunk in share.chunks:
            inner.train_chunk(work, chunk, y, losses)
    return y.numpy(), losses.numpy()


_kept: OrderedDict[str, Any] = OrderedDict()  # by reference: the objects that this worker process keeps


def _received(ref: Ref, unpack: Callable[[Any], Any]) -> Any:
    name = ref.hex()
    if name not in _kept:
        _kept[name] = unpack(importlib.import_module("ray").get(ref))
        if len(_kept) > MAX_KEPT_OBJECTS:
            _kept.popitem(last=False)
    _kept.move_to_end(name)
    return _kept[name]


class Packed(NamedTuple):
    """The clients' data as arrays, which the processes of a machine share without a copy."""

    inputs: np.ndarray
    targets: np.ndarray
    members: np.ndarray
    num_examples: np.ndarray
    streams: Streams
    augment: bytes  # pickled


def _client_data(packed: Packed) -> ClientData:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the arrays are read-only, and nothing writes into them
        inputs, targets = torch.from_numpy(packed.inputs), torch.from_numpy(packed.targets)
    split = np.split(packed.members, np.cumsum(packed.num_examples)[:-1])
    augment: Augment | None = pickle.Unpickler(io.BytesIO(packed.augment)).load()
    return ClientData(inputs, targets, split, torch.device("cpu"), packed.streams, augment)


def _unpickled(content: bytes, lasting: list[Ref]) -> tuple[ChunkedExecutor, Work]:
    client_data, tensors = _received(lasting[0], _client_data), _received(lasting[1], lambda found: found)

    class WorkUnpickler(pickle.Unpickler):
        def persistent_load(self, place: Any) -> Any:
            return client_data if place == "client_data" else tensors[place]

    job: tuple[ChunkedExecutor, Work] = WorkUnpickler(io.BytesIO(content)).load()
    return job
