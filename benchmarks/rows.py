"""What is measured: each row is one comparison."""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks import plain, workloads
from benchmarks.workloads import CPU, W1, W2, Shape
from fedlab_runner import sealed
from fedlab_runner.distillation import Learners, mutual_learning, mutual_losses, teacher_weights
from fedlab_runner.executors.auto import Auto
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.memory import CHOICES
from fedlab_runner.executors.processes import Processes
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.executors.work import Executor, Work
from fedlab_runner.federation import Federation
from fedlab_runner.matching.pfnm import Neurons, SquaredDistance, match
from fedlab_runner.rng import Purpose, generator

ROUNDS = 10_000  # of the run that executor=auto chooses for


class Contender(NamedTuple):
    """What is called with the number of the turn, and the threads that it may use; `plain` is what is not this
    package's; `note` says what there is to know when all is over.
    """

    call: Callable[[int], object]
    threads: int = 1
    plain: bool = False
    note: Callable[[], str] = str


class Case(NamedTuple):
    """Contenders by name, the first is the measure; and what a call computes, where that is known: products of matrices
    and convolutions in FLOPs, and pieces of work of which one is to be told.
    """

    contenders: dict[str, Contender]
    flops: float | None = None
    pieces: tuple[int, str] | None = None


class Row(NamedTuple):
    """One comparison, made when its turn has come."""

    name: str
    case: Callable[[], Case]


def executors(cores: int, compiled: bool) -> dict[str, Executor]:
    """Those that a user can name."""
    some: dict[str, Executor] = {}
    for compile in (False, True)[: 1 + compiled]:
        suffix, loop = " compiled" if compile else "", Loop(compile=compile)
        some["loop" + suffix] = loop
        some["vectorized" + suffix] = Vectorized(chunk_size=10, compile=compile)
        some["cohort" + suffix] = Vectorized(chunk_size=None, compile=compile)
        some["processes" + suffix] = Processes(workers=cores, inner=loop)
    if compiled:
        some["processes, vectorized compiled"] = Processes(cores, Vectorized(chunk_size=10, compile=True))
    return some


def all_rows(cores: int, compiled: bool) -> Iterator[Row]:
    """In the order in which they are measured."""
    everyone, no_stacks = executors(cores, compiled), executors(cores, compiled)
    # Many convolutions at once are slower on a CPU: one contender shows it.
    for name in ("cohort", *(each for each in everyone if each.endswith(("vectorized compiled", "cohort compiled")))):
        no_stacks.pop(name)
    for name, shape, model, some in (
        ("W1 cnn", W1, workloads.cnn, no_stacks),
        ("W2 cnn", W2, workloads.cnn, no_stacks),
        ("W2 mlp", W2, workloads.mlp, everyone),
        ("W2 logistic", W2, workloads.logistic, everyone),
        ("cnn_feddle", Shape(10, 20, 5, 10, side=32, channels=3), workloads.cnn_feddle, no_stacks),
    ):
        yield Row(f"local training {name}", partial(training, shape, model, some, cores, compiled))
    for name, build, shape in (
        ("resnet18", workloads.resnet18, Shape(4, 8, 2, 8, side=32, channels=3)),
        ("lora vit", workloads.lora_vit, Shape(4, 8, 2, 8, side=64, channels=3)),
    ):
        some = {name: each for name, each in executors(cores, False).items() if name != "cohort"}
        yield Row(f"local training {name}", partial(training, shape, build, some, cores, False))
    yield Row("evaluation cnn", partial(evaluation, cores))
    yield from rounds()
    yield Row("mutual learning mlp", partial(_mutual, workloads.mlp, Shape(10, 100, 10, 10), cores))
    yield Row(
        "mutual learning dfml_cnn",
        partial(_mutual, workloads.dfml_cnn, Shape(10, 160, 10, 32, side=32, channels=3), cores),
    )
    yield Row("hyfem matching", _matching)


