"""What a client does with the model it receives: how long it trains and with which optimiser."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from fedlab_runner.optimizer import SGD, Adam, Optimizer

OPTIMIZERS: dict[str, Callable[["LocalTraining"], Optimizer]] = {
    "sgd": lambda c: SGD(c.momentum, c.nesterov, c.weight_decay),
    "adam": lambda c: Adam(c.betas[0], c.betas[1], c.eps, c.weight_decay, decoupled=False),
    "adamw": lambda c: Adam(c.betas[0], c.betas[1], c.eps, c.weight_decay, decoupled=True),
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
    momentum: float
    nesterov: bool
    betas: list[float]
    eps: float
    weight_decay: float
    clip_norm: float | None
    update_norm: float | None

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {self.optimizer}")
        if not self.lr > 0:
            raise ValueError(f"lr must be > 0, got {self.lr}")
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"epochs and steps: set exactly one of them and the other to null, got {self.epochs} and {self.steps}"
            )
        for name in ("epochs", "steps", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs momentum > 0, got momentum 0")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas}")
        for name in ("eps", "weight_decay"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        for name in ("clip_norm", "update_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be > 0 or null, got {value}")

    def for_steps(self, steps: int) -> "LocalTraining":
        """The same for so many steps."""
        return replace(self, epochs=None, steps=steps)

    def one_plain_epoch(self) -> "LocalTraining":
        """The same minibatches for one epoch of plain SGD, without decay, momentum or bounds."""
        unbounded = replace(self, epochs=1, steps=None, clip_norm=None, update_norm=None)
        return replace(unbounded, optimizer="sgd", momentum=0.0, nesterov=False, weight_decay=0.0)

    def at_most(self, examples: int) -> "LocalTraining":
        """The same with minibatches of no more than so many examples: all that anybody has is one minibatch anyway."""
        return replace(self, batch_size=min(self.batch_size, max(2, examples)))  # batch norm has another rule for 1

    def make_optimizer(self) -> Optimizer:
        """The optimiser of one round's local work."""
        return OPTIMIZERS[self.optimizer](self)
