"""Rows in memory, as checkpoints have them. The first checkpoint with a row writes it into a row file, and each
checkpoint names its slot there. So a checkpoint costs only the rows that have changed since the last one.
"""

import re
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fedlab_runner.core.row_file import RowFile

Named = Callable[[Tensor], Tensor | str]
_NAME = re.compile(r"row (device|host) (\d+_[a-z0-9]+) (\d+)")  # of a row, in a packed State


class SavedRows:
    """The rows in memory of a run, and the slots in which checkpoints have them."""

    def __init__(self, file: Callable[[str], RowFile], device: torch.device) -> None:
        """`file` finds a row file by its name."""
        self._file, self._device = file, device
        # For each row in memory the name of its file, and its slot if the file has it.
        self._rows: MutableMapping[Tensor, tuple[str, int | None]] = WeakTensorKeyDictionary()
        self._last: set[tuple[str, int]] = set()  # files' names and slots of the rows in the last checkpoint

    def add(self, row: Tensor, name: str) -> Tensor:
        """Declares that this tensor is a row of this file, and returns the tensor."""
        self._rows[row] = name, None
        return row

    @contextmanager
    def naming(self, round: int) -> Iterator[Named]:
        """A context for packing the State after `round` rounds. Yields a function that replaces a row by its name and
        writes the row if no checkpoint has it. The function returns any other tensor as it is.
        """
        now: set[tuple[str, int]] = set()

        def named(tensor: Tensor) -> Tensor | str:
            known = self._rows.get(tensor)  # once, as a look-up is most of the work
            if known is None:
                return tensor
            name, slot = known
            if slot is None:
                slot = self._file(name).put(tensor, round)
                self._rows[tensor] = name, slot
                self._last.add((name, slot))
            now.add((name, slot))
            return f"row {'device' if tensor.device.type == self._device.type else 'host'} {name} {slot}"

        yield named
        for name, slot in self._last - now:
            self._file(name).drop(slot, round)
        self._last = now

    def forget(self) -> None:
        """Declares that no row in memory is in a file, because the files belong to another State."""
        for row, (name, _) in list(self._rows.items()):
            self._rows[row] = name, None
        self._last = set()

    def read(self, packed: Any) -> Any:
        """A packed value with rows instead of their names. Clients that shared a row share it again.

        Raises RunFailed where a file lacks a row or holds it damaged.
        """
        found: dict[str, Tensor] = {}

        def row(value: str) -> Any:
            if value not in found and (match := _NAME.fullmatch(value)):
                place, name, slot = match[1], match[2], int(match[3])
                device = self._device if place == "device" else torch.device("cpu")
                found[value] = self._file(name).get(slot, slice(None), device)
                self._rows[found[value]] = name, slot
                self._last.add((name, slot))
            return found.get(value, value)

        def whole(value: Any) -> Any:
            if isinstance(value, str):
                return row(value)
            if isinstance(value, dict):
                return {key: whole(item) for key, item in value.items()}
            return type(value)(map(whole, value)) if isinstance(value, list | tuple) else value

        return whole(packed)
