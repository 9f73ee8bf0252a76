"""Opens files safely and writes them whole: a reader sees the old content or the new one, never a part."""

import errno
import os
import re
import secrets
import shlex
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.run_files import OTHER_FOLDER

TEMPORARY = ".tmp"  # the end of the name of a file that is being written
# The error for a path that is not a plain file.
_NOT_OURS = f"{{}} is a link or no plain file, and is not written to: delete it, or give {OTHER_FOLDER}"
_LEFT = re.compile(rf".+\.[0-9a-f]{{16}}{re.escape(TEMPORARY)}")  # names that `write_atomically` gives


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Calls `write` on a temporary file beside `path`, forces it to disk and renames it to `path`.

    The temporary name is `<name>.<random>.tmp`, so that processes of several machines may write one path. The file is
    removed when `write` fails; only a killed process leaves one behind.
    """
    _write_beside(path, write, lambda temporary: temporary.replace(path))


def _write_beside(path: Path, write: Callable[[BinaryIO], object], place: Callable[[Path], object]) -> None:
    """Calls `write` on a temporary file beside `path`, then `place` on its path. Removes the file if it remains."""
    make_folder(path.parent)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}{TEMPORARY}")
    try:
        with naming(path):
            with temporary.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            place(temporary)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_text_atomically(path: Path, text: str) -> None:
    """Writes a text in UTF-8 as `write_atomically` does."""
    write_atomically(path, lambda file: file.write(text.encode()))


def update_text(path: Path, text: str) -> None:
    """Writes a text as `write_text_atomically` does, unless the path is a plain file of this text: to force a file to
    disk takes as long as to read hundreds.
    """
    content = text.encode()
    with suppress(OSError, NotPlainFile), open_to_read(path, follow_links=False) as file:
        if file.read(len(content) + 1) == content:
            return
    write_text_atomically(path, text)


def write_text_once(path: Path, text: str) -> bool:
    """Writes a text as `write_text_atomically` does, unless the path exists; returns whether it wrote.

    If several processes do so at a time, one of them writes. On a file system without hard links the last one does.
    """
    written = True

    def place(temporary: Path) -> None:
        nonlocal written
        try:
            os.link(temporary, path)
        except FileExistsError:
            written = False
        except OSError:  # this file system has no hard links
            temporary.replace(path)

    _write_beside(path, lambda file: file.write(text.encode()), place)
    return written


def open_own(path: Path, flags: int, alone: bool = True) -> int:
    """Opens a plain file of a run folder to be written in place, and returns its descriptor.

    Raises UserError where the path is a link, a pipe, a device or a folder. With `alone`, a file that has a second name
    (a hard link, such as a backup's) is copied first: the second name keeps the old content.
    """
    try:  # without waiting for the other end of a pipe
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, 0o666)
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


class NotPlainFile(UserError):
    """A path is a pipe, a device or a folder. This package does not read it: its content may have no end."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is no plain file, and is not read: delete it, or give {OTHER_FOLDER}")


def open_to_read(path: Path, *, follow_links: bool = True) -> BinaryIO:
    """Opens a plain file that others may have made or replaced. Without `follow_links` a link is not a plain file.

    Raises NotPlainFile, and OSError as the system does.
    """
    if not stat.S_ISREG(path.stat(follow_symlinks=follow_links).st_mode):  # opening some devices has effects
        raise NotPlainFile(path)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # O_NONBLOCK: a pipe does not make us wait
    descriptor = os.open(path, flags if follow_links else flags | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # replaced since the first look
        os.close(descriptor)
        raise NotPlainFile(path)
    return os.fdopen(descriptor, "rb")


def append_line(path: Path, line: str) -> None:
    """Appends a line to a file of lines. Removes a torn last line, which a killed process left, first."""
    descriptor = open_own(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        with naming(path):
            whole = os.pread(descriptor, os.fstat(descriptor).st_size, 0).rfind(b"\n") + 1
            os.ftruncate(descriptor, whole)
            write_whole(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def write_whole(descriptor: int, data: bytes) -> None:
    """Writes all the bytes: one call to the system may write a part of them."""
    while data:
        data = data[os.write(descriptor, data) :]


def is_at(path: Path, descriptor: int) -> bool:
    """Whether a path still names an open file: the file may have been removed, or replaced by another one."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except OSError:
        return False


def user_cache() -> Path:
    """The folder in which this package keeps files for later runs of the same user, who may delete it at any time.

    It may not be writable. A user without a home folder, as one of a container's without an entry, has that of `/`.
    """
    home = os.path.expanduser("~")
    return Path(os.environ.get("XDG_CACHE_HOME") or ("/.cache" if home == "~" else f"{home}/.cache")) / "fedlab"


def make_folder(folder: Path) -> None:
    """Makes a folder and its parents, and forces their entries to disk: a lost entry would lose the folder's files."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Forces a folder's entries to disk: otherwise a power failure may lose a new file or a rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with naming(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(*folders: Path) -> None:
    """Removes the temporary files that killed processes left. No other process may be writing in these folders."""
    for folder in folders:
        for path in folder.glob(f"*{TEMPORARY}"):
            if _LEFT.fullmatch(path.name):
                path.unlink(missing_ok=True)


@contextmanager
def naming(path: Path | None) -> Iterator[None]:
    """Adds the file's name to an OSError of a call that knows only a descriptor; None: the file has no name."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None or path is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def short_path(path: Path) -> Path:
    """The path, relative to the working folder if it lies below that."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def shell_path(path: Path) -> str:
    """The short path as a word of a command that is shown to a user."""
    return shlex.quote(str(short_path(path)))


def check_working_folder() -> None:
    """Raises UserError if the folder in which the user typed the command is no longer there."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError("the working folder was removed: cd to an existing one") from None
