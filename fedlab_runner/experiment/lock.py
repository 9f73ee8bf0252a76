"""The lock that keeps two processes out of one run folder."""

import fcntl
import logging
import os
import socket
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from fedlab_runner.utils.errors import RunFailed, UserError
from fedlab_runner.utils.files import is_at, make_folder, open_own

_log = logging.getLogger(__name__)


class RunLock:
    """Context manager: this process alone works in `folder`. The system lets go of it when the process ends in any way.

    Raises UserError, naming the other process, where the folder is taken.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / ".lock"
        self._descriptor: int | None = None
        self._place: int | None = None  # the folder itself, opened

    def __enter__(self) -> Self:
        make_folder(self._folder)
        # The file stays when the lock is gone: removing it would let two processes lock two files of one name.
        # Nor is a copy put in its place: whoever holds the lock would hold that of another file.
        descriptor = open_own(self._path, os.O_RDWR | os.O_CREAT, alone=False)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise UserError(
                f"{self._folder} is in use by {holder}: wait for it or stop it, or give another hydra.run.dir"
            ) from None
        except OSError as error:
            _log.warning("%s cannot be locked (%s): let no second process work in it", self._folder, error)
        self._descriptor, self._place = descriptor, os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # on a full disk the lock holds without a name
            if os.fstat(descriptor).st_nlink == 1:  # not into what may be somebody's under another name
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        _held.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            with suppress(OSError):  # where there are no locks
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._close()

    def renew(self) -> None:
        """Makes the folder, and takes it, anew where somebody has removed or renamed it.

        Raises RunFailed where there is another folder in its place, or another process may have taken this one.
        """
        if self._descriptor is None or self._place is None or is_at(self._path, self._descriptor):
            return
        here = is_at(self._folder.resolve(), self._place)
        if os.path.lexists(self._path) or (not here and self._folder.is_dir() and any(self._folder.iterdir())):
            raise RunFailed(
                f"{self._folder if not here else self._path} was removed while the run was at work, and another is in "
                "its place, which is left as it is: bring back what was there, or give another hydra.run.dir"
            )
        _log.warning("%s was removed while the run was at work: it is made anew", self._path if here else self._folder)
        self._close()
        self.__enter__()

    def _close(self) -> None:
        for descriptor in (self._descriptor, self._place):
            if descriptor is not None:
                os.close(descriptor)
        self._descriptor = self._place = None
        _held.discard(self)


_held: weakref.WeakSet[RunLock] = weakref.WeakSet()  # the locks of this process


def _let_go() -> None:
    for lock in list(_held):
        lock._close()


# A forked worker shares the locks and would hold them beyond our sudden death.
os.register_at_fork(after_in_child=_let_go)
