"""A method of this package beside the same method in a library that others wrote: the oracle.

Both get the same first model, cohorts and minibatches; the server's models are compared after every round, and what
the clients of the round keep to themselves. Where they part, `measure` finds the first round, and in the first round
also the local step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor, nn

from fedlab_runner.algorithms.shared.personal import Personal
from fedlab_runner.config.build import conf_dir
from tests.helpers.toy import ALGORITHMS, RAGGED, algorithm, default_home, federation, home, local
from tests.reference.harness import NETWORKS, problem
from tests.reference.plain import Problem

SEED = 0  # of the run
ROUNDS = 6
COHORT = 4  # clients a round, of eight, where a row has no other number
SEVERAL = (12, 2, 7, 8, 9, 20, 13, 40)  # examples of clients that can all train batch norm
FLOAT64 = 1e-12  # of a parameter; the two add up in another order
FLOAT32 = 1e-6  # of a parameter; some value on the way is float32, whose numbers of size 1 are 1.2e-7 apart


class Arrived(NamedTuple):
    """What the server of this package receives in a round, in the order of sampling."""

    clients: list[int]
    models: Tensor  # y [A, D]
    num_examples: list[int]
    staleness: list[int]  # rounds


@dataclass(frozen=True)
class Setting:
    """What an oracle gets."""

    draws: Problem  # data, cohorts, minibatches, the first model
    network: Callable[[], nn.Module]
    keys: dict[str, Any]  # of the method's config here
    arrived: list[Arrived]  # by round; for oracles that have a server only
    at_home: Tensor  # [D] bool: the values of a model that its client keeps to itself

    def module(self) -> nn.Module:
        """The first model."""
        return loaded(self.network().double(), self.draws.x0.vector)

    @property
    def cohorts(self) -> list[list[int]]:
        """The clients of each round, in the order of sampling."""
        return [[start.client for start in self.draws.cohort(t)] for t in range(self.draws.num_rounds)]

    def epochs(
        self, client: int, round: int, purpose: str = "BATCHES", epochs: int | None = None
    ) -> list[list[tuple[Tensor, Tensor]]]:
        """A client's minibatches in a round, by epoch: those of local training, or others that the method draws."""
        rows = self.draws.batches(client, round, purpose, epochs)
        epochs = epochs or self.draws.local.epochs or 1
        batches = [(self.draws.data.x[b], self.draws.data.y[b]) for b in rows]
        each = len(batches) // epochs
        return [batches[e * each : (e + 1) * each] for e in range(epochs)]

    def examples(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's inputs and targets."""
        rows = self.draws.members[client]
        return self.draws.data.x[rows], self.draws.data.y[rows]


Compared = Callable[[Any, Any, Any, np.ndarray], Tensor]  # (algorithm, State, federation, clients of the round)


def server_model(built: Any, state: Any, fed: Any, ids: np.ndarray) -> Tensor:
    """The server's model [D]."""
    x: Tensor = built.server_model(state)
    return x.clone()


def with_own_models(built: Any, state: Any, fed: Any, ids: np.ndarray) -> Tensor:
    """The server's model, then the personal model of each client of the round."""
    own = Personal.client_models(built, state, fed, ids)[:, : fed.family.size]
    return torch.cat([server_model(built, state, fed, ids), own.reshape(-1)])


def with_homes(built: Any, state: Any, fed: Any, ids: np.ndarray) -> Tensor:
    """What the clients share of the server's model, then what each client of the round keeps to itself."""
    x, at_home = server_model(built, state, fed, ids), fed.home.mask(fed.family)
    return torch.cat([x[~at_home], fed.home.fill(x, ids)[:, at_home].reshape(-1)])


@dataclass(frozen=True)
class Row:
    """A comparison. A method that the package does not have yet is not compared."""

    method: str
    theirs: Callable[[Setting], Iterator[Tensor]]  # what is compared, after each round
    setting: str = ""  # what is particular about it
    keys: dict[str, Any] = field(default_factory=dict)  # of the method's config here
    local: dict[str, Any] = field(default_factory=dict)  # of the clients, where they are not the toy's
    network: str = "mlp"
    sizes: tuple[int, ...] = RAGGED  # of the clients' examples
    cohort: int = COHORT  # clients a round
    std: float = 0.0  # of the half-normal delays, for oracles that have a server only; 0: nobody is late
    tolerance: float = FLOAT64
    server_optimizer: dict[str, Any] = field(default_factory=dict)  # its `name`, and keys of its config
    aggregator: dict[str, Any] = field(default_factory=dict)  # its `name`, and keys of its config
    attack: Callable[[np.ndarray], np.ndarray] | None = None  # from the honest updates [H, P] to one of a liar [P]
    liars: int = 0  # updates of a round, the last ones, in whose place there is that of the attack
    home: str = ""  # what the clients keep to themselves; empty: what the method's config says
    compared: Compared = server_model
    cause: str = ""  # why the two part; empty: they agree

    @property
    def here(self) -> bool:
        """Whether this package has the method, the server optimiser and the aggregator."""
        chosen = {"server_optimizer": self.server_optimizer, "aggregator": self.aggregator}
        files = [_choice(group, keys["name"]) for group, keys in chosen.items() if keys]
        return self.method in ALGORITHMS and all(file.exists() for file in files)


def _choice(group: str, name: str) -> Path:
    return conf_dir() / group / f"{name}.yaml"


def _chosen(group: str, keys: dict[str, Any]) -> Any:
    """The component of a group with this `name` and these keys."""
    changes = {key: value for key, value in keys.items() if key != "name"}
    return instantiate(OmegaConf.merge(OmegaConf.load(_choice(group, keys["name"])), changes))


def loaded(module: nn.Module, vector: Tensor) -> nn.Module:
    """The module with the parameters, then the statistics, of a vector [D]."""
    with torch.no_grad():
        for part, value in zip(_parts(module), vector.split([p.numel() for p in _parts(module)]), strict=True):
            part.copy_(value.view_as(part))
    return module


def vector(module: nn.Module) -> Tensor:
    """A module's parameters, then its statistics [D], in float64."""
    return torch.cat([part.detach().double().reshape(-1) for part in _parts(module)])


def arrays(module: nn.Module, vector: Tensor) -> list[np.ndarray]:
    """A vector [D] as the arrays of a module."""
    parts = _parts(module)
    split = vector.split([p.numel() for p in parts])
    return [value.reshape(p.shape).numpy().copy() for p, value in zip(parts, split, strict=True)]


def from_arrays(values: Sequence[np.ndarray]) -> Tensor:
    """The vector [D] of a module's arrays."""
    return torch.cat([torch.as_tensor(np.array(value, np.float64)).reshape(-1) for value in values])


def _parts(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]


def ours(row: Row, rounds: int, **training: Any) -> tuple[list[Tensor], Setting]:
    """What is compared of this package after each round, and what an oracle needs for the same."""
    build, more = NETWORKS[row.network], dict[str, Any]()
    if row.server_optimizer:
        more["optimizer"] = _chosen("server_optimizer", row.server_optimizer)
    if row.aggregator:
        more["rule"] = _chosen("aggregator", row.aggregator)
    more["home"] = home(row.home) if row.home else default_home(row.method)

    def fresh() -> Any:
        local_training = local(**row.local | training)
        return federation(
            row.sizes, build=build, cohort=row.cohort, std=row.std, training=local_training, seed=SEED, **more
        )

    built: Any = algorithm(row.method, **row.keys)
    fed = fresh()
    state, models, arrived = built.init(fed), list[Tensor](), list[Arrived]()
    setting = Setting(problem(fresh(), rounds, late=row.std > 0), build, row.keys, arrived, fed.home.mask(fed.family))
    collect = fed.collect_updates

    def collected(*arguments: Any) -> Any:
        arrivals = collect(*arguments)
        if row.attack is not None:
            honest = arrivals.upload.rows[: len(arrivals) - row.liars]
            lie = torch.from_numpy(row.attack(honest.numpy())).expand(row.liars, -1)
            arrivals.upload = arrivals.upload._replace(rows=torch.cat([honest, lie]))
        arrived.append(_arrived(built.server_model(state), arrivals))
        return arrivals

    fed.collect_updates = collected
    for round in range(rounds):
        fed.begin(round, 1.0)
        state = built.round(state, fed)
        models.append(row.compared(built, state, fed, np.array(setting.cohorts[round])))
    return models, setting


def _arrived(x: Tensor, arrivals: Any) -> Arrived:
    """The clients' models, where an upload has them, or changes of parameters, and statistics."""
    upload = arrivals.upload
    models = getattr(upload, "models", x.new_empty(len(arrivals), 0))
    if hasattr(upload, "rows"):
        models = torch.cat([x[: upload.rows.shape[1]] + upload.rows, upload.statistics], 1)
    return Arrived(arrivals.ids.tolist(), models, arrivals.num_examples.tolist(), arrivals.staleness.tolist())


def differences(row: Row, rounds: int = ROUNDS, **training: Any) -> Iterator[float]:
    """The largest difference of a value that is compared, after each round."""
    mine, setting = ours(row, rounds, **training)
    for one, other in zip(mine, row.theirs(setting), strict=True):
        apart = (one - other).abs()
        yield float("inf") if apart.isnan().any() else float(apart.max())


def measure(row: Row) -> dict[str, Any]:
    """What is recorded of a row: the largest difference, and the first round and step in which the two part."""
    found: dict[str, Any] = {"method": row.method, "setting": row.setting, "tolerance": row.tolerance}
    largest = 0.0
    for round, apart in enumerate(differences(row), 1):
        if apart > row.tolerance:
            step = first_step(row) if round == 1 else None
            return found | {"round": round, "step": step, "difference": apart, "cause": row.cause}
        largest = max(largest, apart)
    return found | {"rounds": ROUNDS, "difference": largest}


def first_step(row: Row) -> int | None:
    """The first local step, counted from 1, after which the first round of the two is not the same."""
    most = max(len(batches) for batches in _steps(row))
    for steps in range(1, most + 1):
        if next(differences(row, 1, steps=steps, epochs=None)) > row.tolerance:
            return steps
    return None


def _steps(row: Row) -> list[list[Tensor]]:
    _, setting = ours(row, 1)
    return [setting.draws.batches(client, 0) for client in setting.cohorts[0]]
