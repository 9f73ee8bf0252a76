"""The names of tensors that a network has under several names: layers that it uses twice, aliases, and tied weights."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


def first_names(module: nn.Module) -> dict[str, str]:
    """The first name of the parameter or buffer behind each further name."""
    first: dict[int, str] = {}
    every = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: it for name, value in every if (it := first.setdefault(id(value), name)) != name}


def tied_names(module: nn.Module) -> dict[str, str]:
    """Those of `first_names` that belong to another layer than the first name does."""
    own = {name for prefix, layer in module.named_modules() for name in _own_names(prefix, layer)}
    return {name: first for name, first in first_names(module).items() if name in own}


def check_memory(module: nn.Module) -> None:
    """Raises ValueError if a trainable parameter or a float buffer has memory in common with another parameter or
    buffer, and they are not one tensor: a model has values of its own for each of the first two, so that they would
    part.
    """
    values = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    buffers = {name for name, value in module.named_buffers() if value.is_floating_point()}
    own = buffers | {name for name, value in values.items() if value.requires_grad}
    held = {name: value for name, value in values.items() if not (value.is_meta or is_lazy(value))}
    spans = sorted((*_span(value), name) for name, value in held.items() if value.numel())
    open_spans: list[tuple[int, str]] = []  # the ends and names of those that reach the present one
    for begin, end, name in spans:
        open_spans = [each for each in open_spans if each[0] > begin]
        for _, other in open_spans:
            if own & {name, other} and _meet(held[other], held[name]):
                raise ValueError(
                    f"the model's {other} and {name} share memory and would part in training: assign the tensor "
                    "itself, as b.weight = a.weight, or give one of them a copy"
                )
        open_spans.append((end, name))


def _span(value: Tensor) -> tuple[int, int]:
    """The first address of a tensor, and the one behind it."""
    last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return value.data_ptr(), value.data_ptr() + (last + 1) * value.element_size()


def _meet(one: Tensor, other: Tensor) -> bool:
    """Whether a byte belongs to both tensors, of which `one` begins first: two columns of a matrix have none in common,
    although each lies in the other's span.
    """
    begin, end = one.data_ptr(), max(_span(one)[1], _span(other)[1])
    taken = np.zeros(end - begin, dtype=bool)

    def part(value: Tensor) -> np.ndarray:
        shape, size = (*value.shape, value.element_size()), value.element_size()
        strides = (*(stride * size for stride in value.stride()), 1)
        return np.lib.stride_tricks.as_strided(taken[value.data_ptr() - begin :], shape, strides)

    part(one)[...] = True
    return bool(part(other).any())


def call(module: nn.Module, values: dict[str, Tensor], tied: dict[str, str], inputs: Tensor) -> Tensor:
    """What a module gives with these values by first name; `tied` are its `tied_names`.

    Torch's own tying leaves the values in a layer that has two names.
    """
    values = values | {name: values[first] for name, first in tied.items() if first in values}
    found: Tensor = torch.func.functional_call(module, values, (inputs,), tie_weights=False)
    return found


def _own_names(prefix: str, layer: nn.Module) -> Iterator[str]:
    own = layer.named_parameters(recurse=False, remove_duplicate=False)
    for name, _ in (*own, *layer.named_buffers(recurse=False, remove_duplicate=False)):
        yield f"{prefix}.{name}" if prefix else name
