"""What is measured: each row is one comparison."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType

import numpy as np
import torch
from torch import nn

from benchmarks import plain, ray_rows, round_rows, workloads
from benchmarks.case import Case, Contender, Row
from benchmarks.workloads import CPU, FLOAT, W1, W2, Shape
from fedlab_runner.algorithms.fedavg import FedAvg
from fedlab_runner.algorithms.shared.averaging import Params
from fedlab_runner.algorithms.shared.mutual_learning import Learners, mutual_learning, mutual_losses, teacher_weights
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.work import Work
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.evaluation.client_models import ClientModels
from fedlab_runner.evaluation.matrix import Matrix
from fedlab_runner.evaluation.scores import on_examples
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import Processes
from fedlab_runner.executors.ray import Ray
from fedlab_runner.executors.vectorized import Vectorized

Others = Callable[[Work, Callable[[], nn.Module]], dict[str, Contender]]
MANY = Shape(100, 100, 10, 20)  # the clients of the row of the evaluation matrix
MUTUAL = Shape(10, 160, 10, 32, side=32, channels=3)  # DFML's client


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
    if find_spec("ray"):
        shared: dict[str, Executor] = {"processes": Processes(cores, Vectorized(chunk_size=10, compile=False))}
        shared["ray"] = Ray(None, 0, Vectorized(chunk_size=10, compile=False))
        yield Row("local training W2 mlp, Ray", partial(training, W2, workloads.mlp, shared, cores, False))
        yield from ray_rows.rows(cores)
        yield Row(
            "mutual learning dfml_cnn, Ray",
            partial(mutual, workloads.dfml_cnn, MUTUAL, cores, cluster=Ray(None, 0, Loop(compile=False))),
        )
    yield Row("evaluation cnn", partial(evaluation, cores))
    yield Row("evaluation matrix cnn", partial(matrix, cores))
    yield Row("evaluation of clients' models, mlp", partial(own_models, cores))
    yield from round_rows.rows(cores, compiled=compiled)
    yield Row("mutual learning mlp", partial(mutual, workloads.mlp, Shape(10, 100, 10, 10), cores))
    yield Row(
        "mutual learning dfml_cnn",
        partial(mutual, workloads.dfml_cnn, MUTUAL, cores),
    )


def _one_thread(work: Work, build: Callable[[], nn.Module]) -> dict[str, Contender]:
    return {"plain, one thread": Contender(lambda _: plain.train_cohort(work, build), plain=True)}


def training(
    shape: Shape,
    build: Callable[[], nn.Module],
    some: dict[str, Executor],
    cores: int,
    compiled: bool,
    device: torch.device = CPU,
    others: Others = _one_thread,
    precision: torch.dtype = FLOAT,
) -> Case:
    """A cohort's local training, the plain loop first; what a user gets without a choice last."""
    fed = shape.federation(build, device=device, precision=precision)
    work = workloads.work_of(fed)
    contenders = {
        "plain": Contender(lambda _: plain.train_cohort(work, build), cores, plain=True),
        "plain, lean": Contender(lambda _: plain.train_cohort_lean(work, build), cores, plain=True),
    }
    contenders |= others(work, build)
    for name, executor in some.items():
        contenders[name] = Contender(partial(_train, executor, work))
    auto, choice = workloads.automatic(cores, compiled)
    contenders["auto"] = Contender(partial(_train, auto, work), note=choice)
    examples = int(fed.client_data.num_examples[work.ids].sum())
    return Case(contenders, examples * fed.family.flops(_example(work)).step, (int(work.num_steps.sum()), "step"))


def _train(executor: Executor, work: Work, turn: int) -> object:
    return executor.train(workloads.of_round(work, turn))


def _example(work: Work) -> torch.Tensor:
    return work.family.normalize(work.client_data.inputs[:1], work.family.dtype)


def evaluation(
    cores: int,
    device: torch.device = CPU,
    precision: torch.dtype = FLOAT,
    prepared: Mapping[str, Callable[[nn.Module], plain.Call]] = MappingProxyType({}),
    shape: Shape = W1,
) -> Case:
    """The server's model on all examples, 10,000 of them; `prepared` are other ways to call it in plain PyTorch."""
    fed = shape.federation(workloads.cnn, device=device, precision=precision)
    work = workloads.work_of(fed)

    test = Examples(fed.client_data.inputs, fed.client_data.targets, None, None)
    judge = workloads.evaluation(batch_size=500)

    def ours(_: int) -> object:
        return judge.evaluate(fed.executor, fed.family, work.start, test)

    contenders = {
        "plain": Contender(lambda _: plain.accuracy(work, workloads.cnn, 500), plain=True),
        **{f"plain, {name}": Contender(partial(_accuracy, work, way), plain=True) for name, way in prepared.items()},
        "ours": Contender(ours),
    }
    several = {
        f"plain, {cores} threads": Contender(lambda _: plain.accuracy(work, workloads.cnn, 500), cores, plain=True),
        f"ours, {cores} threads": Contender(ours, threads=cores),
    }
    if cores > 1:
        contenders |= several
    examples = len(fed.client_data.inputs)
    return Case(contenders, examples * fed.family.flops(_example(work)).forward, (examples, "example"))


