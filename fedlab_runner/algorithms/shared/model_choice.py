"""Which model of each client's cache the server takes, in FedCDA: the choice that gives the smallest objective."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.client_state import RowRef, RowStore

TIE_TOLERANCE = 1e-12  # share of the terms' size: objectives closer than this differ by rounding alone
# Values, in float64, of the models that are compared at a time: as many as a CPU's cache holds, and on a GPU more, as
# each block is launched model by model.
BLOCK_VALUES = {"cpu": 2**20, "cuda": 2**23}


def products(
    models: Sequence[RowRef], x: Tensor, total: Tensor, fixed: int, num_params: int, rows: RowStore
) -> tuple[np.ndarray, np.ndarray]:
    """Inner products of M models with each other [M, M] and with the sum `total` of `fixed` others [M], in float64.

    The products are of differences to the server model x, because J does not change when all models move alike. The
    models lie near x, so that rounding loses nothing. One block of parameters is in memory at a time.
    """
    m = len(models)
    gram, cross = torch.zeros(m, m, dtype=torch.float64), torch.zeros(m, dtype=torch.float64)
    step = min(num_params, max(1, BLOCK_VALUES[x.device.type] // m))
    space = total.new_empty(m, step)
    for begin in range(0, num_params, step):
        block = slice(begin, min(begin + step, num_params))
        origin = x[block].double()
        u = space[:, : len(origin)]
        for row, model in zip(u, models, strict=True):
            row.copy_(rows.get(model, block))
        u -= origin
        gram += (u @ u.T).cpu()
        cross += (u @ (total[block] - fixed * origin)).cpu()
    return gram.numpy(), cross.numpy()


def search(
    gram: np.ndarray, cross: np.ndarray, losses: np.ndarray, sizes: Sequence[int], *, fixed: int, smoothness: float
) -> list[int]:
    """The candidates, one for each client of a batch, that give the smallest objective J.

    The M candidates stand client by client, `sizes[i]` for client i, the preferred first. `gram` [M, M] has their inner
    products, `cross` [M] their inner products with the sum of the `fixed` models, which nobody chooses now, and
    `losses` [M] their F. Up to terms that no choice changes, q J = sum (F + L/2 ||w||^2) - L/(2q) ||fixed sum + sum
    w||^2, with q = fixed + clients (Eq 6): a term for each candidate and one for each pair, in an array with an axis
    for each client.
    """
    q, ends = fixed + len(sizes), np.cumsum(sizes)
    part = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    square = np.diag(gram)
    alone = losses + smoothness / 2 * square - smoothness / (2 * q) * (2 * cross + square)
    single = [i for i, size in enumerate(sizes) if size == 1]  # nothing to choose: no axis
    axes = [i for i, size in enumerate(sizes) if size > 1]
    value = np.zeros([sizes[i] for i in axes])
    for a, i in enumerate(axes):
        with_single = sum((gram[part[i], part[j]][:, 0] for j in single), np.zeros(sizes[i]))
        value += _along(alone[part[i]] - smoothness / q * with_single, (a,), len(axes))
        for b in range(a):
            value -= smoothness / q * _along(gram[part[axes[b]], part[i]], (b, a), len(axes))
    scale = np.abs(alone).sum() + smoothness / q * np.abs(gram).sum()
    best = np.flatnonzero(value <= value.min() + TIE_TOLERANCE * scale)[0]
    places = [0] * len(sizes)
    for i, place in zip(axes, np.unravel_index(best, value.shape), strict=True):
        places[i] = int(place)
    return places


def _along(values: np.ndarray, axes: tuple[int, ...], of: int) -> np.ndarray:
    """The values as an array of `of` dimensions with length 1 except along `axes`, which ascend."""
    shape = [1] * of
    for axis, size in zip(axes, values.shape, strict=True):
        shape[axis] = size
    return values.reshape(shape)
