"""Hands a reference loop what the package draws, and puts the package's State in the loop's terms.

`problem(fed)` is what a loop needs to know of a federation; `plain(state)` is a State as plain values;
`largest_difference` compares two of them.
"""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlab_runner.algorithms.shared.server_batches import server_batches
from fedlab_runner.algorithms.shared.server_training import SERVER_STREAMS
from fedlab_runner.core.algorithm import Algorithm
from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.losses import CE, WSM
from fedlab_runner.core.rng import Purpose, generator, generators, torch_seed
from fedlab_runner.core.server_data import ServerData
from fedlab_runner.models._blocks import BlockNetwork
from fedlab_runner.models.base import Architecture
from fedlab_runner.models.blocks_mlp import BlocksMLP
from fedlab_runner.topologies.ring import Ring
from tests.helpers.mixed import sliceable
from tests.helpers.neurons import deep
from tests.helpers.toy import (
    CLASSES,
    FEATURES,
    RAGGED,
    algorithm,
    federation,
    home,
    local,
    mlp,
    model_family,
    server_data,
    server_optimizer,
)
from tests.reference.plain import Case, Data, Fields, Local, Net, Problem, Start

OTHER_CLASSES = 4  # of the server's out-of-domain examples
TOLERANCE = 1e-10  # of a value of a State; the loops add up in another order
FACTOR = 0.5  # the schedule's, in each round: a loop has the product with `local.lr`, and knows of no schedule
# Keys that say where or how often something is computed, not what.
NOT_OF_THE_PAPER = {"store_on", "cache_teachers", "chunk_size"}


def wide_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 9), nn.Tanh(), nn.Linear(9, CLASSES))


def batch_norm() -> nn.Module:
    """Without a bias before batch norm: its gradient is zero but for rounding, which Adam would divide by itself."""
    first, last = nn.Linear(FEATURES, 6, bias=False), nn.Linear(6, CLASSES)
    return nn.Sequential(first, nn.BatchNorm1d(6), nn.ReLU(), last)


def blocks(hidden: Sequence[int] = (6,), server_hidden: Sequence[int] = (9,)) -> nn.Module:
    """Extractors of blocks of 2, 2 and 1 features, with a server that may grow."""
    wide = BlocksMLP(None, None, [2, 2, 1], None, [4, 3], list(hidden), list(server_hidden))
    return wide.build(FEATURES, 1, CLASSES)


def blocks_norm() -> nn.Module:
    """Extractors with batch norm."""
    built: Any = blocks()
    for extract in built.extractors:
        extract.insert(1, nn.BatchNorm1d(4))
    return built


NETWORKS = {
    "mlp": mlp,
    "batch_norm": batch_norm,
    "wide_mlp": wide_mlp,
    "deep": deep,
    "blocks": blocks,
    "blocks_norm": blocks_norm,
    "blocks_deep": lambda: blocks((6, 5), (9, 8)),
} | {f"width_{width}{kind}": sliceable(width, norm=bool(kind)) for width in (4, 2, 1) for kind in ("", "_norm")}
# Who has which of the blocks: pairs of clients with the same ones, and every block has several holders.
HELD = np.array([[1, 1, 0], [0, 1, 1], [1, 1, 0], [1, 0, 1], [0, 1, 0], [1, 1, 1], [0, 1, 1], [1, 0, 0]], dtype=bool)
LOSSES = {"ce": CE(), "wsm": WSM()}


