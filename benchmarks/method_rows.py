"""A row of whole rounds for each method and model: its reference loop (`tests/reference`), in the precision of a run
and on the threads of a plain loop, beside what a run takes.

A reference loop is plain PyTorch written from the paper, without a DataLoader and without an optimiser's object: a step
is a call of the network, a gradient and `w - lr * g`.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from typing import Any

from torch import nn

from benchmarks import workloads
from benchmarks.case import Case, Contender, Row
from benchmarks.workloads import CPU, FLOAT, Shape
from fedlab_runner.config.build import conf_dir
from fedlab_runner.core.federation import Federation

METHODS = sorted(path.stem for path in (conf_dir() / "algorithm").glob("*.yaml"))
# Methods and models without a row: HyFEM needs networks of feature blocks (its matching has a row of its own), and the
# reference loops of neuron matching and of models cut in width know linear layers alone.
LINEAR = "gamf", "fedma", "federated_dropout", "fedrolex", "heterofl"
WITHOUT = {("hyfem", "mlp"), ("hyfem", "cnn"), *((method, "cnn") for method in LINEAR)}
SHAPE, WARM = Shape(20, 20, 10, 10), 4  # by then nearly every client has trained and has its rows
MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": workloads.mlp, "cnn": workloads.cnn}
ROUNDS = 24  # of a reference loop, which keeps all updates that were ever sent, until it begins anew
# Keys that are not the default. Where a server trains or models teach each other, a round has one epoch of it, which
# leaves local training a part of the round; Center's number is of all rounds.
OWN: dict[str, dict[str, Any]] = {"center": {"epochs": 10_000}}


def rows(cores: int, compiled: bool) -> Iterator[Row]:
    """For every method and model that fits it."""
    for method in METHODS:
        for name, build in MODELS.items():
            if (method, name) not in WITHOUT:
                yield Row(f"method {method}, {name}", partial(of_method, method, build, cores, compiled))


def own_keys(method: str) -> dict[str, Any]:
    """The changes of a method's defaults."""
    from tests.helpers import toy

    trains = any(each.name == "epochs" for each in fields(toy.algorithm(method)))
    return OWN.get(method, {"epochs": 1} if trains else {})


def of_method(method: str, build: Callable[[], nn.Module], cores: int, compiled: bool, shape: Shape = SHAPE) -> Case:
    """The reference loop, and the method in a run."""
    from tests.helpers import toy  # of the repository, not of the package
    from tests.reference import harness

    case = next(case for case in harness.all_cases() if case.method == method and not case.std)
    home = {} if case.home is None else {"home": toy.home(case.home)}
    built = toy.algorithm(method, **own_keys(method))
    keys = harness.paper_keys(built)

    def federation(executor: Any = None) -> Federation:
        fed = shape.federation(build, executor, 0.0, CPU, FLOAT, **home)
        fed.auxiliary_data = fed.server_data
        return fed

    drawn = harness.problem(federation(), ROUNDS, late=False)
    going = case.reference(drawn, **keys)

    def plain(_: int) -> object:
        nonlocal going
        if (state := next(going, None)) is None:
            going = case.reference(drawn, **keys)
            state = next(going)
        return state

    executor, choice = workloads.automatic(cores, compiled)
    fed = federation(executor)
    state = built.init(fed)

    def ours(round: int) -> object:
        nonlocal state
        fed.begin(round, 1.0)
        state = built.round(state, fed)
        return built.models(state)

    contenders = {
        "plain": Contender(plain, cores, plain=True, warm=WARM),
        "ours": Contender(ours, cores, note=choice, warm=WARM),
    }
    return Case(contenders, partial(workloads.counted_flops, fed))
