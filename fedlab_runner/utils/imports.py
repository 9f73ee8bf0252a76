"""Imports that Python's garbage collector seldom looks through."""

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = (100_000, 20, 100)  # new objects before a collection of the youngest, and of these before one of the older
USUAL = gc.get_threshold()  # Python's own, or the user's
TELLS = "triton._C.libtriton"  # the compiler's module, which names on the terminal what is left of it at the end


@contextmanager
def kept() -> Iterator[None]:
    """Leaves the modules that are imported within the block out of all later collections, for they stay to the end.

    Python's collector would walk through the objects of torch many times during its import, and once more when the
    process ends: 0.5 s of 2.0 s (docs/speed-appendix.md). For a process that is the command's own.
    """
    known = len(sys.modules)
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*USUAL)
        if len(sys.modules) > known:
            gc.freeze()


@atexit.register
def let_go() -> None:
    """Lets Python delete the compiler's objects when the process ends, as set-aside ones stay."""
    if TELLS in sys.modules:
        gc.unfreeze()
