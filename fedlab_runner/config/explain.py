"""Explains exceptions of Hydra, the system and this package to the user: one line for each fault."""

import errno
import os
import re
import shlex
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from fedlab_runner.config import secrets
from fedlab_runner.config.override_faults import (
    ADDS_NULL,
    composition,
    is_group,
    is_null_choice,
    missing_choice,
    null_choice,
    one_line,
)
from fedlab_runner.config.quoting import quoted
from fedlab_runner.utils import exhaustion
from fedlab_runner.utils.attempt import next_start
from fedlab_runner.utils.errors import RunFailed, UserError
from fedlab_runner.utils.run_files import OTHER_FOLDER

QUOTE = "quote the text twice, for the shell and for Hydra: "  # what to do about a text that Hydra cannot read

# The errors of a file system that are no fault of the program, with the remedy.
NO_ACCESS = f"give a place that may be written to, such as {OTHER_FOLDER}"
DISK = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make room"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR), NO_ACCESS),
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ELOOP), f"give {OTHER_FOLDER}, with shorter names and no loop"),
    errno.EIO: "check the disk",
}
MAX_REASON = 500  # characters of an error that has no line of its own, in tables and reports
MENDED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # once the user has mended these, the same command works


# Errors of a folder that cannot be made because of its name: a file has that name, or that of a folder above it, or
# /proc has no folders.
NO_FOLDER = {errno.EEXIST, errno.ENOTDIR, errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
_SWEPT = re.compile(r"\+*hydra\.sweeper\.params\b")  # an override of what a sweep tries, null in Hydra's config
# What submitit says of a job without a result: the job, the path of its result, its state.
_LOST_JOB = re.compile(r"Job (\S+) \(task: .*\) with path (.*)/.*\nhas not produced any output \(state: (.*)\)")
READERS = (  # modules that read a config by recursion
    "antlr4.",
    "hydra.",
    "omegaconf.",
    "yaml.",
    "copy",
    "re.",
    "fedlab_runner.config.schema",
    "fedlab_runner.config.secrets",
)


def explain(error: BaseException, arguments: Sequence[str]) -> list[str] | None:
    """The lines that explain an error of a command with these arguments; None for a bug, which needs its traceback."""
    known = next((each for each in _causes(error) if isinstance(each, UserError | RunFailed)), error)
    # This package raises ValueError for users only; a ValueError from inside a library is a bug.
    if isinstance(known, UserError | RunFailed) or (type(known) is ValueError and _raised_in(known, "fedlab_runner.")):
        return str(known).splitlines() or [type(known).__name__]
    if (folder := _of_folder(error)) is not None:
        return [one_line(f"{folder.filename}: no folder can be made there ({folder.strerror}): give {OTHER_FOLDER}")]
    if (refused := _of_disk(error)) is not None:
        where = f"{refused.filename}: " if refused.filename else ""
        then = f"; {next_start()}" if refused.errno in MENDED else ""
        return [one_line(f"{where}{refused.strerror}: {DISK[refused.errno or 0]}{then}")]
    if (line := next(filter(None, map(exhaustion.explain, _causes(error))), None)) is not None:
        return [one_line(line)]
    if (killed := _of_worker(error)) is not None:
        codes = ", ".join(re.findall(r"\{(.*?)\}", str(killed)))
        return [
            f"a worker process of the sweep was killed ({codes or 'memory may have run out'}), its jobs with it: the "
            "same command continues from their last checkpoints"
        ]
    if (line := _of_slurm(error) or _of_lost_job(error)) is not None:
        return [one_line(line)]
    if any(isinstance(each, RecursionError) and _raised_in(each, READERS) for each in _causes(error)):
        return ["a value of the config is nested too deeply to be read"]
    if any("integer string conversion" in str(each) for each in _causes(error)):
        return ["a number has thousands of digits: whole numbers must be less than 2^48 in size"]
    if any("cannot be converted to type float without overflow" in str(each) for each in _causes(error)):
        return ["float32 cannot hold a number of the config, or a product of two: lower what is far above 1"]
    if isinstance(error, OverrideParseException):
        if (found := quoted(str(error.override))) is not None:
            return [f"cannot read {error.override!r}: {QUOTE}{shlex.quote(found)}"]
        reason = one_line(re.sub(r"^Error parsing override '.*'|See https.*", "", error.message))
        return [f"cannot read {error.override!r}: expected key=value ({reason})"]
    if isinstance(error, MissingConfigException):
        return [missing_choice(error)]
    if (swept := next(filter(_SWEPT.match, arguments), None)) and _is_of_swept(error):
        way = "write hydra.sweeper.params into an experiment file, or sweep over the key itself, as -m seed=0,1"
        return [f"cannot read {swept!r}: {way}"]
    if isinstance(error, HydraException):
        return [composition(error, arguments)]
    if isinstance(error, InterpolationResolutionError) and not _raised_in(unwrapped(error), "omegaconf."):
        return None  # raised by the code that the config asks for, for instance when a component is imported
    if isinstance(error, OmegaConfBaseException | yaml.YAMLError):
        return [one_line(str(error))]
    if nameless := next((each for each in arguments if each.startswith("=")), None):
        return [f"cannot read {nameless!r}: expected key=value"]
    if isinstance(error, ValueError) and _raised_in(error, "logging.config"):
        *_, last = _causes(error)
        why = "" if last is error else f": {last}"
        return [one_line(f"hydra.job_logging or hydra.hydra_logging cannot be used: {error}{why}")]
    if "Got NoneType" in str(error) and (null := next(filter(is_null_choice, arguments), None)):
        return [null_choice(null.partition("=")[0])]
    if "Got NoneType" in str(error) and (null := next(filter(ADDS_NULL.fullmatch, arguments), None)):
        return [f"cannot read {null!r}: it adds no choice: leave it out"]
    if type(error) is ValueError and _raised_in(error, "hydra._internal."):
        return [one_line(f"{error} (in: {' '.join(filter(is_group, arguments)) or ' '.join(arguments)})")]
    return None


def reason(error: BaseException) -> str:
    """Why a run failed, in one line without keys of W&B, for the files of runs and sweeps. Of a bug's words, such as
    all that a compiler has printed, `train.log` has the rest.
    """
    if lines := explain(error, ()):
        return secrets.redacted("; ".join(lines))
    words = secrets.redacted(repr(error))
    return words if len(words) <= MAX_REASON else f"{words[:MAX_REASON]}... (all of it: train.log)"


def is_of_run(error: BaseException) -> bool:
    """Whether a run failed without a fault of its command: the disk refused, or a resource ran out or was lost."""
    if _of_folder(error) is not None:
        return False
    if any(of(error) is not None for of in (_of_disk, _of_worker, _of_lost_job)):
        return True
    return any(isinstance(each, RunFailed) or exhaustion.explain(each) for each in _causes(error))


def _of_folder(error: BaseException) -> OSError | None:
    """The error of a folder that cannot be made because of its name; None for other errors."""
    refused = isinstance(error, OSError) and error.errno in NO_FOLDER and _raised_in(error, "pathlib")
    return error if isinstance(error, OSError) and refused else None


def _of_worker(error: BaseException) -> BaseException | None:
    """joblib's error for a killed worker process, found by name, as joblib is an extra; None for other errors."""
    return next((each for each in _causes(error) if type(each).__name__ == "TerminatedWorkerError"), None)


def _of_slurm(error: BaseException) -> str | None:
    """Why submitit cannot hand the jobs of a sweep to Slurm, in words; None for other errors."""
    if not _raised_in(error, "submitit."):
        return None
    if 'Could not detect "srun"' in str(error):
        return "hydra/launcher=slurm needs the commands of Slurm, and this machine has no srun"
    if isinstance(error.__cause__, subprocess.CalledProcessError):
        return f"Slurm has not taken the jobs: {error}"
    return None


def _of_lost_job(error: BaseException) -> str | None:
    """submitit's error for a job of a sweep that ended without a result, in words; None for other errors."""
    lost = _LOST_JOB.match(str(error)) if _raised_in(error, "submitit.") else None
    if lost is None:
        return None
    job, folder, state = lost.groups()
    return (
        f"job {job} of the sweep's launcher ended without a result ({state}): its output is in "
        f"{os.path.relpath(folder)}; jobs that have begun continue, and the same command continues with the others"
    )


def _of_disk(error: BaseException) -> OSError | None:
    """The error of a file system; None for other errors, among them Hydra's OSErrors, which have no number."""
    return next((each for each in _causes(error) if isinstance(each, OSError) and each.errno in DISK), None)


def unwrapped(error: BaseException) -> BaseException:
    """The error that OmegaConf has wrapped, and whose traceback it hides; any other error as it is."""
    *_, last = _causes(error)
    return last if isinstance(error, OmegaConfBaseException) else error


def traceback_of(error: BaseException) -> str:
    """The traceback of a bug, without the frames of libraries that compose a config on the way to the fault."""
    shown = traceback.TracebackException.from_exception(unwrapped(error))
    files = [str(sys.modules[name].__file__) for name in ("antlr4", "hydra", "omegaconf")]
    folders = ("<frozen importlib", *(f"{Path(file).parent}{os.sep}" for file in files))
    each: traceback.TracebackException | None = shown
    while each is not None:
        if each.stack and not each.stack[-1].filename.startswith(folders):
            each.stack[:] = [frame for frame in each.stack if not frame.filename.startswith(folders)]
        each = each.__cause__ or each.__context__
    return "".join(shown.format())


def _is_of_swept(error: BaseException) -> bool:
    """Whether Hydra refuses an override of `hydra.sweeper.params`, or OmegaConf fails at the null there."""
    fails = type(error) in (AssertionError, AttributeError) and _raised_in(error, "omegaconf.")
    return fails or (isinstance(error, HydraException) and "hydra.sweeper.params" in str(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes; OmegaConf wraps a resolver's error without naming it as the cause."""
    while error is not None:
        yield error
        error = error.__cause__ or (error.__context__ if isinstance(error, OmegaConfBaseException) else None)


def _raised_in(error: BaseException, package: str | tuple[str, ...]) -> bool:
    """Whether a module of the package raised the error itself, not a function that the module called."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals.get("__name__", "")).startswith(package)
