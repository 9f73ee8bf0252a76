"""What the speed on a GPU should be, and what the check has found of it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Times = Mapping[str, float]  # the median seconds of each contender


def over_plain(times: Times) -> float:
    """The plain loop's time divided by the package's least."""
    return times["plain"] / min(_ours(times))


def over_best(times: Times) -> float:
    """The least time of all plain loops divided by the package's least."""
    return min(seconds for name, seconds in times.items() if _is_plain(name)) / min(_ours(times))


def over_fine_tuning(times: Times) -> float:
    """The time of fine-tuning the same steps divided by the search's."""
    return times["ours, fine-tuning"] / times["ours"]


class Goal(NamedTuple):
    """A ratio of times that should be at least so much."""

    case: str
    words: str
    ratio: Callable[[Times], float]
    least: float


GOALS = (
    Goal("W2 mlp", "x 10 of the plain loop", over_plain, 10),
    Goal("W1 cnn", "x 4 of the plain loop", over_plain, 4),
    Goal("resnet18", "within 10 % of the best plain loop", over_best, 0.9),
    Goal("feddle's search", "at most 1.2 times fine-tuning", over_fine_tuning, 1 / 1.2),
    Goal("dfml's mutual learning", "x 3 of the plain loop", over_plain, 3),
    Goal("evaluation", "as fast as the best plain loop", over_best, 1),
)


def rows(results: dict[str, Any], precisions: tuple[str, ...] = ("float32", "tf32", "bf16")) -> list[str]:
    """A line of a table for each goal and precision that was measured, and one for a goal of which nothing was."""
    lines = []
    for goal in GOALS:
        found = []
        for name in precisions:
            part = results["parts"].get(name, {"findings": []})
            times = {
                each["name"]: each["numbers"]["median_seconds"]
                for each in part["findings"]
                if each["case"] == goal.case and "median_seconds" in each["numbers"]
            }
            try:
                ratio = goal.ratio(times)
            except (KeyError, ValueError):  # a contender that it needs was not measured
                continue
            found.append(f"| {goal.case} | {goal.words} | {name}: {ratio:.2f} | {_verdict(ratio, goal.least)} |")
        lines += found or [f"| {goal.case} | {goal.words} | not measured | |"]
    return lines


def _verdict(ratio: float, least: float) -> str:
    return "yes" if ratio >= least else "**no**"


def _ours(times: Times) -> list[float]:
    return [seconds for name, seconds in times.items() if not _is_plain(name)]


def _is_plain(name: str) -> bool:
    return name.partition(",")[0] == "plain"
