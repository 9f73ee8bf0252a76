"""pfl-research (https://github.com/apple/pfl-research): its algorithms, with the minibatches of this package."""

from collections.abc import Callable, Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from tests.referee.comparison import FLOAT32, SEVERAL, Row, Setting, vector


class Classifier(nn.Module):
    """The module with the two methods that pfl asks for."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Of a minibatch of training."""
        self.train()
        return F.cross_entropy(self.layers(inputs), targets)

    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
        """Of evaluation, which pfl cannot leave out of the first round."""
        from pfl.metrics import Weighted

        return {"examples": Weighted(0.0, len(targets))}


def run(
    name: str = "FederatedAveraging", uniform: bool = False, central: dict[str, Any] | None = None, **params: Any
) -> Callable[[Setting], Iterator[Tensor]]:
    """The server's model of an algorithm of pfl after each round; `params` are the algorithm's own.

    `central`: the `name` of the server's optimiser in torch.optim, and its arguments. Default: SGD.
    """

    def theirs(setting: Setting) -> Iterator[Tensor]:
        import torch
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.aggregate.weighting import WeightByDatapoints, WeightByUser
        from pfl.algorithm import base, federated_averaging, fedprox, scaffold
        from pfl.callback.base import TrainingProcessCallback
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.pytorch import PyTorchTensorDataset
        from pfl.data.user_state import InMemoryUserStateStorage
        from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
        from pfl.metrics import Metrics
        from pfl.model.pytorch import PyTorchModel

        local, rounds, now = setting.draws.local, setting.draws.num_rounds, [0]
        models: list[Tensor] = []

        class User(PyTorchTensorDataset):  # type: ignore[misc]
            """Hands out the minibatches of an epoch of the current round; for all else, all examples."""

            def __init__(self, index: int) -> None:
                super().__init__(setting.examples(index), user_id=str(index))
                self.index, self.epochs = index, setting.epochs(index, now[0])

            def iter(self, batch_size: int | None) -> Iterator[Any]:
                return iter(self.epochs.pop(0) if batch_size == local.batch_size else [setting.examples(self.index)])

        class Recorder(TrainingProcessCallback):  # type: ignore[misc]
            def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
                models.append(vector(layers))
                now[0] += 1
                return False, Metrics()

        starting = iter([client for cohort in setting.cohorts for client in cohort])
        training = FederatedDataset(User, lambda: next(starting))
        layers = setting.module()
        module = Classifier(layers)
        chosen = {"name": "SGD", "lr": setting.keys.get("server_lr", 1.0)} if central is None else dict(central)
        server = getattr(torch.optim, chosen.pop("name"))(module.parameters(), **chosen)
        model = PyTorchModel(module, torch.optim.SGD, central_optimizer=server)
        of_run = {
            "central_num_iterations": rounds,
            "evaluation_frequency": 10 * rounds,
            "train_cohort_size": len(setting.cohorts[0]),
            "val_cohort_size": None,
        }
        if name == "FedProx":
            algorithm, chosen = fedprox.FedProx(), fedprox.FedProxParams(**of_run, **params)
        elif name == "SCAFFOLD":
            more = {"population": setting.draws.num_clients, "user_state_storage": InMemoryUserStateStorage()}
            algorithm, chosen = scaffold.SCAFFOLD(), scaffold.SCAFFOLDParams(**of_run, **more, **params)
        else:
            algorithm, chosen = federated_averaging.FederatedAveraging(), base.NNAlgorithmParams(**of_run)
        algorithm.run(
            algorithm_params=chosen,
            backend=SimulatedBackend(
                training_data=training,
                val_data=training,
                postprocessors=[WeightByUser() if uniform else WeightByDatapoints()],
            ),
            model=model,
            model_train_params=NNTrainHyperParams(
                local_num_epochs=local.epochs or 1, local_learning_rate=local.lr, local_batch_size=local.batch_size
            ),
            model_eval_params=NNEvalHyperParams(local_batch_size=len(setting.draws.data.y)),
            callbacks=[Recorder()],
            send_metrics_to_platform=False,
        )
        yield from models

    return theirs


SIGN = (
    "the paper's control variate is a gradient, (x - y_i) / (K eta_l) or g_i(x) (Algorithm 1, line 12); pfl's is minus "
    "that (algorithm/scaffold.py:133 and 157)"
)
NOT_HERE = ("ExpectationMaximizationGMM", "Reptile")
ADAPTIVE: dict[str, Any] = {"lr": 0.1, "tau": 0.1, "initial": 0.0}
MOMENTS: dict[str, Any] = {"beta1": 0.9, "beta2": 0.99}
ROWS = [
    Row("fedavg", run(), tolerance=FLOAT32),
    Row("fedavg", run(uniform=True), "uniform weights", {"weighting": "uniform"}, tolerance=FLOAT32),
    Row("fedavg", run(), "server_lr 0.7", {"server_lr": 0.7}, tolerance=FLOAT32),
    Row(
        "fedavg",
        run(),
        "batch norm",
        network="batch_norm",
        sizes=SEVERAL,
        tolerance=FLOAT32,
        cause="the paper has no batch norm; pfl averages parameters only (model/pytorch.py:137), so that the running "
        "statistics go from user to user, and the server's are the last user's",
    ),
    Row(
        "fedavg",
        run(central={"name": "SGD", "lr": 0.7, "momentum": 0.9}),
        "momentum 0.9, server_lr 0.7",
        server_optimizer={"name": "sgd", "lr": 0.7, "momentum": 0.9},
        tolerance=FLOAT32,
    ),
    Row(
        "fedavg",
        run(central={"name": "Adam", "lr": 0.1, "betas": (0.9, 0.99), "eps": 0.1}),
        "FedAdam, bias_correction adam, initial 0",
        server_optimizer=ADAPTIVE | MOMENTS | {"name": "adam", "bias_correction": "adam"},
        tolerance=FLOAT32,
    ),
    Row(
        "fedavg",
        run(central={"name": "AdamW", "lr": 0.1, "betas": (0.9, 0.99), "eps": 0.1, "weight_decay": 0.05}),
        "AdamW, bias_correction adam, initial 0",
        server_optimizer=ADAPTIVE | MOMENTS | {"name": "adamw", "bias_correction": "adam", "weight_decay": 0.05},
        tolerance=FLOAT32,
    ),
    Row(
        "fedavg",
        run(central={"name": "Adagrad", "lr": 0.1, "eps": 0.1, "initial_accumulator_value": 0.01}),
        "FedAdagrad",
        server_optimizer={"name": "adagrad", "lr": 0.1, "tau": 0.1},
        tolerance=FLOAT32,
    ),
    Row("fedprox", run("FedProx", mu=0.6), "mu 0.6", {"mu": 0.6}, tolerance=FLOAT32),
    Row(
        "scaffold",
        run("SCAFFOLD", uniform=True, use_gradient_as_control_variate=False),
        "option 2",
        {"option": 2},
        tolerance=FLOAT32,
        cause=SIGN,
    ),
    Row(
        "scaffold",
        run("SCAFFOLD", uniform=True, use_gradient_as_control_variate=True),
        "option 1",
        {"option": 1},
        tolerance=FLOAT32,
        cause=f"{SIGN}, and all users share one buffer (model/pytorch.py:243)",
    ),
]
