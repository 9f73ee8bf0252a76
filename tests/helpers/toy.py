"""A federation so small that a round takes milliseconds, in float64 on one thread, for identities and common checks."""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, cast

import hydra.utils
import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from fedlab_runner.aggregators.base import Aggregator
from fedlab_runner.augment.base import Augment
from fedlab_runner.config.build import conf_dir
from fedlab_runner.core.algorithm import Algorithm
from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.clock import Participation, RoundClock
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.local_training import LocalTraining
from fedlab_runner.core.losses import LossFunction
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.normalize import Normalize
from fedlab_runner.core.server_data import ServerData
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.delays.base import Delay
from fedlab_runner.delays.half_normal import HalfNormalDelay
from fedlab_runner.evaluation.client_models import ClientModels
from fedlab_runner.evaluation.evaluator import Evaluation
from fedlab_runner.executors.loop import Loop
from fedlab_runner.homes.base import Home
from fedlab_runner.homes.none import NoHome
from fedlab_runner.participation.uniform import UniformParticipation
from fedlab_runner.server_optimizers.base import ServerOptimizer

FEATURES, CLASSES = 5, 3
RAGGED = (1, 2, 7, 8, 9, 20, 13, 40)
EQUAL = (8, 8, 8, 8)
CPU = torch.device("cpu")
AGGREGATORS = sorted(path.stem for path in (conf_dir() / "aggregator").glob("*.yaml"))
ALGORITHMS = sorted(path.stem for path in (conf_dir() / "algorithm").glob("*.yaml"))
HOMES = sorted(path.stem for path in (conf_dir() / "home").glob("*.yaml"))
SERVER_OPTIMIZERS = sorted(path.stem for path in (conf_dir() / "server_optimizer").glob("*.yaml"))


# What makes an algorithm take any local optimiser.
ANY_OPTIMIZER: dict[str, dict[str, Any]] = {"scaffold": {"option": 1}}

# What is far larger than the toy itself.
SMALLER: dict[str, dict[str, Any]] = {
    "fedgen": {"noise_size": 4, "hidden": 6, "gen_batch_size": 5, "batch_size": 7, "steps": 3},
}

# What lets a method do all that it does within three rounds, and soon.
FEW_ROUNDS: dict[str, dict[str, Any]] = {
    "ca2fl": {"buffer_size": 3},
    "center": {"lr": 0.01},
    "def_kt": {"epochs": 1},
    "dfml": {"epochs": 1, "period": 2},
    "fedala": {"window": 3, "max_epochs": 8},
    "fedbe": {"epochs": 2, "batch_size": 32, "num_samples": 3, "lr": 0.01, "swa_start": 1, "swa_every": 2},
    "fedbuff": {"buffer_size": 3},
    "fedcda": {"warmup": 1, "memory": 2, "batches": 1},
    "feddf": {"epochs": 2, "batch_size": 32, "lr": 0.01},
    "feddle": {"epochs": 2, "batch_size": 32, "lr": 0.01},
    "fedft": {"epochs": 2, "lr": 0.01},
    "fedlaw": {"epochs": 2, "batch_size": 32},
    "fedwalk": {"tau": float("inf"), "batch_size": 32},
    "gamf": {"sinkhorn_steps": 5, "max_iterations": 40},
    "pfedme": {"inner_steps": 2},
}


def few_rounds(name: str, **overrides: Any) -> Algorithm[Any]:
    """An algorithm that does in three rounds of the toy what it is for."""
    return algorithm(name, **(FEW_ROUNDS.get(name, {}) | overrides))


def algorithm(name: str, **overrides: Any) -> Algorithm[Any]:
    """An algorithm as its YAML defines it; a wrapper's `base` is a name, alone or with overrides: (name, {...}).

    One with the same plain values is built once: it is frozen, and to build it takes as long as a step of a round.
    """
    try:
        plain = json.dumps(overrides)
    except TypeError:  # a value that is not plain
        return cast(Algorithm[Any], _built(_node(name, **overrides)))
    return _algorithm(name, plain)


@cache
def _algorithm(name: str, overrides: str) -> Algorithm[Any]:
    return cast(Algorithm[Any], _built(_node(name, **json.loads(overrides))))


def _built(node: DictConfig) -> Any:
    return hydra.utils.instantiate(node, _convert_="all")


