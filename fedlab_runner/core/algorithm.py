"""The contract of an algorithm: hyperparameters, an explicit State, and a pure step from State to State.

An algorithm extends `ServerAlgorithm` (clients and a server), `DecentralizedAlgorithm` (clients alone) or, where
neither fits, `Algorithm`. Shape letters are those of `core.model_family`.

A run calls `check` and `init` once, before its first round, then `round` for each round and `models` at each
evaluation. A resumed run calls `init` too, and replaces its State by the checkpoint's. `footprint`, `operations` and
`stands_still` serve only the estimates and warnings before the first round: no number of a result depends on them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np
from torch import Tensor

from fedlab_runner.core.client_state import PLACES
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import CohortLoad, Footprint, MemoryItem, own_rows
from fedlab_runner.core.own_models import NamedModels, OwnModels
from fedlab_runner.core.updates import Updates, sent, tensors_in
from fedlab_runner.utils.contract import require
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import one_of

State = TypeVar("State", bound=tuple[Any, ...])
Upload = TypeVar("Upload", bound=tuple[Tensor, ...])


class Algorithm(ABC, Generic[State]):
    """A federated algorithm: a frozen dataclass whose fields are its hyperparameters and the keys of its config.

    `__post_init__` checks the fields with `utils.validate`; a ValueError there begins with the field's name.

    The State is a NamedTuple of tensors, numbers, and tuples, lists or dicts of them. It holds everything that a round
    changes and that `Federation` does not keep itself. `init` and `round` are pure in it: they read a State, never
    write into its tensors, keep nothing in the algorithm, and draw random numbers only by key (`core.rng`,
    `Cohort.streams`). So the same code checkpoints, resumes and tests every algorithm, bit for bit.
    """

    heterogeneous: ClassVar[bool] = False
    """Clients may hold models of different architectures. Otherwise the run refuses a mix of architectures."""

    decentralized: ClassVar[bool] = False
    """Clients meet over the links of a topology, and no update is late. Otherwise the run uses no topology."""

    holds_blocks: ClassVar[bool] = False
    """Clients' models may read different feature blocks. Otherwise they read only blocks that all clients hold."""

    makes_server_steps: ClassVar[bool] = False
    """A server optimiser can act on the steps of the server model, which go through `Federation.optimized`. Otherwise
    the run refuses a server optimiser.
    """

    averages: ClassVar[bool] = False
    """The server steps by `Updates.mean` and `Updates.sum` alone. Otherwise the run refuses aggregators but `mean`."""

    reads_sums: ClassVar[bool] = False
    """The server reads nothing else of the updates but how many there are: no row, no client's number. Then a round
    need not hold the models of a whole cohort (`aggregator.sum_every`).
    """

    model_copies: ClassVar[int] = 2
    """How many times a round holds the models of a cohort [K, D] at once: the trained models y, and every tensor of
    that size that the algorithm makes of them. 2: y and y - x. 1: the update overwrites y.
    """

    training_copies: ClassVar[int | None] = None
    """How many there are while clients train: what they start from or keep, and the trained models. None: 2, and no
    more than `model_copies`.
    """

    payload_copies: ClassVar[int] = 1
    """How many models [D] a late update holds until it arrives. 2: the update and a second model or control variate."""

    step_copies: ClassVar[int] = 0
    """How many more models [D] a client's local step holds than plain SGD's: a penalty's gradient, a second model."""

    @property
    def names_clients(self) -> bool:
        """Whether the fields have clients by number. Then the run refuses to number clients anew. Default: no."""
        return False

    @property
    def name(self) -> str:
        """The name on the command line: that of the algorithm's module."""
        return type(self).__module__.rpartition(".")[2]

    def check(self, fed: Federation) -> None:
        """Raises UserError, one line, where the federation lacks what the algorithm needs (server data, an optimiser,
        an architecture); the line names the key to change. A ValueError must begin with the name of a field. Default:
        accepts every federation.
        """
        return

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        """Peak memory of a round under this load, for the estimate before the run and its refusal of a run that cannot
        fit. Default: the class attributes.
        """
        return self.holding([])

    def holding(self, held: list[MemoryItem]) -> Footprint:
        """The footprint by the class attributes, with these items."""
        training = self.training_copies or min(self.model_copies, 2)
        return Footprint(self.model_copies, training, self.payload_copies, self.step_copies, held)

    def operations(self, fed: Federation, local: float) -> float:
        """Floating-point operations of a round, for the estimate of the run's time; a factor of two off is near enough.

        `local` is the operations of plain local training of the cohort. Default: `local`. An override adds training on
        server data, a second model, more passes over the examples, or teachers' predictions.
        """
        return local

    @abstractmethod
    def init(self, fed: Federation) -> State:
        """The State before the first round, a function of `fed.seed`. `fed.family.init(fed.seed)` is a fresh model [D].

        Must put no row into the client state store: a resumed run calls it too. May raise UserError, as `check`.
        """

    @abstractmethod
    def round(self, state: State, fed: Federation) -> State:
        """The State after round `fed.round` (counted from 0), from the State before it.

        Let `Diverged` and `RunFailed` of the calls in it pass through. Metrics go to `fed.metrics`.
        """

    @abstractmethod
    def models(self, state: State) -> Tensor | OwnModels:
        """What the run evaluates: the server's model [D], or all clients' models if there is no server."""

    def extra_eval_models(self, state: State, fed: Federation) -> NamedModels:
        """More models of all clients with their families, for `<name>/accuracy` and `<name>/loss` at each evaluation.
        The run calls this if `models` gives clients' models. Default: none.
        """
        return {}

    def client_models(self, state: State, fed: Federation, ids: np.ndarray) -> Tensor:
        """The models [k, D] that clients `ids` [k] use themselves, for an algorithm whose `models` gives a tensor.

        The run asks for some clients at a time, at evaluations with `client/...` in the evaluation matrix. `ids` may
        hold clients that never train. Default: the server's model, with the values that each client keeps at home.
        """
        models = self.models(state)
        assert isinstance(models, Tensor)
        return fed.home.fill(models, ids)

    def takes_aggregator(self) -> bool:
        """Whether an aggregator other than `mean` can act. Default: `averages`."""
        return self.averages

    def takes_sums(self) -> bool:
        """Whether sums of updates can stand in their place. Default: `reads_sums`."""
        return self.reads_sums

    def home_fault(self) -> str | None:
        """Why no part of a client's model can stay at home (None: any can): the end of `home must be none ..., `."""
        return "which sends no parts of models"

    def trains_home(self) -> bool:
        """Whether local training changes what stays at home. Otherwise all clients have the first model's values."""
        return True


