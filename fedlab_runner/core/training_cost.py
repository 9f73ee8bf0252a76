"""The floating-point operations of local training, counted on real local steps."""

from collections.abc import Callable, Hashable
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from fedlab_runner.core.additions import lasts
from fedlab_runner.core.flops import FlopCounter
from fedlab_runner.core.global_rng import kept_globals
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.work import Work, gradient_of


class StepCost(NamedTuple):
    """Operations of a local step: a multiplication and an addition are two."""

    step: int  # of a step with any minibatch, such as operations on generated examples
    example: int  # of each example in the minibatch

    def of(self, work: Work) -> int:
        """The operations of a cohort's local training."""
        seen = work.client_data.examples_seen(work.ids, work.local, work.family.has_batch_norm)
        return self.step * int(work.num_steps.sum()) + self.example * int(seen.sum())


class StepCosts:
    """The cost of a local step, counted once for each kind of work.

    The count covers matrix products, convolutions and attention in the passes of the loss that clients follow.
    """

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[ModelFamily, dict[Hashable, StepCost]] = WeakKeyDictionary()

    def of(self, work: Work) -> StepCost:
        """The cost of a step of this work, in which at least one client must train."""
        kinds, kind = self._known.setdefault(work.family, {}), _kind(work)
        if kind not in kinds:
            kinds[kind] = _counted(work)
        return kinds[kind]


def _kind(work: Work) -> Hashable:
    """Everything that the cost of a step depends on, for one model family."""
    return (
        work.client_data.inputs.shape[1:],
        work.local.batch_size == 1,
        work.frozen,
        *map(_code, (work.loss, work.penalty, work.perturb, work.correct)),
        tuple(t.shape[1:] for t in work.per_client),
        tuple(t.shape for t in work.common),
        work.family.active_part,
    )


def _code(function: Callable[..., Any] | None) -> Any:
    """A key that is equal for what an algorithm makes of one function, or of one class, in different rounds."""
    if isinstance(function, FunctionType):
        return function.__code__
    return function if lasts(function) else type(function)


def _counted(work: Work) -> StepCost:
    """Steps of the first client that trains, on one example and on two: the cost is linear in the examples."""
    row = np.flatnonzero(work.num_steps)[:1]
    one = _operations(work, row, 1)
    each = _operations(work, row, 2) - one if work.local.batch_size > 1 else one
    return StepCost(one - each, each)


def _operations(work: Work, row: np.ndarray, size: int) -> int:
    family, client_data = work.family, work.client_data
    index = torch.from_numpy(client_data.members(int(work.ids[row[0]]))[[0] * size]).to(family.device)
    params, buffers = (part[0] for part in work.start_of(row))
    with kept_globals(work.family.device):
        family.mode(True, frozen_norm=True)  # batch norm has no matrix products, and cannot train on one example
        batch = family.batch(*client_data.examples(index), params.new_ones(size))
        own = (*(o[0] for o in work.own(row, 0)), *work.common)
        with FlopCounter() as counter:
            work.followed(gradient_of(work.objective()))(params, buffers, *batch[:3], *own)
    return int(counter.total)
