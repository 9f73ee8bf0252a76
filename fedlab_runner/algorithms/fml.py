"""Decentralised FML (Shen et al., 2020; DFML, appendix A.3.4). https://arxiv.org/abs/2006.16765"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.decentralized import first_aggregator, initial_models, pick_participants, updated
from fedlab_runner.algorithms.shared.model_pairs import pair_loss
from fedlab_runner.core.algorithm import CohortLoad, DecentralizedAlgorithm, Footprint, MemoryItem, Stacks, own_models
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.joined_models import Pair
from fedlab_runner.core.model_family import Batch, FunctionalModel, ModelFamily
from fedlab_runner.models.base import Architecture
from fedlab_runner.utils.validate import within


class FMLState(NamedTuple):
    """Each client's own model and its meme model."""

    models: Stacks
    memes: Tensor  # [N, D_m]
    aggregator: int  # of the next round


@dataclass(frozen=True)
class FML(DecentralizedAlgorithm[FMLState]):
    """Each client's own model and its meme model teach each other on its examples; clients send and average only memes,
    weighted by examples.

    The own model learns alpha L_label + (1 - alpha) KL(meme || own), the meme model the same with `beta` and the roles
    exchanged. `meme` is the memes' architecture (null: the clients' first one).
    """

    alpha: float
    beta: float
    meme: Architecture | None

    model_copies: ClassVar[int] = 5  # both models before and after, and the memes that are averaged

    def __post_init__(self) -> None:
        within("[0, 1]", alpha=self.alpha, beta=self.beta)

    def home_fault(self) -> str | None:
        return "whose clients send memes alone, and no part of their own models"

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        values = fed.num_clients * self._meme(fed).size
        memes = MemoryItem(values, "their memes", "take a smaller algorithm.meme", copies=2)
        return Footprint(self.model_copies, self.payload_copies, [*own_models(fed, 1), memes])

    def init(self, fed: Federation) -> FMLState:
        memes = self._meme(fed).init(fed.seed).repeat(fed.num_clients, 1)
        return FMLState(initial_models(fed), memes, first_aggregator(fed))

    def round(self, state: FMLState, fed: Federation) -> FMLState:
        meeting, meme = pick_participants(fed, state.aggregator), self._meme(fed)
        models, memes = state.models, state.memes
        weights = (self.alpha, self.beta), (1 - self.alpha, 1 - self.beta)

        def loss(model: FunctionalModel, batch: Batch) -> Tensor:
            return pair_loss(model, batch, *weights)

        for group in fed.by_architecture(meeting.participants):
            pair, ids = Pair(group.family, meme), torch.from_numpy(group.ids).to(memes.device)
            start = pair.join(models[group.architecture][group.rows], memes[ids])
            own, learnt = pair.part(fed.cohort(group.ids, pair.family).train(start, loss=loss))
            models, memes = updated(models, [(group, own)]), memes.index_copy(0, ids, learnt)
        ids = torch.from_numpy(meeting.participants).to(memes.device)
        sizes = torch.from_numpy(fed.client_data.num_examples[meeting.participants]).to(memes)
        mean = torch.tensordot(sizes / sizes.sum(), memes[ids], 1)
        sent = len(meeting.senders) * meme.size
        fed.metrics.count_payload(upload=sent, download=sent, models=2 * len(meeting.senders))
        fed.metrics.count_server_flops(2 * len(ids) * meme.size)
        return FMLState(models, memes.index_copy(0, ids, mean.expand(len(ids), -1)), meeting.next)

    def operations(self, fed: Federation, local: float) -> float:
        example = fed.family.normalize(fed.client_data.inputs[:1], fed.family.dtype)
        own = sum(family.flops(example).step for family in fed.families) / len(fed.families)
        return super().operations(fed, local) * (1 + self._meme(fed).flops(example).step / own)

    def models(self, state: FMLState) -> Stacks:
        return state.models

    def extra_eval_models(self, state: FMLState, fed: Federation) -> dict[str, tuple[Sequence[ModelFamily], Stacks]]:
        return {"meme": ((self._meme(fed),), (state.memes,))}

    def _meme(self, fed: Federation) -> ModelFamily:
        return fed.family if self.meme is None else fed.family_of(self.meme)
