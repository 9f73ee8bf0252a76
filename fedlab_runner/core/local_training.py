"""What a client does with the model it receives: how long it trains and with which optimiser."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from fedlab_runner.core.optimizer import SGD, Adam, Optimizer

SGD_KEYS, ADAM_KEYS = ("momentum", "nesterov"), ("betas", "eps")


class Choice(NamedTuple):
    """An optimiser by name: the keys that it alone reads, which are null for the others, and what makes it."""

    keys: tuple[str, ...]
    make: "Callable[[LocalTraining], Optimizer]"


OPTIMIZERS = {
    "sgd": Choice(SGD_KEYS, lambda c: SGD(c.momentum or 0.0, bool(c.nesterov), c.weight_decay)),
    "adam": Choice(ADAM_KEYS, lambda c: Adam(*_adam(c), c.weight_decay, decoupled=False)),
    "adamw": Choice(ADAM_KEYS, lambda c: Adam(*_adam(c), c.weight_decay, decoupled=True)),
}


@dataclass(frozen=True)
class LocalTraining:
    """Local training, fresh at each round: exactly one of `epochs` and `steps` is set; `lr` is before the schedule's
    factor. `clip_norm` bounds each gradient, `update_norm` what a client's work changes its parameters by.
    """

    optimizer: str
    lr: float
    epochs: int | None
    steps: int | None
    batch_size: int
    momentum: float | None
    nesterov: bool | None
    betas: list[float] | None
    eps: float | None
    weight_decay: float
    clip_norm: float | None
    update_norm: float | None

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {self.optimizer}")
        self._check_keys()
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be finite and > 0, got {self.lr}")
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"epochs and steps: set exactly one of them and the other to null, got {self.epochs} and {self.steps}"
            )
        for name in ("epochs", "steps", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs momentum > 0, got momentum 0")
        if self.betas is not None and (len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas)):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas}")
        for name in ("eps", "weight_decay"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} must be finite and >= 0, got {value}")
        for name in ("clip_norm", "update_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be > 0 or null, got {value}")

    def _check_keys(self) -> None:
        """Each optimiser has its own keys, and none of another's."""
        own = OPTIMIZERS[self.optimizer].keys
        lacking = [key for key in own if getattr(self, key) is None]
        idle = [key for key in (*SGD_KEYS, *ADAM_KEYS) if key not in own and getattr(self, key) is not None]
        if lacking:
            rest = f", and {' and '.join(idle)} to null" if idle else ""
            raise ValueError(
                f"optimizer={self.optimizer} needs other keys, and as a rule another lr: choose local={self.optimizer} "
                f"instead, or set {' and '.join(lacking)}{rest}"
            )
        if idle:
            raise ValueError(
                f"{idle[0]} does nothing for optimizer={self.optimizer}: it must be null, got {getattr(self, idle[0])}"
            )

    def for_steps(self, steps: int) -> "LocalTraining":
        """The same for so many steps."""
        return replace(self, epochs=None, steps=steps)

    def one_plain_epoch(self) -> "LocalTraining":
        """The same minibatches for one epoch of plain SGD, without decay, momentum or bounds."""
        plain = replace(self, optimizer="sgd", momentum=0.0, nesterov=False, betas=None, eps=None, weight_decay=0.0)
        return replace(plain, epochs=1, steps=None, clip_norm=None, update_norm=None)

    def at_most(self, examples: int) -> "LocalTraining":
        """The same with minibatches of no more than so many examples: all that anybody has is one minibatch anyway."""
        return replace(self, batch_size=min(self.batch_size, max(2, examples)))  # batch norm has another rule for 1

    def make_optimizer(self) -> Optimizer:
        """The optimiser of one round's local work."""
        return OPTIMIZERS[self.optimizer].make(self)


def _adam(c: LocalTraining) -> tuple[float, float, float]:
    assert c.betas is not None and c.eps is not None  # as checked
    return c.betas[0], c.betas[1], c.eps
