"""The measure of all others: federated averaging as most people write it in plain PyTorch."""

import copy

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.peers.task import Stopwatch, asked, cnn, datasets, fit


@torch.no_grad()
def mean(modules: list[nn.Module]) -> dict[str, torch.Tensor]:
    """Of the modules' states, each counting the same: all clients have as many examples."""
    states = [module.state_dict() for module in modules]
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def train_round(server: nn.Module, cohort: list[TensorDataset], batch: int) -> None:
    """A copy of the server's module for each client, a DataLoader over its data; the server takes their mean."""
    clients = []
    for dataset in cohort:
        clients.append(copy.deepcopy(server))
        fit(clients[-1], dataset, batch)
    server.load_state_dict(mean(clients))


def main() -> None:
    """Train for the rounds asked for."""
    options = asked()
    workload, rng = options.workload, np.random.default_rng(0)
    server, clients, watch = cnn(), datasets(workload), Stopwatch()
    for _ in range(options.rounds):
        cohort = rng.choice(workload.clients, size=workload.cohort, replace=False)
        train_round(server, [clients[k] for k in cohort], workload.batch)
        watch.lap()


if __name__ == "__main__":
    main()
