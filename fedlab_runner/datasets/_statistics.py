"""The check of a data set's mean and std."""


def check(mean: list[float], std: list[float], channels: int) -> None:
    """Raises ValueError unless there is a mean and a std > 0 for each channel."""
    for name, values in (("mean", mean), ("std", std)):
        if len(values) != channels:
            raise ValueError(f"{name} must have one value for each channel ({channels}), got {values}")
    if min(std) <= 0:
        raise ValueError(f"std must be > 0, got {std}")
