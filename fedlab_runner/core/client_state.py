"""Rows that an algorithm keeps for its clients (models, control variates, updates), in memory or in a file of the run
folder when they are too many for it.

A State holds what `RowStore.put` gives: the row itself, or the number of its slot in the file. A slot is written once.
It is used again only when neither the State that the current round starts from nor a checkpoint that still lies in
the run folder has it, so that a round never spoils what a killed run goes on from. The file is sparse: rows
that were never put cost nothing.
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

from fedlab_runner.utils.errors import RunFailed
from fedlab_runner.utils.files import is_at, make_folder, naming, open_own, sync_folder, write_atomically

PLACES = ("device", "host", "disk")
FOLDER = "tables"
LIVE = np.iinfo(np.int64).max
UNKNOWN = -1  # the checksum of a row that an older version wrote
RowRef = Tensor | int  # a row in memory, or its slot
ALL = slice(None)
AGAIN = "the same command goes on from the last checkpoint whose rows are whole"
_log = logging.getLogger(__name__)


def check_place(name: str, place: str) -> None:
    """Raises ValueError for a place that does not exist; `name` is the field that holds it."""
    if place not in PLACES:
        raise ValueError(f"{name} must be one of {', '.join(PLACES)}, got {place}")


class RowFile:
    """Rows of one length and type, at fixed places in one file; reads and writes are by position, so that no row stays
    in memory.

    Slot i holds a row of the States after `born[i]` to `gone[i] - 1` rounds, whose CRC-32 is `sums[i]`; the interval is
    empty where it holds none.
    """

    def __init__(self, path: Path | None, length: int, dtype: torch.dtype) -> None:
        self._path, self._length, self._dtype = path, length, dtype
        self._row_bytes = length * dtype.itemsize
        self._born, self._gone, self._sums = (np.zeros(0, np.int64) for _ in range(3))
        self._free: list[int] | None = None  # None: to be looked for
        self._round, self._retained = 0, frozenset[int]()
        self._descriptor: int | None = None
        self._dirty = False

    def begin(self, round: int) -> None:
        """A round starts, from the State after `round` rounds."""
        self._round, self._free = round, None

    def retain(self, rounds: Iterable[int]) -> None:
        """The checkpoints after these numbers of rounds are kept; their rows must not be written over."""
        self._retained, self._free = frozenset(rounds), None

    def put(self, row: Tensor) -> int:
        """Writes a row [length] and gives its slot."""
        slot = self._take()
        values = row.detach().to("cpu", self._dtype).contiguous().numpy()
        data, offset = values.data.cast("B"), slot * self._row_bytes
        with naming(self._path):
            while data:
                written = os.pwrite(self._open(), data, offset)
                data, offset = data[written:], offset + written
        self._born[slot], self._gone[slot], self._dirty = self._round + 1, LIVE, True
        self._sums[slot] = zlib.crc32(values.data.cast("B"))
        return slot

    def get(self, slot: int, columns: slice, device: torch.device) -> Tensor:
        """The row of a slot, checked, or consecutive columns of it. RunFailed where it is not what was written."""
        self._check(slot)
        begin, end, _ = columns.indices(self._length)
        values = self._values(slot, begin, end)
        if end - begin == self._length and not self._whole(slot, values):
            raise RunFailed(f"{self._path} is damaged in slot {slot}: {AGAIN}")
        return values.to(device)

    def _check(self, slot: Any) -> None:
        if not isinstance(slot, int) or not 0 <= slot < len(self._born):  # of a checkpoint that somebody made
            raise RunFailed(f"{self._path} has no slot {str(slot)[:40]}: {AGAIN}")

    def _whole(self, slot: int, values: Tensor) -> bool:
        return self._sums[slot] in (UNKNOWN, zlib.crc32(values.numpy().data.cast("B")))

    def _values(self, slot: int, begin: int, end: int) -> Tensor:
        values = torch.empty(end - begin, dtype=self._dtype)
        data = values.numpy().data.cast("B")
        offset = slot * self._row_bytes + begin * self._dtype.itemsize
        while data:
            count = os.preadv(self._open(), [data], offset)
            if not count:
                raise RunFailed(f"{self._path} has not the rows that the run needs: {AGAIN}")
            data, offset = data[count:], offset + count
        return values

    def drop(self, slot: int) -> None:
        """The State after this round has the slot no more."""
        self._check(slot)
        self._gone[slot] = self._round + 1

    def sync(self) -> None:
        """Forces to disk what was written: a checkpoint must not outrun its rows."""
        self._mend()
        if self._dirty:
            with naming(self._path):
                os.fdatasync(self._open())
            self._dirty = False

    def _mend(self) -> None:
        """Brings back a file whose name somebody has removed: the rows are there as long as it is open.

        Raises RunFailed where rows that the State has were cut off.
        """
        if self._path is None or self._descriptor is None:
            return
        live = np.flatnonzero((self._born > 0) & (self._gone == LIVE))
        if os.fstat(self._descriptor).st_size < (live.max(initial=-1) + 1) * self._row_bytes:
            raise RunFailed(f"{self._path} was cut off while the run was at work, and rows are lost: {AGAIN}")
        if not is_at(self._path, self._descriptor):
            _log.warning("%s was removed while the run was at work: it is written anew", self._path)
            with os.fdopen(os.dup(self._descriptor), "rb") as rows:  # all else is read and written by position
                rows.seek(0)
                write_atomically(self._path, lambda file: shutil.copyfileobj(rows, file))
            self._close()
            self._descriptor = None

    def state_dict(self) -> dict[str, Tensor]:
        """Which slots are whose."""
        values = {"born": self._born, "gone": self._gone, "sums": self._sums}
        return {name: torch.from_numpy(each.copy()) for name, each in values.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continues from a saved state: what was written later is free. ValueError where the parts do not fit."""
        if any(
            each.dtype != torch.int64 or each.shape != state["born"].shape or each.dim() != 1 for each in state.values()
        ):
            raise ValueError("the lists of slots are not of one length and of whole numbers")
        self._born, self._gone = (state[name].cpu().numpy().copy() for name in ("born", "gone"))
        sums = state.get("sums")
        self._sums = np.full_like(self._born, UNKNOWN) if sums is None else sums.cpu().numpy().copy()
        self._free = None

    def find_damage(self, round: int) -> str | None:
        """What is wrong with the rows of the State after `round`: each is read once. None if nothing is."""
        for slot in np.flatnonzero((self._born <= round) & (round < self._gone)).tolist():
            try:
                whole = self._whole(slot, self._values(slot, 0, self._length))
            except RunFailed:
                return f"{self._path} lacks rows of it"
            if not whole:
                return f"{self._path} is damaged in slot {slot}"
        return None

    def _take(self) -> int:
        if self._free is None:
            free = self._gone < LIVE
            for round in {*self._retained, self._round}:
                free &= (round < self._born) | (self._gone <= round)
            self._free = np.flatnonzero(free)[::-1].tolist()
        if not self._free:
            size = len(self._born)
            more = max(64, size // 2)
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
            else:
                make_folder(self._path.parent)
                self._descriptor = open_own(self._path, os.O_RDWR | os.O_CREAT)
                sync_folder(self._path.parent)
            self._close = weakref.finalize(self, os.close, self._descriptor)
        return self._descriptor


class RowStore:
    """Where an algorithm keeps rows of one length: on the `device`, on the `host`, or on `disk`."""

    def __init__(self, place: str, file: RowFile, device: torch.device) -> None:
        self._place, self._file, self._device = place, file, device

    def put(self, row: Tensor) -> RowRef:
        """Keeps a copy of a row [length], for a State."""
        if self._place == "disk":
            return self._file.put(row)
        return row.detach().to("cpu" if self._place == "host" else self._device, copy=True)

    def get(self, kept: RowRef, columns: slice = ALL) -> Tensor:
        """The row, or consecutive columns of it, on the device; not to be written into."""
        if isinstance(kept, Tensor):
            return kept[columns].to(self._device)
        return self._file.get(kept, columns, self._device)

    def drop(self, kept: RowRef) -> None:
        """The next State does not hold this row: its slot may be used again when nothing else needs it."""
        if not isinstance(kept, Tensor):
            self._file.drop(kept)


class ClientStateStore:
    """The row files of a run, one for each length and type; without a folder they are temporary."""

    def __init__(self, folder: Path | None, device: torch.device) -> None:
        self._folder, self._device = None if folder is None else folder / FOLDER, device
        self._files: dict[str, RowFile] = {}
        self._round, self._retained = 0, frozenset[int]()

    def rows(self, place: str, length: int, dtype: torch.dtype) -> RowStore:
        """A place for rows of this length and type."""
        return RowStore(place, self._file(f"{length}_{str(dtype).removeprefix('torch.')}"), self._device)

    def begin(self, round: int) -> None:
        """A round starts."""
        self._round = round
        for file in self._files.values():
            file.begin(round)

    def retain(self, rounds: Iterable[int]) -> None:
        """Of the checkpoints, those after these numbers of rounds are kept."""
        self._retained = frozenset(rounds)
        for file in self._files.values():
            file.retain(self._retained)

    def sync(self) -> None:
        """Forces all files to disk."""
        for file in self._files.values():
            file.sync()

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs beside the files."""
        return {name: file.state_dict() for name, file in self._files.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a saved state."""
        for name, each in state.items():
            self._file(name).load_state_dict(each)

    def find_damage(self, round: int, state: dict[str, Any]) -> str | None:
        """What is wrong with the rows that the State after `round` has by a saved state; None if nothing is."""
        for name, each in state.items():
            file = self._new(name)
            file.load_state_dict(each)
            if (missing := file.find_damage(round)) is not None:
                return missing
        return None

    def _file(self, name: str) -> RowFile:
        if name not in self._files:
            file = self._new(name)
            file.begin(self._round)
            file.retain(self._retained)
            self._files[name] = file
        return self._files[name]

    def _new(self, name: str) -> RowFile:
        length, dtype = name.split("_")
        path = None if self._folder is None else self._folder / f"rows_{name}.bin"
        return RowFile(path, int(length), getattr(torch, dtype))
