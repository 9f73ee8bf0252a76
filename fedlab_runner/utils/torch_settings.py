"""PyTorch's settings of a process that change numbers: a run has them as a command has them, not as its caller does."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_DEVICES = "cpu", "cuda"  # types of device on which a run may compute


@contextmanager
def usual_settings() -> Iterator[None]:
    """A context, or a decorator of a function, with float32 as the default type, the CPU as the default device,
    gradients, and no autocast.
    """
    dtype, autocast = torch.get_default_dtype(), [torch.is_autocast_enabled(device) for device in _DEVICES]
    device = torch.get_default_device()
    torch.set_default_dtype(torch.float32)
    if elsewhere := device.type != "cpu":
        torch.set_default_device(None)
    for kind in _DEVICES:
        torch.set_autocast_enabled(kind, False)
    depth = _leave_autocast()
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)
        if elsewhere:
            torch.set_default_device(device)
        for kind, on in zip(_DEVICES, autocast, strict=True):
            torch.set_autocast_enabled(kind, on)
        for _ in range(depth):
            torch.autocast_increment_nesting()


def _leave_autocast() -> int:
    """Leaves all contexts of autocast, and returns their number: only the outermost one empties autocast's cache."""
    torch.clear_autocast_cache()
    depth = torch.autocast_increment_nesting() - 1
    while torch.autocast_decrement_nesting():
        pass
    return depth
