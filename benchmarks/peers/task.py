"""What every contender trains, the same in each environment: needs numpy and torch, not this package.

A contender is a module run as `python -m benchmarks.peers.NAME WORKLOAD ROUNDS`: FedAvg with one local epoch of plain
SGD and no evaluation in the rounds that count. It prints one line of JSON a round.
"""

import argparse
import json
import time
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIDE, CLASSES, LR = 28, 10, 0.05


class Workload(NamedTuple):
    """N clients with `examples` each, `cohort` of them in a round, in minibatches of `batch`."""

    clients: int
    examples: int
    cohort: int
    batch: int


WORKLOADS = {"W1": Workload(100, 100, 10, 20), "W2": Workload(1000, 20, 50, 10)}


def cnn() -> nn.Module:
    """582,026 parameters: the FedAvg CNN of PFLlib and FL-bench."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, CLASSES)),
    )


def arrays(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Random images [N, n, 1, 28, 28] in float32 and random classes [N, n] in int64, always the same."""
    rng = np.random.default_rng(0)
    shape = (workload.clients, workload.examples)
    targets = rng.integers(CLASSES, size=shape)
    return rng.random((*shape, 1, SIDE, SIDE), dtype=np.float32), targets


@cache
def datasets(workload: Workload) -> list[TensorDataset]:
    """The clients' data, made once a process."""
    inputs, targets = map(torch.from_numpy, arrays(workload))
    return [TensorDataset(*pair) for pair in zip(inputs, targets, strict=True)]


def fit(module: nn.Module, dataset: TensorDataset, batch: int) -> None:
    """One epoch of SGD, as one writes it in plain PyTorch."""
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    module.train()
    for inputs, targets in DataLoader(dataset, batch_size=batch, shuffle=True):
        optimizer.zero_grad()
        F.cross_entropy(module(inputs), targets).backward()
        optimizer.step()


class Stopwatch:
    """Prints how long each round took, from when it was made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def lap(self) -> None:
        """At the end of a round."""
        now = time.perf_counter()
        print(json.dumps({"seconds": now - self._began}), flush=True)
        self._began = now


def asked(*switches: str) -> argparse.Namespace:
    """The command line of a contender: workload (made a Workload), rounds, and its own switches."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("rounds", type=int)
    for switch in switches:
        parser.add_argument(f"--{switch}", action="store_true")
    options = parser.parse_args()
    options.workload = WORKLOADS[options.workload]
    return options
