"""pfl-research's simulation, as in its benchmark of image classification; several processes by `torchrun`.

Clients' data are tensors in memory and are not shuffled, as pfl has it.
"""

import os
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
    """Train for the rounds asked for, in one of pfl's processes."""
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

    options = asked()
    workload: Workload = options.workload
    torch.manual_seed(0)  # alike in all processes: they must draw the same users
    np.random.seed(0)
    users = {k: PyTorchTensorDataset(data.tensors, user_id=str(k)) for k, data in enumerate(datasets(workload))}
    dataset = FederatedDataset(users.__getitem__, get_user_sampler("random", list(users)))
    module = Classifier()
    model = PyTorchModel(module, torch.optim.SGD, central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0))

    class Timer(TrainingProcessCallback):
        def after_central_iteration(self, *args: Any, **kwargs: Any) -> tuple[bool, Any]:
            if os.environ.get("RANK", "0") == "0":
                watch.lap()
            return False, Metrics()

    watch = Stopwatch()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=options.rounds,
            evaluation_frequency=options.rounds,  # rounds 0, f, 2f, ...
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
