"""A cohort's work as processes that are no forks get it: the clients' data and the model family once, the shared work
once a round, and a client's own tensors with the client.

Tensors and devices travel by value: a process that works on another device has them there.
"""

import importlib
import io
import pickle
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedlab_runner.augment.base import Augment
from fedlab_runner.core.client_data import ClientData, Streams
from fedlab_runner.core.global_rng import own_generators
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.own_values import Own
from fedlab_runner.core.parts import PartsJob
from fedlab_runner.core.work import Work
from fedlab_runner.executors._chunks import Chunk, ChunkedExecutor
from fedlab_runner.utils import own_modules
from fedlab_runner.utils.determinism import repeat_exactly, repeats_exactly
from fedlab_runner.utils.errors import UserError

DEVICE, TENSOR, LASTING = "device", "tensor", "lasting"  # what a reference in pickled work stands for


class ClientShare(NamedTuple):
    """Some of the clients, with the tensors of their own."""

    rows: np.ndarray  # [k] of the cohort
    ids: np.ndarray  # [k]
    num_steps: np.ndarray  # [k]
    start: Tensor | None  # [k, D] on the CPU; None: they start from the round's model
    own_start: Own | None
    per_client: tuple[Tensor, ...]  # each [k, ...], on the CPU
    chunks: list[Chunk]  # rows of the share


class Packed(NamedTuple):
    """The clients' data as arrays, which the processes of a machine share without a copy."""

    inputs: np.ndarray
    targets: np.ndarray
    members: np.ndarray
    num_examples: np.ndarray
    streams: Streams
    augment: bytes  # pickled

    def client_data(self, device: torch.device) -> ClientData:
        """The clients' data, with the examples on a device."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the arrays are read-only: they are only read
            inputs, targets = torch.from_numpy(self.inputs), torch.from_numpy(self.targets)
        split = np.split(self.members, np.cumsum(self.num_examples)[:-1])
        augment: Augment | None = pickle.Unpickler(io.BytesIO(self.augment)).load()
        return ClientData(inputs, targets, split, device, self.streams, augment)


def packed_client_data(client_data: ClientData) -> Packed:
    """The clients' data, to be sent."""
    members, _ = client_data.assignment
    inputs, targets = client_data.inputs.cpu().numpy(), client_data.targets.cpu().numpy()
    augment = _dumped(client_data.augment, ())
    return Packed(inputs, targets, members, client_data.num_examples, client_data.streams, augment)


def packed_family(family: ModelFamily) -> bytes:
    """A model family, to be sent: without what executors have compiled for it. Its process computes as this one does,
    the same bits each time or not.
    """
    return _dumped((family, repeats_exactly()), ())


def packed_work(work: Work, inner: ChunkedExecutor) -> bytes:
    """The inner executor and the work of no clients, with references in the place of its data and its family."""
    return _dumped((inner, work.select(np.empty(0, np.int64))), (work.client_data, work.family))


def packed_job(job: PartsJob, inner: ChunkedExecutor) -> bytes:
    """The inner executor and a job for parts, with references in the place of its data and its family."""
    return _dumped((inner, job), (job.client_data, job.family))


def unpacked_family(content: bytes, device: torch.device) -> ModelFamily:
    """The family on a device."""
    family, exactly = _SentUnpickler(content, device, ()).load()
    repeat_exactly(exactly)
    assert isinstance(family, ModelFamily)
    return family


def unpacked_work(content: bytes, client_data: ClientData, family: ModelFamily, device: torch.device) -> Any:
    """The inner executor, and the work of no clients or the job for parts, on a device."""
    return _SentUnpickler(content, device, (client_data, family)).load()


def shares_of(work: Work, chunks: list[Chunk], count: int) -> list[ClientShare]:
    """The chunks (longest first) divided into `count` shares of nearly equal numbers of local steps."""
    loads, dealt = np.zeros(count), [list[Chunk]() for _ in range(count)]
    for chunk in chunks:
        least = int(loads.argmin())
        loads[least] += work.num_steps[chunk.rows].sum()
        dealt[least].append(chunk)
    return [_share(work, dealt[i]) for i in np.argsort(-loads, kind="stable").tolist() if dealt[i]]


def divided(inner: ChunkedExecutor, work: Work, count: int) -> list[ClientShare]:
    """The cohort in up to `count` shares of nearly equal work; clients that would train in one call are divided too."""
    chunks = inner.chunks(work)
    if len(chunks) < count:
        parts = (Chunk(each.rows[part::count], each.frozen_norm) for each in chunks for part in range(count))
        chunks = sorted((part for part in parts if len(part.rows)), key=lambda part: -work.num_steps[part.rows].sum())
    return shares_of(work, chunks, min(count, len(chunks)))


