"""Decentralised FML (Shen et al., 2020; DFML, appendix A.3.4). https://arxiv.org/abs/2006.16765"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from fedlab_runner.algorithms.shared.decentralized import first_aggregator, pick_participants, shared_rows
from fedlab_runner.algorithms.shared.model_pairs import PairLoss
from fedlab_runner.core.algorithm import DecentralizedAlgorithm
from fedlab_runner.core.architectures import ClientGroup
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import CohortLoad, Footprint, own_rows
from fedlab_runner.core.joined_models import Pair
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.own_models import NamedModels, OwnModels, first_models, models_of, updated
from fedlab_runner.models.base import Architecture
from fedlab_runner.utils.validate import within


class FMLState(NamedTuple):
    """Each client's own model and its meme model."""

    models: OwnModels
    memes: OwnModels  # each [D_m]
    aggregator: int  # of the next round


@dataclass(frozen=True)
class FML(DecentralizedAlgorithm[FMLState]):
    """Each client's own model and its meme model teach each other on the client's examples. Clients send and average
    only memes, weighted by examples.

    The own model minimises alpha L_label + (1 - alpha) KL(meme || own). The meme model minimises the same with `beta`
    and the roles exchanged. `meme` is the memes' architecture (null: the clients' first architecture).
    """

    alpha: float
    beta: float
    meme: Architecture | None

    model_copies: ClassVar[int] = 7  # both models before and after training, joined in pairs, and the memes of the mean
    training_copies: ClassVar[int] = 5  # the memes, and pairs before and after training
    step_copies: ClassVar[int] = 5  # the second model, its gradient and its parts

    def __post_init__(self) -> None:
        super().__post_init__()
        within("[0, 1]", alpha=self.alpha, beta=self.beta)

    def home_fault(self) -> str | None:
        return "whose clients send only memes and no part of their own models"

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        memes = shared_rows(self.store_on, fed, load, self._meme(fed).size)
        return self.holding([*own_rows(self.store_on, fed, load), *memes])

    def init(self, fed: Federation) -> FMLState:
        meme = self._meme(fed).init(fed.seed)
        return FMLState(first_models(fed), dict.fromkeys(range(fed.num_clients), meme), first_aggregator(fed))

    def round(self, state: FMLState, fed: Federation) -> FMLState:
        meeting, meme = pick_participants(fed, state.aggregator), self._meme(fed)
        everyone, new = ClientGroup(0, meme, meeting.participants), []
        memes = models_of(fed, state.memes, everyone)  # [k, D_m]
        weights = (self.alpha, self.beta), (1 - self.alpha, 1 - self.beta)

        for group in fed.by_architecture(meeting.participants):
            pair = fed.cohort(group.ids, group.family).joined(Pair, group.family, meme)
            theirs = torch.from_numpy(np.isin(meeting.participants, group.ids)).to(memes.device)
            start = pair.join(models_of(fed, state.models, group), memes[theirs])
            cohort = fed.cohort(group.ids, pair.family)
            own, memes[theirs] = pair.part(cohort.train(start, loss=PairLoss(*weights)))
            new.append((group, own))
        sizes = torch.from_numpy(fed.client_data.num_examples[meeting.participants]).to(memes)
        mean = torch.tensordot(sizes / sizes.sum(), memes, 1)
        sent = len(meeting.senders) * meme.size
        fed.metrics.count_payload(upload=sent, download=sent, models=2 * len(meeting.senders))
        fed.metrics.count_server_flops(2 * memes.numel())
        own_models = updated(fed, self.store_on, state.models, new)
        return FMLState(own_models, updated(fed, self.store_on, state.memes, [(everyone, mean)]), meeting.next)

    def operations(self, fed: Federation, local: float) -> float:
        example = fed.family.normalize(fed.client_data.inputs[:1], fed.family.dtype)
        own = sum(family.flops(example).step for family in fed.families) / len(fed.families)
        return super().operations(fed, local) * (1 + self._meme(fed).flops(example).step / own)

    def models(self, state: FMLState) -> OwnModels:
        return state.models

    def extra_eval_models(self, state: FMLState, fed: Federation) -> NamedModels:
        return {"meme": ((self._meme(fed),), state.memes)}

    def _meme(self, fed: Federation) -> ModelFamily:
        return fed.family if self.meme is None else fed.family_of(self.meme)