class ServerAlgorithm(Algorithm[State], Generic[State, Upload]):
    """An algorithm with a server: clients start from its model, train, and send updates, some of them late.

    You need not handle lateness: `server_step` receives the updates that arrive in this round, with their staleness.

    The State's field `params` [D] is the server model, from which clients start. A State without that field must
    override `server_model` and `with_server_model`. FedWalk trains the server model of any such algorithm further and
    replaces it: the rest of the State must make sense beside any server model.
    """

    makes_server_steps: ClassVar[bool] = True

    known: ClassVar[tuple[str, ...]] = ()
    """Fields of Upload that the server can compute itself. Clients do not send them: their bytes are not counted."""

    moves_alone: ClassVar[bool] = False
    """The server's model moves in a round without arrivals too. Otherwise the run warns if none will arrive."""

    @abstractmethod
    def client_update(self, state: State, cohort: Cohort) -> Upload:
        """What each client of the cohort sends: a NamedTuple of tensors [K, ...], which is exactly the payload.

        Write it as if for one client: `cohort.train` trains all. K may be 0. The key `nonfinite` says what happens to
        a client whose row is not finite: the run ends, or the client counts as one that has not answered.
        """

    @abstractmethod
    def server_step(self, state: State, arrivals: Updates[Upload], fed: Federation) -> State:
        """The State after the updates that arrive in this round.

        There may be none (A = 0): every client may be late. `stepped` and `average` in `algorithms.shared.averaging`
        move parameters and replace batch norm's statistics correctly. A server optimiser acts on the whole step. An
        algorithm that makes several server steps in a round, as FedBuff does, passes each to `fed.optimized`.
        """

    def models(self, state: State) -> Tensor:
        """The model [D] that the run evaluates. Default: the server model."""
        return self.server_model(state)

    def broadcast(self, state: State) -> Sequence[Tensor]:
        """What each client of the cohort receives, as tensors of any shape. The run counts their values as download.

        Default: the server model.
        """
        return (self.server_model(state),)

    def cached(self, state: State) -> int:
        """How many values the server keeps besides its model, as the metric `cost/server_cache_mb` counts them.

        Default: all tensors of the State. Override it if clients keep some of them, or if rows are on disk.
        """
        return sum(t.numel() for t in tensors_in(state)) - self.models(state).numel()

    def stands_still(self, arriving: Sequence[np.ndarray]) -> str | None:
        """Why the server model has not moved after rounds whose updates have the stalenesses `arriving`, an array [A]
        for each round; None if it has moved, or if that is unknown.

        The run asks before its first round and warns with the reason, which should name a key to change. Default: None.
        """
        return None

    def home_fault(self) -> str | None:
        return None

    def server_model(self, state: State) -> Tensor:
        """The model [D] from which the next clients start."""
        return cast(Tensor, cast(Any, state).params)

    def with_server_model(self, state: State, model: Tensor) -> State:
        """The State with another server model [D]."""
        return cast(State, cast(Any, state)._replace(params=model))

    def round(self, state: State, fed: Federation) -> State:
        cohort = fed.start_cohort(self.broadcast(state))
        before, arrivals = self.server_model(state), fed.deliver(cohort, partial(self._sent, state), self.known)
        kind, state = type(state), self.server_step(state, arrivals, fed)
        require(isinstance(state, kind), self, "server_step", f"a {kind.__name__}", state)
        if not fed.server_steps.taken:  # the algorithm itself has not called `optimized`
            after = self.server_model(state)
            if (moved := fed.optimized(before, after)) is not after:
                state = self.with_server_model(state, moved)
        fed.record_server_cache(self.cached(state))
        return state

    def _sent(self, state: State, cohort: Cohort) -> Upload:
        return cast(Upload, sent(self, self.client_update(state, cohort), len(cohort)))


