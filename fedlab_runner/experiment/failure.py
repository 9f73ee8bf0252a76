"""Notes in the run's folder which error ended the last attempt at the run, for reports and for the run's log."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedlab_runner.config.explain import explain, reason, traceback_of
from fedlab_runner.config.secrets import redacted
from fedlab_runner.experiment.lock import RunLock
from fedlab_runner.tracking.log_lines import log_error_in_file
from fedlab_runner.utils import checksummed_json
from fedlab_runner.utils.errors import Diverged, Pruned
from fedlab_runner.utils.files import shell_path, write_text_atomically
from fedlab_runner.utils.run_files import THIS_FOLDER
from fedlab_runner.utils.sweep_job import sweep_folder

NOTE_FILE = "failed.json"  # in the run's folder


@contextmanager
def noted(folder: Path, lock: RunLock) -> Iterator[None]:
    """Context manager around an attempt at the run in a locked folder: removes the note of the last attempt, and writes
    one if an error ends this attempt. A run that is killed, stopped, pruned or requeued has no note.

    An error that the program knows has one line in the note and in the log file; of a bug the log file has the
    traceback. A note that cannot be written, as on a full disk, does not hide the error.
    """
    path = folder / NOTE_FILE
    path.unlink(missing_ok=True)
    try:
        yield
    except Pruned:
        raise
    except Exception as error:
        if requeued(error):
            raise
        if isinstance(error, Diverged):  # whose message stems from a part that does not know the folder
            error.args = (str(error).replace(THIS_FOLDER, _key_of(folder)),)
        with suppress(Exception):
            lock.renew()  # raises if another folder is in the place of this one by now
            write_text_atomically(path, checksummed_json.text({"error": reason(error)}))
        known = explain(error, ()) is not None
        log_error_in_file(reason(error) if known else redacted(traceback_of(error)))
        raise


def read(folder: Path) -> str | None:
    """The error in the note of a run's folder; None without a note, or if the note cannot be read."""
    try:
        error = checksummed_json.read(folder / NOTE_FILE).get("error")
    except (OSError, checksummed_json.Damaged):
        return None
    return error if isinstance(error, str) else None


def requeued(error: Exception) -> bool:
    """Whether Slurm has put this job back into the queue because its time was over.

    submitit's signal handler requests this by a command that Slurm may kill together with the job. The handler then
    raises an error wherever the run was. The run has written a checkpoint and continues when the job starts again.
    """
    command = list(error.cmd[:2]) if isinstance(error, subprocess.CalledProcessError) else []
    return command == ["scontrol", "requeue"] and getattr(error, "returncode", 0) == -signal.SIGTERM


def _key_of(folder: Path) -> str:
    """The override that names the run's folder; with `-m` it would be an error."""
    key = f"hydra.run.dir={shell_path(folder)}"
    return key if sweep_folder() is None else f"{key} and without -m"
