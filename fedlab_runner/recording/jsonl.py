"""A run's numbers as one JSON object a line: the source of truth that all other views are copies of."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fedlab_runner.errors import UserError

Row = dict[str, Any]


def clean(value: Any) -> Any:
    """`value` as JSON can hold it: numbers of any library become Python's, those that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


def encode(round: int, numbers: Mapping[str, Any]) -> bytes:
    """One line: `round` first, then the keys in order of the alphabet, so that equal numbers are equal bytes."""
    assert "round" not in numbers
    row = {"round": round} | {key: clean(numbers[key]) for key in sorted(numbers)}
    return json.dumps(row, allow_nan=False).encode() + b"\n"


def decode(line: bytes) -> Row:
    """The row of one line; null, which stands for a number that was not finite, is NaN again."""
    row = json.loads(line)
    if not isinstance(row, dict) or not isinstance(row.get("round"), int):
        raise ValueError("not a row")
    return {key: math.nan if value is None else value for key, value in row.items()}


class JsonLines:
    """A file of rows, one a round in rising order; `rows` is what it holds.

    Each line is handed to the system at once.
    A killed process loses no line; a machine that loses power loses at most the lines since the last `sync`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = []
        self._file: BinaryIO | None = None

    def open(self, round: int) -> None:
        """Cuts the file back to the rows up to `round` (-1: none), without a torn last line, and opens it for more."""
        self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.rows, size = [], 0
        if self.path.exists():
            with self.path.open("rb") as file:
                self.rows, size = _head(file, round)
            os.truncate(self.path, size)
        self._file = self.path.open("ab")

    def require(self, round: int) -> None:
        """Raises UserError unless the rows are exactly those of the rounds 0 to `round`."""
        if [row["round"] for row in self.rows] != list(range(round + 1)):
            raise UserError(
                f"{self.path} does not hold each of the rounds 0 to {round} that the checkpoint follows on: "
                f"delete {self.path.parent} to start the run anew, or give it another hydra.run.dir"
            )

    def append(self, round: int, numbers: Mapping[str, Any]) -> Row:
        """Writes one line and returns its row as a reader will find it."""
        assert self._file is not None, "open comes first"
        line = encode(round, numbers)
        self._file.write(line)
        self._file.flush()
        self.rows.append(decode(line))
        return self.rows[-1]

    def sync(self) -> None:
        """Forces what was appended to disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _head(lines: Iterable[bytes], round: int) -> tuple[list[Row], int]:
    """The leading whole rows up to `round`, and how many bytes they take."""
    rows, size = [], 0
    for line in lines:
        try:
            row = decode(line)
        except ValueError:  # torn by a kill or by lost power: nothing behind it can be trusted
            break
        if row["round"] > round or not line.endswith(b"\n"):
            break
        rows.append(row)
        size += len(line)
    return rows, size
