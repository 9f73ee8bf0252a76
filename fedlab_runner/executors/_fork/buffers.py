"""Memory for the models that a cohort comes back with, used again in the next round.

The system gives memory out in pages that it has to find and clear: of a small model's round that is a fifth.
"""

import mmap
import sys

import torch
from torch import Tensor


class Buffer:
    """One piece of memory, of which a tensor is made; used again when that tensor and all views of it are gone.

    With `shared`, forked processes write into the same memory. It has no name: nothing is left behind, and no quota of
    /dev/shm is used.
    """

    def __init__(self, shared: bool) -> None:
        self._flags = (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE) | mmap.MAP_ANONYMOUS
        self._memory: mmap.mmap | None = None
        self._unused = 0  # references to the memory while no tensor holds it
        self.number = 0  # of the piece: how often it has been replaced

    def take(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """A tensor [rows, columns] with whatever values."""
        size = rows * columns * dtype.itemsize
        if not size:
            return torch.empty(rows, columns, dtype=dtype)
        if self._memory is None or len(self._memory) < size or sys.getrefcount(self._memory) > self._unused:
            self._memory = mmap.mmap(-1, size, flags=self._flags)
            self._unused = sys.getrefcount(self._memory)
            self.number += 1
        return self.again(rows, columns, dtype)

    def again(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """The memory that was taken last, as a tensor of these sizes, whether it is in use or not."""
        assert self._memory is not None
        return torch.frombuffer(self._memory, dtype=dtype, count=rows * columns).view(rows, columns)


PRIVATE, SHARED, ONE = Buffer(shared=False), Buffer(shared=True), Buffer(shared=False)  # ONE: of a single model


def shared_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor that forked processes share, in memory without a name: nothing is left behind, no quota of /dev/shm."""
    size = torch.Size(shape).numel()
    if not size:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, size * dtype.itemsize), dtype=dtype).view(shape)
