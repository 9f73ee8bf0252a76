"""What can go wrong between a run and its disk: death at any call that changes a folder, lost power, a full disk.

`install` puts itself between this process and the folder: each call that changes something there, or forces it to
disk, is a point, counted from 1. At the chosen one the process dies, before the call or half-way through a write, or
the disk begins to refuse.
"""

import builtins
import errno
import io
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

BLOCK = 64  # bytes of a write that reach the disk together, or not
ACTS = ("kill", "tear", "power", "full", "once")


class Disk:
    """What of a folder would survive a loss of power: contents since their last fsync, entries since their folder's.

    The strict reading of POSIX: without an fsync of the folder a new name may be gone, and a renamed or removed file
    may have its old one.
    """

    def __init__(self, backup: Path) -> None:
        self._backup = backup
        self._contents: dict[int, bytes] = {}  # by inode: what is safe of a file that was written since
        self._names: dict[Path, dict[str, Path]] = {}  # by folder: a second link to each file that it held

    def writes(self, path: Path, new: bool) -> None:
        """The content of a file is about to change; `new`: the file was made just now."""
        inode = path.stat().st_ino
        if inode not in self._contents:
            self._contents[inode] = b"" if new else path.read_bytes()

    def renames(self, folder: Path) -> None:
        """The entries of a folder are about to change."""
        if folder in self._names or not folder.is_dir():
            return
        place = self._backup / str(len(list(self._backup.iterdir())))
        place.mkdir()
        self._names[folder] = {path.name: place / path.name for path in folder.iterdir() if path.is_file()}
        for name, link in self._names[folder].items():
            os.link(folder / name, link)

    def syncs(self, path: Path) -> None:
        if path.is_dir():
            self._names.pop(path, None)
        else:
            self._contents.pop(path.stat().st_ino, None)

    def lose(self, folder: Path, rng: random.Random) -> None:
        """Takes back what was not forced to disk: each file's content and each folder's entries wholly, in part or
        not.
        """
        files = [*folder.rglob("*"), *self._backup.rglob("*")]
        for path in sorted((path for path in files if path.is_file()), key=str):
            old = self._contents.pop(path.stat().st_ino, None)
            if old is not None:
                path.write_bytes(_mixed(old, path.read_bytes(), rng))
        for place, names in self._names.items():
            if not place.is_dir() or rng.random() < 0.3:
                continue
            for path in list(place.iterdir()):
                if path.is_file():
                    path.unlink()
                elif path not in self._names and not any(path.iterdir()):
                    path.rmdir()
            for name, link in names.items():
                os.link(link, place / name)


def _mixed(old: bytes, new: bytes, rng: random.Random) -> bytes:
    """What may be on disk between two contents: each block of the one or the other, the length of either."""
    share, size = rng.choice((0.0, 0.5, 1.0)), len(rng.choice((old, new)))
    parts = []
    for begin in range(0, size, BLOCK):
        first, second = (new, old) if rng.random() < share else (old, new)
        parts.append((first[begin : begin + BLOCK] or second[begin : begin + BLOCK])[: size - begin])
    return b"".join(parts)[:size].ljust(size, b"\0")


class Faults:
    """Counts the points of a folder and strikes at one of them."""

    def __init__(self, folder: Path, at: int, act: str, seed: int, backup: Path | None) -> None:
        assert act in ACTS, act
        self.folder, self.labels = folder, list[str]()
        self._at, self._act, self._rng = at, act, random.Random(seed)
        self._disk = Disk(backup) if backup else None

    def inside(self, path: Any) -> Path | None:
        """The path, of a name or a descriptor, if it lies in the folder."""
        if isinstance(path, int):
            path = REAL["readlink"](f"/proc/self/fd/{path}")
        elif not isinstance(path, str | os.PathLike):
            return None
        found = Path(os.path.abspath(os.fspath(path)))
        return found if found == self.folder or self.folder in found.parents else None

    def point(self, what: str, path: Path, tear: Callable[[], object] = lambda: None) -> None:
        """One call is about to be made; `tear` does half of it."""
        self.labels.append(f"{what} {path.relative_to(self.folder)}")
        number = len(self.labels)
        if self._act == "full" and 0 < self._at <= number and what in ("open", "write", "mkdir"):
            raise self._error(errno.ENOSPC, what, path)
        if number != self._at:
            return
        if self._act == "once":
            raise self._error(errno.EIO, what, path)
        if self._act == "full":
            return
        uninstall()
        if self._act in ("tear", "power"):
            tear()
        if self._act == "power" and self._disk:
            self._disk.lose(self.folder, self._rng)
        os.kill(os.getpid(), signal.SIGKILL)

    def _error(self, number: int, what: str, path: Path) -> OSError:
        """As the system says it: calls with a descriptor know no name."""
        nameless = what in ("write", "fsync", "fdatasync", "ftruncate")
        return OSError(number, os.strerror(number), *([] if nameless else [str(path)]))

    def writes(self, path: Path, new: bool = False) -> None:
        if self._disk:
            self._disk.writes(path, new)

    def renames(self, *paths: Path | None) -> None:
        if self._disk:
            for path in paths:
                if path is not None:
                    self._disk.renames(path.parent)

    def syncs(self, path: Path) -> None:
        if self._disk:
            self._disk.syncs(path)


