"""The balanced Dirichlet draw of class counts (Yurochkin et al., ICML 2019). https://arxiv.org/abs/1905.12022"""

import numpy as np

from fedlab_runner.partitions._common import cut, dirichlet


def balanced_counts(
    class_sizes: np.ndarray, exists: np.ndarray, alpha: float, rng: np.random.Generator, least: int = 0
) -> np.ndarray:
    """The numbers of examples of each class for the clients of G independent groups, int64 [G, C, M].

    `class_sizes` is [G, C]; `exists` [G, M] marks the clients of each group, at least one. Dirichlet(alpha) divides
    each class among the clients that have less than their fair share of the group's examples so far. The authors zero
    the other entries and renormalise, which is the same except for their 0 / 0.

    Once no group can give all its clients `least` examples, the draw stops and the remaining classes count as 0: the
    caller discards such draws.
    """
    fair = class_sizes.sum(1, keepdims=True) / exists.sum(1, keepdims=True)  # [G, 1]
    counts = np.zeros((*class_sizes.shape, exists.shape[1]), np.int64)
    sizes = np.zeros(exists.shape, np.int64)
    for c in range(class_sizes.shape[1]):
        needed = (np.maximum(least - sizes, 0) * exists).sum(1)
        if (needed > class_sizes[:, c:].sum(1)).all():
            break
        open = exists & (sizes < fair)
        open |= exists & ~open.any(1, keepdims=True)  # all examples are dealt, so class c is empty in this group
        counts[:, c] = cut(dirichlet(rng, alpha, open), class_sizes[:, c])
        sizes += counts[:, c]
    return counts
