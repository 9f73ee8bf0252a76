"""Randomness as a function of a key: no generator state is kept, shared or checkpointed anywhere."""

from collections.abc import Iterator
from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a random stream is for; no two uses share a stream."""

    PARTITION = 1
    INIT = 2
    COHORT = 3
    DELAY = 4
    BATCHES = 5
    SERVER_BATCHES = 6
    SERVER_DATA = 7
    DROPOUT = 8
    LABEL_NOISE = 9
    DATA = 10
    TOPOLOGY = 11
    ALGORITHM = 12
    SERVER_DROPOUT = 13
    ANALYSIS = 14
    TRAIN_FRACTION = 15
    AUXILIARY_BATCHES = 20
    LEASH_HEAD = 21
    VALIDATION = 30
    AGGREGATOR = 31
    DISTILLATION = 32
    DISTILLATION_DROPOUT = 33
    SUBMODEL = 34
    AUGMENT = 35


def _key(seed: int, purpose: Purpose, round: int, client: int) -> tuple[int, int]:
    """Packs the four parts into Philox's 128-bit key, one to one."""
    assert 0 <= seed < 2**48 and 0 <= round < 2**32 and 0 <= client < 2**32
    return (seed << 16) | purpose, (round << 32) | client


def generator(seed: int, purpose: Purpose, round: int = 0, client: int = 0) -> np.random.Generator:
    """The stream of one key (Philox, a counter-based generator: every key is an independent stream)."""
    return np.random.Generator(np.random.Philox(key=_key(seed, purpose, round, client)))


def generators(
    seed: int, purpose: Purpose, round: int, clients: np.ndarray, step: int = 0
) -> Iterator[np.random.Generator]:
    """The streams of many clients in turn: the same numbers as `generator` gives, without its cost of set-up.

    Steps are parts of a stream, each so long that it never reaches the next. Each yielded generator is valid until the
    next one is asked for.
    """
    bits = np.random.Philox(key=0)
    fresh, rng = bits.state, np.random.Generator(bits)
    fresh["state"]["counter"][2] = step
    for client in clients.tolist():
        fresh["state"]["key"][:] = _key(seed, purpose, round, client)
        bits.state = fresh
        yield rng


def torch_seed(seed: int, purpose: Purpose, round: int = 0, client: int = 0) -> int:
    """A 63-bit seed for a torch generator, for what torch draws itself (initial weights, dropout)."""
    return int(generator(seed, purpose, round, client).integers(2**63))


def torch_seeds(seed: int, purpose: Purpose, round: int, clients: np.ndarray) -> Iterator[int]:
    """The same for many clients in turn."""
    return (int(rng.integers(2**63)) for rng in generators(seed, purpose, round, clients))
