"""Delays from a file, such as measured delays."""

import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedlab_runner.delays.base import MAX_ROUNDS, Delay, whole_rounds
from fedlab_runner.utils import untrusted
from fedlab_runner.utils.errors import UserError


@dataclass(frozen=True)
class DelayFromFile(Delay):
    """Entry i of the file `path` is the delay of client i, in rounds, rounded down. It is the same at every dispatch.

    The file is a .json array, a .npy vector, or a text: one number on each line, or one line of numbers separated by
    commas or blanks. In a text, blank lines and everything after a # do not count.
    """

    names_clients: ClassVar[bool] = True
    varies: ClassVar[bool] = False
    path: str

    @cached_property
    def _delays(self) -> np.ndarray:  # [entries] int64, read once
        file = Path(self.path).expanduser()
        read = {".json": _read_json, ".npy": _read_npy}.get(file.suffix, _read_text)
        try:
            content = untrusted.read_bytes(file, untrusted.MAX_LINES_BYTES)
        except FileNotFoundError as error:
            raise UserError(f"path must be a readable file, got '{self.path}': {error.strerror}") from error
        except untrusted.Unreadable as fault:
            raise UserError(f"path must be a readable file, got '{self.path}': it {fault}") from fault
        delays: list[float] = []
        for where, entry in read(content, file):
            if isinstance(entry, bool) or not isinstance(entry, (int, float)) or not 0 <= entry < math.inf:
                raise UserError(f"path must hold delays, numbers >= 0, got {entry!r} in {self.path}, {where}")
            delays.append(min(entry, MAX_ROUNDS))  # a whole number in JSON can be too large for a float
        return whole_rounds(np.array(delays, np.float64))

    def sample(self, rng: np.random.Generator, clients: np.ndarray) -> np.ndarray:
        needed, found = int(clients.max(initial=-1)) + 1, len(self._delays)
        if found < needed:
            raise UserError(f"path must hold a delay for each of {needed} clients, got {found} in {self.path}")
        delays: np.ndarray = self._delays[clients]
        return delays


Entries = Iterator[tuple[str, object]]  # pairs of a place in the file and the value there


def _read_text(content: bytes, file: Path) -> Entries:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"path must be a text, .csv, .json or .npy file, got {file}, which is none") from error
    lines = [line.partition("#")[0].replace(",", " ").split() for line in text.splitlines()]
    alone = sum(map(bool, lines)) == 1
    for number, words in enumerate(lines, 1):
        if len(words) > 1 and not alone:  # otherwise a table of two columns would count as twice as many clients
            raise UserError(f"path must hold one delay a line or all in one, got {len(words)} in {file}, line {number}")
        for word in words:
            yield f"line {number}", _number(word)


def _number(word: str) -> float | str:
    try:
        return float(word)
    except ValueError:
        return word


def _read_json(content: bytes, file: Path) -> Entries:
    try:
        entries = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"path must hold a JSON array, got {file}, which is not text") from error
    except json.JSONDecodeError as error:
        raise UserError(f"path must hold a JSON array, got {file}, line {error.lineno}: {error.msg}") from error
    except RecursionError as error:
        raise UserError(f"path must hold a JSON array, got {file}, which is nested too deeply") from error
    if not isinstance(entries, list):
        raise UserError(f"path must hold a JSON array, got {file}, line 1: {type(entries).__name__}")
    return ((f"entry {index}", entry) for index, entry in enumerate(entries))


def _read_npy(content: bytes, file: Path) -> Entries:
    try:
        entries = np.lib.format.read_array(io.BytesIO(content))
    except (ValueError, EOFError, MemoryError) as error:
        what = "is an archive" if content.startswith(b"PK") else "cannot be read"
        raise UserError(f"path must hold a numpy vector, got {file}, which {what}") from error
    if entries.ndim != 1 or entries.dtype.kind not in "iuf":
        raise UserError(f"path must hold a vector of numbers, got {entries.dtype} {list(entries.shape)} in {file}")
    return ((f"entry {index}", entry) for index, entry in enumerate(entries.tolist()))
