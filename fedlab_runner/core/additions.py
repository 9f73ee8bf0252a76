"""What an algorithm adds to its clients' local steps: functions, and data apart from them.

A function is written for one client and reads nothing but its arguments: a function of a module, or an instance of a
frozen dataclass whose fields are plain values. Tensors come as data: `Work.per_client`, `per_step` and `common`. Then
worker processes, and compiled or recorded steps, serve all rounds. A closure works too, in processes that the executor
forks in each round.

A penalty may be an instance with a method `gradient(parameters, *own)` [n] that equals autograd's gradient to the bit.
Then no step needs a graph of the penalty, which costs half of a small model's step.

`own` holds a client's rows of `per_client`, then those of `per_step`, then `common`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

Loss = Callable[..., Tensor]  # loss(model, batch, *own) -> scalar
# penalty(parameters [n], *own) -> scalar: a sum over the parameters, which may come tensor by tensor
Penalty = Callable[..., Tensor]
Perturb = Callable[..., Tensor]  # perturb(gradient [P], *own) -> [P]
# correct(gradient [n], *own) -> [n]: each value by itself, of all parameters or of one tensor
Correct = Callable[..., Tensor]
# per_step(work, rows [k], step) -> tensors [k, ...]; the `Work` may have some of the cohort's clients
PerStep = Callable[[Any, np.ndarray, int], tuple[Tensor, ...]]


def lasts(function: Callable[..., Any] | None) -> bool:
    """Whether a function is the same in every round, and known by its hash: not a closure that each round makes."""
    if not isinstance(function, FunctionType):
        return function is None or (
            getattr(type(function), "__hash__", None) is not object.__hash__ and _has_hash(function)
        )
    return function.__closure__ is None and "<locals>" not in function.__qualname__


def _has_hash(function: Callable[..., Any]) -> bool:
    try:
        hash(function)
    except TypeError:  # a field is a list, say
        return False
    return True


def parted(own: Sequence[Tensor], sizes: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """One client's `own` for each trainable tensor of a model, by their sizes, as a penalty or correction receives it.

    A tensor with a value for each parameter is cut into the values of each trainable tensor; others stay whole.
    """
    total = sum(sizes)
    cut = [torch.split(o, list(sizes)) if o.shape == (total,) else [o] * len(sizes) for o in own]
    return list(zip(*cut, strict=True)) if cut else [()] * len(sizes)


def side_by_side(function: Callable[..., Any], common: int, randomness: str = "different") -> Callable[..., Any]:
    """The function for rows of clients of one that is written for a single client; the last arguments are `common`."""

    def every(*args: Any) -> Any:
        in_dims = (0,) * (len(args) - common) + (None,) * common
        return vmap(function, in_dims, randomness=randomness)(*args)

    return every


@dataclass(frozen=True)
class Proximal:
    """The penalty mu/2 ||w - anchor||^2, over the values that are `shared` (1 or 0; None: all)."""

    mu: float

    def __call__(self, w: Tensor, anchor: Tensor, shared: Tensor | None = None) -> Tensor:
        return self.mu / 2 * self._away(w, anchor, shared).square().sum()

    def gradient(self, w: Tensor, anchor: Tensor, shared: Tensor | None = None) -> Tensor:
        return self._away(w, anchor, shared).mul_(self.mu)

    def _away(self, w: Tensor, anchor: Tensor, shared: Tensor | None) -> Tensor:
        away = w - anchor
        return away if shared is None else away * shared


@dataclass(frozen=True)
class Pull:
    """The penalty sum_i mu_i/2 (w_i - anchor_i)^2."""

    def __call__(self, w: Tensor, anchor: Tensor, mu: Tensor) -> Tensor:
        return (mu / 2 * (w - anchor).square()).sum()

    def gradient(self, w: Tensor, anchor: Tensor, mu: Tensor) -> Tensor:
        return (w - anchor).mul_(mu)