REAL: dict[str, Any] = {
    name: getattr(os, name)
    for name in (
        *("open", "write", "pwrite", "fsync", "fdatasync", "truncate", "ftruncate"),
        *("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "readlink"),
    )
}
OPEN = io.open


def uninstall() -> None:
    """The calls as they were."""
    for name, function in REAL.items():
        setattr(os, name, function)
    builtins.open = io.open = OPEN


def install(folder: Path, at: int = 0, act: str = "kill", seed: int = 0, backup: Path | None = None) -> Faults:
    """Strikes at point `at` of a folder (0: only counts). `backup`, outside of it, is wanted for lost power."""
    faults = Faults(Path(os.path.abspath(folder)), at, act, seed, backup)

    class Raw(io.FileIO):
        """A file of the folder, unbuffered: each write is a call of the system."""

        def write(self, data: Any) -> int:
            view = memoryview(data).cast("B")
            path = Path(os.path.abspath(str(self.name)))

            def half() -> None:
                io.FileIO.write(self, view[: len(view) // 2])

            faults.writes(path)
            faults.point("write", path, half)
            return super().write(view) or 0

    def opened(file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, *rest: Any, **named: Any) -> Any:
        path = faults.inside(file) if set(mode) & set("wax+") else None
        if path is None or isinstance(file, int):
            return OPEN(file, mode, buffering, encoding, *rest, **named)
        new = not path.exists()
        faults.renames(path)
        faults.point("open", path)
        if not new and "w" in mode:
            faults.writes(path)
        raw = Raw(path, "".join(sorted(mode.replace("b", "").replace("t", ""))))
        if new:
            faults.writes(path, new=True)
        if buffering == 0:
            return raw
        buffer = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding or "utf-8", *rest, **named)

    def os_open(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        inside = faults.inside(path) if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else None
        if inside is None:
            return int(REAL["open"](path, flags, *rest, **named))
        new = not inside.exists()
        faults.renames(inside)
        faults.point("open", inside)
        descriptor = int(REAL["open"](path, flags, *rest, **named))
        if new:
            faults.writes(inside, new=True)
        return descriptor

    def content(name: str) -> Callable[..., Any]:
        def call(target: Any, *rest: Any) -> Any:
            path = faults.inside(target)
            if path is not None:

                def half() -> None:
                    if name == "pwrite":
                        data, offset = rest
                        REAL[name](target, memoryview(data)[: len(data) // 2], offset)

                faults.writes(path)
                faults.point("write" if "write" in name else name, path, half)
            return REAL[name](target, *rest)

        return call

    def sync(name: str) -> Callable[..., Any]:
        def call(descriptor: int) -> None:
            path = faults.inside(descriptor)
            if path is not None:
                faults.point(name, path)
                faults.syncs(path)  # and no more: only a real loss of power would ask the real disk
            else:
                REAL[name](descriptor)

        return call

    def entry(name: str) -> Callable[..., Any]:
        def call(*paths: Any, **named: Any) -> Any:
            inside = [faults.inside(path) for path in paths if not isinstance(path, int)]
            if any(inside) and not (name == "mkdir" and os.path.isdir(paths[0])):
                faults.renames(*inside)
                faults.point(name, next(path for path in reversed(inside) if path))
            return REAL[name](*paths, **named)

        return call

    os.open = os_open
    for name in ("write", "pwrite", "truncate", "ftruncate"):
        setattr(os, name, content(name))
    for name in ("fsync", "fdatasync"):
        setattr(os, name, sync(name))
    for name in ("replace", "rename", "unlink", "remove", "mkdir", "rmdir"):
        setattr(os, name, entry(name))
    builtins.open = io.open = opened
    return faults


def cleared(folder: Path) -> Path:
    """An empty folder for the backups of lost power."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
