"""What an algorithm is: hyperparameters, an explicit State, and a pure step from State to State."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor

from fedlab_runner.federation import Arrivals, Cohort, Federation

State = TypeVar("State", bound=tuple[Any, ...])
Upload = TypeVar("Upload", bound=tuple[Tensor, ...])


class Algorithm(ABC, Generic[State]):
    """A federated algorithm: a frozen dataclass of hyperparameters.

    `init` and `round` are pure in the State, a NamedTuple of tensors and plain values: they read it, never write into
    it, and keep nothing anywhere else. So every algorithm can be checkpointed, resumed, compared and tested by the
    same code.
    """

    @abstractmethod
    def init(self, fed: Federation) -> State:
        """The State before the first round."""

    @abstractmethod
    def round(self, state: State, fed: Federation) -> State:
        """One round."""

    @abstractmethod
    def models(self, state: State) -> Tensor:
        """What is evaluated: one model [D], or several [n, D] whose metrics are averaged."""


class ServerAlgorithm(Algorithm[State], Generic[State, Upload]):
    """An algorithm with a server: clients start from its model, work, and report, some of them late."""

    @abstractmethod
    def client_update(self, state: State, cohort: Cohort) -> Upload:
        """What each client of the cohort sends: a NamedTuple of tensors [K, ...], exactly its payload."""

    @abstractmethod
    def server_step(self, state: State, arrivals: Arrivals[Upload], fed: Federation) -> State:
        """What the server does with the updates of this round, of which there may be none."""

    def broadcast(self, state: State) -> Sequence[Tensor]:
        """What each client receives."""
        return (self.models(state),)

    def round(self, state: State, fed: Federation) -> State:
        cohort = fed.dispatch(self.broadcast(state))
        upload = self.client_update(state, cohort)
        return self.server_step(state, fed.exchange(cohort, upload), fed)
