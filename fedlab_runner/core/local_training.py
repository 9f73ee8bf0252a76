"""Local training: how long a client trains the model that it receives, and with which optimiser."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from fedlab_runner.core.optimizer import SGD, Adam, Optimizer
from fedlab_runner.utils.validate import above, at_least, one_of, unused, within

# Keys of conf/local that only some optimisers read.
SGD_KEYS, ADAM_KEYS = ("momentum", "nesterov"), ("betas", "eps")


class Choice(NamedTuple):
    """A value of `optimizer`: the keys that this optimiser needs, which are null for others, and its constructor."""

    keys: tuple[str, ...]
    make: "Callable[[LocalTraining], Optimizer]"


OPTIMIZERS = {  # by value of the key `optimizer`
    "sgd": Choice(SGD_KEYS, lambda c: SGD(c.momentum or 0.0, bool(c.nesterov), c.weight_decay)),
    "adam": Choice(ADAM_KEYS, lambda c: Adam(*_adam(c), c.weight_decay, decoupled=False)),
    "adamw": Choice(ADAM_KEYS, lambda c: Adam(*_adam(c), c.weight_decay, decoupled=True)),
}


@dataclass(frozen=True)
class LocalTraining:
    """Local training, with a fresh optimiser in each round.

    Exactly one of `epochs` and `steps` is set. The schedule multiplies `lr`. `clip_norm` bounds the norm of each
    gradient, `update_norm` the norm of the change that a round makes to a client's parameters.
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
        one_of(OPTIMIZERS, optimizer=self.optimizer)
        self._check_keys()
        above(0, lr=self.lr)
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"epochs and steps: set exactly one of them and the other to null, got {self.epochs} and {self.steps}"
            )
        at_least(1, epochs=self.epochs, steps=self.steps, batch_size=self.batch_size)
        within("[0, 1)", momentum=self.momentum)
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs momentum > 0, got momentum 0")
        if self.betas is not None and (len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas)):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas}")
        at_least(0, eps=self.eps, weight_decay=self.weight_decay)
        above(0, clip_norm=self.clip_norm)
        above(0, update_norm=self.update_norm)

    def _check_keys(self) -> None:
        """Raises ValueError where a key of the optimiser is null, or a key of another optimiser is not."""
        own = OPTIMIZERS[self.optimizer].keys
        lacking = [key for key in own if getattr(self, key) is None]
        idle = [key for key in (*SGD_KEYS, *ADAM_KEYS) if key not in own and getattr(self, key) is not None]
        if lacking:
            rest = f", and {' and '.join(idle)} to null" if idle else ""
            raise ValueError(
                f"optimizer={self.optimizer} needs other keys, and as a rule another lr: choose local={self.optimizer} "
                f"instead, or set {' and '.join(lacking)}{rest}"
            )
        unused(f"optimizer={self.optimizer}", **{key: getattr(self, key) for key in idle})

    def for_steps(self, steps: int) -> "LocalTraining":
        """This local training for `steps` steps."""
        return replace(self, epochs=None, steps=steps)

    def for_epochs(self, epochs: int) -> "LocalTraining":
        """This local training for `epochs` epochs."""
        return replace(self, epochs=epochs, steps=None)

    def plain(self, steps: int | None = None) -> "LocalTraining":
        """One epoch, or `steps` steps, of plain SGD on the same minibatches, without decay, momentum or bounds."""
        plain = replace(self, optimizer="sgd", momentum=0.0, nesterov=False, betas=None, eps=None, weight_decay=0.0)
        return replace(plain, epochs=None if steps else 1, steps=steps, clip_norm=None, update_norm=None)

    def at_most(self, examples: int) -> "LocalTraining":
        """This local training with minibatches of at most `examples`, the largest number that a client has. Results are
        the same.
        """
        return replace(self, batch_size=min(self.batch_size, max(2, examples)))  # batch norm treats size 1 differently

    def make_optimizer(self) -> Optimizer:
        """The optimiser of one round's local training."""
        return OPTIMIZERS[self.optimizer].make(self)


def _adam(c: LocalTraining) -> tuple[float, float, float]:
    assert c.betas is not None and c.eps is not None  # checked in __post_init__
    return c.betas[0], c.betas[1], c.eps
