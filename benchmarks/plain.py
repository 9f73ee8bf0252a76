"""The contender of every row: federated averaging as one writes it in plain PyTorch, honest and tidy.

One module, loaded with the server's weights for each client; minibatches by index, without a DataLoader, which would
cost more; `torch.optim.SGD`; a running mean of the clients' weights.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlab_runner.executors.work import Work


def train_cohort(work: Work, build: Callable[[], nn.Module]) -> dict[str, Tensor]:
    """Local training of a cohort and the mean of its models, weighted by examples."""
    inputs, targets = work.population.inputs, work.population.targets
    module, mean = build(), dict[str, Tensor]()
    sent = {k for k, p in module.named_parameters() if p.requires_grad} | {k for k, _ in module.named_buffers()}
    server = {k: v for k, v in work.task.state_dict(work.start).items() if k in sent}
    trained = [p for p in module.parameters() if p.requires_grad]
    total = int(work.population.num_examples[work.ids].sum())
    module.train()
    for client in work.ids.tolist():
        members = torch.from_numpy(work.population.members(client))
        module.load_state_dict(server, strict=False)
        optimizer = torch.optim.SGD(trained, lr=work.lr)
        for _ in range(work.local.epochs or 1):
            for rows in members[torch.randperm(len(members))].split(work.local.batch_size):
                optimizer.zero_grad()
                F.cross_entropy(module(inputs[rows]), targets[rows]).backward()
                optimizer.step()
        values = module.state_dict()
        for name in server:
            share = values[name] * (len(members) / total)
            mean[name] = mean[name] + share if name in mean else share
    return mean


@torch.no_grad()
def accuracy(work: Work, build: Callable[[], nn.Module], batch_size: int) -> float:
    """Of the server's model on all examples."""
    module = build().eval()
    module.load_state_dict(work.task.state_dict(work.start))
    pairs = zip(work.population.inputs.split(batch_size), work.population.targets.split(batch_size), strict=True)
    right = sum(int((module(inputs).argmax(1) == targets).sum()) for inputs, targets in pairs)
    return right / len(work.population.targets)