def _one_thread(work: Work, build: Callable[[], nn.Module]) -> dict[str, Contender]:
    return {"plain, one thread": Contender(lambda _: plain.train_cohort(work, build), plain=True)}


def training(
    shape: Shape,
    build: Callable[[], nn.Module],
    some: dict[str, Executor],
    cores: int,
    compiled: bool,
    device: torch.device = CPU,
    others: Callable[[Work, Callable[[], nn.Module]], dict[str, Contender]] = _one_thread,
) -> Case:
    """A cohort's local training, the plain loop first; what a user gets without a choice last."""
    fed = shape.federation(build, device=device)
    work = workloads.work_of(fed)
    contenders = {
        "plain": Contender(lambda _: plain.train_cohort(work, build), cores, plain=True),
        "plain, lean": Contender(lambda _: plain.train_cohort_lean(work, build), cores, plain=True),
    }
    contenders |= others(work, build)
    for name, executor in some.items():
        contenders[name] = Contender(partial(_train, executor, work))
    folder = Path(tempfile.mkdtemp(prefix="fedlab-bench-"))
    auto = Auto(seconds=0.0, workers=cores, compile=compiled).in_run(folder, ROUNDS)
    contenders["auto"] = Contender(partial(_train, auto, work), note=lambda: _choice(folder))
    weakref.finalize(auto, shutil.rmtree, folder, ignore_errors=True)
    examples = int(fed.population.num_examples[work.ids].sum())
    return Case(contenders, examples * fed.task.flops(_example(work)).step, (int(work.num_steps.sum()), "step"))


def _choice(folder: Path) -> str:
    """What executor=auto has noted in the folder of a run."""
    (of_machine,) = sealed.read(folder / CHOICES).values()
    return ", ".join(of_machine.values())


def _train(executor: Executor, work: Work, turn: int) -> object:
    return executor.train(workloads.of_round(work, turn))


def _example(work: Work) -> torch.Tensor:
    return work.task.normalize(work.population.inputs[:1], work.task.dtype)


def evaluation(cores: int, device: torch.device = CPU) -> Case:
    """The server's model on 10,000 examples."""
    fed = W1.federation(workloads.cnn, device=device)
    work = workloads.work_of(fed)
    ours = lambda _: [fed.task.predict(work.start, part) for part in fed.population.inputs.split(500)]  # noqa: E731
    contenders = {
        "plain": Contender(lambda _: plain.accuracy(work, workloads.cnn, 500), plain=True),
        "ours": Contender(ours),
    }
    several = {
        f"plain, {cores} threads": Contender(lambda _: plain.accuracy(work, workloads.cnn, 500), cores, plain=True),
        f"ours, {cores} threads": Contender(ours, threads=cores),
    }
    if cores > 1:
        contenders |= several
    examples = len(fed.population.inputs)
    return Case(contenders, examples * fed.task.flops(_example(work)).forward, (examples, "example"))


def rounds(device: torch.device = CPU) -> Iterator[Row]:
    """Whole rounds: how the cost of one grows, with next to no training, and what algorithms cost beside FedAvg."""
    _round = partial(_a_round, device)
    of_k = {f"K={k}": partial(_round, Shape(2000, 2, k, 2, side=4)) for k in (10, 100, 1000)}
    of_n = {f"N={n}": partial(_round, Shape(n, 2, 10, 2, side=4)) for n in (100, 1_000, 10_000, 100_000)}
    late = {f"std={s}": partial(_round, Shape(1000, 2, 10, 2, side=4), delay=s) for s in (0.0, 5.0, 50.0)}
    of_d = {
        f"D={size}": partial(_round, Shape(100, 20, 10, 10), build)
        for build, size in ((workloads.logistic, 7850), (workloads.mlp, 199210), (workloads.cnn, 582026))
    }
    shape, few = Shape(200, 20, 10, 10), Shape(20, 20, 10, 10)
    algorithms = {
        name: partial(_round, shape, workloads.mlp, algorithm=name)
        for name in ("fedavg", "fedbuff", "scaffold", "ca2fl")
    }
    selection = {
        "fedavg": partial(_round, few, workloads.mlp),
        "fedcda": partial(_round, few, workloads.mlp, algorithm="fedcda", warmup=2),
    }
    server = {
        name: partial(_round, shape, workloads.cnn, algorithm=name, epochs=1, lr=1e-3, batch_size=64)
        for name in ("fedft", "feddle")
    }
    for name, makers in (
        ("round by K", of_k),
        ("round by N", of_n),
        ("round by staleness", late),
        ("round by D", of_d),
        ("round by algorithm", algorithms),
        ("round with fedcda's selection", selection),
        ("round with an epoch on the server", server),
    ):
        yield Row(name, partial(_made, makers))


