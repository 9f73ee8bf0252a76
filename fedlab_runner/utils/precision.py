"""How many bits of float32 a GPU multiplies."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# PyTorch's switches: its older ones, such as allow_tf32, cannot be read where a user has set one of these.
_CUDNN: Any = torch.backends.cudnn  # torch has no types for them
_SWITCHES: tuple[Any, ...] = (_CUDNN.conv, _CUDNN.rnn, torch.backends.cuda.matmul)


def gpu_precisions() -> list[str]:
    """The precisions of convolutions, recurrent layers and products. PyTorch's default is tf32 in the first two."""
    return [switch.fp32_precision for switch in _SWITCHES]


@contextmanager
def full_precision() -> Iterator[None]:
    """A context in which a GPU too multiplies all bits of float32."""
    before = gpu_precisions()
    for switch in _SWITCHES:
        switch.fp32_precision = "ieee"
    try:
        yield
    finally:
        for switch, precision in zip(_SWITCHES, before, strict=True):
            switch.fp32_precision = precision
