"""Element-wise optimisers: one call moves K models, each row independently of the others.

The formulas are those of torch.optim (SGD, Adam, AdamW), and tests compare the two. Executors slice the rows of an
optimiser's state with the models: a client that has done its steps no longer moves.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Optimizer(Protocol):
    """An update rule on rows of parameters. `slots` is the number of tensors of the parameters' shape that it keeps."""

    @property
    def slots(self) -> int: ...

    def step(self, w: Tensor, g: Tensor, slots: tuple[Tensor, ...], lr: float | Tensor, t: int | Tensor) -> None:
        """Moves parameters w [.., P] along gradients g [.., P], and updates the slots, in place; t counts steps from 0.

        A compiled step passes lr and t as tensors [], so that they do not become constants of the compiled code.
        """
        ...


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with L2 decay and (Nesterov) momentum, dampening 0."""

    momentum: float
    nesterov: bool
    weight_decay: float

    @property
    def slots(self) -> int:
        return int(self.momentum != 0)

    def distances(self, steps: int, shrinkage: float = 0.0) -> list[float]:
        """How far 0 to `steps` steps along gradients of 1 move, in learning rates.

        It is FedNova's |a|_1: the sum of the weights that the gradients have in the change of the model. A proximal
        term pulls each step back by `shrinkage` (learning rate times mu) of the distance so far.
        """
        moved, velocity, distances = 0.0, 0.0, [0.0]
        for _ in range(steps):
            gradient = 1 - shrinkage * moved
            velocity = self.momentum * velocity + gradient
            moved += gradient + self.momentum * velocity if self.nesterov else velocity
            distances.append(moved)
        return distances

    def step(self, w: Tensor, g: Tensor, slots: tuple[Tensor, ...], lr: float | Tensor, t: int | Tensor) -> None:
        if (slots or self.weight_decay) and isinstance(lr, float) and _in_one_pass(w, g, *slots):
            torch._fused_sgd_(
                *([w], [g.contiguous()], [*slots]),
                lr=lr,
                momentum=self.momentum,
                nesterov=self.nesterov,
                weight_decay=self.weight_decay,
                dampening=0.0,
                maximize=False,
                is_first_step=False,
            )
            return
        if self.weight_decay:
            g = g.add(w, alpha=self.weight_decay)
        if self.momentum:
            (m,) = slots
            m.mul_(self.momentum).add_(g)
            g = g.add(m, alpha=self.momentum) if self.nesterov else m
        if isinstance(lr, Tensor):
            w.sub_(g * lr)
        else:
            w.add_(g, alpha=-lr)


@dataclass(frozen=True)
class Adam:
    """Adam; `decoupled` applies weight decay to the parameters (AdamW) instead of the gradient."""

    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool

    @property
    def slots(self) -> int:
        return 2

    def step(self, w: Tensor, g: Tensor, slots: tuple[Tensor, ...], lr: float | Tensor, t: int | Tensor) -> None:
        m, v = slots
        if isinstance(lr, float) and isinstance(t, int) and _in_one_pass(w, g, m, v):
            fused = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
            fused(
                *([w], [g.contiguous()], [m], [v], [], [torch.tensor(t + 1.0)]),
                lr=lr,
                beta1=self.beta1,
                beta2=self.beta2,
                eps=self.eps,
                weight_decay=self.weight_decay,
                amsgrad=False,
                maximize=False,
            )
            return
        if self.weight_decay and self.decoupled:
            w.mul_(1 - lr * self.weight_decay)
        elif self.weight_decay:
            g = g.add(w, alpha=self.weight_decay)
        m.lerp_(g, 1 - self.beta1)
        v.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
        correction1, correction2 = 1 - self.beta1 ** (t + 1), 1 - self.beta2 ** (t + 1)
        square, kind = v / correction2, torch.finfo(v.dtype)
        if 4 * kind.tiny**0.5 < kind.eps * self.eps:  # bit for bit as with zero, whose root takes five times longer
            square.clamp_min_(kind.tiny)
        scale = square.sqrt_().add_(self.eps)
        pace = lr / correction1
        if isinstance(pace, Tensor):
            w.sub_(m / scale * pace)
        else:
            w.addcdiv_(m, scale, value=-pace)


@dataclass(frozen=True)
class Masked:
    """Another optimiser that moves the parameters in the mask [P] alone."""

    inner: Optimizer
    mask: Tensor

    @property
    def slots(self) -> int:
        return self.inner.slots

    def step(self, w: Tensor, g: Tensor, slots: tuple[Tensor, ...], lr: float | Tensor, t: int | Tensor) -> None:
        before = w.clone()
        self.inner.step(w, g, slots, lr, t)
        w.copy_(torch.where(self.mask, w, before))


@dataclass(frozen=True)
class Bounded:
    """Another optimiser; after each of its steps all parameters are clipped to [low, high]."""

    inner: Optimizer
    low: float
    high: float

    @property
    def slots(self) -> int:
        return self.inner.slots

    def step(self, w: Tensor, g: Tensor, slots: tuple[Tensor, ...], lr: float | Tensor, t: int | Tensor) -> None:
        self.inner.step(w, g, slots, lr, t)
        w.clamp_(self.low, self.high)


def _in_one_pass(w: Tensor, g: Tensor, *slots: Tensor) -> bool:
    """Whether PyTorch's fused step takes these tensors: on a CPU, alike, and each value in its place in memory.

    It reads and writes each value once, which takes a third of the time of one operation after another. On a GPU the
    operations of a step are few beside those of the network.
    """
    alike = g.shape == w.shape and g.dtype == w.dtype and g.device == w.device
    return alike and all(x.device.type == "cpu" and x.is_contiguous() for x in (w, *slots))


def zero_slots(optimizer: Optimizer, w: Tensor) -> tuple[Tensor, ...]:
    """A fresh optimiser's slots for parameters w."""
    return tuple(torch.zeros_like(w) for _ in range(optimizer.slots))
