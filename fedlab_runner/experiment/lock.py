"""The lock of a run folder: one process at a time works there."""

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
from fedlab_runner.utils.run_files import OTHER_FOLDER

_log = logging.getLogger(__name__)


class RunLock:
    """Context manager that locks `folder` for this process. The system unlocks it when the process ends for any reason.

    Raises UserError, with the name of the other process, if the folder is locked.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / ".lock"
        self._descriptor: int | None = None
        self._place: int | None = None  # the folder itself, opened

    def __enter__(self) -> Self:
        make_folder(self._folder)
        # A process leaves the file when it releases the lock: after a removal two processes could lock two files of one
        # name. A process does not replace the file by a copy either: the holder would still lock the old file.
        descriptor = open_own(self._path, os.O_RDWR | os.O_CREAT, alone=False)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise UserError(
                f"{self._folder} is in use by {holder}: wait for it or stop it, or give {OTHER_FOLDER}"
            ) from None
        except OSError as error:
            _log.warning("%s cannot be locked (%s): let no second process work in it", self._folder, error)
        self._descriptor, self._place = descriptor, os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # on a full disk the lock works without the note
            if os.fstat(descriptor).st_nlink == 1:  # a file with a second name may be somebody else's
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        _held.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            with suppress(OSError):  # the file system has no locks
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._close()

    def renew(self) -> None:
        """Makes and locks the folder again if somebody has removed or renamed it.

        Raises RunFailed if another folder has taken its place, or if another process may have locked this one.
        """
        if self._descriptor is None or self._place is None or is_at(self._path, self._descriptor):
            return
        here = is_at(self._folder.resolve(), self._place)
        if os.path.lexists(self._path) or (not here and self._folder.is_dir() and any(self._folder.iterdir())):
            raise RunFailed(
                f"{self._folder if not here else self._path} was removed during the run, and another is in "
                f"its place, which is left as it is: bring back the removed one, or give {OTHER_FOLDER}"
            )
        _log.warning("%s was removed during the run: it is made again", self._path if here else self._folder)
        self._close()
        self.__enter__()

    def _close(self) -> None:
        for descriptor in (self._descriptor, self._place):
            if descriptor is not None:
                os.close(descriptor)
        self._descriptor = self._place = None
        _held.discard(self)


_held: weakref.WeakSet[RunLock] = weakref.WeakSet()  # the locks of this process


def _close_in_fork() -> None:
    for lock in list(_held):
        lock._close()


# A forked worker shares the descriptors: it would hold the locks after the sudden death of the run.
os.register_at_fork(after_in_child=_close_in_fork)
