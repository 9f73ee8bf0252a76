"""Products of float32 matrices by oneDNN, on processors for which PyTorch's library of products is slow."""

from functools import lru_cache

import torch
from torch import Tensor

from fedlab_runner.utils.system import processor

MIN_PRODUCT = 3_000_000  # multiplications: in a smaller product oneDNN gains less than its call costs
MIN_ROWS = 4  # of the first matrix: with fewer, oneDNN orders the second anew for too little work


def has_onednn() -> bool:
    """Whether this build of PyTorch has oneDNN."""
    found: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch has no types for it
    return found


@lru_cache(maxsize=1)
def pays() -> bool:
    """Whether oneDNN multiplies float32 matrices faster than PyTorch does on this machine.

    PyTorch has MKL for them, which has no AVX-512 for AMD's processors. oneDNN, which PyTorch has for convolutions, has
    it, and takes half the time.
    """
    return has_onednn() and torch.backends.cpu.get_cpu_capability() == "AVX512" and "AMD" in processor()


def gains(rows: int, inner: int, columns: int) -> bool:
    """Whether oneDNN gains in a product [rows, inner] @ [inner, columns] where it pays at all."""
    return rows >= MIN_ROWS and rows * inner * columns >= MIN_PRODUCT


def by_onednn(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a [.., n] @ b [n, m] + bias [m] of float32 on a CPU. Autograd does not pass through it."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", [], "")
    return result


def product(a: Tensor, b: Tensor) -> Tensor:
    """a [n, k] @ b [k, m]. Autograd does not pass through it."""
    return by_onednn(a, b) if _faster(a, b) else a @ b


def add_product(total: Tensor, a: Tensor, b: Tensor, alpha: float = 1.0) -> Tensor:
    """Adds alpha a [n, k] @ b [k, m] to `total` [n, m] in place, and returns it. Autograd does not pass through it."""
    return total.add_(by_onednn(a, b), alpha=alpha) if _faster(a, b) else total.addmm_(a, b, alpha=alpha)


def _faster(a: Tensor, b: Tensor) -> bool:
    floats = a.device.type == "cpu" and a.dtype == torch.float32
    return floats and pays() and gains(len(a), len(b), b.shape[1])
