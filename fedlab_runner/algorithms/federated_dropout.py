"""Decentralised Federated Dropout (Caldas et al., 2018; DFML, Algorithm 3). https://arxiv.org/abs/1812.07210"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.decentralized import Clients, first_aggregator, pick_participants
from fedlab_runner.algorithms.shared.width_slicing import Choose, check_sliceable, partial_training
from fedlab_runner.core.algorithm import DecentralizedAlgorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import FEWER, CohortLoad, Footprint, MemoryItem, own_rows
from fedlab_runner.core.own_models import OwnModels, first_models
from fedlab_runner.core.rng import Purpose, generator


@dataclass(frozen=True)
class FederatedDropout(DecentralizedAlgorithm[Clients]):
    """HeteroFL with random channels: each round draws them for each client and layer, in ascending order."""

    model_copies: ClassVar[int] = 4  # the models, their parts, the trained models and the means

    def check(self, fed: Federation) -> None:
        super().check(fed)
        check_sliceable(self, fed)

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        values = (load.starting + 1) * fed.family.size * torch.int64.itemsize // fed.family.dtype.itemsize
        places = MemoryItem(values, "the places of the clients' channels", FEWER, merging=True, saved=False)
        return self.holding([*own_rows(self.store_on, fed, load), places])

    def home_fault(self) -> str | None:
        return "whose models are cut from the widest one and put back as wholes"

    def init(self, fed: Federation) -> Clients:
        return Clients(first_models(fed), first_aggregator(fed))

    def round(self, state: Clients, fed: Federation) -> Clients:
        def choose(client: int) -> Choose:
            rng = generator(fed.seed, Purpose.SUBMODEL, fed.round, client)

            def some(label: str, k: int, of: int) -> Tensor:
                return torch.from_numpy(rng.choice(of, k, replace=False)).sort().values  # Eq 7

            return some

        return partial_training(self, state, pick_participants(fed, state.aggregator), fed, choose, alike=False)

    def models(self, state: Clients) -> OwnModels:
        return state.models