def _share(work: Work, chunks: list[Chunk]) -> ClientShare:
    rows = np.concatenate([chunk.rows for chunk in chunks])
    part, ends = work.select(rows), np.cumsum([len(chunk.rows) for chunk in chunks]).tolist()
    own = [Chunk(np.arange(end - len(p.rows), end), p.frozen_norm) for p, end in zip(chunks, ends, strict=True)]
    start = part.start.cpu() if part.start.dim() == 2 else None
    own_start = None if part.own_start is None else part.own_start._replace(rows=[t.cpu() for t in part.own_start.rows])
    return ClientShare(rows, part.ids, part.num_steps, start, own_start, tuple(t.cpu() for t in part.per_client), own)


def trained(whole: Work, inner: ChunkedExecutor, share: ClientShare) -> tuple[Tensor, Tensor]:
    """The models [k, D] and mean losses [k] of a share's clients, on the device of the work."""
    family, own_start = whole.family, share.own_start
    device = family.device
    work = replace(
        whole,
        ids=share.ids,
        num_steps=share.num_steps,
        start=whole.start if share.start is None else share.start.to(device),
        own_start=own_start and own_start._replace(rows=[row.to(device) for row in own_start.rows]),
        per_client=tuple(t.to(device) for t in share.per_client),
    )
    y = torch.empty(len(share.ids), family.size, dtype=family.dtype, device=device)
    losses = y.new_zeros(len(share.ids))
    with own_generators(work.family.device):
        for chunk in share.chunks:
            inner.train_chunk(work, chunk, y, losses)
    return y, losses


def _pickler() -> Any:
    """The pickler of cloudpickle, as a library of its own or a part of Ray: it sends closures with the code that they
    need, and the user's own modules whole, whose files other machines need not have. Without it, Python's own.
    """
    for name in ("ray.cloudpickle", "cloudpickle"):
        with suppress(ImportError):
            cloudpickle: Any = importlib.import_module(name)
            for module in own_modules.loaded():
                cloudpickle.register_pickle_by_value(module)
            return cloudpickle.Pickler
    return pickle.Pickler


def _dumped(thing: Any, lasting: Sequence[object]) -> bytes:
    base: Any = _pickler()
    tensors: dict[int, tuple[int, Tensor]] = {}  # by id: a number, and the tensor, which keeps the id

    class Pickler(base):  # type: ignore[misc]  # of a library that may be missing
        def persistent_id(self, part: object) -> Any:
            if isinstance(part, torch.device):
                return DEVICE, None, None
            if isinstance(part, Tensor) and type(part) in (Tensor, nn.Parameter):
                seen = id(part) in tensors
                number, _ = tensors.setdefault(id(part), (len(tensors), part))
                return TENSOR, number, None if seen else _SentValues.of(part)
            return next(((LASTING, i, None) for i, each in enumerate(lasting) if part is each), None)

    file = io.BytesIO()
    try:
        Pickler(file).dump(thing)
    except (pickle.PicklingError, AttributeError, TypeError) as error:  # of functions that are no module's
        raise UserError(
            f"this work cannot be sent to other processes ({error}): pip install cloudpickle, or write its functions "
            "in a module"
        ) from error
    return file.getvalue()


class _SentUnpickler(pickle.Unpickler):
    """Loads what `_dumped` has made, with its tensors on a device."""

    def __init__(self, content: bytes, device: torch.device, lasting: Sequence[object]) -> None:
        super().__init__(io.BytesIO(content))
        self._device, self._lasting, self._tensors = device, lasting, dict[int, Tensor]()

    def persistent_load(self, reference: Any) -> Any:
        kind, number, values = reference
        if kind == DEVICE:
            return self._device
        if kind == LASTING:
            return self._lasting[number]
        if number not in self._tensors:
            self._tensors[number] = values.on(self._device)
        return self._tensors[number]


class _SentValues(NamedTuple):
    """A tensor without a device."""

    content: bytes
    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool | None  # of a parameter; None: it is none

    @staticmethod
    def of(tensor: Tensor) -> "_SentValues":
        values = tensor.detach().cpu().contiguous()
        content = values.reshape(-1).view(torch.uint8).numpy().tobytes()
        grad = tensor.requires_grad if isinstance(tensor, nn.Parameter) else None
        return _SentValues(content, tuple(values.shape), values.dtype, grad)

    def on(self, device: torch.device) -> Tensor:
        """The tensor on a device."""
        made = torch.empty(self.shape, dtype=self.dtype)
        if self.content:
            made.view(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(self.content), dtype=torch.uint8))
        made = made.to(device)
        return made if self.requires_grad is None else nn.Parameter(made, requires_grad=self.requires_grad)
