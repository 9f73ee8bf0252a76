"""Rows that an algorithm keeps for its clients (models, control variates, updates): in memory or, if they do not fit,
in files of the run folder.

`ClientStateStore` owns the files, `RowStore` is an algorithm's access to rows of one length. A State holds `RowRef`s,
which `RowStore.put` returns: the row itself, or the number of its slot in the file (`core.row_file`).
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedlab_runner.core.row_file import RowFile
from fedlab_runner.core.saved_rows import Named, SavedRows
from fedlab_runner.homes.base import PLACES as PLACES
from fedlab_runner.utils.errors import UserError

FOLDER = "client_state"  # in the run folder
RowRef = Tensor | int  # a row in memory, or its slot in a file
ALL_COLUMNS = slice(None)  # of a row
Empty = Callable[..., Tensor]  # (rows, columns, dtype=, device=) -> an uninitialised tensor [rows, columns]


class RowStore:
    """An algorithm's rows of one length: on the `device`, on the `host`, or on `disk`."""

    def __init__(
        self, place: str, file: RowFile, device: torch.device, in_memory: Callable[[Tensor], Tensor], empty: Empty
    ) -> None:
        """Each row that stays in memory goes through `in_memory`, which returns it. `empty` gives memory for stacks."""
        self._place, self._file, self._device = place, file, device
        self._in_memory, self._empty = in_memory, empty

    def put(self, row: Tensor, *, copy: bool = True) -> RowRef:
        """Keeps a copy of a row [length], or the row itself, and returns the reference for the State."""
        if self._place == "disk":
            return self._file.put(row)
        return self._in_memory(row.detach().to("cpu" if self._place == "host" else self._device, copy=copy))

    def get(self, ref: RowRef, columns: slice = ALL_COLUMNS) -> Tensor:
        """The row, or consecutive columns of it, on the device. The caller must not write into it.

        Raises RunFailed where a file lacks the row or holds it damaged.
        """
        if isinstance(ref, Tensor):
            return ref[columns].to(self._device)
        return self._file.get(ref, columns, self._device)

    def stacked(self, rows: Mapping[int, RowRef], clients: Sequence[int], otherwise: Tensor | None = None) -> Tensor:
        """The rows [k, length] of clients, by their references; `otherwise` [length] for a client without a reference
        (None: each has one).
        """
        found = self._empty(len(clients), self._file.length, dtype=self._file.dtype, device=self._device)
        for own, client in zip(found, clients, strict=True):
            own.copy_(otherwise if otherwise is not None and client not in rows else self.get(rows[client]))
        return found

    def replace(self, rows: dict[int, RowRef], client: int, row: Tensor) -> None:
        """Keeps a copy of a client's next row [length], which replaces its last one."""
        self.replace_all(rows, [client], row)

    def add(self, rows: dict[int, RowRef], client: int, change: Tensor, factor: float = 1.0) -> None:
        """Keeps the sum of a client's last row (zero without one) and `factor` times `change` [length]."""
        before = rows.get(client)
        row = change * factor if before is None else torch.add(self.get(before), change, alpha=factor)
        if before is not None:
            self.drop(before)
        rows[client] = self.put(row, copy=False)

    def replace_all(self, rows: dict[int, RowRef], clients: Sequence[int], next: Tensor) -> None:
        """As `replace`, for clients whose next rows are `next` [k, length], or one [length] for all of them, which they
        share in memory.
        """
        one = next.dim() == 1
        shared = self.put(next) if one and self._place != "disk" else None  # clients cannot share a slot
        for k, client in enumerate(clients):
            if client in rows:
                self.drop(rows[client])
            rows[client] = self.put(next if one else next[k]) if shared is None else shared

    def identity(self, ref: RowRef) -> Callable[[RowRef], bool]:
        """A function that says whether another reference points to this row, as long as the row is in use."""
        if isinstance(ref, Tensor):
            alive = weakref.ref(ref)
            return lambda other: other is alive()
        stamp = self._file.stamp(ref)
        return lambda other: not isinstance(other, Tensor) and self._file.stamp(other) == stamp

    def drop(self, ref: RowRef) -> None:
        """Declares that the next State does not hold this row."""
        if not isinstance(ref, Tensor):
            self._file.drop(ref)


class ClientStateStore:
    """The rows of a run: those in memory, and a file for each length and type of rows on disk. Without a folder the
    files are temporary.
    """

    def __init__(self, folder: Path | None, device: torch.device, read_only: bool = False) -> None:
        self._folder, self._device = None if folder is None else folder / FOLDER, device
        self._read_only = read_only
        self._files: dict[str, RowFile] = {}
        self._in_memory = SavedRows(self._file, device)
        self._round, self._retained = 0, frozenset[int]()

    def rows(self, place: str, length: int, dtype: torch.dtype, empty: Empty = torch.empty) -> RowStore:
        """The store of rows of this length and type at `place`; `empty` gives memory for stacks. Raises UserError
        unless the place, the value of a field `store_on`, is one of `PLACES`.
        """
        if place not in PLACES:
            raise UserError(f"store_on must be one of {', '.join(PLACES)}, got {place!r}")
        name = f"{length}_{str(dtype).removeprefix('torch.')}"
        return RowStore(place, self._file(name), self._device, lambda row: self._in_memory.add(row, name), empty)

    def begin(self, round: int) -> None:
        """Starts a round, from the State after `round` rounds."""
        self._round = round
        for file in self._files.values():
            file.begin(round)

    def retain(self, rounds: Iterable[int]) -> None:
        """Protects the rows of the checkpoints after these numbers of rounds, and of no other checkpoint."""
        self._retained = frozenset(rounds)
        for file in self._files.values():
            file.retain(self._retained)

    @contextmanager
    def naming(self, round: int) -> Iterator[Named]:
        """A context for packing the State after `round` rounds for a checkpoint. Yields a function that replaces a row
        by its name and writes the row if no checkpoint has it. Without a folder rows stay as they are.
        """
        if self._folder is None:
            yield lambda tensor: tensor
        else:
            with self._in_memory.naming(round) as named:
                yield named

    def named(self, packed: Any) -> Any:
        """A packed value with rows in memory instead of the names that `naming` gave them. Raises RunFailed where a
        file lacks a row or holds it damaged.
        """
        return self._in_memory.read(packed)

    def sync(self) -> None:
        """Forces all rows in files to disk."""
        for file in self._files.values():
            file.sync()

    def state_dict(self, round: int | None = None) -> dict[str, Any]:
        """Everything that a resumed run needs besides the files: now, or as of the end of `round` rounds."""
        return {name: file.state_dict(round) for name, file in self._files.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a saved state."""
        self._in_memory.forget()
        for name, each in state.items():
            self._file(name).load_state_dict(each)

    def find_damage(self, round: int, state: dict[str, Any]) -> str | None:
        """Describes the first damaged row of the State after `round`, given a saved state; None: all are whole."""
        for name, each in state.items():
            file = self._new(name)
            file.load_state_dict(each)
            if (damage := file.find_damage(round)) is not None:
                return damage
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
        return RowFile(path, int(length), getattr(torch, dtype), self._read_only)
