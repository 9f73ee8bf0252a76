"""FedAvg's server rule when updates can be late, shared by the algorithms that average."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.updates import Updates, Upload

LATE_POLICIES = ("delta", "model", "discard")
MODEL_POLICIES = ("model", "discard")  # of methods that combine whole models, not changes
WEIGHTINGS = ("size", "uniform")


class Params(NamedTuple):
    """The state of an algorithm that keeps nothing but the server's model."""

    params: Tensor  # x [D]


class Update(NamedTuple):
    """What a client sends: how its parameters have changed, or its parameters; and its batch norm statistics."""

    rows: Tensor  # y - x or y [K, P]
    statistics: Tensor  # as they are [K, B]


class ModelUpdate(NamedTuple):
    """What is averaged, and the client's model, which the server has from it and from what it had sent: `models` is
    `known`.
    """

    rows: Tensor  # as in Update [K, P]
    statistics: Tensor  # [K, B]
    models: Tensor  # y [K, D]


class Models(NamedTuple):
    """What a client sends: its whole model."""

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


def all_discarded(late_policy: str, arriving: Sequence[np.ndarray]) -> str | None:
    """Why a mean of what arrives does not move the server's model, given the stalenesses [A] of each round; None where
    it does.
    """
    if late_policy != "discard" or any((staleness == 0).any() for staleness in arriving):
        return None
    return "every update is late, and algorithm.late_policy=discard drops it: take delta, or lower the delay"


def make_update(family: ModelFamily, x: Tensor, y: Tensor, late_policy: str, *, keep: bool = False) -> Update:
    """What clients that went from x [D] to y [K, D] send; y is used up in it, unless the caller wants to `keep` it."""
    start, rows, statistics = x[: family.num_params], y[:, : family.num_params], y[:, family.num_params :]
    if late_policy == "model":
        return Update(rows, statistics)
    return Update(rows - start if keep else rows.sub_(start), statistics)


def stepped(x: Tensor, step: Tensor, statistics: Tensor) -> Tensor:
    """The server's model [D] after a `step` [P] of x [D]: its parameters move, and `statistics` [B] replace its own.

    Batch norm's running statistics are state, not parameters. Training replaces them, so a late change of them is a
    difference to statistics that the server no longer has: added up, such changes drive variances below zero. So no
    learning rate, momentum, staleness weight or extrapolation touches them; the server takes a mean of those that the
    clients report.
    """
    moved = x[: len(step)] + step
    return torch.cat([moved, statistics]) if len(statistics) else moved


def in_time(arrivals: Updates[Upload], late_policy: str) -> Updates[Upload]:
    """The arrivals that count under the policy."""
    return arrivals.select(arrivals.staleness == 0) if late_policy == "discard" else arrivals


def average(x: Tensor, arrivals: Updates[Any], late_policy: str, weighting: str, server_lr: float) -> Tensor:
    """The server's next model [D]: its parameters move by the weighted mean of the `rows` that have arrived, and the
    mean of the `statistics` that have arrived, by the same weights, replaces its own; x itself when nothing has.

    `delta` adds late changes to today's model (Feddle, Eq 1 and 3), `model` averages the late models themselves,
    `discard` drops what is late (Eq 2). The three agree when nothing is late.
    """
    arrivals = in_time(arrivals, late_policy)
    if not len(arrivals):
        return x
    uniform = weighting == "uniform"
    mean = arrivals.mean(arrivals.upload.rows, uniform=uniform)
    step = mean - x[: len(mean)] if late_policy == "model" else mean
    return stepped(x, server_lr * step, arrivals.mean(arrivals.upload.statistics, uniform=uniform))
