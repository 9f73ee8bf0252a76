"""Writing files so that a reader, or a run that is started again, sees the old content or the new, never half of it."""

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fedlab_runner.utils.errors import UserError

TEMPORARY = ".tmp"
_NOT_OURS = "{} is a link or no plain file, and is not written to: delete it, or give another hydra.run.dir"
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


def open_own(path: Path, flags: int, alone: bool = True) -> int:
    """A descriptor of a plain file that is written in place, in a run folder: what is to be there is nobody else's.

    Raises UserError where there is a link, a pipe, a device or a folder instead. A file that has another name too (a
    hard link, such as a backup's) is copied first, if it is to be `alone`, and the other name keeps what it had.
    """
    try:  # without waiting for the other end of a pipe
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO) and path.parent.is_dir():
            raise UserError(_NOT_OURS.format(path)) from error
        raise
    kept = os.fstat(descriptor)
    if stat.S_ISREG(kept.st_mode) and not (alone and kept.st_nlink > 1):
        return descriptor
    os.close(descriptor)
    if not stat.S_ISREG(kept.st_mode):
        raise UserError(_NOT_OURS.format(path))
    with path.open("rb") as shared:
        write_atomically(path, lambda file: shutil.copyfileobj(shared, file))
    return open_own(path, flags)


def open_to_read(path: Path) -> BinaryIO:
    """A plain file of a run folder, or what a link there leads to. UserError for a pipe or a device, which may have no
    end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise UserError(f"{path} is no plain file, and is not read: delete it, or give another hydra.run.dir")


def append_line(path: Path, line: str) -> None:
    """Adds a line to a file of lines, in the place of what a killed process left of its own."""
    descriptor = open_own(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        with naming(path):
            whole = os.pread(descriptor, os.fstat(descriptor).st_size, 0).rfind(b"\n") + 1
            os.ftruncate(descriptor, whole)
            write_whole(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def write_whole(descriptor: int, data: bytes) -> None:
    """All of it: the system may take a part at a time."""
    while data:
        data = data[os.write(descriptor, data) :]


def is_at(path: Path, descriptor: int) -> bool:
    """Whether a name still leads to an open file: it may have been removed, or another file put in its place."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except OSError:
        return False


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
