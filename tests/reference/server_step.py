"""What a server optimiser makes of a method's step (Reddi et al., ICLR 2021, Algorithms 1 and 2)."""

from collections.abc import Callable

import torch
from torch import Tensor

from tests.reference.plain import Model, Problem

Server = Callable[[Model, Model], Model]  # (x, y) -> the server's next model where a method goes from x to y
Rule = Callable[..., Tensor]  # (v_{t-1}, Delta_t^2, beta2) -> v_t

RULES: dict[str, Rule] = {
    "adagrad": lambda v, square, beta2: v + square,
    "yogi": lambda v, square, beta2: v - (1 - beta2) * square * torch.sign(v - square),
    "adam": lambda v, square, beta2: beta2 * v + (1 - beta2) * square,
}


def without_optimizer(p: Problem) -> Server:
    """The server's next model is the method's."""
    return lambda x, y: y


class FedOpt:
    """Algorithm 2: the server's parameters after each of its steps."""

    def __init__(self, p: Problem, name: str, lr: float, beta1: float, tau: float, beta2: float = 0.0) -> None:
        self.rule, self.lr, self.beta1, self.beta2, self.tau = RULES[name], lr, beta1, beta2, tau
        self.m = torch.zeros_like(p.x0.w)
        self.v = torch.full_like(p.x0.w, tau**2)  # v_{-1} >= tau^2

    def __call__(self, x: Model, y: Model) -> Model:
        delta = y.w - x.w  # line 10: Delta_t
        self.m = self.beta1 * self.m + (1 - self.beta1) * delta  # line 11
        self.v = self.rule(self.v, delta**2, self.beta2)  # lines 12 to 14
        return Model(x.w + self.lr * self.m / (torch.sqrt(self.v) + self.tau), y.s)  # line 15


class FedAvgM:
    """Hsu, Qi and Brown, 2019, section 4.3: v <- beta v + Delta, w <- w + lr v; Nesterov: w + lr (Delta + beta v)."""

    def __init__(self, p: Problem, lr: float, momentum: float, nesterov: bool = False) -> None:
        self.lr, self.momentum, self.nesterov, self.v = lr, momentum, nesterov, torch.zeros_like(p.x0.w)

    def __call__(self, x: Model, y: Model) -> Model:
        delta = y.w - x.w
        self.v = self.momentum * self.v + delta
        return Model(x.w + self.lr * (delta + self.momentum * self.v if self.nesterov else self.v), y.s)
