"""What an algorithm is: hyperparameters, an explicit State, and a pure step from State to State."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast

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

    holds_blocks: ClassVar[bool] = False  # whether clients may hold different feature blocks

    def check(self, fed: Federation) -> None:
        """Raises UserError, one line, where the federation lacks what the algorithm needs."""
        return

    @abstractmethod
    def init(self, fed: Federation) -> State:
        """The State before the first round."""

    @abstractmethod
    def round(self, state: State, fed: Federation) -> State:
        """One round."""

    @abstractmethod
    def models(self, state: State) -> Tensor:
        """What is evaluated: one model [D], or several [n, D] whose metrics are averaged."""

    def client_models(self, state: State, fed: Federation) -> Iterator[Tensor]:
        """The clients' own models, each [D], where they are evaluated beside the server's; one at a time."""
        yield from ()

    def cached(self, state: State) -> int:
        """How many values the server keeps beside the models."""
        return sum(t.numel() for t in _tensors(state)) - self.models(state).numel()


class ServerAlgorithm(Algorithm[State], Generic[State, Upload]):
    """An algorithm with a server: clients start from its model, work, and report, some of them late.

    The field `params` [D] of its State is the server's model, from which clients start: `server_model` reads it and
    `with_server_model` replaces it, which is how one algorithm can go on from what another made of its model. All else
    in the State must make sense beside any model.
    """

    known: ClassVar[tuple[str, ...]] = ()  # fields of Upload that the server knows already, so that they are not sent

    @abstractmethod
    def client_update(self, state: State, cohort: Cohort) -> Upload:
        """What each client of the cohort sends: a NamedTuple of tensors [K, ...], exactly its payload."""

    @abstractmethod
    def server_step(self, state: State, arrivals: Arrivals[Upload], fed: Federation) -> State:
        """What the server does with the updates of this round, of which there may be none."""

    def broadcast(self, state: State) -> Sequence[Tensor]:
        """What each client receives."""
        return (self.models(state),)

    def server_model(self, state: State) -> Tensor:
        """The model [D] from which the next clients start."""
        model: Tensor = cast(Any, state).params
        return model

    def with_server_model(self, state: State, model: Tensor) -> State:
        """The State with another server's model [D]."""
        return cast(State, cast(Any, state)._replace(params=model))

    def round(self, state: State, fed: Federation) -> State:
        cohort = fed.dispatch(self.broadcast(state))
        upload = self.client_update(state, cohort)
        state = self.server_step(state, fed.exchange(cohort, upload, self.known), fed)
        fed.record_server_cache(self.cached(state))
        return state


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)
