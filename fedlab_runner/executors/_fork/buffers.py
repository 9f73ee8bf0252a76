"""Memory for the trained models of a cohort, reused in later rounds, and for the work of waiting processes.

The system finds and clears new memory page by page, which takes a fifth of a small model's round.
"""

import itertools
import mmap
import sys

import torch
from torch import Tensor

from fedlab_runner.core.aligned import ALIGNMENT

MAX_SPARE_BLOCKS = 2  # that nobody holds, besides the one that is taken


class ArenaFull(Exception):
    """The tensors of a round take more room than the arena has."""


class Buffer:
    """Blocks of memory for tensors. The buffer reuses a block when its tensor and all views of it are gone.

    With `shared`, forked processes write into the same memory. The memory has no name: it leaves nothing behind and
    uses no quota of /dev/shm.
    """

    def __init__(self, shared: bool) -> None:
        self._flags = (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE) | mmap.MAP_ANONYMOUS
        self._blocks: dict[int, mmap.mmap] = {}
        self._numbers = itertools.count()
        self._unused = 0  # the reference count of a block while no tensor holds it
        self.last = -1  # the number of the block taken last; every block has another number

    @property
    def numbers(self) -> frozenset[int]:
        """The numbers of all blocks."""
        return frozenset(self._blocks)

    def take(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor [rows, columns]."""
        size = rows * columns * dtype.itemsize
        if not size:
            return torch.empty(rows, columns, dtype=dtype)
        free = [n for n in self._blocks if sys.getrefcount(self._blocks[n]) <= self._unused]
        free.sort(key=lambda n: len(self._blocks[n]))
        fitting = [n for n in free if len(self._blocks[n]) >= size]
        spare = [n for n in free if n not in fitting[:1]]
        for n in spare[:-MAX_SPARE_BLOCKS] if fitting else spare:  # the smallest, or all before a larger one
            self._forget(n)
        if fitting:
            self.last = fitting[0]
        else:
            self.last = next(self._numbers)
            self._blocks[self.last] = self._mapped(self.last, size)
            self._unused = sys.getrefcount(self._blocks[self.last])
        return self.again(self.last, (rows, columns), dtype)

    def empty(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialised tensor [rows, columns] on the device, on the CPU in a block."""
        if device.type == "cpu":
            return self.take(rows, columns, dtype)
        return torch.empty(rows, columns, dtype=dtype, device=device)

    def again(self, number: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A block as a tensor of this shape, whether it is in use or not."""
        return torch.frombuffer(self._blocks[number], dtype=dtype, count=torch.Size(shape).numel()).view(shape)

    def block_of(self, tensor: Tensor) -> int | None:
        """The number of the block that begins with this contiguous tensor; None if there is none."""
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            return None
        begin = tensor.data_ptr()
        return next((n for n in self._blocks if self.again(n, (1,), torch.uint8).data_ptr() == begin), None)

    def _mapped(self, number: int, size: int) -> mmap.mmap:
        """The memory of a new block."""
        return mmap.mmap(-1, size, flags=self._flags)

    def _forget(self, number: int) -> None:
        """Gives a block back."""
        del self._blocks[number]


# For a cohort's models in one process, for a cohort's models in several processes, and for a single model.
PRIVATE, SHARED, ONE = Buffer(shared=False), Buffer(shared=True), Buffer(shared=False)


class Arena:
    """Shared memory for tensors, one behind the other. Only the parts that were written take memory."""

    def __init__(self, size: int) -> None:
        self.size, self._used, self._memory = size, 0, mmap.mmap(-1, size)

    def clear(self) -> None:
        """Forgets all tensors. Later ones overwrite them."""
        self._used = 0

    def room(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[int, Tensor]:
        """The place of a new tensor, and the uninitialised tensor. Raises ArenaFull if it does not fit."""
        place = -(-self._used // ALIGNMENT) * ALIGNMENT
        end = place + torch.Size(shape).numel() * dtype.itemsize
        if end > self.size:
            raise ArenaFull
        self._used = end
        return place, self.at(place, shape, dtype)

    def at(self, place: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor at a place."""
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=place).view(shape)


def shared_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros in memory that forked processes share, without a name and without a quota of /dev/shm."""
    size = torch.Size(shape).numel()
    if not size:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, size * dtype.itemsize), dtype=dtype).view(shape)
