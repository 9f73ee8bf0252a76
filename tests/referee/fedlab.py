"""FedLab (https://github.com/SMILELab-FL/FedLab): its handlers and trainers, with the minibatches of this package.

Its servers count all clients alike.
"""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from tests.referee.comparison import FLOAT32, Row, Setting, loaded, vector


def run(
    module: str, handler: str, trainer: str, server: dict[str, Any] | None = None, **of_trainer: Any
) -> Callable[[Setting], Iterator[Tensor]]:
    """The server's model of a handler and a trainer after each round; the arguments are those of `setup_optim`."""

    def theirs(setting: Setting) -> Iterator[Tensor]:
        folder = importlib.import_module(f"fedlab.contrib.algorithm.{module}")
        local, now = setting.draws.local, [0]

        class Data:
            def get_dataloader(self, client: int, batch_size: int) -> Any:
                return Epochs(setting.epochs(client, now[0]))

        class Epochs:
            """Hands out the minibatches of the next epoch."""

            def __init__(self, epochs: list[Any]) -> None:
                self.left, self.steps = iter(epochs), len(epochs[0])

            def __len__(self) -> int:
                return self.steps

            def __iter__(self) -> Any:
                return iter(next(self.left))

        share = len(setting.cohorts[0]) / setting.draws.num_clients
        served = getattr(folder, handler)(setting.module(), setting.draws.num_rounds, share)
        served.num_clients = setting.draws.num_clients
        if server is not None:
            served.setup_optim(**server)
        clients = getattr(folder, trainer)(setting.module(), setting.draws.num_clients)
        clients.setup_dataset(Data())
        clients.setup_optim(local.epochs or 1, local.batch_size, local.lr, **of_trainer)
        for round, cohort in enumerate(setting.cohorts):
            now[0] = round
            clients.local_process(served.downlink_package, cohort)
            for pack in clients.uplink_package:
                served.load(pack)
            yield of(setting, served)

    return theirs


def fair(q: float) -> Callable[[Setting], Iterator[Tensor]]:
    """The same of q-FedAvg, whose trainer has one client."""

    def theirs(setting: Setting) -> Iterator[Tensor]:
        from fedlab.contrib.algorithm.qfedavg import qFedAvgClientTrainer, qFedAvgServerHandler

        local = setting.draws.local
        share = len(setting.cohorts[0]) / setting.draws.num_clients
        served = qFedAvgServerHandler(setting.module(), setting.draws.num_rounds, share)
        served.num_clients = setting.draws.num_clients
        for round, cohort in enumerate(setting.cohorts):
            (x,) = served.downlink_package
            for client in cohort:
                trainer = qFedAvgClientTrainer(setting.module())
                trainer.setup_optim(local.epochs or 1, local.batch_size, local.lr, q)
                trainer.lr = local.lr  # which it reads and never sets
                epochs = iter(setting.epochs(client, round))
                loader: Any = type("Loader", (), {"__iter__": lambda self, epochs=epochs: iter(next(epochs))})()
                trainer.train(x, loader)
                served.load(trainer.uplink_package)
            yield of(setting, served)

    return theirs


def asynchronous(**fields: Any) -> Callable[[Setting], Iterator[Tensor]]:
    """The server's model of `AsyncServerHandler` after each round; the clients' models are this package's."""

    def theirs(setting: Setting) -> Iterator[Tensor]:
        import torch
        from fedlab.contrib.algorithm.basic_server import AsyncServerHandler

        served = AsyncServerHandler(setting.module(), 10**6)
        served.setup_optim(**fields)
        for arrived in setting.arrived:
            for model, staleness in zip(arrived.models, arrived.staleness, strict=True):
                served.load([model, torch.tensor([served.round - staleness])])
            yield of(setting, served)

    return theirs


def of(setting: Setting, served: Any) -> Tensor:
    """The server's model."""
    module: nn.Module = loaded(setting.module(), served.model_parameters.double())
    return vector(module)


UNIFORM: dict[str, Any] = {"weighting": "uniform"}
NOT_HERE = ("IFCA", "Power-of-choice")
NOVA = ("fednova", "FedNovaServerHandler", "FedNovaSerialClientTrainer")
ROWS = [
    Row("fedavg", run("fedavg", "FedAvgServerHandler", "FedAvgSerialClientTrainer"), "uniform weights", UNIFORM),
    Row(
        "fedprox",
        run("fedprox", "FedProxServerHandler", "FedProxSerialClientTrainer", mu=0.6),
        "uniform weights, mu 0.6",
        UNIFORM | {"mu": 0.6},
    ),
    Row(
        "scaffold",
        run("scaffold", "ScaffoldServerHandler", "ScaffoldSerialClientTrainer", {"lr": 0.8}),
        "option 2, server_lr 0.8",
        {"option": 2, "server_lr": 0.8},
    ),
    Row("fednova", run(*NOVA, {"option": "weighted_com"}), "uniform weights, option weighted_com", UNIFORM),
    Row(
        "fednova",
        run(*NOVA, {}),
        "uniform weights",
        UNIFORM,
        cause="the paper's weights p_i sum to 1 (section 5); FedLab's default option multiplies the mean over the K "
        "clients of the round by N / K (contrib/algorithm/fednova.py:37)",
    ),
    Row("qfedavg", fair(0.0), "q 0", {"q": 0.0}),
    Row(
        "qfedavg",
        fair(1.0),
        "q 1",
        {"q": 1.0},
        cause="F_k is the loss of the received model (Algorithm 2, line 6); FedLab's is the sum of the minibatch "
        "losses of the last local epoch (contrib/algorithm/qfedavg.py:66)",
    ),
    Row(
        "fedasync",
        asynchronous(alpha=0.6),
        "late, constant",
        {"alpha": 0.6, "staleness": "constant"},
        std=1.5,
        tolerance=FLOAT32,
    ),
    Row(
        "fedasync",
        asynchronous(alpha=0.6, strategy="polynomial", a=0.5),
        "late, polynomial, a 0.5",
        {"alpha": 0.6, "staleness": "polynomial", "a": 0.5},
        std=1.5,
        tolerance=FLOAT32,
    ),
    Row(
        "fedasync",
        asynchronous(alpha=0.6, strategy="hinge", a=2.0, b=0.0),
        "late, hinge, a 2, b 0",
        {"alpha": 0.6, "staleness": "hinge", "a": 2.0, "b": 0.0},
        std=1.5,
        tolerance=FLOAT32,
        cause="the paper's weight is 1 / (a (t - tau - b) + 1) (section 5.2); FedLab's is 1 / (a (t - tau - b + 1)) "
        "(contrib/algorithm/basic_server.py:191)",
    ),
    Row(
        "feddyn",
        run("feddyn", "FedDynServerHandler", "FedDynSerialClientTrainer", {"alpha": 0.1}, alpha=0.1),
        "alpha 0.1",
        {"alpha": 0.1},
        cause="the paper's h takes the sum of theta_k - theta over the round's devices (Algorithm 1); FedLab's takes "
        "their models and subtracts theta once (contrib/algorithm/feddyn.py:23). Its devices' loss has no gradient of "
        "the two terms beside the data's (lines 74 and 75)",
    ),
]
