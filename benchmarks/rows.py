"""What is measured: each row is one comparison."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks import plain, workloads
from benchmarks.workloads import W1, W2, Shape
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import Processes
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.executors.work import Executor, Work
from fedlab_runner.matching.pfnm import Neurons, SquaredDistance, match
from fedlab_runner.rng import Purpose, generator

MODELS = {"cnn": workloads.cnn, "mlp": workloads.mlp, "logistic": workloads.logistic}
EXECUTORS: dict[str, Executor] = {
    "loop": Loop(compile=False),
    "vectorized": Vectorized(chunk_size=10, compile=False),
    "cohort": Vectorized(chunk_size=None, compile=False),
    "processes": Processes(workers=None, inner=Loop(compile=False)),
}
COMPILED: dict[str, Executor] = {
    "vectorized compiled": Vectorized(chunk_size=10, compile=True),
    "cohort compiled": Vectorized(chunk_size=None, compile=True),
    "processes compiled": Processes(workers=None, inner=Loop(compile=True)),
}


Contenders = dict[str, Callable[[int], object]]


class Case(NamedTuple):
    """Contenders by name, called with the number of the turn, the first is the measure; and what a call computes, where
    that is known: products of matrices and convolutions in FLOPs, and pieces of work of which one is to be told.
    """

    contenders: Contenders
    flops: float | None = None
    pieces: tuple[int, str] | None = None


class Row(NamedTuple):
    """One comparison, made when its turn has come."""

    name: str
    case: Callable[[], Case]


def all_rows(compiled: bool) -> Iterator[Row]:
    """In the order in which they are measured."""
    executors = EXECUTORS | (COMPILED if compiled else {})
    for shape_name, shape, model in (("W1", W1, "cnn"), ("W2", W2, "cnn"), ("W2", W2, "mlp"), ("W2", W2, "logistic")):
        yield Row(f"local training {shape_name} {model}", partial(_training, shape, MODELS[model], executors))
    for name, build, shape in (
        ("cnn_feddle", workloads.cnn_feddle, Shape(10, 20, 5, 10, side=32, channels=3)),
        ("resnet18", workloads.resnet18, Shape(4, 8, 2, 8, side=32, channels=3)),
        ("lora vit", workloads.lora_vit, Shape(4, 8, 2, 8, side=64, channels=3)),
    ):
        few = {name: executors[name] for name in ("loop", "vectorized", "processes")}
        yield Row(f"local training {name}", partial(_training, shape, build, few))
    yield Row("evaluation cnn", _evaluation)
    yield from _rounds()
    yield Row("dfml mutual epoch", _mutual_epoch)
    yield Row("hyfem matching", _matching)


def _training(shape: Shape, build: Callable[[], nn.Module], executors: dict[str, Executor]) -> Case:
    """A cohort's local training, the plain loop first."""
    fed = shape.federation(build)
    work = workloads.work_of(fed)
    contenders: Contenders = {"plain": lambda _: plain.train_cohort(work, build)}
    for name, executor in executors.items():
        contenders[name] = partial(_train, executor, work)
    examples = int(fed.population.num_examples[work.ids].sum())
    return Case(contenders, examples * fed.task.flops(_example(work)).step, (int(work.num_steps.sum()), "step"))


def _train(executor: Executor, work: Work, turn: int) -> object:
    return executor.train(workloads.of_round(work, turn))


def _example(work: Work) -> torch.Tensor:
    return work.task.normalize(work.population.inputs[:1], work.task.dtype)


def _evaluation() -> Case:
    """The server's model on 10,000 examples."""
    fed = W1.federation(workloads.cnn)
    work = workloads.work_of(fed)
    contenders: Contenders = {
        "plain": lambda _: plain.accuracy(work, workloads.cnn, 500),
        "ours": lambda _: [fed.task.predict(work.start, part) for part in fed.population.inputs.split(500)],
    }
    examples = len(fed.population.inputs)
    return Case(contenders, examples * fed.task.flops(_example(work)).forward, (examples, "example"))


def _rounds() -> Iterator[Row]:
    """Whole rounds: how the cost of one grows, with next to no training, and what algorithms cost beside FedAvg."""
    of_k = {f"K={k}": partial(_round, Shape(2000, 2, k, 2, side=4)) for k in (10, 100, 1000)}
    of_n = {f"N={n}": partial(_round, Shape(n, 2, 10, 2, side=4)) for n in (100, 1_000, 10_000, 100_000)}
    late = {f"std={s}": partial(_round, Shape(1000, 2, 10, 2, side=4), delay=s) for s in (0.0, 5.0, 50.0)}
    of_d = {
        f"D={size}": partial(_round, Shape(100, 20, 10, 10), MODELS[name])
        for name, size in (("logistic", 7850), ("mlp", 199210), ("cnn", 582026))
    }
    shape = Shape(200, 20, 10, 10)
    algorithms: dict[str, Callable[[], Callable[[int], object]]] = {
        name: partial(_round, shape, workloads.mlp, algorithm=name)
        for name in ("fedavg", "fedbuff", "scaffold", "ca2fl", "feddle")
    }
    algorithms["fedcda"] = partial(_round, Shape(20, 20, 10, 10), workloads.mlp, algorithm="fedcda", warmup=2)
    for name, makers in (
        ("round by K", of_k),
        ("round by N", of_n),
        ("round by staleness", late),
        ("round by D", of_d),
        ("round by algorithm", algorithms),
    ):
        yield Row(name, partial(_made, makers))


def _made(makers: dict[str, Callable[[], Callable[[int], object]]]) -> Case:
    return Case({name: make() for name, make in makers.items()})


def _mutual_epoch() -> Case:
    """A DFML round with one epoch of mutual learning of 10 models, beside the same round without; the difference, over
    all models and minibatches, is what a model's minibatch costs.
    """
    shape = Shape(20, 100, 9, 10)
    without = _round(shape, workloads.mlp, algorithm="dec_fedavg")
    contenders = {"without": without, "mutual": _round(shape, workloads.mlp, algorithm="dfml", epochs=1)}
    return Case(contenders, pieces=(10 * 10, "model-batch"))


def _matching() -> Case:
    """PFNM's matching of ten clients with 100 hidden neurons each on 785 columns, three sweeps."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(100, 785))
    rows = [torch.from_numpy(base[rng.permutation(100)] + 0.1 * rng.normal(size=base.shape)) for _ in range(10)]
    clients = [Neurons(each, torch.arange(785), 1.0) for each in rows]

    def matched(turn: int) -> object:
        rng = generator(turn, Purpose.ALGORITHM)
        return match(clients, SquaredDistance(1.0), num_columns=785, sweeps=3, rng=rng, limit=500)

    return Case({"match": matched}, pieces=(10 * 4, "client and sweep"))


def _round(
    shape: Shape,
    build: Callable[[], Any] = workloads.empty,
    *,
    delay: float = 0.0,
    algorithm: str = "fedavg",
    **changes: Any,
) -> Callable[[int], object]:
    fed = shape.federation(build, delay=delay)
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
