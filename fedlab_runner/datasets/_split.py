"""The test set of data sets that were published in one piece."""

import numpy as np


def stratified(labels: np.ndarray, num_classes: int, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """A mask [n] of the test set: round(fraction * its size) random examples of each class."""
    in_test = np.zeros(len(labels), bool)
    for label in range(num_classes):
        members = rng.permutation(np.flatnonzero(labels == label))
        in_test[members[: round(fraction * len(members))]] = True
    return in_test
