"""Graphs of torch.compile, and where they are kept."""

import itertools
import logging
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch

from fedlab_runner.executors._run_notes import machine_type
from fedlab_runner.utils.files import make_folder, user_cache

_log = logging.getLogger(__name__)
Graph = Callable[..., Any]  # a compiled function
_numbers = itertools.count()  # of the graphs of this process
_whole_only: ContextVar[bool] = ContextVar("whole_only", default=False)  # see `whole_graphs`
_CACHE_FOLDER = "TORCHINDUCTOR_CACHE_DIR"  # environment variable of torch
PROBE_BYTES = 2**20  # that the user's cache must have room for: about what a few graphs take
_BROKEN_LIBRARY = re.compile(r"ImportError: (\S+\.so): ")  # in an error of the compiler


def has_compiler() -> bool:
    """Whether this machine has a C++ compiler."""
    return any(map(shutil.which, ("c++", "g++", "clang++")))


@contextmanager
def whole_graphs() -> Iterator[None]:
    """A context in which a function that the compiler cannot read whole is an error."""
    token = _whole_only.set(True)
    try:
        yield
    finally:
        _whole_only.reset(token)


def graph_of(function: Any, *, layer_by_layer: bool = False, whole: bool = False) -> Graph:
    """Compiles a Python function with torch.compile in such a way that the process can still fork.

    The user's cache folder, or torch's own where that cannot be written to, keeps compiled code for later runs, by type
    of machine. The environment variable TORCHINDUCTOR_CACHE_DIR names another folder. If a library in the cache cannot
    be loaded, because a killed process has left it half-written, this deletes it and compiles it again, once. If the
    compiler cannot read the whole function, parts of it stay Python, which can be slower than no compiler; the log says
    so. With `whole`, as several threads need it, that is an error.
    """
    if _CACHE_FOLDER not in os.environ and (folder := _writable_cache()) is not None:
        os.environ[_CACHE_FOLDER] = folder
    from torch._dynamo.utils import counters  # imports the compiler: a second

    from fedlab_runner.executors import _compiler_passes as passes

    # A process's first gradient decides whether autograd starts threads; a fork of a process with such threads has no
    # autograd. The compiler knows more devices than the machine has, so that it must not compute the first gradient.
    one = torch.ones((), requires_grad=True)
    torch.autograd.grad(one * 2, one)
    # This logger warns at length that the machine has no GPU.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    updates = [passes.UpdateInPlace()] if layer_by_layer else []
    options: dict[str, Any] = {
        "post_grad_custom_pre_pass": passes.ExplicitScale(),
        "post_grad_custom_post_pass": passes.InTurn([*updates, passes.FastProducts()]),
    }
    if layer_by_layer:  # every step has the same tensors as layers
        options["guard_filter_fn"] = torch.compiler.keep_tensor_guards_unsafe
    # The compiler counts its graphs by code object and gives up after eight, so that each has a code object. And it
    # remembers shapes by the name of the code: those of another model would make sizes of this one variable.
    code = function.__code__
    function.__code__ = code.replace(co_name=f"{code.co_name}_{next(_numbers)}")
    compiled: Graph = torch.compile(function, fullgraph=whole, options=options)
    known = False  # whether the compiler has read the function

    def step(*args: Any) -> Any:
        nonlocal known
        if known:
            return call(*args)
        before = Counter(counters["graph_break"])
        found = call(*args)
        known = True
        _tell(list(counters["graph_break"] - before))
        return found

    def call(*args: Any) -> Any:
        deleted = set[Path]()
        while True:
            try:
                return compiled(*args)
            except RuntimeError as error:  # the compiler's error, which holds the import's
                library = _unloadable(str(error))
                if library is None or library in deleted:
                    raise
                _log.warning("%s in the compiler's cache is damaged: it is compiled again", library)
                library.unlink(missing_ok=True)  # another job may have been faster
                deleted.add(library)

    return step


@cache
def _writable_cache() -> str | None:
    """The folder for compiled code in the user's cache; None, with a warning: it cannot be written to, as in a
    container where the home folder is `/`, or where a quota is used up.

    torch's default, in the system's folder for temporary files, is empty after a restart and, on a cluster, for each
    job.
    """
    folder = user_cache() / "compiled" / machine_type()
    try:
        make_folder(folder)
        with TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        _log.warning("compiled code goes to a temporary folder: %s cannot be written to (%s)", folder, error.strerror)
        return None
    return str(folder)


def _unloadable(error: str) -> Path | None:
    """The library in the compiler's cache that an error of the compiler says cannot be loaded, if there is one."""
    if (found := _BROKEN_LIBRARY.search(error)) is None:
        return None
    library = Path(os.path.realpath(found[1]))
    return library if library.is_relative_to(os.path.realpath(os.environ[_CACHE_FOLDER])) else None


def _tell(breaks: list[str]) -> None:
    """Says where the compiler left a step to Python, or raises RuntimeError in the context of `whole_graphs`."""
    if not breaks:
        return
    reason = breaks[0].partition("\n")[0]
    line = f"the compiler cannot read the whole step, so that compile=false may be faster: {reason}"
    if _whole_only.get():
        raise RuntimeError(line)
    _log.warning(line)


def kept_graph(
    kept: dict[Any, Any], key: Hashable, make: Callable[[], Graph], *, layer_by_layer: bool = False
) -> Graph:
    """The graph of this key among the kept ones; `make` gives the function when it is compiled."""
    if key not in kept:
        kept[key] = graph_of(make(), layer_by_layer=layer_by_layer)
    found: Graph = kept[key]
    return found
