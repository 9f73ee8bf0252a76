"""A file of rows of one length. A round writes a slot once and uses it again when nobody needs its row.

A slot is free when neither the State that the current round starts from nor a checkpoint in the run folder refers to
it: a round never overwrites a row that a killed run needs. Files are sparse: an empty slot takes no space.
"""

import logging
import os
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.utils.attempt import next_start
from fedlab_runner.utils.errors import RunFailed
from fedlab_runner.utils.files import is_at, make_folder, naming, open_own, open_to_read, sync_folder, write_atomically

NOT_DROPPED = np.iinfo(np.int64).max  # `gone` of a slot whose row is in use
MIN_NEW_SLOTS = 64  # slots by which a full file grows at least
_log = logging.getLogger(__name__)


class RowFile:
    """Rows of one length and type in one file, read and written by position: no row stays in memory.

    Slot i holds a row of the States after `born[i]` to `gone[i] - 1` rounds (an empty interval: no row), with the
    CRC-32 `sums[i]`. Without a path the file is temporary. A `read_only` file must exist.
    """

    def __init__(self, path: Path | None, length: int, dtype: torch.dtype, read_only: bool = False) -> None:
        self._path, self.length, self.dtype = path, length, dtype
        self._row_bytes = length * dtype.itemsize
        self._born, self._gone, self._sums = (np.zeros(0, np.int64) for _ in range(3))
        self._read_only = read_only
        self._free: list[int] | None = None  # None: `_take` looks for them
        self._round, self._retained = 0, frozenset[int]()
        self._descriptor: int | None = None
        self._dirty = False

    def begin(self, round: int) -> None:
        """Starts a round, from the State after `round` rounds."""
        self._round, self._free = round, None

    def retain(self, rounds: Iterable[int]) -> None:
        """Protects the rows of the checkpoints after these numbers of rounds, and of no other checkpoint."""
        self._retained, self._free = frozenset(rounds), None

    def put(self, row: Tensor, after: int | None = None) -> int:
        """Writes a row [length] of the State after this round, or after `after` rounds, and returns its slot."""
        slot = self._take()
        values = row.detach().to("cpu", self.dtype).contiguous().numpy()
        data, offset = values.data.cast("B"), slot * self._row_bytes
        with naming(self._path):
            while data:
                written = os.pwrite(self._open(), data, offset)
                data, offset = data[written:], offset + written
        born = self._round + 1 if after is None else after
        self._born[slot], self._gone[slot], self._dirty = born, NOT_DROPPED, True
        self._sums[slot] = zlib.crc32(values.data.cast("B"))
        return slot

    def get(self, slot: int, columns: slice, device: torch.device) -> Tensor:
        """The row of a slot, or consecutive columns of it. Raises RunFailed if a whole row has another checksum."""
        self._check(slot)
        begin, end, _ = columns.indices(self.length)
        values = self._values(slot, begin, end)
        if end - begin == self.length and not self._whole(slot, values):
            raise RunFailed(f"{self._path} is damaged in slot {slot}: {next_start()}")
        return values.to(device)

    def _check(self, slot: Any) -> None:
        if not isinstance(slot, int) or not 0 <= slot < len(self._born):  # a checkpoint that was tampered with
            raise RunFailed(f"{self._path} has no slot {str(slot)[:40]}: {next_start()}")

    def _whole(self, slot: int, values: Tensor) -> bool:
        return bool(self._sums[slot] == zlib.crc32(values.numpy().data.cast("B")))

    def _values(self, slot: int, begin: int, end: int) -> Tensor:
        values = torch.empty(end - begin, dtype=self.dtype)
        data = values.numpy().data.cast("B")
        offset = slot * self._row_bytes + begin * self.dtype.itemsize
        while data:
            count = os.preadv(self._open(), [data], offset)
            if not count:
                raise RunFailed(f"{self._path} lacks rows that the run needs: {next_start()}")
            data, offset = data[count:], offset + count
        return values

    def stamp(self, slot: int) -> tuple[int, int, int]:
        """A key that differs for all rows that a slot has ever held."""
        self._check(slot)
        return slot, int(self._born[slot]), int(self._sums[slot])

    def drop(self, slot: int, after: int | None = None) -> None:
        """Declares that the State after this round, or after `after` rounds, does not hold the slot."""
        self._check(slot)
        self._gone[slot] = self._round + 1 if after is None else after

    def sync(self) -> None:
        """Forces all rows to disk. The run calls this before it writes a checkpoint that refers to them."""
        self._mend()
        if self._dirty:
            with naming(self._path):
                os.fdatasync(self._open())
            self._dirty = False

    def _mend(self) -> None:
        """Writes a file again that was removed while it was open. Raises RunFailed if rows in use were cut off."""
        if self._path is None or self._descriptor is None:
            return
        live = np.flatnonzero((self._born > 0) & (self._gone == NOT_DROPPED))
        if os.fstat(self._descriptor).st_size < (live.max(initial=-1) + 1) * self._row_bytes:
            raise RunFailed(f"{self._path} was cut off during the run, and rows are lost: {next_start()}")
        if not is_at(self._path, self._descriptor):
            _log.warning("%s was removed during the run: it is written again", self._path)
            with os.fdopen(os.dup(self._descriptor), "rb") as rows:  # all other access is by position
                rows.seek(0)
                write_atomically(self._path, lambda file: shutil.copyfileobj(rows, file))
            self._close()
            self._descriptor = None

    def state_dict(self, round: int | None = None) -> dict[str, Tensor]:
        """The rounds and checksums of all slots: now, or as of the end of `round` rounds, if the present round will be
        repeated.
        """
        values = {"born": self._born.copy(), "gone": self._gone.copy(), "sums": self._sums.copy()}
        if round is not None:
            values["gone"][values["gone"] > round] = NOT_DROPPED
            for each in values.values():
                each[self._born > round] = 0
        return {name: torch.from_numpy(each) for name, each in values.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continues from a saved state: slots written later are free. Raises ValueError if its lists do not fit."""
        if any(
            each.dtype != torch.int64 or each.shape != state["born"].shape or each.dim() != 1 for each in state.values()
        ):
            raise ValueError("the lists of slots are not of one length and of whole numbers")
        self._born, self._gone, self._sums = (state[name].cpu().numpy().copy() for name in ("born", "gone", "sums"))
        self._free = None

    def find_damage(self, round: int) -> str | None:
        """Reads all rows of the State after `round` and describes the first damaged row; None: all are whole."""
        for slot in np.flatnonzero((self._born <= round) & (round < self._gone)).tolist():
            try:
                whole = self._whole(slot, self._values(slot, 0, self.length))
            except RunFailed:
                return f"{self._path} lacks rows of it"
            if not whole:
                return f"{self._path} is damaged in slot {slot}"
        return None

    def _take(self) -> int:
        if self._free is None:
            free = self._gone < NOT_DROPPED
            for round in {*self._retained, self._round}:
                free &= (round < self._born) | (self._gone <= round)
            self._free = np.flatnonzero(free)[::-1].tolist()
        if not self._free:
            size = len(self._born)
            more = max(MIN_NEW_SLOTS, size // 2)
            self._born, self._gone, self._sums = (
                np.concatenate([a, np.zeros(more, np.int64)]) for a in (self._born, self._gone, self._sums)
            )
            self._free = list(range(size + more - 1, size - 1, -1))
        return self._free.pop()

    def _open(self) -> int:
        if self._descriptor is None:
            if self._path is None:
                with tempfile.TemporaryFile() as file:
                    self._descriptor = os.dup(file.fileno())
            elif self._read_only:
                with open_to_read(self._path) as file:
                    self._descriptor = os.dup(file.fileno())
            else:
                make_folder(self._path.parent)
                self._descriptor = open_own(self._path, os.O_RDWR | os.O_CREAT)
                sync_folder(self._path.parent)
            self._close = weakref.finalize(self, os.close, self._descriptor)
        return self._descriptor
