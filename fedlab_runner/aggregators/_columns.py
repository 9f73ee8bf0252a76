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
    return torch.cat([combine(_ordered(b if selected is None else b[selected])) for b in blocks])


def _ordered(rows: Tensor) -> Tensor:
    """The rows [A, k] with each column sorted, and zeros without a sign. On a CPU NumPy sorts: its vector instructions
    take a third of torch's time for ten rows and a tenth for fifty. Below five rows NumPy takes longer.
    """
    found = rows + 0.0
    if found.device.type != "cpu":
        return found.sort(0).values
    found.numpy().sort(0)
    return found


def middle(ordered: Tensor) -> Tensor:
    """The median [k] of sorted columns [A, k]: the mean of the two in the middle where A is even."""
    a = len(ordered)
    return (ordered[(a - 1) // 2] + ordered[a // 2]) / 2
