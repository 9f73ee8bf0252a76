"""The test set of data that were published in one piece."""

import numpy as np


def check_fraction(test_fraction: float) -> None:
    """Raises ValueError unless both parts can have examples."""
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction must be between 0 and 1, got {test_fraction}")


def stratified(labels: np.ndarray, num_classes: int, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Which examples are the test set [n] bool: round(fraction * its size) of each class, drawn."""
    in_test = np.zeros(len(labels), bool)
    for label in range(num_classes):
        members = rng.permutation(np.flatnonzero(labels == label))
        in_test[members[: round(fraction * len(members))]] = True
    return in_test
