"""Torch's global generators, from which initial weights and dropout are drawn."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

CPU = torch.device("cpu")  # where networks are built


def seed_torch(device: torch.device, seed: int) -> None:
    """Seeds the generators from which modules on this device draw."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)  # torch.manual_seed seeds every backend: 0.1 ms
    else:
        torch.manual_seed(seed)


@contextmanager
def own_generators(device: torch.device = CPU, seed: int | None = None) -> Iterator[None]:
    """A context that leaves the generators as they were. Within it they begin from a seed, if one is given."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        if seed is not None:
            seed_torch(device, seed)
        yield
