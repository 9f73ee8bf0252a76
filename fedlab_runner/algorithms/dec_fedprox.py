"""Decentralised FedProx (Khalil et al., TMLR 2024, DFML), Algorithm 2. https://arxiv.org/abs/2402.01863"""

from dataclasses import dataclass
from typing import ClassVar

from fedlab_runner.algorithms.shared.averaging_peers import AveragingPeers
from fedlab_runner.core.additions import Proximal
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class DecFedProx(AveragingPeers):
    """Decentralised FedAvg whose clients also minimise mu/2 ||W - W~||^2, the distance to their own model before the
    round.
    """

    mu: float

    step_copies: ClassVar[int] = 3  # the starts, in the order of the chunk too, and the penalty's gradient

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, mu=self.mu)

    @property
    def penalty(self) -> Proximal:
        return Proximal(self.mu)
