"""The check of a data set's mean and std."""

import math


def check(mean: list[float], std: list[float], channels: int) -> None:
    """Raises ValueError unless there is a finite mean and a finite std > 0 for each channel.

    Grey images may have three of each, for a model that reads them in colour.
    """
    counts = (1, 3) if channels == 1 else (channels,)
    wanted = " or ".join(map(str, counts))
    for name, values in (("mean", mean), ("std", std)):
        if len(values) not in counts:
            raise ValueError(f"{name} must have one value for each channel ({wanted}), got {values}")
    if len(mean) != len(std):
        raise ValueError(f"std must have as many values as mean ({len(mean)}), got {std}")
    if not all(map(math.isfinite, mean)):
        raise ValueError(f"mean must be finite, got {mean}")
    if not all(0 < value < math.inf for value in std):
        raise ValueError(f"std must be finite and > 0, got {std}")
