"""The test set of data sets that were published without one."""

import numpy as np

from fedlab_runner.core.rng import Purpose, generator


def stratified(labels: np.ndarray, num_classes: int, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """A mask [n] of the test set: round(fraction * its size) random examples of each class."""
    in_test = np.zeros(len(labels), bool)
    for label in range(num_classes):
        members = rng.permutation(np.flatnonzero(labels == label))
        in_test[members[: round(fraction * len(members))]] = True
    return in_test


def drawn(labels: np.ndarray, num_classes: int, fraction: float, seed: int) -> np.ndarray:
    """The mask [n] of `stratified`, drawn from the run's seed. Raises ValueError if either set would be empty."""
    in_test = stratified(labels, num_classes, fraction, generator(seed, Purpose.DATA))
    if in_test.all() or not in_test.any():
        raise ValueError(
            f"test_fraction must leave examples of some class for training and for testing, got {fraction} of "
            f"{len(labels)} examples"
        )
    return in_test
