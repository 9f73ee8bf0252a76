"""Ends and ticks of axes."""

import math
from collections.abc import Iterable, Sequence

from fedlab_runner.utils.short_number import short_number

LOG_RATIO = 10  # of the largest to the smallest end of a curve, from which on a cost axis is logarithmic
MARGIN = 0.04  # share of an axis's length beyond the data


def span(values: Iterable[float]) -> tuple[float, float] | None:
    """The smallest and the largest finite value; None without finite values."""
    known = [each for each in values if math.isfinite(each)]
    return (min(known), max(known)) if known else None


def padded(low: float, high: float, floor: float = -math.inf, ceiling: float = math.inf) -> tuple[float, float]:
    """Ends of an axis a little beyond the data, but not beyond `floor` and `ceiling`."""
    length = high - low if high - low > 1e-9 * abs(high) else 0.0  # rounding makes no axis
    margin = MARGIN * length or 0.05 * abs(high) or 1.0
    start, end = low - margin, high + margin
    return (max(start, floor) if low >= floor else start), (min(end, ceiling) if high <= ceiling else end)


def ticks(low: float, high: float, most: int = 6, whole: bool = False) -> list[float]:
    """Round values between two ends, at most `most`: multiples of 1, 2 or 5 times a power of ten."""
    length = high - low
    if not (math.isfinite(length) and length > 0):
        return [low] if math.isfinite(low) else []
    power = 10.0 ** math.floor(math.log10(length / most))
    step = next(each * power for each in (1, 2, 5, 10, 20) if length / (each * power) <= most)
    if whole:
        step = max(1.0, float(math.ceil(step)))
    first = math.ceil(low / step - 1e-9)
    return [float(f"{i * step:.14g}") for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Powers of ten between two positive ends, and 2 and 5 times these powers if there is room."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high]
        if len(found) <= most:
            return found
    return found[:: -(-len(found) // most)]


def log_tick_labels(values: Iterable[float]) -> list[str]:
    """The values of a logarithmic axis, each with the k or M that its own size needs."""
    return [label for each in values for label in tick_labels([each])]


def tick_labels(values: Sequence[float]) -> list[str]:
    """Different values with the digits that their distance needs; large ones with k and M, tiny ones as 1.5e-5."""
    largest = max(map(abs, values), default=0.0)
    scales = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))
    unit, letter = next(((unit, letter) for size, unit, letter in scales if size <= largest < 1e12), (1.0, ""))
    for digits in range(6, 15):
        words = [short_number(abs(each) / unit, digits) + letter * (each != 0) for each in values]
        found = [f"\N{MINUS SIGN}{word}" if each < 0 else word for word, each in zip(words, values, strict=True)]
        if len(set(found)) == len(values):
            break
    return found
