"""The check of a data set's mean and std."""


def check(mean: list[float], std: list[float], channels: int) -> None:
    """Raises ValueError unless there is a mean and a std > 0 for each channel; grey images may also have three of each,
    for a model that reads them in colour.
    """
    counts = (1, 3) if channels == 1 else (channels,)
    wanted = " or ".join(map(str, counts))
    for name, values in (("mean", mean), ("std", std)):
        if len(values) not in counts:
            raise ValueError(f"{name} must have one value for each channel ({wanted}), got {values}")
    if len(mean) != len(std):
        raise ValueError(f"std must have as many values as mean ({len(mean)}), got {std}")
    if min(std) <= 0:
        raise ValueError(f"std must be > 0, got {std}")
