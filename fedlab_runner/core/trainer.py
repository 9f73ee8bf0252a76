"""Local training of a cohort: the executor trains, the guard checks the models, the metrics count the cost."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.additions_trial import try_additions
from fedlab_runner.core.client_data import PERSONAL_STREAMS, ClientData
from fedlab_runner.core.client_homes import ClientHomes
from fedlab_runner.core.client_losses import client_losses
from fedlab_runner.core.client_state import ClientStateStore
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.joined_models import Joined
from fedlab_runner.core.memory_check import check_cohort_memory
from fedlab_runner.core.round_metrics import RoundMetrics
from fedlab_runner.core.update_guard import Guard
from fedlab_runner.core.work import Work
from fedlab_runner.utils import attempt

J = TypeVar("J", bound=Joined)


class LocalTrainer:
    """Trains the cohorts of a run; holds the executor, the guard, the metrics and the clients' rows."""

    def __init__(
        self,
        client_data: ClientData,
        executor: Executor,
        guard: Guard,
        metrics: RoundMetrics,
        client_state: ClientStateStore,
        seed: int,
    ) -> None:
        self.client_data, self.executor, self.guard = client_data, executor, guard
        self.metrics, self.client_state, self.seed = metrics, client_state, seed
        self.losses_reported = False  # whether clients report the loss of their trained models in this round
        self._joined: dict[Any, Any] = {}

    def joined(self, kind: Callable[..., J], *parts: Any) -> J:
        """The joined models `kind(*parts)`: the same object at each call, because an object remembers its step's
        cost.
        """
        if (kind, *parts) not in self._joined:
            self._joined[kind, *parts] = kind(*parts)
        found: J = self._joined[kind, *parts]
        return found

    @cached_property
    def personal_data(self) -> ClientData:
        """The clients' data for a second training in a round, with minibatches of its own."""
        return self.client_data.with_streams(PERSONAL_STREAMS)

    def begin(self, round: int) -> None:
        """Starts a round (counted from 0)."""
        self.losses_reported = False
        self.client_state.begin(round)
        self.guard.begin(round)

    def train(
        self,
        work: Work,
        *,
        counted: bool,
        homes: ClientHomes | None = None,
        joined: Joined | None = None,
        late: np.ndarray | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """The trained models [K, D], each client's mean loss over its last epoch [K], where clients report it each
        trained model's loss on all its client's examples [K] float64, and the mask [K] of the models that were finite
        before the guard saw them.

        With `homes` each client starts from the received values and its own values at home. It keeps the trained
        values at home; the returned models have the received ones in their place. For clients that report `late` [K]
        the kept values count from their report on. On `joined` models the values at home are those of the first
        models.

        Raises UserError where the memory cannot hold the cohort or `try_additions` refuses a function, and Diverged
        where the guard's policy is `stop`.
        """
        if homes is not None:
            work = replace(work, own_start=homes.own_start(work.ids, joined))
        check_cohort_memory(work)
        try_additions(work)
        reported = self.losses_reported and counted
        self.metrics.count_client_flops(work, losses_reported=reported)
        attempt.at("local training", work.round + 1)
        y, losses = self.executor.train(work)
        attempt.at("algorithm")
        y = work.restored(y)

        def start_loss(row: int) -> float:
            at = np.array([row])
            return float(client_losses(work.family, work.client_data, work.ids[at], work.starts(at)))

        norm = work.local.update_norm
        y, good = self.guard.trained(work.ids, work.starts, y, losses, work.family, norm, start_loss)
        if counted:
            self._record_loss(work, losses, good)
        final = client_losses(work.family, self.client_data, work.ids, y) if reported else None
        if homes is not None:
            on_time = np.zeros(len(work.ids), dtype=bool)
            counts = self.guard.counts(good).cpu().numpy()
            homes.keep(work.ids, y, counts, on_time if late is None else late, joined)
            homes.columns(joined).copy(y, work.start)
        return y, losses, final, good

    def _record_loss(self, work: Work, losses: Tensor, good: Tensor) -> None:
        sizes = torch.from_numpy(self.client_data.num_examples[work.ids]).to(losses.device)[good]
        if total := int(sizes.sum()):
            self.metrics.record_loss(float(losses[good] @ sizes.to(losses.dtype) / total), total)
