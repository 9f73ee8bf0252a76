"""Rules for each value by itself, a block of values at a time."""

from collections.abc import Callable

import torch
from torch import Tensor

VALUES_PER_CALL = 2**21  # of all updates together, that are sorted at once: a bound on memory


def by_columns(rows: Tensor, combine: Callable[[Tensor], Tensor], selected: Tensor | None = None) -> Tensor:
    """What `combine` makes of the columns of rows [A, n], or of its rows `selected` by a mask [A]. It gets k columns,
    sorted, and gives [k].
    """
    blocks = torch.split(rows, max(1, VALUES_PER_CALL // len(rows)), 1)
    return torch.cat([combine((b if selected is None else b[selected]).sort(0).values) for b in blocks])


def middle(ordered: Tensor) -> Tensor:
    """The median [k] of sorted columns [A, k]: the mean of the two in the middle where A is even."""
    a = len(ordered)
    return (ordered[(a - 1) // 2] + ordered[a // 2]) / 2
