"""Decentralised HeteroFL (Diao, Ding and Tarokh, ICLR 2021; DFML, Algorithm 3). https://arxiv.org/abs/2010.01264"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.decentralized import Clients, first_aggregator, pick_participants
from fedlab_runner.algorithms.shared.width_slicing import check_sliceable, partial_training
from fedlab_runner.core.algorithm import DecentralizedAlgorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.own_models import OwnModels, first_models


@dataclass(frozen=True)
class HeteroFL(DecentralizedAlgorithm[Clients]):
    """Each model is the first channels of the round's widest model, layer by layer; clients average shared values.

    As in DFML's comparison, it lacks HeteroFL's scaling of activations, static batch norm and masked classifier.
    """

    model_copies: ClassVar[int] = 4  # the models, their parts, the trained models and the means

    def check(self, fed: Federation) -> None:
        super().check(fed)
        check_sliceable(self, fed)

    def home_fault(self) -> str | None:
        return "whose models are cut from the widest one and put back as wholes"

    def init(self, fed: Federation) -> Clients:
        return Clients(first_models(fed), first_aggregator(fed))

    def round(self, state: Clients, fed: Federation) -> Clients:
        def first(label: str, k: int, of: int) -> Tensor:
            return torch.arange(k)  # Eq 8

        return partial_training(
            self, state, pick_participants(fed, state.aggregator), fed, lambda client: first, alike=True
        )

    def models(self, state: Clients) -> OwnModels:
        return state.models
