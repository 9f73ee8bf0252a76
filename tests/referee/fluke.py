"""fluke (https://github.com/makgyver/fluke): its servers and clients, with the minibatches of this package."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from tests.referee.comparison import FLOAT32, SEVERAL, Row, Setting, vector


def run(
    module: str,
    algorithm: str,
    client: dict[str, Any] | None = None,
    server: dict[str, Any] | None = None,
    optimizer: dict[str, Any] | None = None,
    dtype: str = "float64",
) -> Callable[[Setting], Iterator[Tensor]]:
    """The server's model of an algorithm of fluke after each round."""

    def theirs(setting: Setting) -> Iterator[Tensor]:
        import importlib

        import torch
        from fluke import DDict, FlukeENV
        from fluke.data import FastDataLoader

        class Loader(FastDataLoader):
            """Hands out the minibatches of an epoch of the current round."""

            def __init__(self, index: int) -> None:
                inputs, targets = setting.examples(index)
                super().__init__(inputs, targets, num_labels=3, batch_size=setting.draws.local.batch_size)
                self.index, self.round, self.epochs = index, 0, list[Any]()

            def begin(self, round: int) -> None:
                self.epochs = [[(x.to(kind), y) for x, y in epoch] for epoch in setting.epochs(self.index, round)]
                self.n_batches = len(self.epochs[0])

            def __iter__(self) -> Any:
                return iter(self.epochs.pop(0))

        local, kind = setting.draws.local, getattr(torch, dtype)
        loaders = [Loader(i) for i in range(setting.draws.num_clients)]

        class Splitter:
            def assign(self, *_: Any) -> Any:
                return (loaders, [None] * len(loaders)), None

        FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
        chosen = {"name": "SGD", "lr": local.lr, "momentum": local.momentum}
        of_client = {
            "batch_size": local.batch_size,
            "local_epochs": local.epochs or 1,
            "loss": "CrossEntropyLoss",
            "optimizer": DDict(**(chosen | (optimizer or {}))),
            "scheduler": DDict(name="StepLR", step_size=1, gamma=1),
        }
        params = DDict(
            client=DDict(**(of_client | (client or {}))),
            server=DDict(**({"weighted": True} | (server or {}))),
            model=setting.module().to(kind),
        )
        cls = getattr(importlib.import_module(f"fluke.algorithms.{module}"), algorithm)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            built = cls(len(loaders), Splitter(), params)
            for round, cohort in enumerate(setting.cohorts):
                for loader in loaders:
                    loader.begin(round)
                built.server.get_eligible_clients = lambda _, ids=cohort: [built.clients[i] for i in ids]
                torch.manual_seed(0)
                built.run(1, 0.5, finalize=False)
                yield vector(built.server.model)

    return theirs


UNIFORM: dict[str, Any] = {"server": {"weighted": False}}
FORGETS: dict[str, Any] = {"client": {"persistency": False}}
MOMENTUM: dict[str, Any] = {"momentum": 0.6}
EXP: dict[str, Any] = {"eps": 1e-4}
KEPT = (
    "fluke's clients keep their momentum from round to round (client.py:378), this package's begin anew; the paper has "
    "plain SGD"
)
SCALED = (
    "the paper's step is x - tau_eff sum_i p_i eta d_i (section 5); fluke's weights of the clients' models do not sum "
    "to 1 (algorithms/fednova.py:83)"
)
ROWS = [
    Row("fedavg", run("fedavg", "FedAVG")),
    Row("fedavg", run("fedavg", "FedAVG", **UNIFORM), "uniform weights", {"weighting": "uniform"}),
    Row("fedavg", run("fedavg", "FedAVG", server={"lr": 0.7}), "server_lr 0.7", {"server_lr": 0.7}),
    Row("fedavg", run("fedavg", "FedAVG"), "batch norm", network="batch_norm", sizes=SEVERAL),
    Row("fedavg", run("fedavg", "FedAVG", **FORGETS), "momentum, persistency off", local=MOMENTUM),
    Row("fedavg", run("fedavg", "FedAVG"), "momentum", local=MOMENTUM, cause=KEPT),
    Row("fedprox", run("fedprox", "FedProx", {"mu": 0.6}), "mu 0.6", {"mu": 0.6}),
    Row("scaffold", run("scaffold", "SCAFFOLD", **UNIFORM), "option 2", {"option": 2}),
    Row(
        "scaffold",
        run("scaffold", "SCAFFOLD", server={"weighted": False, "global_step": 0.8}),
        "option 2, server_lr 0.8",
        {"option": 2, "server_lr": 0.8},
        cause="the paper's step is x + eta_g Delta x (Algorithm 1, line 17); fluke's server takes eta_g times the mean "
        "of the clients' models (algorithms/scaffold.py:164)",
    ),
    Row(
        "fednova",
        run("fednova", "FedNova"),
        "three steps each",
        local={"steps": 3, "epochs": None},
        tolerance=FLOAT32,
    ),
    Row("fednova", run("fednova", "FedNova"), cause=SCALED),
    Row("fednova", run("fednova", "FedNova", **FORGETS), "momentum, persistency off", local=MOMENTUM, cause=SCALED),
    Row(
        "fedexp",
        run("fedexp", "FedExP", dtype="float32", **UNIFORM),
        "uniform weights, eps 1e-4",
        EXP | {"weighting": "uniform"},
        tolerance=FLOAT32,
    ),
    Row(
        "fedexp",
        run("fedexp", "FedExP", dtype="float32"),
        "eps 1e-4",
        EXP,
        tolerance=FLOAT32,
        cause="the paper's Algorithm 1 weighs all clients alike; with weights by size, fluke takes the step size of "
        "uniform weights (algorithms/fedexp.py:26), this package that of the same weights",
    ),
    Row(
        "fedsam",
        run("fedsam", "FedSAM", {"rho": 0.5, "persistency": False}),
        "rho 0.5, one step, persistency off",
        {"rho": 0.5},
        local={"steps": 1, "epochs": None},
    ),
    Row(
        "fedsam",
        run("fedsam", "FedSAM", {"rho": 0.5}),
        "rho 0.5",
        {"rho": 0.5},
        cause="the paper ascends along the gradient of this minibatch (Algorithm 1); fluke adds the last step's "
        "gradient to it (algorithms/fedsam.py:86)",
    ),
]