@dataclass(frozen=True)
class DecentralizedAlgorithm(Algorithm[State], Generic[State]):
    """An algorithm without a server: in each round some clients send their models to a neighbour, the aggregator.

    `participation` says how many clients send. No update is late. `algorithms.shared.decentralized` picks who meets.
    The clients' models are kept on the device, the host or disk (`store_on`).
    """

    heterogeneous: ClassVar[bool] = True
    decentralized: ClassVar[bool] = True

    store_on: str

    def __post_init__(self) -> None:
        one_of(PLACES, store_on=self.store_on)

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        """Default: the class attributes, and a row for each client that has taken part."""
        return self.holding(own_rows(self.store_on, fed, load))

    def changing(self, fed: Federation) -> int:
        """The largest number of clients whose models a round changes. Default: the senders and the aggregator."""
        return fed.cohort_size + 1

    def check(self, fed: Federation) -> None:
        """Raises UserError if all clients would send, so that none could aggregate."""
        if fed.cohort_size >= fed.population:
            raise UserError(
                f"participation must leave one of the {fed.population} clients that may train to aggregate what the "
                f"others send, got {fed.cohort_size} senders"
            )

    def operations(self, fed: Federation, local: float) -> float:
        """Floating-point operations of a round. Default: the senders and the aggregator train."""
        return local * (1 + 1 / fed.cohort_size)

    def home_fault(self) -> str | None:
        return "whose clients learn from each other's whole models"

    @abstractmethod
    def models(self, state: State) -> OwnModels:
        """What the run evaluates: the models of all clients."""