def all_cases() -> list[Case]:
    """The cases of all reference loops, by file."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py"))
    modules = (importlib.import_module(f"tests.reference.{name}") for name in names if not name.startswith("test_"))
    return [case for module in modules for case in getattr(module, "CASES", ())]


def build(case: Case, models: tuple[str, ...], executor: Executor | None = None) -> Federation:
    """The federation of a case: eight clients with 1 to 40 examples."""
    setting = local(**case.local)
    fed = federation(
        RAGGED,
        builds=[NETWORKS[name] for name in models],
        cohort=case.cohort,
        std=case.std,
        training=replace(setting, lr=setting.lr / FACTOR),
        optimizer=None if case.optimizer is None else server_optimizer(case.optimizer[0], **case.optimizer[1]),
        home=None if case.home is None else home(case.home),
        executor=executor,
        loss_function=LOSSES[case.loss],
        topology=Ring().draw(np.random.default_rng(0), len(RAGGED)) if case.topology == "ring" else None,
        server=server_data(75, seed=13, num_classes=OTHER_CLASSES) if case.out_of_domain else None,
    )
    fed.blocks = HELD if isinstance(fed.family.module, BlockNetwork) else None
    return fed


def keys(case: Case) -> dict[str, Any]:
    """The keys of a method's config that its paper knows."""
    return paper_keys(algorithm(case.method, **case.keys))


def paper_keys(built: Any) -> dict[str, Any]:
    """A method's keys; a model as the function that builds it, another method as its keys and its name."""
    values = {each.name: getattr(built, each.name) for each in dataclass_fields(built)}
    return {name: in_plain_words(value) for name, value in values.items() if name not in NOT_OF_THE_PAPER}


def in_plain_words(value: Any) -> Any:
    """The value of a key without the package's classes."""
    if isinstance(value, Algorithm):
        return {"name": value.name} | paper_keys(value)
    return (lambda: value.build(FEATURES, 1, CLASSES)) if isinstance(value, Architecture) else value


def curve(case: Case, fed: Federation, rounds: int) -> Iterator[Fields]:
    """The package's State after each round."""
    built = algorithm(case.method, **case.keys)
    state = built.init(fed)
    for round in range(rounds):
        fed.begin(round, FACTOR)
        state = built.round(state, fed)
        at_home = {} if case.home is None else {"home": fed.home.state_dict()["settled"]}
        yield plain(state) | at_home


