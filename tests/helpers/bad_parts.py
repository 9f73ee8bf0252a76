"""Parts of the GPU check that go wrong in every way, and one that does not."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.gpu_check.finding import Case, Finding, Part, Setting


def _says(*findings: Finding) -> Callable[[], Iterator[Finding]]:
    return lambda: iter(findings)


def _raises() -> Iterator[Finding]:
    yield Finding("before", "came first", True)
    raise ValueError("the kernel | is wrong\nand more of it")


def _dies() -> Iterator[Finding]:
    print("the last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
    yield Finding("", "", True)


def _hangs() -> Iterator[Finding]:
    time.sleep(600)
    yield Finding("", "", True)


def _does_not_fit() -> Iterator[Finding]:
    raise torch.OutOfMemoryError("CUDA out of memory")


def _cases(**cases: Case) -> Callable[[Setting], Iterator[tuple[str, Case]]]:
    return lambda setting: iter(cases.items())


def _cannot_begin(setting: Setting) -> Iterator[tuple[str, Case]]:
    raise ImportError("no such kernel")


GOOD = _says(Finding("", "good", True, {"ratio": 1.5}), Finding("timed", "3 ms", None))
PARTS = (
    Part("raises", _cases(bad=_raises, next=GOOD), 60, 60),
    Part("dies", _cases(bad=_dies, next=GOOD), 60, 60),
    Part("hangs", _cases(bad=_hangs, next=GOOD), 60, 0.5),
    Part("cannot begin", _cannot_begin, 60, 60),
    Part("large", _cases(model=_does_not_fit, next=GOOD), 60, 60),
    Part("good", _cases(all=GOOD), 60, 60),
    Part("endless", _cases(all=_hangs), 600, 600, alone=True),
)
