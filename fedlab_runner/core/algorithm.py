"""What an algorithm is: hyperparameters, an explicit State, and a pure step from State to State."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import numpy as np
from torch import Tensor

from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.updates import Updates
from fedlab_runner.utils.errors import UserError

Stacks = tuple[Tensor, ...]  # the models of all clients: for each architecture a stack [N_a, D_a], a row a client
State = TypeVar("State", bound=tuple[Any, ...])
Upload = TypeVar("Upload", bound=tuple[Tensor, ...])


class MemoryItem(NamedTuple):
    """What an algorithm has in memory beside the server's model and a cohort's, at most."""

    values: int
    what: str
    remedy: str  # how to have less of it
    on_host: bool  # wherever the models are


class CohortLoad(NamedTuple):
    """The most clients of any round that a run will have."""

    starting: int
    late: int  # at its end
    arriving: int
    ever: int  # that have taken part by then


class Footprint(NamedTuple):
    """What a round takes of memory."""

    model_copies: int  # of a cohort's models at once: what was trained (y), and what is sent or made of it
    payload_copies: int  # of these, what an update on its way has
    held: list[MemoryItem]


class Algorithm(ABC, Generic[State]):
    """A federated algorithm: a frozen dataclass of hyperparameters.

    `init` and `round` are pure in the State, a NamedTuple of tensors and plain values: they read it, never write into
    it, and keep nothing anywhere else. So every algorithm can be checkpointed, resumed, compared and tested by the
    same code.
    """

    heterogeneous: ClassVar[bool] = False  # whether clients may hold models of different architectures
    decentralized: ClassVar[bool] = False  # whether clients meet among themselves, over the links of a topology
    holds_blocks: ClassVar[bool] = False  # whether clients may hold different feature blocks
    model_copies: ClassVar[int] = 2  # these two as in Footprint: y and y - x
    payload_copies: ClassVar[int] = 1

    @property
    def name(self) -> str:
        """The name on the command line, which is that of the module."""
        return type(self).__module__.rpartition(".")[2]

    def check(self, fed: Federation) -> None:
        """Raises UserError, one line, where the federation lacks what the algorithm needs."""
        return

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        """What a round takes of memory at most, for the estimate before a run."""
        return Footprint(self.model_copies, self.payload_copies, own_models(fed, 1) if self.heterogeneous else [])

    def operations(self, fed: Federation, local: float) -> float:
        """About the floating-point operations of a round, for the estimate before a run, where plain local training of
        the cohort has `local` of them.
        """
        return local

    @abstractmethod
    def init(self, fed: Federation) -> State:
        """The State before the first round."""

    @abstractmethod
    def round(self, state: State, fed: Federation) -> State:
        """One round."""

    @abstractmethod
    def models(self, state: State) -> Tensor | Stacks:
        """What is evaluated: one model [D], several [n, D] whose metrics are averaged, or those of all clients."""

    def extra_eval_models(self, state: State, fed: Federation) -> dict[str, tuple[Sequence[ModelFamily], Stacks]]:
        """Other models of all clients and their families, evaluated under `<name>/accuracy` and `<name>/loss`."""
        return {}

    def personalized_models(self, state: State, fed: Federation) -> Iterator[Tensor]:
        """The clients' own models, each [D], where they are evaluated beside the server's; one at a time."""
        yield from ()


class ServerAlgorithm(Algorithm[State], Generic[State, Upload]):
    """An algorithm with a server: clients start from its model, work, and report, some of them late.

    The field `params` [D] of its State is the server's model, from which clients start: `server_model` reads it and
    `with_server_model` replaces it, which is how one algorithm can go on from what another made of its model. All else
    in the State must make sense beside any model.
    """

    known: ClassVar[tuple[str, ...]] = ()  # fields of Upload that the server knows already, so that they are not sent

    @abstractmethod
    def models(self, state: State) -> Tensor:
        """What is evaluated: one model [D], or several [n, D] whose metrics are averaged."""

    def cached(self, state: State) -> int:
        """How many values the server keeps beside the models."""
        return sum(t.numel() for t in _tensors(state)) - self.models(state).numel()

    @abstractmethod
    def client_update(self, state: State, cohort: Cohort) -> Upload:
        """What each client of the cohort sends: a NamedTuple of tensors [K, ...], exactly its payload."""

    @abstractmethod
    def server_step(self, state: State, arrivals: Updates[Upload], fed: Federation) -> State:
        """What the server does with the updates of this round, of which there may be none."""

    def broadcast(self, state: State) -> Sequence[Tensor]:
        """What each client receives."""
        return (self.models(state),)

    def stands_still(self, arriving: Sequence[np.ndarray]) -> str | None:
        """Why the server's model does not move in rounds in which updates of these stalenesses [A] arrive, in words;
        None where it does, or nothing tells.
        """
        return None

    def personalized_models(self, state: State, fed: Federation) -> Iterator[Tensor]:
        """Where clients hold feature blocks, those that all have: the server's model is the model of each, so it is
        given once.
        """
        if fed.blocks is not None:
            yield self.server_model(state)

    def server_model(self, state: State) -> Tensor:
        """The model [D] from which the next clients start."""
        model: Tensor = cast(Any, state).params
        return model

    def with_server_model(self, state: State, model: Tensor) -> State:
        """The State with another server's model [D]."""
        return cast(State, cast(Any, state)._replace(params=model))

    def round(self, state: State, fed: Federation) -> State:
        cohort = fed.start_cohort(self.broadcast(state))
        upload = self.client_update(state, cohort)
        state = self.server_step(state, fed.collect_updates(cohort, upload, self.known), fed)
        fed.metrics.record_server_cache(self.cached(state))
        return state


class DecentralizedAlgorithm(Algorithm[State], Generic[State]):
    """An algorithm without a server: in each round some clients meet at one of them, which aggregates.

    `participation` says how many send (they must be neighbours of the one that aggregates); nobody is late.
    """

    heterogeneous: ClassVar[bool] = True
    decentralized: ClassVar[bool] = True

    def check(self, fed: Federation) -> None:
        if fed.cohort_size >= fed.num_clients:
            raise UserError(
                f"participation must leave one of the {fed.num_clients} clients to aggregate what the others send, got "
                f"{fed.cohort_size} senders"
            )

    def operations(self, fed: Federation, local: float) -> float:
        return local * (1 + 1 / fed.cohort_size)  # the one that aggregates trains too

    @abstractmethod
    def models(self, state: State) -> Stacks:
        """What is evaluated: the models of all clients."""


def own_models(fed: Federation, sets: int) -> list[MemoryItem]:
    """So many models of each client, of which a round makes the next ones beside them."""
    return [
        MemoryItem(
            2 * sets * fed.client_values, f"the models of all {fed.num_clients} clients", "lower num_clients", False
        )
    ]


def table(field: str, place: str, values: int) -> list[MemoryItem]:
    """A table that a field puts on the device, the host or disk."""
    what, remedy = f"the table of algorithm.{field}", f"set algorithm.{field}=disk"
    return [] if place == "disk" else [MemoryItem(values, what, remedy, place == "host")]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)
