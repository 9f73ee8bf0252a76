"""The global generators: torch's, from which initial weights and dropout are drawn, numpy's and Python's."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.rng import Purpose, torch_seed
from fedlab_runner.utils.errors import UserError

CPU = torch.device("cpu")  # where networks are built


def seed_torch(device: torch.device, seed: int) -> None:
    """Seeds the generators from which modules on this device draw."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)  # torch.manual_seed seeds every backend: 0.1 ms
    else:
        torch.manual_seed(seed)


def seed_globals(device: torch.device, seed: int, round: int = 0, part: int = 0) -> None:
    """Seeds all global generators for a round of a run (from 1 on; 0 is before the rounds), or for a part of its cohort
    (from 1 on). The package draws from none of them by itself; a function of a user, or of a library that takes no
    generator, may.
    """
    key = torch_seed(seed, Purpose.GLOBALS, round, part)
    seed_torch(device, key)
    seed_others(key)


def seed_others(seed: int) -> None:
    """Seeds numpy's and Python's global generators by 63 bits."""
    # torch on a CPU has numpy's generator, the Mersenne Twister, and seeds it by the lower 32 bits: by equal bits
    # torch.randint and np.random.randint would draw the same numbers.
    np.random.seed(seed >> 31)
    random.seed(seed)


@contextmanager
def kept_globals(device: torch.device = CPU) -> Iterator[None]:
    """A context, or a decorator of a function, after which the global generators of the host and of the device are as
    they were.
    """
    numpys, pythons = np.random.get_state(), random.getstate()
    try:
        with own_generators(device):
            yield
    finally:
        np.random.set_state(numpys)
        random.setstate(pythons)


@contextmanager
def own_generators(device: torch.device = CPU, seed: int | None = None) -> Iterator[None]:
    """A context that leaves torch's generators as they were. Within it they begin from a seed, if one is given."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        if seed is not None:
            seed_torch(device, seed)
        yield


def seeded(draw: Callable[[], Tensor], seed: int, what: str, device: torch.device = CPU) -> Tensor:
    """What `draw`, a method `what` of a model, gives when torch's generators begin from a seed. They are left as they
    were.

    Raises UserError if it gives something else the next time, because it takes numpy's or Python's random numbers.
    """
    before = _others()
    with own_generators(device, seed):
        drawn = draw()
    if _others() == before:  # a library's thread may change them too
        return drawn
    with own_generators(device, seed):
        if torch.equal(drawn, draw()):
            return drawn
    raise UserError(
        f"the model's {what} takes random numbers of numpy or Python, which differ from call to call: take torch's"
    )


def torch_states(device: torch.device) -> bytes:
    """The state of torch's generators on the host and on the device."""
    states = [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])
    return b"".join(state.numpy().tobytes() for state in states)


def all_states(device: torch.device) -> Any:
    """The states of all global generators, those of torch on the host and on the device."""
    return torch_states(device), _others()


def _others() -> Any:
    """The states of numpy's and Python's generators."""
    _, key, *place = np.random.get_state()
    return np.asarray(key).tobytes(), place, random.getstate()
