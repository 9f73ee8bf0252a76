"""Flower (https://github.com/flwrlabs/flower): its strategies' `aggregate_fit` over this package's updates."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from tests.referee.comparison import SEVERAL, Row, Setting, arrays, from_arrays
from tests.reference.plain import sgd

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


Reply = tuple[int, Tensor, dict[str, Any]]  # a client, its model, and its metrics
Clients = Callable[[Setting, int, Tensor], list[Reply]]  # (setting, round, x) -> the replies of a round


def arrived(setting: Setting, round: int, x: Tensor) -> list[Reply]:
    """The models that arrive at this package's server."""
    here = setting.arrived[round]
    each = zip(here.clients, here.models, here.num_examples, strict=True)
    return [(client, y, {"num-examples": n}) for client, y, n in each]


def trained(setting: Setting, round: int, x: Tensor) -> list[Reply]:
    """The models that a plain loop trains from x, with the clients' losses at x; this package does not send models."""
    p, replies = setting.draws, list[Reply]()
    start = p.net.model(x)
    for client in setting.cohorts[round]:
        inputs, targets = setting.examples(client)
        loss = float(F.cross_entropy(p.net.eval(start.w, start.s, inputs), targets))
        y = sgd(p, start, client, round).vector
        replies.append((client, y, {"num-examples": len(targets), "train_loss": loss}))
    return replies


def app(name: str, clients: Clients = arrived, **fields: Any) -> Callable[[Setting], Iterator[Tensor]]:
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
        x = setting.draws.x0.vector
        for round in range(setting.draws.num_rounds):
            built.current_arrays = record(x)
            replies = []
            for client, y, metrics in clients(setting, round, x):
                asked = Message(RecordDict(), dst_node_id=client + 1, message_type=MessageType.TRAIN)
                content = RecordDict({"arrays": record(y), "metrics": MetricRecord(metrics)})
                replies.append(Message(content, reply_to=asked))
            aggregated, _ = built.aggregate_train(round + 1, replies)
            x = from_arrays(aggregated.to_numpy_ndarrays())
            yield x

    return theirs


# What Flower's adaptive strategies share: v begins at 0, where Reddi et al. have tau^2 or more (Algorithm 2).
ADAPTIVE: dict[str, Any] = {"lr": 0.1, "tau": 1e-3, "initial": 0.0}
OF_PAPER: dict[str, Any] = {"lr": 0.1, "tau": 1e-3}
THEIRS: dict[str, Any] = {"eta": 0.1, "tau": 1e-3}
MOMENTS: dict[str, Any] = {"beta1": 0.9, "beta2": 0.99}
AT_ONCE = (
    "Krum selects again from what is left after each selection (El Mhamdi et al., section 4); Flower's newer strategy "
    "takes the best scores of one comparison (serverapp/strategy/bulyan.py:158)"
)
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
    *(
        Row("qfedavg", app("QFedAvg", trained, q=q, client_learning_rate=0.1), f"aggregate_train, q {q}", {"q": q})
        for q in (0.2, 5.0)
    ),
    Row(
        "qfedavg",
        strategy("QFedAvg", q_param=0.2, qffl_learning_rate=0.1, evaluate_fn=lambda *_: (1.0, {})),
        "QFedAvg",
        {"q": 0.2},
        cause="F_k is client k's own loss at the received model (Algorithm 2, line 6); Flower's older strategy takes "
        "the loss of the server's `evaluate_fn` for all clients (server/strategy/qfedavg.py:192)",
    ),
    *(
        Row("fedavg", made(name, **more | {keyword: f}), setting, aggregator=rule | {"byzantine": byzantine}, cohort=8)
        for f, byzantine in ((1, 0.13), (2, 0.25))
        for made, name, keyword, more, rule, setting in (
            (strategy, "Krum", "num_malicious_clients", {}, {"name": "krum"}, f"Krum, f {f}"),
            (
                *(strategy, "Krum", "num_malicious_clients", {"num_clients_to_keep": 3}),
                *({"name": "multi_krum", "kept": 3}, f"Krum, num_clients_to_keep 3, f {f}"),
            ),
            (app, "Krum", "num_malicious_nodes", {}, {"name": "krum"}, f"Krum, aggregate_train, f {f}"),
            (
                *(app, "MultiKrum", "num_malicious_nodes", {"num_nodes_to_select": 3}),
                *({"name": "multi_krum", "kept": 3}, f"MultiKrum, aggregate_train, f {f}"),
            ),
        )
    ),
    *(
        Row(
            "fedavg",
            made("Bulyan", **fields),
            f"Bulyan{what}, f 1",
            aggregator={"name": "bulyan", "byzantine": 0.13},
            cohort=8,
            cause=cause,
        )
        for made, fields, what, cause in (
            (strategy, {"num_malicious_clients": 1, "to_keep": 0}, "", ""),
            (app, {"num_malicious_nodes": 1}, ", aggregate_train", AT_ONCE),
        )
    ),
    *(
        Row("fedavg", strategy("FedMedian"), f"FedMedian of {k}", aggregator={"name": "median"}, cohort=k)
        for k in (7, 8)
    ),
    *(
        Row(
            "fedavg",
            strategy("FedTrimmedAvg", beta=beta),
            f"FedTrimmedAvg, beta {beta}",
            aggregator={"name": "trimmed_mean", "byzantine": beta},
            cohort=8,
        )
        for beta in (0.25, 0.4)
    ),
    Row(
        "fedavg",
        strategy("FedMedian"),
        "FedMedian, batch norm",
        aggregator={"name": "median"},
        network="batch_norm",
        sizes=SEVERAL,
        cohort=8,
    ),
    Row(
        "fedavg",
        strategy("Krum", num_malicious_clients=1),
        "Krum, batch norm, f 1",
        aggregator={"name": "krum", "byzantine": 0.13},
        network="batch_norm",
        sizes=SEVERAL,
        cohort=8,
    ),
]
