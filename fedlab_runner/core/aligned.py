"""Where tensors begin in memory: the last bits of a product of few examples depend on it."""

from collections.abc import Iterable

import torch
from torch import Tensor

ALIGNMENT = 64  # bytes, at multiples of which torch's own tensors begin


def aligned(w: Tensor) -> Tensor:
    """A model [D] that begins as a tensor of its own does: w itself or a copy."""
    return w if w.data_ptr() % ALIGNMENT == 0 else w.clone()


def aligned_rows(rows: Tensor) -> Tensor:
    """Models [k, D] of which each begins as a tensor of its own does: `rows` itself or a copy."""
    apart = rows.stride(0) * rows.itemsize
    begin_well = rows.data_ptr() % ALIGNMENT == 0 and apart % ALIGNMENT == 0
    return rows if begin_well or not len(rows) else room_for_rows(len(rows), rows[0]).copy_(rows)


def copied_rows(count: int, rows: Iterable[Tensor]) -> Tensor:
    """A copy of so many tensors [count, ...], at least one, in which each begins as a tensor of its own does."""
    own = iter(rows)
    first = next(own)
    room = room_for_rows(count, first)
    room[0] = first
    for place, row in zip(room[1:], own, strict=True):
        place.copy_(row)
    return room


def room_for_rows(count: int, like: Tensor) -> Tensor:
    """Room for tensors [count, ...] like this one, each of which begins as a tensor of its own does."""
    values, size = ALIGNMENT // like.itemsize, like.numel()
    return like.new_empty(count, -(-size // values) * values)[:, :size].view(count, *like.shape)


def full_width(examples: int, dtype: torch.dtype) -> int:
    """At least so many examples, with which each model's activations, side by side, begin as a tensor's own do."""
    step = ALIGNMENT // dtype.itemsize
    return -(-examples // step) * step
