"""Explains, in one line, the errors of a machine without free memory, processes, threads or open files, or without a
folder from which compiled code can be loaded.

The same shortage comes as an exception of Python, of numpy, of torch's allocators, or of the system.
"""

import errno
import re

from fedlab_runner.utils.attempt import next_start

_REMEDIES = {  # by what has run out
    "memory": "lower participation.cohort_size, local.batch_size or executor.chunk_size, or raise a limit (ulimit -v)",
    "processes or threads": "lower executor.workers or threads, or raise a limit (ulimit -u)",
    "open files": "raise the limit (ulimit -n)",
}
# What has run out, by the system's error number.
_BY_NUMBER = {errno.ENOMEM: "memory", errno.EAGAIN: "processes or threads"}
_BY_NUMBER |= dict.fromkeys((errno.EMFILE, errno.ENFILE), "open files")
_NO_CODE = "mounted with noexec"  # in an error of torch's compiler, whose reason is a folder from which no code runs
_BY_WORDS = {  # a RuntimeError and an ImportError have no number
    r"can't allocate memory|out of memory|bad_alloc|cannot allocate memory|failed to map segment": "memory",
    r"can't start new thread|Resource temporarily unavailable": "processes or threads",
    r"Too many open files": "open files",
}


def explain(error: BaseException) -> str | None:
    """The line for an error that says that the machine lacks something; None for all other errors."""
    lines = str(error).strip().splitlines()
    said = f" ({lines[0][:200]})" if lines else ""
    if isinstance(error, RuntimeError) and _NO_CODE in str(error):
        return f"compiled code cannot be loaded{said}: name another folder in TORCHINDUCTOR_CACHE_DIR; {next_start()}"
    what = None
    if isinstance(error, MemoryError):
        what = "memory"
    elif isinstance(error, OSError):
        what = _BY_NUMBER.get(error.errno or 0)
    elif isinstance(error, RuntimeError | ImportError):
        found = (name for words, name in _BY_WORDS.items() if re.search(words, str(error), re.IGNORECASE))
        what = next(found, None)
    if what is None:
        return None
    return f"the machine has run out of {what}{said}: {_REMEDIES[what]}; {next_start()}"
