"""Memory for the models of a cohort, into which processes of this machine that are no forks write too."""

import mmap
import os
import secrets
import weakref
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fedlab_runner.core.work import Work
from fedlab_runner.executors._fork.buffers import Buffer

MAX_STAGED_BYTES = 2**30  # of a cohort's models that are here and on a GPU


class Block(NamedTuple):
    """A tensor [rows, columns], for other processes of the same machine and user."""

    holder: str  # a descriptor of the memory, as a path
    target: str  # what that path must lead to: a random name, so that no other memory is taken for it
    rows: int
    columns: int
    dtype: torch.dtype

    def models(self) -> Tensor | None:
        """The tensor; None: it is on another machine, or out of reach."""
        if (memory := _attached(self.holder, self.target)) is None:
            return None
        return torch.frombuffer(memory, dtype=self.dtype, count=self.rows * self.columns).view(self.rows, self.columns)


class Blocks(Buffer):
    """Shared memory that other processes reach by descriptors of this one, where the system shows them (Linux)."""

    def __init__(self) -> None:
        super().__init__(shared=True)
        self._descriptors: dict[int, int] = {}  # by block
        self.close = weakref.finalize(self, _close, self._descriptors)

    def staged(self, work: Work) -> tuple[Tensor, Block] | tuple[None, None]:
        """A tensor [K, D] on the CPU for the models of a cohort, and what other processes are told of it. None where
        they could not reach it, or where it would be a copy of too much.
        """
        rows, columns, dtype = len(work.ids), work.family.size, work.family.dtype
        if work.family.device.type != "cpu" and rows * columns * dtype.itemsize > MAX_STAGED_BYTES:
            return None, None
        y = self.take(rows, columns, dtype)
        if (descriptor := self._descriptors.get(self.last)) is None:
            return None, None
        holder = f"/proc/{os.getpid()}/fd/{descriptor}"
        try:
            return y, Block(holder, os.readlink(holder), rows, columns, dtype)
        except OSError:
            return None, None

    def _mapped(self, number: int, size: int) -> mmap.mmap:
        if not hasattr(os, "memfd_create"):
            return super()._mapped(number, size)
        self._descriptors[number] = os.memfd_create(f"fedlab-{secrets.token_hex(16)}")
        os.ftruncate(self._descriptors[number], size)
        return mmap.mmap(self._descriptors[number], size)

    def _forget(self, number: int) -> None:
        super()._forget(number)
        if number in self._descriptors:
            os.close(self._descriptors.pop(number))


def _close(descriptors: dict[int, int]) -> None:
    """Closes the descriptors. The memory stays as long as a tensor has it."""
    for descriptor in descriptors.values():
        os.close(descriptor)
    descriptors.clear()


@lru_cache(maxsize=2)  # a run takes turns with two blocks
def _attached(holder: str, target: str) -> mmap.mmap | None:
    try:
        if os.readlink(holder) != target:
            return None
        descriptor = os.open(holder, os.O_RDWR | os.O_CLOEXEC)
        try:
            same = os.readlink(f"/proc/self/fd/{descriptor}") == target
            return mmap.mmap(descriptor, os.fstat(descriptor).st_size) if same else None
        finally:
            os.close(descriptor)
    except OSError:
        return None
