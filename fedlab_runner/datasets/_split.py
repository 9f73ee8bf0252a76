"""The test set of data sets that were published without one."""

import numpy as np

from fedlab_runner.core.rng import Purpose, generator


def drawn(labels: np.ndarray, num_classes: int, fraction: float, seed: int) -> np.ndarray:
    """A mask [n] of the test set: round(fraction * its size) examples of each class, drawn from the run's seed.

    Raises ValueError if either set would be empty.
    """
    rng, in_test = generator(seed, Purpose.DATA), np.zeros(len(labels), bool)
    for label in range(num_classes):
        members = rng.permutation(np.flatnonzero(labels == label))
        in_test[members[: round(fraction * len(members))]] = True
    check(int(in_test.sum()), len(labels), fraction)
    return in_test


def check(num_test: int, size: int, fraction: float) -> None:
    """Raises ValueError if `num_test` of `size` examples leave none for training or for testing."""
    if not 0 < num_test < size:
        raise ValueError(
            f"test_fraction must leave examples of some class for training and for testing, got {fraction} of {size} "
            "examples"
        )
