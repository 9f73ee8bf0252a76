"""Writing files so that a reader, or a run that is started again, sees the old content or the new, never half of it."""

import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".tmp"
_LEFT = re.compile(rf".+\.[0-9a-f]{{16}}{re.escape(TEMPORARY)}")


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Calls `write` on a temporary file beside `path`, forces it to disk and renames it to `path`.

    The name is `<name>.<random>.tmp`, so that processes of several machines may write one path; it is removed when
    `write` fails, and only a killed process leaves one behind.
    """
    make_folder(path.parent)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}{TEMPORARY}")
    try:
        with naming(path):
            with temporary.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_text_atomically(path: Path, text: str) -> None:
    """The same for a text, in UTF-8."""
    write_atomically(path, lambda file: file.write(text.encode()))


def make_folder(folder: Path) -> None:
    """Makes a folder with those above it, and forces their entries to disk: what is in it must not be lost with it."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Forces the folder's entries to disk: without it a new file or a rename may be lost with the power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with naming(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(*folders: Path) -> None:
    """Removes what killed processes left of files that were being written; nobody else may be writing there."""
    for folder in folders:
        for path in folder.glob(f"*{TEMPORARY}"):
            if _LEFT.fullmatch(path.name):
                path.unlink(missing_ok=True)


@contextmanager
def naming(path: Path | None) -> Iterator[None]:
    """An OSError of a call that knows only a descriptor names the file, if it has a name."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None or path is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
