"""PyTorch's settings of a process that change numbers: a run has them as a command has them, not as its caller does."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_DEVICES = "cpu", "cuda"  # types of device on which a run may compute


@contextmanager
def usual_settings() -> Iterator[None]:
    """A context, or a decorator of a function, with float32 as the default type, gradients, and no autocast."""
    dtype, autocast = torch.get_default_dtype(), [torch.is_autocast_enabled(device) for device in _DEVICES]
    torch.set_default_dtype(torch.float32)
    for device in _DEVICES:
        torch.set_autocast_enabled(device, False)
    depth = _leave_autocast()
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)
        for device, on in zip(_DEVICES, autocast, strict=True):
            torch.set_autocast_enabled(device, on)
        for _ in range(depth):
            torch.autocast_increment_nesting()


def _leave_autocast() -> int:
    """Leaves all contexts of autocast, and returns their number: only the outermost one empties autocast's cache."""
    torch.clear_autocast_cache()
    depth = torch.autocast_increment_nesting() - 1
    while torch.autocast_decrement_nesting():
        pass
    return depth
