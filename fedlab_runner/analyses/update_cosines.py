"""How far the directions of client updates disagree (Feddle, section 3 and Figure 2)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlab_runner.analyses.base import Analysis
from fedlab_runner.core.algorithm import Algorithm, ServerAlgorithm
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.metric_names import TRUE_COSINE_PREFIX
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import at_least

PREFIX = "analysis/update_cosine_"  # of the metrics' keys


class _RecordingCohort(Cohort):
    """A cohort that keeps the parameters of its last training minus those of the server's model."""

    server: Tensor  # [P]
    updates: Tensor | None = None  # [K, P]

    def train(self, start: Tensor, **how: Any) -> Tensor:
        y = super().train(start, **how)
        self.updates = y[:, : len(self.server)] - self.server
        return y


@dataclass(frozen=True)
class UpdateCosines(Analysis[dict[int, Tensor]]):
    """Cosines of client updates to the true update, and of the true update to the true updates of earlier rounds.

    A client's update is its trained model minus the server's, also where it starts from another model (FedALA, FedMA).
    The true update is the mean of all clients' updates, weighted by numbers of examples. In round 0, and every `every`
    rounds, all clients train, with the algorithm's client update and the round's minibatches, which takes a pass over
    all clients. The cosines are those of `clients` clients (null: all), newly drawn each time; their updates are in
    memory at once. The analysis keeps each true update, a vector [P] of the model's parameters.
    """

    every: int
    clients: int | None

    def __post_init__(self) -> None:
        at_least(1, every=self.every, clients=self.clients)

    def check(self, algorithm: Algorithm[Any], fed: Federation) -> None:
        if not isinstance(algorithm, ServerAlgorithm):
            name = algorithm.name
            raise UserError(f"analysis=update_cosines needs clients that start from a server's model, not {name}'s")
        if fed.home.acts:
            raise UserError("home must be none with analysis=update_cosines, which compares clients' whole updates")

    def init(self) -> dict[int, Tensor]:
        return {}

    def observe(
        self, memory: dict[int, Tensor], state: Any, algorithm: Algorithm[Any], fed: Federation
    ) -> tuple[dict[int, Tensor], dict[str, float]]:
        """`memory` holds the true update [P] of each measured round, counted from 1."""
        if fed.round % self.every:
            return memory, {}
        assert isinstance(algorithm, ServerAlgorithm)
        ids = fed.participants
        size = min(self.clients or len(ids), len(ids))
        chosen = np.isin(ids, generator(fed.seed, Purpose.ANALYSIS, fed.round).choice(ids, size, replace=False))
        weights = fed.client_data.num_examples[ids] / fed.client_data.num_examples[ids].sum()
        true: Tensor | None = None
        rows = []
        for part in np.array_split(np.arange(len(ids)), -(-len(ids) // max(1, fed.cohort_size))):
            updates = _updates(algorithm, state, fed, ids[part])
            share = torch.from_numpy(weights[part]).to(updates.device, torch.float64) @ updates.double()
            true = share if true is None else true + share
            rows.append(updates[torch.from_numpy(chosen[part]).to(updates.device)])
        assert true is not None
        cosines = torch.cat([F.cosine_similarity(row.double(), true, dim=1) for row in rows])
        metrics = {
            f"{PREFIX}mean": float(cosines.mean()),
            f"{PREFIX}min": float(cosines.min()),
            f"{PREFIX}max": float(cosines.max()),
            f"{PREFIX}negative": float((cosines < 0).double().mean()),
        }
        for round, other in memory.items():
            metrics[f"{TRUE_COSINE_PREFIX}{round}"] = float(F.cosine_similarity(true, other.double(), dim=0))
        return {**memory, fed.round + 1: true.to(rows[0].dtype)}, metrics


def _updates(algorithm: ServerAlgorithm[Any, Any], state: Any, fed: Federation, ids: np.ndarray) -> Tensor:
    """The updates [K, P] of the parameters that these clients would send if they trained in this round."""
    cohort = _RecordingCohort(fed.trainer, fed.family, fed.local, ids, np.full(len(ids), fed.round), fed.round, fed.lr)
    cohort.server = algorithm.server_model(state)[: fed.family.num_params]
    algorithm.client_update(state, cohort)
    if cohort.updates is None:
        raise UserError("analysis=update_cosines needs an algorithm whose clients train")
    return cohort.updates
