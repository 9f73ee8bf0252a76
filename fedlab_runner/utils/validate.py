"""Checks values that a user sets. Each check raises ValueError with one line that begins with the value's name.

    def __post_init__(self) -> None:
        at_least(1, epochs=self.epochs, batch_size=self.batch_size)
        above(0, lr=self.lr, clip_norm=self.clip_norm)  # None passes: where a field may be null
        within("[0, 1)", momentum=self.momentum)
        one_of(("delta", "model"), late_policy=self.late_policy)

A value of None passes everywhere: the type check of a config refuses it where a field may not be null. NaN, and what
float32 cannot hold, pass nowhere. One call checks several values against the same bound.
"""

from collections.abc import Callable, Collection, Sequence

Number = float | int | None
LIMIT = 3e38  # numbers must be smaller: float32 has none above 3.4e38


def at_least(least: float, **values: Number) -> None:
    """Each value is >= `least`."""
    _check(lambda value: value >= least, f">= {least:g}", values)


def above(bound: float, **values: Number) -> None:
    """Each value is > `bound`."""
    _check(lambda value: value > bound, f"> {bound:g}", values)


def within(interval: str, **values: Number) -> None:
    """Each value is in an interval in mathematical notation: `[0, 1)` has 0 but not 1."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    closed_low, closed_high = interval[0] == "[", interval[-1] == "]"

    def inside(value: float) -> bool:
        return (low < value or (closed_low and value == low)) and (value < high or (closed_high and value == high))

    _check(inside, f"in {interval}", values)


def one_of(choices: Collection[str | int], **values: str | int | None) -> None:
    """Each value is one of the choices."""
    for name, value in values.items():
        if value is not None and value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value}")


def unused(choice: str, **values: object) -> None:
    """Each value is None, because it has no effect for a `choice` such as `optimizer=adam`."""
    for name, value in values.items():
        if value is not None:
            raise ValueError(f"{name} does nothing for {choice}: it must be null, got {value}")


def each_at_least(least: float, **values: Sequence[float] | None) -> None:
    """Each value is a list of one or more numbers >= `least`."""
    for name, numbers in values.items():
        if numbers is not None and not (len(numbers) and all(number >= least for number in numbers)):
            raise ValueError(f"{name} must be a list of one or more numbers >= {least:g}, got {list(numbers)}")


def _check(is_right: Callable[[float], bool], words: str, values: dict[str, Number]) -> None:
    for name, value in values.items():
        if value is not None and not (is_right(value) and value < LIMIT):
            more = " and < 3e38" if is_right(value) else ""
            raise ValueError(f"{name} must be {words}{more}, got {value}")
