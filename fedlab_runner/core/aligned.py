"""Where tensors begin in memory: the last bits of a product of few examples depend on it."""

from torch import Tensor

ALIGNMENT = 64  # bytes, at multiples of which torch's own tensors begin


def aligned(w: Tensor) -> Tensor:
    """A model [D] that begins as a tensor of its own does: w itself or a copy."""
    return w if w.data_ptr() % ALIGNMENT == 0 else w.clone()


def aligned_rows(rows: Tensor) -> Tensor:
    """A copy of tensors [k, ...] in which each row begins as a tensor of its own does."""
    flat, values = rows.flatten(1), ALIGNMENT // rows.itemsize
    size = flat.shape[1]
    room = rows.new_empty(len(rows), -(-size // values) * values)
    return room[:, :size].copy_(flat).view(rows.shape)
