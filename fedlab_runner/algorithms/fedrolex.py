"""Decentralised FedRolex (Alam et al., NeurIPS 2022; DFML, Algorithm 3). https://arxiv.org/abs/2212.01548"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlab_runner.algorithm import ServerlessAlgorithm, Stacks
from fedlab_runner.federation import Federation
from fedlab_runner.serverless import Clients, first_aggregator, initial_models
from fedlab_runner.slicing import check_sliceable, partial_training


@dataclass(frozen=True)
class FedRolex(ServerlessAlgorithm[Clients]):
    """HeteroFL with a window of channels that starts one further in each round.

    `order`: rolled takes channels in the order of the window, so that a model's first channel meets the first channel
    of every other: as the widest model exists for one round only, the window then changes nothing. sorted takes them in
    ascending order, which moves narrow models along wide ones.
    """

    order: str

    copies: ClassVar[int] = 3  # the models, their parts and those trained

    def __post_init__(self) -> None:
        if self.order not in ("rolled", "sorted"):
            raise ValueError(f"order must be 'rolled' or 'sorted', got '{self.order}'")

    def check(self, fed: Federation) -> None:
        super().check(fed)
        check_sliceable(self, fed)

    def init(self, fed: Federation) -> Clients:
        return Clients(initial_models(fed), first_aggregator(fed))

    def round(self, state: Clients, fed: Federation) -> Clients:
        def window(label: str, k: int, of: int) -> Tensor:
            channels = (fed.round + torch.arange(k)) % of  # Eq 9
            return channels if self.order == "rolled" else channels.sort().values

        return partial_training(state, fed, lambda client: window, alike=True)

    def models(self, state: Clients) -> Stacks:
        return state.models