def aggregator(name: str, **overrides: Any) -> Aggregator:
    """An aggregator as its YAML defines it."""
    node = _choice("aggregator", name)
    built: Aggregator = _built(OmegaConf.merge(node, overrides))
    return built


def server_optimizer(name: str, **overrides: Any) -> ServerOptimizer:
    """A server optimiser as its YAML defines it."""
    node = _choice("server_optimizer", name)
    built: ServerOptimizer = _built(OmegaConf.merge(node, overrides))
    return built


def home(name: str, **overrides: Any) -> Home | None:
    """A home as its YAML defines it; None where nothing stays at home."""
    node = _choice("home", name)
    built: Home | NoHome = _built(OmegaConf.merge(node, overrides))
    return built if isinstance(built, Home) else None


@cache
def default_home(name: str) -> Home | None:
    """What clients keep at home with an algorithm where no other home is chosen; None: nothing."""
    entries = _choice("algorithm", name).get("defaults", [])
    chosen = [entry.get("override /home@_global_.home") for entry in entries if isinstance(entry, DictConfig)]
    return next((home(each) for each in chosen if each), None)


@cache
def _file(group: str, name: str) -> dict[str, Any]:
    content: Any = OmegaConf.to_container(OmegaConf.load(conf_dir() / group / f"{name}.yaml"))
    return dict(content)


def _choice(group: str, name: str) -> DictConfig:
    """What a choice's YAML says, read once."""
    return OmegaConf.create(deepcopy(_file(group, name)))


def _node(name: str, **overrides: Any) -> DictConfig:
    node = _choice("algorithm", name)
    if any("/algorithm@base" in entry for entry in node.pop("defaults", []) if isinstance(entry, DictConfig)):
        base = overrides.pop("base", "fedavg")
        node.base = _node(base) if isinstance(base, str) else _node(base[0], **base[1])
    node.update(SMALLER.get(name, {}) | overrides)
    return node


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES))


class Attending(nn.Module):
    """Attention between features, and batch norm: clients of one example train in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(FEATURES), nn.Linear(4, CLASSES)
        self.inner = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        seen = self.inner(self.norm(inputs).unsqueeze(2).expand(-1, -1, 4).contiguous())
        logits: torch.Tensor = self.head(seen[:, -1])
        return logits


def local(**changes: Any) -> LocalTraining:
    """Plain SGD, two epochs, minibatches of 8; or another optimiser with torch's defaults."""
    sgd = changes.get("optimizer") not in ("adam", "adamw")
    fields = {
        "optimizer": "sgd",
        "lr": 0.1,
        "epochs": 2,
        "steps": None,
        "batch_size": 8,
        "momentum": 0.0 if sgd else None,
        "nesterov": False if sgd else None,
        "betas": None if sgd else [0.9, 0.999],
        "eps": None if sgd else 1e-8,
        "weight_decay": 0.0,
        "clip_norm": None,
        "update_norm": None,
    }
    return LocalTraining(**(fields | changes))


