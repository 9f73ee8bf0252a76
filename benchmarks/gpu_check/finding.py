"""What the parts of the check are made of, and what they say."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch


class Setting(NamedTuple):
    """Where the parts run; `tiny`: at sizes that a CPU does in seconds."""

    device: torch.device
    tiny: bool

    @property
    def on_gpu(self) -> bool:
        """Whether there is something to prove."""
        return self.device.type == "cuda"


class Finding(NamedTuple):
    """One line of the table. `holds` is None where nothing is claimed: a time that was measured, or what cannot be."""

    name: str
    words: str
    holds: bool | None
    numbers: dict[str, Any] = {}  # noqa: RUF012  # nobody writes into it


def line(case: str, finding: Finding) -> dict[str, Any]:
    """As the JSON has it."""
    return {"case": case, **finding._asdict()}


Case = Callable[[], Iterable[Finding]]


class Part(NamedTuple):
    """Cases by name; all of them may take so many seconds, and each so many of them. Those `alone` time something: no
    other part runs beside them.
    """

    name: str
    cases: Callable[[Setting], Iterator[tuple[str, Case]]]
    seconds: float
    seconds_a_case: float
    alone: bool = False


def farthest(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[float, str]:
    """How far the numbers of two rows of metrics are from each other at most, relative to those of 1 and more and
    absolute below, and the key of it; infinite where they have not the same keys or only one is a number.
    """
    if one.keys() != other.keys():
        return math.inf, ", ".join(sorted(one.keys() ^ other.keys()))
    gaps = [(_gap(one[key], other[key]), key) for key in one]
    return max(gaps, default=(0.0, "nothing"))


def _gap(a: Any, b: Any) -> float:
    if not all(isinstance(each, int | float) for each in (a, b)):
        return 0.0 if a == b else math.inf
    if math.isfinite(a) and math.isfinite(b):
        return float(abs(a - b) / max(1.0, abs(a), abs(b)))
    return 0.0 if a == b or (a != a and b != b) else math.inf
