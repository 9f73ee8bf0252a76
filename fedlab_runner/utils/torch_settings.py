"""PyTorch's settings of a process that change numbers: a run has them as a command has them, not as its caller does."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

_TURN = threading.RLock()  # of the thread that has the process's settings
_DEVICES = "cpu", "cuda"  # types of device on which a run may compute
_CPU: Any = torch.backends.mkldnn  # torch has no types for it
_MHA: Any = torch.backends.mha  # whose fast path has neither a gradient nor a rule for vmap; torch has no types for it

# How to read and to write a setting, and its usual value. Those of products hold for a CPU: a GPU has its own.
_SETTINGS: Sequence[tuple[Callable[[], Any], Callable[[Any], object], Any]] = (
    (torch.get_default_dtype, torch.set_default_dtype, torch.float32),
    *((partial(torch.is_autocast_enabled, x), partial(torch.set_autocast_enabled, x), False) for x in _DEVICES),
    (partial(getattr, _CPU, "enabled"), partial(setattr, _CPU, "enabled"), True),
    (_MHA.get_fastpath_enabled, _MHA.set_fastpath_enabled, False),
    *(
        (partial(getattr, product, "fp32_precision"), partial(setattr, product, "fp32_precision"), "ieee")
        for product in (_CPU.matmul, _CPU.conv, _CPU.rnn)
    ),
)


@contextmanager
def usual_settings() -> Iterator[None]:
    """A context, or a decorator of a function, with float32 as the default type and all its bits in a CPU's products,
    the CPU as the default device, gradients, and no autocast. The number of threads is afterwards as it was.

    One thread of the process at a time is in it: the next one waits, for the settings are those of the process.
    """
    with _TURN, torch.inference_mode(False), torch.enable_grad():
        threads, device = torch.get_num_threads(), torch.get_default_device()
        before = [read() for read, _, _ in _SETTINGS]
        if elsewhere := device.type != "cpu":
            torch.set_default_device(None)
        take_usual_settings()
        depth = _leave_autocast()
        try:
            yield
        finally:
            for (_, write, _), value in zip(_SETTINGS, before, strict=True):
                write(value)
            if elsewhere:
                torch.set_default_device(device)
            torch.set_num_threads(threads)
            for _ in range(depth):
                torch.autocast_increment_nesting()


def take_usual_settings() -> None:
    """Gives a process of its own a run's settings, for good."""
    for _, write, usual in _SETTINGS:
        write(usual)


@contextmanager
def one_thread() -> Iterator[None]:
    """Gives torch one thread within the block: for a fork, which does not have its parent's threads, and for operations
    so small that to wake another thread takes longer.
    """
    threads = torch.get_num_threads()
    if threads > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads > 1:
            torch.set_num_threads(threads)


def _leave_autocast() -> int:
    """Leaves all contexts of autocast, and returns their number: only the outermost one empties autocast's cache."""
    torch.clear_autocast_cache()
    depth = torch.autocast_increment_nesting() - 1
    while torch.autocast_decrement_nesting():
        pass
    return depth