def _made(makers: Mapping[str, Callable[[], Callable[[int], object]]]) -> Case:
    return Case({name: Contender(make()) for name, make in makers.items()})


def _mutual(build: Callable[[], nn.Module], shape: Shape, cores: int) -> Case:
    """An epoch of mutual learning of ten models on one client's examples."""
    alone, shared = (
        shape.federation(build, executor=each)
        for each in (Vectorized(chunk_size=None, compile=False), Processes(cores, Loop(compile=False)))
    )
    count, alpha = 10, 0.5
    models = torch.stack([alone.task.init(seed) for seed in range(count)])
    weights, modules = teacher_weights(torch.ones(count)), [build() for _ in range(count)]

    def ours(fed: Federation, turn: int) -> object:
        fed.begin(turn, 1.0)
        objective = partial(mutual_losses, weights=weights, gamma=1 - alpha, alpha=alpha)
        return mutual_learning(fed, 0, [Learners(fed.task, models)], 1, objective)

    def others(_: int) -> None:
        plain.learn_mutually(alone.population, 0, modules, shape.batch, alone.lr, alpha)

    steps = count * -(-shape.examples // shape.batch)
    contenders = {
        "plain": Contender(others, cores, plain=True),
        "plain, one thread": Contender(others, plain=True),
        "ours": Contender(partial(ours, alone)),
        f"ours, {cores} threads": Contender(partial(ours, alone), threads=cores),
        "ours, processes": Contender(partial(ours, shared)),
    }
    return Case(contenders, pieces=(steps, "model and minibatch"))


def _matching() -> Case:
    """PFNM's matching of ten clients with 100 hidden neurons each on 785 columns, three sweeps."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(100, 785))
    rows = [torch.from_numpy(base[rng.permutation(100)] + 0.1 * rng.normal(size=base.shape)) for _ in range(10)]
    clients = [Neurons(each, torch.arange(785), 1.0) for each in rows]

    def matched(turn: int) -> object:
        rng = generator(turn, Purpose.ALGORITHM)
        return match(clients, SquaredDistance(1.0), num_columns=785, sweeps=3, rng=rng, limit=500)

    return Case({"match": Contender(matched)}, pieces=(10 * 4, "client and sweep"))


def _a_round(
    device: torch.device,
    shape: Shape,
    build: Callable[[], Any] = workloads.empty,
    *,
    delay: float = 0.0,
    algorithm: str = "fedavg",
    **changes: Any,
) -> Callable[[int], object]:
    fed = shape.federation(build, delay=delay, device=device)
    built = _algorithm(algorithm, changes)
    state = built.init(fed)

    def one(round: int) -> None:
        nonlocal state
        fed.begin(round, 1.0)
        state = built.round(state, fed)

    return one


def _algorithm(name: str, changes: dict[str, Any]) -> Any:
    import hydra.utils
    from omegaconf import OmegaConf

    from fedlab_runner.config import conf_dir

    return hydra.utils.instantiate(
        OmegaConf.load(conf_dir() / "algorithm" / f"{name}.yaml"), **changes, _convert_="all"
    )
