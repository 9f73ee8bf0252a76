"""pfl-research's simulation, as in its benchmark of image classification.

Clients' data are tensors in memory and are not shuffled, as pfl has it. With `--pair` two processes share the cohort,
started as the quick start of its guide "Fast distributed simulations" does it; not by torchrun, whose processes are
sessions of their own: where Linux shares the cores among sessions, each of them weighs as much as a whole contender.
"""

import os
import socket
import subprocess
import sys
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.peers.task import LR, Stopwatch, Workload, asked, cnn, datasets


class Classifier(nn.Module):
    """The module with the two methods that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = cnn()

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Of a minibatch of training."""
        self.train()
        return F.cross_entropy(self.layers(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
        """Of evaluation, which pfl cannot leave out of the first round."""
        from pfl.metrics import Weighted

        self.eval()
        loss = F.cross_entropy(self.layers(inputs), targets, reduction="sum")
        return {"loss": Weighted(loss.item(), len(targets))}


def main() -> None:
    """Train for the rounds asked for, in one process or in two."""
    options = asked("pair")
    if not options.pair or "PFL_WORKER_RANK" in os.environ:
        return train(options.workload, options.rounds)
    with socket.socket() as free:  # a port that nobody uses
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    os.environ["PFL_WORKER_ADDRESSES"] = f"{address},{address}"  # one each; they meet at the first
    command = [sys.executable, "-m", "benchmarks.peers.pfl", *sys.argv[1:]]
    with subprocess.Popen(command, env=os.environ | {"PFL_WORKER_RANK": "1"}):
        os.environ["PFL_WORKER_RANK"] = "0"
        train(options.workload, options.rounds)


def train(workload: Workload, rounds: int) -> None:
    """One of pfl's processes."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    torch.manual_seed(0)  # alike in all processes: they must draw the same users
    np.random.seed(0)
    users = {k: PyTorchTensorDataset(data.tensors, user_id=str(k)) for k, data in enumerate(datasets(workload))}
    dataset = FederatedDataset(users.__getitem__, get_user_sampler("random", list(users)))
    module = Classifier()
    model = PyTorchModel(module, torch.optim.SGD, central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0))

    class Timer(TrainingProcessCallback):
        def after_central_iteration(self, *args: Any, **kwargs: Any) -> tuple[bool, Any]:
            if os.environ.get("PFL_WORKER_RANK", "0") == "0":
                watch.lap()
            return False, Metrics()

    watch = Stopwatch()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,  # rounds 0, f, 2f, ...
            train_cohort_size=workload.cohort,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=dataset, val_data=dataset, postprocessors=[WeightByUser()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LR, local_batch_size=workload.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Timer()],
        send_metrics_to_platform=False,
    )
    if torch.distributed.is_initialized():  # or the first process to end may break the other
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
