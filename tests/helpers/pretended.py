"""A GPU that is not there: tensors say that they are on it and have their values on the CPU, and operations refuse to
mix them with those of the host, as CUDA does.

What PyTorch makes for itself within an operation belongs to neither: it is wherever it is needed.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from fedlab_runner.utils.determinism import repeat_exactly

GPU, HOST = torch.device("cuda", 0), torch.device("cpu")
aten = torch.ops.aten
COPIES = {aten.copy_.default, aten._to_copy.default}
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
AS_NUMPY = {"numpy", "__array__"}
MOVES = {"to", "cpu", "cuda"}


class Mixed(AssertionError):
    """An operation that CUDA would refuse."""


def place(tensor: Tensor) -> torch.device | None:
    """Where the memory of a tensor is; None: what PyTorch made for itself, which is wherever it is needed."""
    found: torch.device | None = getattr(_storage(tensor), "place", None)
    return found


def put(tensor: Tensor, where: torch.device | None) -> None:
    """Says where its memory is, unless that has been said."""
    storage = _storage(tensor)
    if where is not None and getattr(storage, "place", None) is None:
        storage.place = where


def moved(tensor: Tensor, where: torch.device) -> Tensor:
    """The tensor, or a copy of it in the other place."""
    if place(tensor) == where:
        return tensor
    if _capturing[0]:
        raise Mixed(f"operation not permitted when stream is capturing: a copy to {where}")
    with _disable_current_modes():
        copy = tensor.clone()
    put(copy, where)
    return copy


def _storage(tensor: Tensor) -> Any:
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor.untyped_storage()


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


_capturing = [False]


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """While it is open, a step is recorded: nothing may come from the host, which would be copied or read once."""
    _capturing[0] = True
    try:
        yield
    finally:
        _capturing[0] = False


class Operations(TorchDispatchMode):
    """Every operation, those of backward passes too: its tensors are in one place, and its result is there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        places = {where for t in given if (where := place(t)) is not None}
        if len(places) > 1 and _capturing[0]:
            raise Mixed(f"operation not permitted when stream is capturing: {func} of cuda:0 and cpu")
        if len(places) > 1 and func not in COPIES:
            self._check(func, args, given)
        result = func(*args, **kwargs)
        where, known = GPU if GPU in places else HOST if places else None, {_storage(t)._cdata for t in given}
        for made in _tensors(result):
            if _storage(made)._cdata not in known:
                put(made, where)
        return result

    def _check(self, func: Any, args: Any, given: list[Tensor]) -> None:
        of_host = [t for t in given if place(t) == HOST]
        if func in INDEXED and place(args[0]) == GPU:
            indices = {id(t) for t in _tensors(args[1])}
            of_host = [t for t in of_host if id(t) not in indices]  # which CUDA copies, and waits for
        if torch.Tag.pointwise in func.tags or func in INDEXED:
            written = args[0] if func._schema.is_mutable else None
            of_host = [t for t in of_host if t.dim() or t is written]
        if of_host:
            raise Mixed(f"{func} of tensors on cuda:0 and cpu: {[tuple(t.shape) for t in of_host]} on the CPU")


class Calls(TorchFunctionMode):
    """Every call from Python: `device=cuda` and `.to("cuda")` are taken at their word."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name, of = getattr(func, "__name__", ""), args[0] if args and isinstance(args[0], Tensor) else None
        if of is not None and name == "__get__":
            value = func(*args, **kwargs)
            return GPU if isinstance(value, torch.device) and place(of) == GPU else value
        if of is not None and name in AS_NUMPY and place(of) == GPU:
            raise Mixed("can't convert cuda:0 device type tensor to numpy")
        if of is not None and name in MOVES:
            return self._moved(name, of, args[1:], kwargs)
        wanted = None if kwargs.get("device") is None else _same(kwargs["device"])
        if wanted is not None:
            kwargs["device"] = HOST
        if wanted == GPU and kwargs.get("generator") is not None:
            raise Mixed("Expected a 'cuda' device type for generator but found 'cpu'")
        result = func(*args, **kwargs)
        if wanted is not None and isinstance(result, Tensor):
            put(result, wanted)
            return moved(result, wanted)
        if not _tensors((args, kwargs)) and not isinstance(func, torch._ops.OpOverload):  # out of nothing
            for made in _tensors(result):
                put(made, HOST)
        return result

    @staticmethod
    def _moved(name: str, of: Tensor, args: Any, kwargs: Any) -> Tensor:
        said = [{"cpu": HOST, "cuda": GPU}.get(name), kwargs.get("device"), *args, kwargs.get("other")]
        places = [_same(x) if isinstance(x, str | torch.device) else place(x) for x in said if _is_place(x)]
        if name == "to":
            args, kwargs = tree_map(lambda x: HOST if isinstance(x, str | torch.device) else x, (args, kwargs))
            of = of.to(*args, **kwargs)
        return of if not places or places[0] is None else moved(of, places[0])


def _is_place(value: Any) -> bool:
    return isinstance(value, str | torch.device | Tensor)


def _same(device: Any) -> torch.device:
    return GPU if torch.device(device).type == "cuda" else HOST


@contextlib.contextmanager
def gpu() -> Iterator[torch.device]:
    """While it is open, there is one."""
    fork_rng, load = torch.random.fork_rng, torch.load

    def on_host(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*args: Any, **kwargs: Any) -> Tensor:
            result = function(*args, **kwargs)
            put(result, HOST)
            return result

        return made

    def loaded(*args: Any, map_location: Any = HOST, **kwargs: Any) -> Any:
        with _disable_current_modes():
            found = load(*args, map_location=HOST, **kwargs)
        for tensor in _tensors(found):
            put(tensor, _same(map_location))
        return found

    answers: dict[str, Any] = {"is_available": True, "device_count": 1, "get_device_name": "a pretended GPU"}
    answers |= {"memory_allocated": 0, "memory_reserved": 0, "mem_get_info": (8 * 2**30, 8 * 2**30)}
    with pytest.MonkeyPatch.context() as patch, Operations(), Calls():
        for name in ("from_numpy", "frombuffer"):
            patch.setattr(torch, name, on_host(getattr(torch, name)))
        for name, answer in {**answers, "synchronize": None}.items():
            patch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
        patch.setattr(torch, "load", loaded)
        patch.setattr(torch.random, "fork_rng", lambda devices=(), **how: fork_rng(devices=[], **how))
        patch.setattr(torch.cuda, "get_rng_state", lambda device: torch.get_rng_state())
        try:
            yield GPU
        finally:
            repeat_exactly(False)
