"""FedAvg's server rule with late updates, for all algorithms that average."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.updates import Updates, Upload
from fedlab_runner.utils.validate import above, one_of

# Values of the fields `late_policy` and `weighting`.
LATE_POLICIES = ("delta", "model", "discard")
MODEL_POLICIES = ("model", "discard")  # of methods that combine whole models, not changes
WEIGHTINGS = ("size", "uniform")


class Params(NamedTuple):
    """The State of an algorithm that keeps only the server model."""

    params: Tensor  # x [D]


class Update(NamedTuple):
    """What a client sends: the change of its parameters or the parameters, and its batch norm statistics."""

    rows: Tensor  # y - x or y [K, P]
    statistics: Tensor  # as they are [K, B]


class ModelUpdate(NamedTuple):
    """An Update and the client's model. The server computes the model from the update and the model that it sent, so
    the algorithm has `models` in `known`.
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
    """Raises ValueError, which begins with the field's name, for a rule that does not exist."""
    one_of(policies, late_policy=late_policy)
    one_of(WEIGHTINGS, weighting=weighting)
    above(0, server_lr=server_lr)


def all_discarded(late_policy: str, arriving: Sequence[np.ndarray], instead: str = "take delta, or ") -> str | None:
    """Why the mean of the arrived updates has not moved the server model, by the stalenesses [A] of each round; None if
    it has moved. `instead` names another policy, if there is one. See `ServerAlgorithm.stands_still`.
    """
    if late_policy != "discard" or any((staleness == 0).any() for staleness in arriving):
        return None
    return f"every update is late, and algorithm.late_policy=discard drops it: {instead}lower the delay"


def make_update(family: ModelFamily, x: Tensor, y: Tensor, late_policy: str, *, keep: bool = False) -> Update:
    """The updates of clients that trained from x [D] to y [K, D]. Without `keep` they overwrite y."""
    start, rows, statistics = x[: family.num_params], y[:, : family.num_params], y[:, family.num_params :]
    if late_policy == "model":
        return Update(rows, statistics)
    return Update(rows - start if keep else rows.sub_(start), statistics)


def stepped(x: Tensor, step: Tensor, statistics: Tensor) -> Tensor:
    """The server model [D] after a `step` [P] from x [D]: its parameters move, and `statistics` [B] replace its own.

    Batch norm's running statistics are not parameters: training replaces them. A late change of statistics is a
    difference to statistics that the server no longer has, and a sum of such changes drives variances below zero. So no
    learning rate, momentum, staleness weight or extrapolation acts on statistics: the server takes a mean of the
    clients' statistics.
    """
    moved = x[: len(step)] + step
    return torch.cat([moved, statistics]) if len(statistics) else moved


def in_time(arrivals: Updates[Upload], late_policy: str) -> Updates[Upload]:
    """The updates that count under the policy: discard drops late ones."""
    return arrivals.select(arrivals.staleness == 0) if late_policy == "discard" else arrivals


def average(x: Tensor, arrivals: Updates[Any], late_policy: str, weighting: str, server_lr: float) -> Tensor:
    """The server's next model [D], from x [D] and the arrived `Update`s; x itself if none has arrived.

    The parameters move by the weighted mean of the `rows`. The mean of the `statistics`, by the same weights, replaces
    the server's statistics. `delta` adds late changes to the present model (Feddle, Eq 1 and 3), `model` averages the
    late models themselves, `discard` drops late updates (Eq 2). The three agree if no update is late.
    """
    arrivals = in_time(arrivals, late_policy)
    if not len(arrivals):
        return x
    uniform = weighting == "uniform"
    mean = arrivals.mean(arrivals.upload.rows, uniform=uniform)
    step = mean - x[: len(mean)] if late_policy == "model" else mean
    return stepped(x, server_lr * step, arrivals.mean(arrivals.upload.statistics, uniform=uniform))