class _OwnModels(FedAvg):
    """FedAvg whose clients use models of their own."""

    def client_models(self, state: Params, fed: Federation, ids: np.ndarray) -> torch.Tensor:
        return state.params * (1 + 1e-4 * torch.from_numpy(ids).to(state.params).unsqueeze(1))


def matrix(cores: int, shape: Shape = MANY, executor: Executor | None = None) -> Case:
    """Cells of the evaluation matrix, each on every client's own examples, beside one pass of a model over them all."""
    fed = shape.federation(workloads.cnn, executor or Vectorized(chunk_size=10, compile=False))
    fed.client_tests, work, built = fed.client_data, workloads.work_of(fed), _OwnModels("delta", "size", 1.0)
    state, test = Params(work.start), Examples(fed.client_data.inputs[:1], fed.client_data.targets[:1], None, None)

    def ours(cell: str, turn: int) -> object:
        asked = workloads.evaluation(matrix=[cell])
        judge = Matrix(asked, built, fed, test, ClientModels(asked, fed, test))
        return judge.evaluate(state, turn, {})

    passed = Contender(lambda _: plain.accuracy(work, workloads.cnn, 500), plain=True, warm=0)
    contenders = {"plain": passed}
    contenders |= {cell: Contender(partial(ours, cell), warm=0) for cell in ("server/own", "client/own")}
    if cores > 1:
        contenders |= {f"plain, {cores} threads": passed._replace(threads=cores)}
        contenders |= {f"client/own, {cores} threads": Contender(partial(ours, "client/own"), cores, warm=0)}
    examples = len(fed.client_data.inputs)
    return Case(contenders, examples * fed.family.flops(_example(work)).forward, (examples, "example"))


def own_models(cores: int) -> Case:
    """The models of 20 clients on the same 2,000 examples, with what executor=auto evaluates them by."""
    fed = Shape(20, 100, 10, 20).federation(workloads.mlp, Vectorized(chunk_size=10, compile=False))
    work, data = workloads.work_of(fed), fed.client_data
    models = torch.stack([fed.family.init(seed) for seed in range(20)])

    def ours(_: int) -> object:
        return on_examples(fed.executor, fed.family, models, data.inputs, data.targets, 500)

    def others(_: int) -> object:
        return [plain.accuracy(work, workloads.mlp, 500) for _ in models]

    contenders = {"plain": Contender(others, plain=True), "ours": Contender(ours)}
    if cores > 1:
        contenders[f"plain, {cores} threads"] = Contender(others, cores, plain=True)
        contenders[f"ours, {cores} threads"] = Contender(ours, cores)
    seen = len(models) * len(data.inputs)
    return Case(contenders, seen * fed.family.flops(_example(work)).forward, (seen, "model and example"))


def _accuracy(work: Work, prepared: Callable[[nn.Module], plain.Call], turn: int) -> float:
    return plain.accuracy(work, workloads.cnn, 500, prepared)


def mutual(
    build: Callable[[], nn.Module],
    shape: Shape,
    cores: int,
    device: torch.device = CPU,
    precision: torch.dtype = FLOAT,
    cluster: Ray | None = None,
) -> Case:
    """An epoch of mutual learning of ten models on one client's examples; on a GPU in one process, and with a cluster
    also on its workers.
    """
    alone, shared = (
        shape.federation(build, executor=each, device=device, precision=precision)
        for each in (Vectorized(chunk_size=None, compile=False), Processes(cores, Loop(compile=False)))
    )
    count, alpha, work = 10, 0.5, workloads.work_of(alone)
    models = torch.stack([alone.family.init(seed) for seed in range(count)])
    weights, modules = teacher_weights(torch.ones(count, device=device)), [build().to(device) for _ in range(count)]

    def ours(fed: Federation, turn: int) -> object:
        fed.begin(turn, 1.0)
        objective = partial(mutual_losses, weights=weights, gamma=1 - alpha, alpha=alpha)
        return mutual_learning(fed, 0, [Learners(fed.family, models)], 1, objective)

    def others(_: int) -> None:
        plain.learn_mutually(work, 0, modules, alpha)

    steps = count * -(-shape.examples // shape.batch)
    flops = partial(workloads.counted_flops, alone)
    if device.type != "cpu":
        contenders = {"plain": Contender(others, plain=True), "ours": Contender(partial(ours, alone))}
        return Case(contenders, flops, (steps, "model and minibatch"))
    contenders = {
        "plain": Contender(others, cores, plain=True),
        "plain, one thread": Contender(others, plain=True),
        "ours": Contender(partial(ours, shared), cores),
        "ours, one thread": Contender(partial(ours, alone)),
    }
    if cluster is not None:
        contenders["ray"] = Contender(ray_rows.on_workers(shape.federation(build, executor=cluster), ours), cores)
    return Case(contenders, flops, (steps, "model and minibatch"))