def examples(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Three Gaussian classes that a linear model can tell apart."""
    rng = np.random.default_rng(7)
    targets = rng.integers(CLASSES, size=n)
    inputs = rng.normal(size=(n, FEATURES)) + 2 * np.eye(CLASSES, FEATURES)[targets]
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def server_data(n: int, seed: int = 11, num_classes: int = CLASSES) -> ServerData:
    """Examples of the server's: the clients' classes, or others when there is another number of them."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(num_classes, size=n)
    inputs = rng.normal(size=(n, FEATURES)) + 2 * np.eye(num_classes, FEATURES)[targets]
    return ServerData(torch.from_numpy(inputs), torch.from_numpy(targets), num_classes, num_classes == CLASSES)


def model_family(
    build: Callable[[], nn.Module] = mlp,
    dtype: torch.dtype = torch.float64,
    loss_function: LossFunction | None = None,
    device: torch.device = CPU,
) -> ModelFamily:
    return ModelFamily(
        build, CLASSES, normalize=Normalize(None, None), device=device, dtype=dtype, loss_function=loss_function
    )


def federation(
    sizes: Sequence[int] = RAGGED,
    *,
    build: Callable[[], nn.Module] = mlp,
    cohort: int | None = None,
    std: float = 0.0,
    seed: int = 0,
    executor: Executor | None = None,
    training: LocalTraining | None = None,
    participation: Participation | None = None,
    server: ServerData | None = None,
    leash: ServerData | None = None,
    folder: Path | None = None,
    builds: Sequence[Callable[[], nn.Module]] = (),
    loss_function: LossFunction | None = None,
    topology: np.ndarray | None = None,
    device: torch.device = CPU,
    augment: Augment | None = None,
    optimizer: ServerOptimizer | None = None,
    rule: Aggregator | None = None,
    split: Sequence[np.ndarray] | None = None,
    delay: Delay | None = None,
    home: Home | None = None,
) -> Federation:
    """Clients with `sizes` examples, or with those of a `split`; all of them take part in each round unless `cohort`
    says how many.

    They have models from `build`, or from several `builds`. The server has in-domain and auxiliary examples of other
    classes, whether the algorithm uses them or not. Delays have the deviation `std`, or are those of a `delay`.
    """
    split = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]) if split is None else split
    inputs, targets = examples(1 + max(int(part.max(initial=-1)) for part in split))
    client_data = ClientData(inputs, targets, split, device, augment=augment)
    chosen = participation or UniformParticipation(cohort or len(split), None, 0)
    delay = delay or HalfNormalDelay(std=std, draw="client")
    clock = RoundClock(client_data.num_examples, chosen, delay, seed)
    return Federation(
        family=[model_family(each, loss_function=loss_function, device=device) for each in builds or (build,)],
        client_data=client_data,
        clock=clock,
        executor=executor or Loop(compile=False),
        local=training or local(),
        seed=seed,
        server_data=(server_data(90) if server is None else server).to(device),
        topology=topology,
        auxiliary_data=(server_data(70, seed=13, num_classes=4) if leash is None else leash).to(device),
        folder=folder,
        server_optimizer=optimizer,
        aggregator=rule,
        home=home,
    )


def asked(fed: Federation, ids: Sequence[int]) -> Cohort:
    """The cohort of clients `ids` that the server asks to train in this round, as if it had drawn them."""
    due, homes = np.full(len(ids), fed.round), fed.home if fed.home.acts else None
    return Cohort(fed.trainer, fed.family, fed.local, np.array(ids), due, fed.round, fed.lr, homes)


def run(
    algorithm: Algorithm[Any], fed: Federation, rounds: int, first: int = 0, state: Any = None, factor: float = 1.0
) -> Any:
    """The State after some rounds, in each of which the schedule has this factor."""
    state = algorithm.init(fed) if state is None else state
    for round in range(first, first + rounds):
        fed.begin(round, factor)
        state = algorithm.round(state, fed)
    return state


def stacked(models: Any) -> torch.Tensor:
    """All clients' own models [N, D], where they are in memory and of one architecture."""
    return torch.stack(list(models.values()))


def vectors(models: Any) -> torch.Tensor:
    """All values of what an algorithm evaluates: one tensor, or all clients' models."""
    return torch.cat([t.reshape(-1) for t in tensors(models)])


def evaluate(built: Algorithm[Any], state: Any, fed: Federation) -> dict[str, float]:
    """Metrics of what an algorithm evaluates, on all the clients' examples; where clients keep something at home, of
    the models that they use themselves.
    """
    inputs, targets = fed.client_data.inputs, fed.client_data.targets
    test = Examples(inputs, targets, targets, None)
    evaluation = Evaluation(1, 100, False, [], 1, "test/accuracy", "best", 1, 0, None)
    models = built.models(state)
    if isinstance(models, torch.Tensor) and fed.home.acts:
        models = dict(enumerate(built.client_models(state, fed, np.arange(fed.num_clients))))
    if isinstance(models, torch.Tensor):
        return evaluation.evaluate(fed.executor, fed.family, models, test)
    return ClientModels(evaluation, fed, test).evaluate(models, built.extra_eval_models(state, fed))


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors of a State, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for item in value.values() for t in tensors(item)]
    return [t for item in value for t in tensors(item)] if isinstance(value, tuple | list) else []


def check_homes(*executors: Any) -> None:
    """Two executors train clients that have norm layers at home to the same bits, in a second round too."""
    ours, theirs = (federation(executor=each, build=normed, home=home("norm")) for each in executors)
    for round in range(2):
        ours.begin(round, 1.0)
        theirs.begin(round, 1.0)
        x = ours.family.init(round)
        assert torch.equal(asked(theirs, [5, 2, 7]).train(x), asked(ours, [5, 2, 7]).train(x))
