"""Objects as processes that are no forks get them. Tensors and devices travel by value: a process that works on another
device has them there.
"""

import importlib
import io
import pickle
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedlab_runner.utils import own_modules
from fedlab_runner.utils.errors import UserError

DEVICE, TENSOR, LASTING = "device", "tensor", "lasting"  # what a reference in a pickled object stands for


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


def as_tensor(array: np.ndarray, device: torch.device) -> Tensor:
    """The values of an array on a device; on a CPU it is the array's memory, which may be read-only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it is read-only: nobody writes into it
        return torch.from_numpy(array).to(device)


def dumped(thing: Any, lasting: Sequence[object] = ()) -> bytes:
    """An object, with references in the place of what is `lasting`."""
    base: Any = _pickler()
    tensors: dict[int, tuple[int, Tensor]] = {}  # by id: a number, and the tensor, which keeps the id

    class Pickler(base):  # type: ignore[misc]  # of a library that may be missing
        def persistent_id(self, part: object) -> Any:
            if isinstance(part, torch.device):
                return DEVICE, None, None
            if (number := next((i for i, each in enumerate(lasting) if part is each), None)) is not None:
                return LASTING, number, None
            if isinstance(part, Tensor) and type(part) in (Tensor, nn.Parameter):
                seen = id(part) in tensors
                number, _ = tensors.setdefault(id(part), (len(tensors), part))
                return TENSOR, number, None if seen else _SentValues.of(part)
            return None

    file = io.BytesIO()
    try:
        Pickler(file).dump(thing)
    except (pickle.PicklingError, AttributeError, TypeError) as error:  # of functions that are no module's
        raise UserError(
            f"this work cannot be sent to other processes ({error}): pip install cloudpickle, or write its functions "
            "in a module"
        ) from error
    return file.getvalue()


def loaded(content: bytes, device: torch.device, lasting: Sequence[object] = ()) -> Any:
    """What `dumped` has made, with its tensors on a device."""
    return _SentUnpickler(content, device, lasting).load()


class _SentUnpickler(pickle.Unpickler):
    """Loads what `dumped` has made, with its tensors on a device."""

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
