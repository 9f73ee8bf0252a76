"""The balanced Dirichlet draw of Yurochkin et al., on class sizes alone; samples are dealt by its counts afterwards.

Bayesian Nonparametric Federated Learning of Neural Networks, ICML 2019. https://arxiv.org/abs/1905.12022
"""

import numpy as np

from fedlab_runner.partitions._common import cut, dirichlet


def balanced_counts(
    class_sizes: np.ndarray, exists: np.ndarray, alpha: float, rng: np.random.Generator, least: int = 0
) -> np.ndarray:
    """How many samples of every class each client of G independent groups gets, int64 [G, C, M].

    class_sizes [G, C]; exists [G, M] marks the clients of a group, at least one. Class after class is shared out by
    Dirichlet(alpha), but only among the clients that have less than their fair share of the group's samples so far:
    that is the same as zeroing the others' entries and renormalising, without its 0 / 0.

    If no group can lift all its clients to `least` samples any more, the rest is not drawn and counts as 0: a caller
    that discards such draws loses no time with them.
    """
    fair = class_sizes.sum(1, keepdims=True) / exists.sum(1, keepdims=True)  # [G, 1]
    counts = np.zeros((*class_sizes.shape, exists.shape[1]), np.int64)
    sizes = np.zeros(exists.shape, np.int64)
    for c in range(class_sizes.shape[1]):
        needed = (np.maximum(least - sizes, 0) * exists).sum(1)
        if (needed > class_sizes[:, c:].sum(1)).all():
            break
        open = exists & (sizes < fair)
        open |= exists & ~open.any(1, keepdims=True)  # all samples are dealt: class c is empty in this group
        counts[:, c] = cut(dirichlet(rng, alpha, open), class_sizes[:, c])
        sizes += counts[:, c]
    return counts
