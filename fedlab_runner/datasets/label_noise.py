"""Label noise on training examples (Feddle, Table 4)."""

import torch

from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.utils.validate import within


def add_label_noise(examples: Examples, rate: float, num_classes: int, seed: int) -> Examples:
    """The examples with exactly round(rate * n) targets replaced by draws from `seed`, uniform over all classes.

    A draw may hit the true label. The strata stay, so that a partition is the same with and without noise. Raises
    ValueError if `rate` is outside [0, 1].
    """
    within("[0, 1]", label_noise=rate)
    n = len(examples.targets)
    noisy = round(rate * n)
    if noisy == 0:
        return examples
    rng = generator(seed, Purpose.LABEL_NOISE)
    chosen = torch.from_numpy(rng.choice(n, noisy, replace=False))
    targets = examples.targets.clone()
    targets[chosen] = torch.from_numpy(rng.integers(num_classes, size=noisy))
    return examples._replace(targets=targets)
