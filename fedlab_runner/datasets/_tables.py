"""Reads tables: files of comma-separated values, row by row, within limits."""

import csv
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.files import NotPlainFile, open_to_read

MAX_FILE_BYTES = 2**32  # of a table; Python reads some 30 MB in a second
MAX_LINE_CHARACTERS = 2**24  # of one line, and of a field, as a post may be long
csv.field_size_limit(MAX_LINE_CHARACTERS)

Refuse = Callable[[Path, str], UserError]


def rows(path: Path, refuse: Refuse, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Each row of a UTF-8 file except blank lines: the number of its last line, counted from 1, and its fields.

    Raises `refuse(path, what)` for a file that is missing, not a plain file, too large or not a table.
    """
    try:
        with open_to_read(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_FILE_BYTES:
                raise refuse(path, f"is larger than {MAX_FILE_BYTES // 2**30} GiB")
            text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
            reader = csv.reader(_lines(text), delimiter=delimiter, strict=True)
            for row in reader:
                if row:
                    yield reader.line_num, row
    except (FileNotFoundError, NotADirectoryError):
        raise refuse(path, "is missing") from None
    except NotPlainFile:
        raise refuse(path, "is no plain file") from None
    except (OSError, ValueError, csv.Error) as error:
        raise refuse(path, f"cannot be read ({error})") from None


def first_line(path: Path) -> str:
    """The beginning of a file that can be read."""
    with open_to_read(path) as file:
        return file.read(MAX_LINE_CHARACTERS).decode(errors="replace").partition("\n")[0]


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    while line := text.readline(MAX_LINE_CHARACTERS + 1):
        if len(line) > MAX_LINE_CHARACTERS:
            raise csv.Error(f"a line is longer than {MAX_LINE_CHARACTERS:,} characters")
        yield line
