"""Stand-alone training: each client trains alone, and nothing is exchanged (HyFEM, section 4, and elsewhere)."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import Models
from fedlab_runner.algorithms.shared.feature_blocks import Layout, blocks_of, train_on_blocks
from fedlab_runner.core.algorithm import Algorithm, CohortLoad, Footprint, Stacks, own_models
from fedlab_runner.core.federation import Federation


class StandaloneState(NamedTuple):
    """The clients' models."""

    own: Tensor  # [N, D]


@dataclass(frozen=True)
class Standalone(Algorithm[StandaloneState]):
    """Clients train their own models, all from one start, and send nothing; test metrics are means over the clients.

    A client with some feature blocks has the part of the model that reads them. A late client trains from the model
    that it had when it started.
    """

    holds_blocks: ClassVar[bool] = True
    model_copies: ClassVar[int] = 1

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        return Footprint(self.model_copies, self.payload_copies, own_models(fed, 1))

    def init(self, fed: Federation) -> StandaloneState:
        layout, x = Layout.of(fed.family), fed.family.init(fed.seed)
        places = layout.first_places(1, x.device)[0]
        return StandaloneState(torch.stack([layout.take(x, blocks, places) for blocks in blocks_of(fed)]))

    def round(self, state: StandaloneState, fed: Federation) -> StandaloneState:
        cohort = fed.start_cohort(())
        y = train_on_blocks(cohort, fed.blocks, state.own[cohort.ids])
        arrivals = fed.collect_updates(cohort, Models(y), known=("models",))  # late clients have their model later
        return StandaloneState(state.own.index_copy(0, arrivals.ids, arrivals.upload.models))

    def models(self, state: StandaloneState) -> Stacks:
        return (state.own,)
