"""FedAvg's server rule when updates can be late, shared by the algorithms that average."""

from typing import Any, NamedTuple

from torch import Tensor

from fedlab_runner.federation import Arrivals

LATE_POLICIES = ("delta", "model", "discard")
MODEL_POLICIES = ("model", "discard")  # of methods that combine whole models, not changes
WEIGHTINGS = ("size", "uniform")


class Params(NamedTuple):
    """The state of an algorithm that keeps nothing but the server's model."""

    params: Tensor  # x [D]


class Update(NamedTuple):
    """What a client sends: its change y - x, or its model y."""

    rows: Tensor  # [K, D]


class ModelUpdate(NamedTuple):
    """What is averaged, and the client's model, which the server has from it and from what it had sent: `models` is
    `known`.
    """

    rows: Tensor  # [K, D]
    models: Tensor  # y [K, D]


def check_averaging(
    late_policy: str, weighting: str, server_lr: float, policies: tuple[str, ...] = LATE_POLICIES
) -> None:
    """Raises ValueError, named after the field, for a rule that does not exist."""
    if late_policy not in policies:
        raise ValueError(f"late_policy must be one of {', '.join(policies)}, got {late_policy}")
    if weighting not in WEIGHTINGS:
        raise ValueError(f"weighting must be one of {', '.join(WEIGHTINGS)}, got {weighting}")
    if not server_lr > 0:
        raise ValueError(f"server_lr must be > 0, got {server_lr}")


def outgoing(x: Tensor, y: Tensor, late_policy: str, *, keep: bool = False) -> Update:
    """What clients that went from x [D] to y [K, D] send; y is used up in it, unless the caller wants to `keep` it."""
    if late_policy == "model":
        return Update(y)
    return Update(y - x if keep else y.sub_(x))


def average(x: Tensor, arrivals: Arrivals[Any], late_policy: str, weighting: str, server_lr: float) -> Tensor:
    """The server's next model [D], moved by the weighted mean of the `rows` that have arrived; x itself when nothing
    has.

    `delta` adds late changes to today's model (Feddle, Eq 1 and 3), `model` averages the late models themselves,
    `discard` drops what is late (Eq 2). The three agree when nothing is late.
    """
    if late_policy == "discard":
        arrivals = arrivals.select(arrivals.staleness == 0)
    if not len(arrivals):
        return x
    mean = arrivals.mean(arrivals.upload.rows, uniform=weighting == "uniform")
    return x + server_lr * (mean - x if late_policy == "model" else mean)
