"""Memory for the trained models of a cohort, used again in the next round.

The system finds and clears new memory page by page: a fifth of a small model's round.
"""

import mmap
import sys

import torch
from torch import Tensor


class Buffer:
    """A block of memory for one tensor, used again when the tensor and all its views are gone.

    With `shared`, forked processes write into the same memory. The memory has no name: nothing is left behind, and no
    quota of /dev/shm is used.
    """

    def __init__(self, shared: bool) -> None:
        self._flags = (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE) | mmap.MAP_ANONYMOUS
        self._memory: mmap.mmap | None = None
        self._unused = 0  # the reference count of the block while no tensor holds it
        self.number = 0  # how often the block has been replaced

    def take(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor [rows, columns]."""
        size = rows * columns * dtype.itemsize
        if not size:
            return torch.empty(rows, columns, dtype=dtype)
        if self._memory is None or len(self._memory) < size or sys.getrefcount(self._memory) > self._unused:
            self._memory = mmap.mmap(-1, size, flags=self._flags)
            self._unused = sys.getrefcount(self._memory)
            self.number += 1
        return self.again(rows, columns, dtype)

    def again(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """The block of the last `take` as a tensor of these sizes, whether it is in use or not."""
        assert self._memory is not None
        return torch.frombuffer(self._memory, dtype=dtype, count=rows * columns).view(rows, columns)


# For a cohort's models in one process, for those in several, and for a single model.
PRIVATE, SHARED, ONE = Buffer(shared=False), Buffer(shared=True), Buffer(shared=False)


def shared_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros in memory that forked processes share, without a name and without a quota of /dev/shm."""
    size = torch.Size(shape).numel()
    if not size:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, size * dtype.itemsize), dtype=dtype).view(shape)
