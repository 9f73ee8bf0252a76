"""Server optimisers around FedAvg, SCAFFOLD and the methods that step more than once a round."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.reference.ca2fl import ca2fl
from tests.reference.fedasync import WHERE, fedasync
from tests.reference.fedavg import fedavg
from tests.reference.fedbuff import fedbuff
from tests.reference.plain import MLP, Case, Fields
from tests.reference.scaffold import scaffold
from tests.reference.server_step import FedAvgM, FedOpt

ADAM = {"lr": 0.03, "beta1": 0.8, "beta2": 0.9, "tau": 0.01}
YOGI = {"lr": 0.05, "beta1": 0.7, "beta2": 0.95, "tau": 0.02}
ADAGRAD = {"lr": 0.1, "beta1": 0.0, "tau": 0.01}
NESTEROV = {"lr": 0.9, "momentum": 0.6, "nesterov": True}


def case(name: str, loop: Callable[..., Iterator[Fields]], optimizer: str, its: dict[str, Any], **how: Any) -> Case:
    made = partial(FedAvgM if optimizer == "sgd" else partial(FedOpt, name=optimizer), **its)
    return Case(name, partial(loop, optimizer=made), optimizer=(optimizer, its), **how)


CASES = [
    case("fedavg server adam", fedavg, "adam", ADAM, keys={"server_lr": 0.7}, equations="Algorithm 2, FedAdam"),
    case("fedavg server yogi, late", fedavg, "yogi", YOGI, std=1.5, equations="Algorithm 2, FedYogi"),
    case("fedavg server adagrad", fedavg, "adagrad", ADAGRAD, equations="Algorithm 2, FedAdagrad"),
    case("scaffold server yogi, late", scaffold, "yogi", YOGI, std=1.5, equations="Algorithms 1 and 2"),
    case(
        "fedbuff server sgd, late",
        fedbuff,
        "sgd",
        NESTEROV,
        keys={"buffer_size": 2, "server_lr": 0.7, "staleness_exp": 0.5},
        std=1.5,
        equations="Algorithm 1",
    ),
    case("ca2fl server adam", ca2fl, "adam", ADAM, keys={"buffer_size": 3}, models=(MLP,), equations="Algorithm 2"),
    case("fedasync server sgd, late", fedasync, "sgd", NESTEROV, std=1.5, models=(MLP,), equations=WHERE),
]
