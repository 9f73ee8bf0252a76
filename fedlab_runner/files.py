"""Writing files so that a reader, or a run that is started again, sees the old content or the new, never half of it."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".tmp"


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Calls `write` on a temporary file beside `path`, forces it to disk and renames it to `path`.

    The name is `<name>.<random>.tmp`, so that processes of several machines may write one path; it is removed when
    `write` fails, and only a killed process leaves one behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}{TEMPORARY}")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_text_atomically(path: Path, text: str) -> None:
    """The same for a text, in UTF-8."""
    write_atomically(path, lambda file: file.write(text.encode()))


def _sync_folder(folder: Path) -> None:
    """Forces the folder's entries to disk: without it a rename may be lost with the power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
