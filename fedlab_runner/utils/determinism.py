"""Makes a GPU compute the same bits each time. A CPU does so by itself."""

import os

import torch

# cuBLAS reads it when it starts; with other values its products may differ from one run to the next.
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_FIXED = ":4096:8"  # eight buffers of 4 MiB, one of the two values that NVIDIA names for equal bits


def repeat_exactly(on: bool) -> None:
    """Makes all that this process computes on a GPU from now on the same to the bit in each run, or leaves it open.

    PyTorch warns of an operation for which it has no such kernel. https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    if on:
        os.environ.setdefault(_WORKSPACE, _FIXED)
    if on or repeats_exactly():  # the call imports torch's compiler, a second of a worker's start
        torch.use_deterministic_algorithms(on, warn_only=True)
    torch.backends.cudnn.deterministic = on
    # Filling costs time, and nothing here reads memory that nobody has written. torch has no type for the switch.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def repeats_exactly() -> bool:
    """Whether this process computes the same bits on a GPU in each run."""
    return torch.are_deterministic_algorithms_enabled()
