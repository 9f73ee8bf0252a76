"""The one mutable object of a run: the clients, the clock, and the updates on their way."""

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedlab_runner.aggregators.base import Aggregator
from fedlab_runner.core.aggregation import Aggregation
from fedlab_runner.core.architectures import ClientGroup, by_architecture, family_of
from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.client_homes import ClientHomes
from fedlab_runner.core.client_state import ClientStateStore, RowStore
from fedlab_runner.core.clock import RoundClock, Starts
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.deliveries import Deliveries
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.global_rng import seed_globals
from fedlab_runner.core.local_training import LocalTraining
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.network_trial import try_network
from fedlab_runner.core.round_metrics import RoundMetrics, bytes_of_a_value
from fedlab_runner.core.server_data import ServerData
from fedlab_runner.core.server_steps import ServerSteps
from fedlab_runner.core.trainer import LocalTrainer
from fedlab_runner.core.update_guard import Guard
from fedlab_runner.core.updates import Updates, Upload
from fedlab_runner.homes.base import Home
from fedlab_runner.models.base import Architecture
from fedlab_runner.server_optimizers.base import ServerOptimizer
from fedlab_runner.utils.errors import UserError


class Federation:
    """The simulated system that algorithms act on. Its `state_dict` holds everything that a round changes in it."""

    def __init__(
        self,
        *,
        family: ModelFamily | Sequence[ModelFamily],
        client_data: ClientData,
        clock: RoundClock,
        executor: Executor,
        local: LocalTraining,
        seed: int,
        server_data: ServerData | None = None,
        probe_data: ServerData | None = None,
        auxiliary_data: ServerData | None = None,
        folder: Path | None = None,
        blocks: np.ndarray | None = None,
        topology: np.ndarray | None = None,
        validation: ClientData | None = None,
        client_tests: ClientData | None = None,
        nonfinite: str = "stop",
        server_optimizer: ServerOptimizer | None = None,
        home: Home | None = None,
        aggregator: Aggregator | None = None,
    ) -> None:
        """Client i trains family i mod A of the A model families in `family`.

        `topology` [N, N] bool says which clients reach each other (None: all do), `blocks` [N, d0] bool which feature
        blocks each client holds (None: all). `validation` and `client_tests` have the clients' examples that they do
        not train on, `probe_data` has examples for diagnostics alone. `nonfinite` is a policy of `Guard`. `folder`
        holds the clients' rows that an algorithm puts on disk.
        """
        self.families = (family,) if isinstance(family, ModelFamily) else tuple(family)
        self.family, self.validation, self.client_tests = self.families[0], validation, client_tests
        self.server_data, self.auxiliary_data = server_data, auxiliary_data
        self.probe_data, self.blocks, self.topology = probe_data, blocks, topology
        self.metrics = RoundMetrics()
        acting = aggregator if aggregator is not None and aggregator.acts else None
        self.server_steps = ServerSteps(server_optimizer, self.family.num_params, self.family.dtype)
        self.trainer = LocalTrainer(
            client_data, executor, Guard(nonfinite), self.metrics, ClientStateStore(folder, self.family.device), seed
        )
        self.local, self.seed = local, seed
        self.home = ClientHomes(home, self.families, self.client_state, seed)
        self.num_clients = client_data.num_clients
        self._clock = clock
        self.held_out = clock.held_out  # [h] ascending ids of the clients that never train
        # Ascending ids of the clients that may train: the others are held out or have no examples.
        self.participants = np.setdiff1d(np.flatnonzero(client_data.num_examples), self.held_out)
        self.round, self.lr = 0, local.lr
        aggregation = None if acting is None else Aggregation(acting, self.metrics)
        self.deliveries = Deliveries(self.trainer, self.home, aggregation)
        self.at_once = None if aggregator is None else aggregator.at_once()
        self._known_families: list[tuple[Architecture, ModelFamily]] = []

    def begin(self, round: int, lr_factor: float) -> None:
        """Starts a round (counted from 0)."""
        seed_globals(self.family.device, self.seed, round + 1)  # 0 is before the rounds
        self.round, self.lr = round, self.local.lr * lr_factor
        self.deliveries.losses = []
        self.server_steps.taken = False
        self.metrics.begin()
        self.trainer.begin(round)
        self.home.begin()

    def report_losses(self) -> None:
        """Makes clients send, for the rest of this round, the loss of their trained model on all their examples.

        The losses of the updates that arrive are in `arrived_losses`.
        """
        self.trainer.losses_reported = True

    def start_cohort(self, broadcast: Sequence[Tensor], parts: np.ndarray | None = None) -> Cohort:
        """Samples the clients that receive `broadcast` and train now; their updates may be late.

        `parts` [N] is the number of floats that each client receives besides `broadcast` (None: 0).
        """
        starts = self._clock.start(self.round)
        self.metrics.count_payload(download=0 if parts is None else int(parts[starts.asked].sum()))
        for tensor in broadcast:
            count = len(starts.asked) * self.home.sent(tensor)
            self.metrics.count_payload(download=count, value_bytes=bytes_of_a_value(tensor))
        return self._cohort(starts.ids, starts.due, self.family, self.local, self.home if self.home.acts else None)

    def cohort(self, ids: np.ndarray, family: ModelFamily | None = None, local: LocalTraining | None = None) -> Cohort:
        """The cohort of clients `ids`, none of them late. `family` None: all clients have one architecture."""
        return self._cohort(ids, np.full(len(ids), self.round), family or self.family, local or self.local)

    def by_architecture(self, ids: np.ndarray) -> list[ClientGroup]:
        """Groups the clients `ids` by architecture; clients in the order of `ids`."""
        return by_architecture(self.families, ids)

    def family_of(self, architecture: Architecture) -> ModelFamily:
        """The model family of another architecture on the clients' data: the same object at each call."""
        for known, family in self._known_families:
            if architecture == known:
                return family
        family = family_of(architecture, self.family, self.client_data.inputs)
        if len(self.client_data.inputs):
            try_network(family, self.client_data.inputs)
        self._known_families.append((architecture, family))
        return family

    def neighbours(self, client: int) -> np.ndarray:
        """The other clients that `client` can reach and that may train, in ascending order."""
        reached = np.arange(self.num_clients) != client if self.topology is None else self.topology[client]
        found: np.ndarray = self.participants[reached[self.participants]]
        return found

    def sample_clients(self, clients: np.ndarray) -> np.ndarray:
        """The clients of `clients` that take part in this round, as `participation` says."""
        return self._clock.sample(self.round, clients)

    def collect_updates(self, cohort: Cohort, upload: Upload, known: Collection[str] = ()) -> Updates[Upload]:
        """Sends the cohort's updates (tensors [K, ...]) on their way and receives those due in this round.

        Fields of the upload in `known`, which the server has already, do not count as sent. The policy `nonfinite`
        treats a client whose row is not finite; under the policy stop this raises Diverged. Raises UserError where the
        run adds up updates, which `deliver` does.
        """
        if self.at_once is not None:
            raise UserError(
                "aggregator.sum_every would do nothing, because the algorithm's round calls fed.collect_updates with "
                "the updates of the whole cohort: call fed.deliver, or set the class attribute reads_sums to False"
            )
        return self.deliveries.of_cohort(cohort, upload, known)

    def deliver(
        self, cohort: Cohort, update: Callable[[Cohort], Upload], known: Collection[str] = ()
    ) -> Updates[Upload]:
        """As `collect_updates`, of the `update` that the cohort makes. Where the run adds up updates (`at_once`), parts
        of the cohort make it one after another, and of those that are on time the sums alone are kept.
        """
        if self.at_once is None:
            return self.collect_updates(cohort, update(cohort), known)
        return self.deliveries.of_parts(cohort, self.at_once, update, known)

    def optimized(self, before: Tensor, after: Tensor) -> Tensor:
        """The server's next model [D] when an algorithm goes from `before` [D] to `after` [D]: the run's server
        optimiser moves the parameters that clients share. If both have the same parameters, the optimiser takes no
        step.

        `ServerAlgorithm.round` calls it. An algorithm that makes several steps in a round calls it for each of them.
        """
        taken = self.server_steps.take(before, after)
        if taken is after:
            return after
        self.metrics.count_server_flops(self.server_steps.operations)
        return self.home.own(self.family, after, taken)

    def record_server_cache(self, values: int) -> None:
        """Sets how many values an algorithm keeps on the server besides its model; the run adds its optimiser's."""
        self.metrics.record_server_cache(values + self.server_steps.held)

    def _cohort(
        self,
        ids: np.ndarray,
        due: np.ndarray,
        family: ModelFamily,
        local: LocalTraining,
        homes: ClientHomes | None = None,
    ) -> Cohort:
        return Cohort(self.trainer, family, local, ids, due, self.round, self.lr, homes)

    @property
    def client_data(self) -> ClientData:
        """The clients' examples."""
        return self.trainer.client_data

    @property
    def executor(self) -> Executor:
        """The executor that trains the cohorts."""
        return self.trainer.executor

    @property
    def guard(self) -> Guard:
        """The guard that looks for updates that are not finite."""
        return self.trainer.guard

    @property
    def client_state(self) -> ClientStateStore:
        """The rows that an algorithm or a home keeps for its clients."""
        return self.trainer.client_state

    @client_state.setter
    def client_state(self, store: ClientStateStore) -> None:
        self.trainer.client_state = self.home.store = store

    @property
    def arrived_losses(self) -> list[float]:
        """The losses that clients report with the updates that have arrived in this round."""
        return self.deliveries.losses

    @property
    def cohort_size(self) -> int:
        """How many clients report from each round, if enough are idle."""
        return self._clock.cohort_size

    @property
    def population(self) -> int:
        """How many clients may train: N of the algorithms."""
        return len(self.participants)

    @property
    def client_values(self) -> int:
        """The number of values of all clients' models together."""
        return sum(self.families[i % len(self.families)].size for i in range(self.num_clients))

    def ahead(self, rounds: int) -> Iterator[Starts]:
        """The clients that will start in each of `rounds` rounds, from the current round on."""
        return self._clock.ahead(self.round, rounds)

    def row_store(self, place: str, length: int) -> RowStore:
        """The store of an algorithm's rows [length], of the models' type, at `place`: device, host or disk."""
        return self.client_state.rows(place, length, self.family.dtype)

    def collect(self) -> dict[str, float]:
        """The metrics of this round."""
        return self.metrics.values | self.guard.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Everything that a round changes, by reference: nothing ever writes into a tensor in it."""
        return {
            "clock": self._clock.state_dict(),
            "in_flight": self.deliveries.state_dict(),
            "client_state": self.client_state.state_dict(),
            "server_steps": self.server_steps.state_dict(),
            "home": self.home.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a saved state. Raises ValueError for a state of another federation."""
        self._clock.load_state_dict(state["clock"])
        self.deliveries.load_state_dict(state["in_flight"], self.num_clients)
        self.client_state.load_state_dict(state["client_state"])
        self.server_steps.load_state_dict(state["server_steps"])
        self.home.load_state_dict(self.client_state.named(state["home"]))
