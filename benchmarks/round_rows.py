"""Rows of whole rounds and parts of algorithms: what they cost beside the same in plain PyTorch, and how that grows."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks import plain_matching, plain_penalties, plain_rounds, workloads
from benchmarks.case import Case, Contender, Row
from benchmarks.workloads import CPU, FLOAT, Shape
from fedlab_runner.algorithms.matching.pfnm import Neurons, SquaredDistance, match
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.rng import Purpose, generator

PLAIN: dict[str, Callable[..., Callable[[int], torch.Tensor]]] = {
    "fedavg": plain_rounds.FedAvg,
    "fedbuff": plain_rounds.FedBuff,
    "ca2fl": plain_rounds.CA2FL,
    "scaffold": plain_rounds.SCAFFOLD,
    "fedprox": plain_penalties.FedProx,
    "fednova": plain_penalties.FedNova,
    "feddyn": plain_penalties.FedDyn,
    "fedcda": plain_rounds.FedCDA,
    "fedft": plain_rounds.FedFT,
    "feddle": plain_rounds.Feddle,
}
# Algorithms whose clients follow a penalty too, with its weight.
PENALTIES: dict[str, dict[str, Any]] = {"fedprox": {"mu": 0.1}, "fednova": {"mu": 0.1}, "feddyn": {"alpha": 0.1}}
SEARCHED = Shape(200, 20, 10, 10)  # what the rows of training on the server have for clients
SERVER = {"epochs": 1, "lr": 1e-3, "batch_size": 64}  # an epoch on the server's 500 examples


def rows(cores: int, device: torch.device = CPU, compiled: bool = False) -> Iterator[Row]:
    """How the cost of a round grows, with next to no training, what algorithms add to it, and a part of one. With
    `compiled` executor=auto may compile steps, as in a run; the rows of growth are without.
    """

    def row(name: str, shape: Shape, build: Callable[[], nn.Module] = workloads.empty, **how: Any) -> Row:
        how = {"compiled": compiled} | how
        return Row(name, partial(of_rounds, shape, build, cores, device, **how))

    growth = partial(row, compiled=False)
    for k in (10, 100, 1000):
        yield growth(f"round by K={k}", Shape(2000, 2, k, 2, side=4))
    for n in (100, 1_000, 10_000, 100_000):
        yield growth(f"round by N={n}", Shape(n, 2, 10, 2, side=4))
    for std in (0.0, 5.0, 50.0):
        yield growth(f"round by staleness={std:.0f}", Shape(1000, 2, 10, 2, side=4), delay=std)
    for build, size in ((workloads.logistic, 7850), (workloads.mlp, 199210), (workloads.cnn, 582026)):
        yield growth(f"round by D={size}", Shape(100, 20, 10, 10), build)
    few, known = Shape(20, 20, 10, 10), {"warm": 8}  # by then nearly every client has trained and has its rows
    for name in ("fedavg", "fedbuff", "ca2fl", "scaffold"):
        yield row(f"round of {name}", few, workloads.mlp, algorithm=name, **known)
    yield row("round of scaffold, cnn", few, workloads.cnn, algorithm="scaffold", **known)
    for name, own in PENALTIES.items():
        yield row(f"round of {name}", few, workloads.mlp, algorithm=name, own=own, **known)
    yield row("round of fedcda", Shape(20, 20, 10, 10), workloads.mlp, algorithm="fedcda", own={"warmup": 2})
    optimizers = tuple(f"server_optimizer={name}" for name in ("sgd", "adam", "yogi"))
    yield row("round with a server optimiser", Shape(100, 20, 10, 10), workloads.cnn, added=optimizers)
    at_home = {"added": ("home=head", "home=body"), "warm": 8}  # by then nearly every client has trained
    yield row("round with a part of the model at home", Shape(20, 20, 10, 10), workloads.cnn, **at_home)
    trained = partial(row, shape=SEARCHED, build=workloads.cnn, own=SERVER)
    yield trained("round of fedft", algorithm="fedft")
    yield trained("round of feddle", algorithm="feddle", beside={"fine-tuning": "fedft"})
    yield Row("hyfem matching", partial(_matching, cores))


def of_rounds(
    shape: Shape,
    build: Callable[[], nn.Module],
    cores: int,
    device: torch.device = CPU,
    *,
    algorithm: str = "fedavg",
    delay: float = 0.0,
    own: dict[str, Any] | None = None,
    beside: dict[str, str] | None = None,
    precision: torch.dtype = FLOAT,
    added: tuple[str, ...] = (),
    warm: int = 2,
    compiled: bool = False,
) -> Case:
    """An algorithm, with settings of its `own`, as plain PyTorch has it and as a run has it without a choice; `beside`
    it others of ours in its place, by what they do, and itself with choices `added`. `warm` rounds in each turn do not
    count.
    """
    own, contenders, feds = own or {}, dict[str, Contender](), list[Federation]()
    on_server = "batch_size" in own
    for name, threads in (("plain", cores), ("plain, one thread", 1))[: 1 + (on_server and cores > 1)]:
        fed = shape.federation(build, device=device, precision=precision)
        clients = plain_rounds.Clients(fed, build, shape.delays(delay))
        made = PLAIN[algorithm](clients, fed, **own) if on_server else PLAIN[algorithm](clients, **own)
        contenders[name] = Contender(made, threads, plain=True, warm=warm)

    def ours(algorithm: str, threads: int, added: str = "") -> Contender:
        executor, choice = workloads.automatic(cores, compiled)
        fed = shape.federation(build, executor, delay, device, precision, **workloads.chosen(added))
        feds.append(fed)
        built = workloads.algorithm(algorithm, **own)
        state = built.init(fed)

        def one(round: int) -> torch.Tensor:
            nonlocal state
            fed.begin(round, 1.0)
            state = built.round(state, fed)
            return built.models(state)

        return Contender(one, threads, note=choice, warm=warm)

    contenders["ours"] = ours(algorithm, cores)  # as many as a run takes where nobody else is at work
    if on_server and cores > 1:
        contenders["ours, one thread"] = ours(algorithm, 1)
    contenders |= {f"ours, {name}": ours(algorithm, cores, name) for name in added}
    contenders |= {f"ours, {what}": ours(other, cores) for what, other in (beside or {}).items()}
    return Case(contenders, lambda: workloads.counted_flops(feds[0]))


def _matching(cores: int) -> Case:
    """PFNM's matching of ten clients with 100 hidden neurons each on 785 columns, three sweeps; numpy's products have a
    thread for each core in any case.
    """
    rng = np.random.default_rng(0)
    base = rng.normal(size=(100, 785))
    rows = [(base[rng.permutation(100)] + 0.1 * rng.normal(size=base.shape)).astype(np.float32) for _ in range(10)]
    clients = [Neurons(torch.from_numpy(each), torch.arange(785), 1.0) for each in rows]

    def ours(turn: int) -> object:
        rng = generator(turn, Purpose.ALGORITHM)
        return match(clients, SquaredDistance(1.0), num_columns=785, sweeps=3, rng=rng, limit=500)

    contenders = {
        "plain": Contender(lambda _: plain_matching.match(rows, sweeps=3, penalty=1.0), plain=True),
        "ours": Contender(ours, cores),
    }
    return Case(contenders, pieces=(10 * 4, "client and sweep"))
