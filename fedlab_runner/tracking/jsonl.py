"""A run's numbers as a file of JSON objects, one line for each round. All other views are copies of this file."""

import hashlib
import json
import logging
import math
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedlab_runner.utils import untrusted
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.files import (
    is_at,
    make_folder,
    naming,
    open_own,
    open_to_read,
    sync_folder,
    write_atomically,
    write_whole,
)
from fedlab_runner.utils.run_files import OTHER_FOLDER

Row = dict[str, Any]
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT  # of the open file
_log = logging.getLogger(__name__)


def clean(value: Any) -> Any:
    """The value in a form that JSON can hold: numbers become Python's, non-finite numbers None."""
    if isinstance(value, Mapping):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


def encode(round: int, numbers: Mapping[str, Any]) -> bytes:
    """The line of a round: `round` first, then the keys in alphabetical order, so that equal rows are equal bytes."""
    assert "round" not in numbers
    row = {"round": round} | {key: clean(numbers[key]) for key in sorted(numbers)}
    return json.dumps(row, allow_nan=False).encode() + b"\n"


def decode(line: bytes) -> Row:
    """The row of a line; null, which stands for a non-finite number, becomes NaN. Rows share the texts of their keys,
    which would take more memory than the numbers.

    Raises ValueError unless the line is an object of numbers with a `round` >= 0.
    """
    row = untrusted.parse_json(line)
    if not isinstance(row, dict) or type(row.get("round")) is not int or row["round"] < 0:
        raise ValueError("not a row")
    return {sys.intern(key): _number(value) for key, value in row.items()}


def _number(value: Any) -> Any:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return math.nan
    if not isinstance(value, int | float):
        raise ValueError("not a row")
    return value


class JsonLines:
    """A file of rows, one for each round in rising order; `rows` is its content.

    Each line is written at once. A killed process loses no line, a power failure at most the lines since `sync`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = []
        self._descriptor: int | None = None
        self._size, self._sha256 = 0, hashlib.sha256()
        self._digests: list[str] = []  # for each row, that of the file up to its end

    def open(self, round: int) -> None:
        """Cuts the file after the row of `round` (-1: to nothing) and opens it to append rows."""
        self.close()
        make_folder(self.path.parent)
        found, self.rows = self._read(round), []
        self._size, self._sha256, self._digests = 0, hashlib.sha256(), []
        for line, row in found:
            self._keep(line, row)
        self._descriptor = open_own(self.path, _FLAGS)
        with naming(self.path):
            os.ftruncate(self._descriptor, self._size)
        sync_folder(self.path.parent)

    def find_damage(self, round: int, digest: str | None) -> str | None:
        """Why a run cannot continue after `round`; None if it can. The file must hold the rounds 0 to `round`, with
        this digest (None: any digest).
        """
        found = self._read(round)
        if [row["round"] for _, row in found] != list(range(round + 1)):
            return f"{self.path} does not hold each of the rounds 0 to {round}"
        if digest not in (None, hashlib.sha256(b"".join(line for line, _ in found)).hexdigest()):
            return f"{self.path} does not hold the rounds 0 to {round} as they were written"
        return None

    def require(self, round: int) -> None:
        """Raises UserError unless the rows are exactly those of the rounds 0 to `round`."""
        if [row["round"] for row in self.rows] != list(range(round + 1)):
            raise UserError(
                f"{self.path} does not hold each of the rounds 0 to {round} that the checkpoint follows on: "
                f"delete {self.path.parent} to start the run again, or give {OTHER_FOLDER}"
            )

    def digest(self, round: int | None = None) -> str:
        """The SHA-256 of all rows, or of those of the rounds 0 to `round`."""
        return self._sha256.hexdigest() if round is None else self._digests[round]

    def append(self, round: int, numbers: Mapping[str, Any]) -> Row:
        """Appends a row and returns it as a reader of the file will see it."""
        assert self._descriptor is not None, "open comes first"
        line = encode(round, numbers)
        with naming(self.path):
            write_whole(self._descriptor, line)
        self._keep(line, decode(line))
        return self.rows[-1]

    def sync(self) -> None:
        """Forces the rows to disk. A file that was removed, replaced or cut is written again, with a warning."""
        if self._descriptor is not None:
            if not is_at(self.path, self._descriptor) or os.fstat(self._descriptor).st_size != self._size:
                self._rewrite()
            with naming(self.path):
                os.fsync(self._descriptor)

    def verify(self) -> None:
        """Reads the file back: a file that differs from the rows is written again, with a warning."""
        with open_to_read(self.path) as file:
            same = hashlib.sha256(file.read()).hexdigest() == self.digest()
        if not same:
            self._rewrite()

    def _rewrite(self) -> None:
        _log.warning("%s was removed or changed during the run: it is written again from memory", self.path)
        lines = [encode(row["round"], {key: row[key] for key in row if key != "round"}) for row in self.rows]
        write_atomically(self.path, lambda file: file.writelines(lines))
        self.close()
        self._descriptor = open_own(self.path, _FLAGS)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _keep(self, line: bytes, row: Row) -> None:
        self.rows.append(row)
        self._size += len(line)
        self._sha256.update(line)
        self._digests.append(self._sha256.hexdigest())

    def _read(self, round: int) -> list[tuple[bytes, Row]]:
        """The lines and rows up to `round`, or up to the first damaged line."""
        if not self.path.exists():
            return []
        with open_to_read(self.path) as file:
            return _head(file, round)


def _head(lines: Iterable[bytes], round: int) -> list[tuple[bytes, Row]]:
    found = []
    for line in lines:
        try:
            row = decode(line)
        except ValueError:  # torn by a kill or a power failure: later lines cannot be trusted
            break
        if row["round"] > round or not line.endswith(b"\n"):
            break
        found.append((line, row))
    return found
