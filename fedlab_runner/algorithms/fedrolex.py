"""Decentralised FedRolex (Alam et al., NeurIPS 2022; DFML, Algorithm 3). https://arxiv.org/abs/2212.01548"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.decentralized import Clients, first_aggregator, pick_participants
from fedlab_runner.algorithms.shared.width_slicing import Choose, check_sliceable, partial_training
from fedlab_runner.core.algorithm import DecentralizedAlgorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.own_models import OwnModels, first_models
from fedlab_runner.utils.validate import one_of

ORDERS = ("rolled", "sorted", "returned")  # values of the field `order`


class FedRolexState(NamedTuple):
    """The clients' models, and the round in which each was last cut from the widest model."""

    models: OwnModels  # W_n
    aggregator: int  # of the next round
    cut: Tensor  # [N] int64, rounds


@dataclass(frozen=True)
class FedRolex(DecentralizedAlgorithm[FedRolexState]):
    """HeteroFL with a window of channels that moves on by one channel in each round.

    With `order` rolled, models take channels in the window's order, so that the mean is over the first channels of all
    models. As the widest model exists for one round only, the window then changes nothing (DFML's Algorithm 3). With
    sorted, they take channels in ascending order: narrow models move along wide ones, but the mean mixes them with
    channels that they were not cut from. returned is the rule of FedRolex itself: also ascending, but the mean puts a
    model back where it was cut from, so that its own channels meet, and then cuts it at the current window.
    """

    order: str

    model_copies: ClassVar[int] = 4  # the models, their parts, the trained models and the means

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(ORDERS, order=self.order)

    def check(self, fed: Federation) -> None:
        super().check(fed)
        check_sliceable(self, fed)

    def home_fault(self) -> str | None:
        return "whose models are cut from the widest one and put back as wholes"

    def init(self, fed: Federation) -> FedRolexState:
        cut = torch.zeros(fed.num_clients, dtype=torch.int64, device=fed.family.device)
        return FedRolexState(first_models(fed), first_aggregator(fed), cut)

    def round(self, state: FedRolexState, fed: Federation) -> FedRolexState:
        def window(start: int) -> Choose:
            def channels(label: str, k: int, of: int) -> Tensor:
                rolled = (start + torch.arange(k)) % of  # Eq 9
                return rolled if self.order == "rolled" else rolled.sort().values

            return channels

        meeting = pick_participants(fed, state.aggregator)
        last = (lambda client: window(int(state.cut[client]))) if self.order == "returned" else None
        clients = Clients(state.models, state.aggregator)
        clients = partial_training(
            self, clients, meeting, fed, lambda client: window(fed.round), alike=True, cut_from=last
        )
        taken = torch.from_numpy(meeting.participants).to(state.cut.device)
        return FedRolexState(*clients, state.cut.index_fill(0, taken, fed.round))

    def models(self, state: FedRolexState) -> OwnModels:
        return state.models
