"""Flower (https://github.com/flwrlabs/flower): its strategies' `aggregate_fit` over this package's updates."""

import os
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from tests.referee.comparison import SEVERAL, Row, Setting, arrays, from_arrays

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")


def strategy(name: str, **fields: Any) -> Callable[[Setting], Iterator[Tensor]]:
    """The server's model after each round; the clients' models are this package's, the state is the strategy's own."""

    def theirs(setting: Setting) -> Iterator[Tensor]:
        import logging

        import flwr.server.strategy
        from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays

        logging.getLogger("flwr").setLevel(logging.ERROR)
        module = setting.module()
        x = ndarrays_to_parameters(arrays(module, setting.draws.x0.vector))
        built = getattr(flwr.server.strategy, name)(initial_parameters=x, **fields)
        for round, arrived in enumerate(setting.arrived, 1):
            if name == "QFedAvg":
                built.pre_weights = parameters_to_ndarrays(x)
            results: Any = [
                (None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays(module, y)), n, {}))
                for y, n in zip(arrived.models, arrived.num_examples, strict=True)
            ]
            x, _ = built.aggregate_fit(round, results, [])
            yield from_arrays(parameters_to_ndarrays(x))

    return theirs


def app(name: str, **fields: Any) -> Callable[[Setting], Iterator[Tensor]]:
    """The same of the newer strategies, which aggregate messages (`flwr.serverapp`)."""

    def theirs(setting: Setting) -> Iterator[Tensor]:
        import logging

        import flwr.serverapp.strategy
        from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict
        from flwr.supercore.task_identity import TaskIdentity

        logging.getLogger("flwr").setLevel(logging.ERROR)
        module = setting.module()

        def record(vector: Tensor) -> Any:
            return ArrayRecord({str(i): Array(value) for i, value in enumerate(arrays(module, vector))})

        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1  # as within a run
        built = getattr(flwr.serverapp.strategy, name)(**fields)
        x = record(setting.draws.x0.vector)
        for round, arrived in enumerate(setting.arrived, 1):
            built.current_arrays = x
            replies = []
            for client, y, n in zip(arrived.clients, arrived.models, arrived.num_examples, strict=True):
                asked = Message(RecordDict(), dst_node_id=client + 1, message_type=MessageType.TRAIN)
                content = RecordDict({"arrays": record(y), "metrics": MetricRecord({"num-examples": n})})
                replies.append(Message(content, reply_to=asked))
            x, _ = built.aggregate_train(round, replies)
            yield from_arrays(x.to_numpy_ndarrays())

    return theirs


# What Flower's adaptive strategies share: v begins at 0, where Reddi et al. have tau^2 or more (Algorithm 2).
ADAPTIVE: dict[str, Any] = {"lr": 0.1, "tau": 1e-3, "initial": 0.0}
OF_PAPER: dict[str, Any] = {"lr": 0.1, "tau": 1e-3}
THEIRS: dict[str, Any] = {"eta": 0.1, "tau": 1e-3}
MOMENTS: dict[str, Any] = {"beta1": 0.9, "beta2": 0.99}
# Rows of methods that this package does not have yet are not compared.
ROWS = [
    Row("fedavg", strategy("FedAvg"), "aggregate_fit"),
    Row("fedavg", strategy("FedAvg", inplace=False), "aggregate_fit, inplace off"),
    Row("fedavg", app("FedAvg"), "aggregate_train"),
    Row("fedavg", strategy("FedAvg"), "aggregate_fit, batch norm", network="batch_norm", sizes=SEVERAL),
    Row(
        "fedavg",
        strategy("FedAvgM", server_learning_rate=0.7),
        "FedAvgM without momentum, server_lr 0.7",
        {"server_lr": 0.7},
    ),
    Row("fedprox", strategy("FedProx", proximal_mu=0.6), "the server's step", {"mu": 0.6}),
    Row(
        "fedavg",
        strategy("FedAvgM", server_learning_rate=0.7, server_momentum=0.9),
        "FedAvgM, momentum 0.9",
        server_optimizer={"name": "sgd", "lr": 0.7, "momentum": 0.9},
    ),
    Row(
        "fedavg",
        strategy("FedAdam", beta_1=0.9, beta_2=0.99, **THEIRS),
        "FedAdam, bias_correction flower, initial 0",
        server_optimizer=ADAPTIVE | MOMENTS | {"name": "adam", "bias_correction": "flower"},
    ),
    Row(
        "fedavg",
        strategy("FedYogi", beta_1=0.9, beta_2=0.99, **THEIRS),
        "FedYogi, initial 0",
        server_optimizer=ADAPTIVE | MOMENTS | {"name": "yogi"},
    ),
    Row(
        "fedavg",
        strategy("FedAdagrad", **THEIRS),
        "FedAdagrad, initial 0",
        server_optimizer=ADAPTIVE | {"name": "adagrad"},
    ),
    Row(
        "fedavg",
        strategy("FedAdam", beta_1=0.9, beta_2=0.99, **THEIRS),
        "FedAdam",
        server_optimizer=OF_PAPER | MOMENTS | {"name": "adam"},
        cause="the paper has no bias correction, and its v begins at tau^2 or more (Algorithm 2); Flower has Adam's of "
        "the next round (server/strategy/fedadam.py:179), and its v begins at 0 (line 169)",
    ),
    *(
        Row(
            "fedavg",
            strategy(f"Fed{name.title()}", **betas, **THEIRS),
            f"Fed{name.title()}",
            server_optimizer=OF_PAPER | moments | {"name": name},
            cause="the paper's v begins at tau^2 or more (Algorithm 2); Flower's at 0 "
            f"(server/strategy/fed{name}.py:{line})",
        )
        for name, line, betas, moments in (
            ("yogi", 169, {"beta_1": 0.9, "beta_2": 0.99}, MOMENTS),
            ("adagrad", 163, {}, {}),
        )
    ),
    Row("qfedavg", strategy("QFedAvg", q_param=0.2, qffl_learning_rate=0.1), "QFedAvg"),
    Row("krum", strategy("Krum", num_malicious_clients=1), "Krum"),
    Row("multi_krum", strategy("Krum", num_malicious_clients=1, num_clients_to_keep=2), "MultiKrum"),
    Row("bulyan", strategy("Bulyan"), "Bulyan"),
    Row("median", strategy("FedMedian"), "FedMedian"),
    Row("trimmed_mean", strategy("FedTrimmedAvg", beta=0.25), "FedTrimmedAvg"),
]