def problem(fed: Federation, rounds: int, late: bool, factor: float = 1.0) -> Problem:
    """What a federation draws. `late`: whether clients start by the clock, with delays. `factor`: of the schedule."""
    assert fed.server_data is not None and fed.auxiliary_data is not None
    cohorts = [[Start(*pair) for pair in zip(s.ids.tolist(), s.due.tolist(), strict=True)] for s in fed.ahead(rounds)]
    assert late == any(start.due > t for t, cohort in enumerate(cohorts) for start in cohort)

    def rows(plan: Any) -> list[Tensor]:
        return [plan.indices[0, t, :size] for t, size in enumerate(plan.sizes[0].tolist()) if size]

    def batches(
        client: int, round: int, purpose: str = "BATCHES", epochs: int | None = None, drop_single: bool | None = None
    ) -> list[Tensor]:
        how = fed.local if epochs is None else replace(fed.local, epochs=epochs, steps=None)
        drop = fed.families[client % len(fed.families)].has_batch_norm if drop_single is None else drop_single
        seed, ids, stream = fed.seed, np.array([client]), Purpose[purpose]
        return rows(fed.client_data.plan(ids, how, seed=seed, round=round, drop_single=drop, purpose=stream))

    def sample(round: int, clients: Sequence[int]) -> list[int]:
        fed.round = round
        return fed.sample_clients(np.array(clients)).tolist()

    def of_server(
        round: int,
        epochs: int,
        batch_size: int,
        max_steps: int | None = None,
        stage: int = 0,
        training: bool = True,
        purpose: str = "SERVER_BATCHES",
        data: Data | None = None,
    ) -> list[Tensor]:
        x, y = data or Data(fed.server_data.inputs, fed.server_data.targets)
        numbered = ServerData(x, torch.arange(len(y)), len(y), in_domain=True)
        fed.round = round
        drawn = server_batches(
            fed, epochs, batch_size, max_steps, stage=stage, training=training, data=numbered, purpose=Purpose[purpose]
        )
        return [batch.targets for batch in drawn]

    def as_client(round: int) -> list[Tensor]:
        data = fed.server_data
        everyone = [np.arange(len(data))]
        client_data = ClientData(data.inputs, data.targets, everyone, fed.family.device, SERVER_STREAMS)
        drop, ids = fed.family.has_batch_norm, np.zeros(1, np.int64)
        return rows(client_data.plan(ids, fed.local, seed=fed.seed, round=round, drop_single=drop))

    def rng(purpose: str, round: int = 0, client: int = 0, step: int = 0) -> np.random.Generator:
        if not step:
            return generator(fed.seed, Purpose[purpose], round, client)
        return next(generators(fed.seed, Purpose[purpose], round, np.array([client]), step))

    def initial(make: Any = None, seed: int | None = None, number: int = 0) -> Tensor:
        family = fed.family if make is None else model_family(make)
        return family.init(fed.seed if seed is None else seed, number)

    def uniform(purpose: str, n: int) -> Tensor:
        rng = torch.Generator().manual_seed(torch_seed(fed.seed, Purpose[purpose]))
        return torch.rand(n, generator=rng, dtype=torch.float64)

    data = fed.client_data
    setting = fed.local
    return Problem(
        nets=[Net(family.build, fed.family.dtype) for family in fed.families],
        data=Data(data.inputs, data.targets),
        members=[torch.from_numpy(data.members(i)) for i in range(data.num_clients)],
        num_classes=fed.family.num_classes,
        local=Local(
            setting.lr * factor, setting.momentum or 0.0, setting.weight_decay, setting.batch_size, setting.epochs or 0
        ),
        num_rounds=rounds,
        server=Data(fed.server_data.inputs, fed.server_data.targets),
        server_classes=fed.server_data.num_classes,
        auxiliary=Data(fed.auxiliary_data.inputs, fed.auxiliary_data.targets),
        auxiliary_classes=fed.auxiliary_data.num_classes,
        loss=next(name for name, loss in LOSSES.items() if loss == fed.family.loss_function),
        topology=fed.topology,
        blocks=fed.blocks,
        cohort=lambda round: cohorts[round],
        sample=sample,
        batches=batches,
        server_batches=of_server,
        server_client_batches=as_client,
        rng=rng,
        initial=initial,
        uniform=uniform,
    )


def plain(value: Any) -> Any:
    """A State's values by field name. Clients' rows are kept in memory (`store_on=device`)."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {k: plain(v) for k, v in value._asdict().items()}
    return [plain(v) for v in value] if isinstance(value, tuple | list) else value


def largest_difference(mine: Any, theirs: Any, where: str = "State") -> float:
    """The largest difference between two values of one shape; AssertionError where the shapes differ."""
    if isinstance(theirs, tuple) and hasattr(theirs, "_fields"):
        theirs = theirs._asdict()
    if isinstance(mine, dict):
        assert isinstance(theirs, dict) and mine.keys() == theirs.keys(), f"{where}: {list(mine)} and {list(theirs)}"
        return max((largest_difference(mine[k], theirs[k], f"{where}.{k}") for k in mine), default=0.0)
    if isinstance(mine, list):
        assert len(mine) == len(theirs), f"{where}: {len(mine)} and {len(theirs)} values"
        pairs = zip(mine, theirs, strict=True)
        return max((largest_difference(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(pairs)), default=0.0)
    if isinstance(mine, Tensor):
        assert mine.shape == theirs.shape, f"{where}: {tuple(mine.shape)} and {tuple(theirs.shape)}"
        return float((mine.double() - theirs.double()).abs().max()) if mine.numel() else 0.0
    if mine is None or isinstance(mine, str):
        assert mine == theirs, f"{where}: {mine} and {theirs}"
        return 0.0
    return 0.0 if mine == theirs else abs(float(mine) - float(theirs))  # infinities are equal to themselves
