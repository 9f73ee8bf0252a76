"""What the turns of `make bench-peers` say, in Markdown: python -m benchmarks.peers.table FILE"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple, TypedDict


class Run(TypedDict):
    """One process: the seconds of its rounds but the first, and the cores that other processes used meanwhile."""

    contender: str
    seconds: list[float]
    others: float | None


OURS = "ours"
Turn = list[Run]  # the plain loop, a contender, the plain loop, another contender, ..., the plain loop


class Standing(NamedTuple):
    """A contender beside the plain loop and beside this package."""

    milliseconds: float  # a round, median of all
    fastest: float  # milliseconds of the fastest: what others on the machine disturbed least
    speed: float  # how many times as fast as the plain loop before and after it, median of the turns
    least: float
    most: float
    ours: float | None  # how many times as fast this package was, median of the turns that have both
    ours_fastest: float | None  # the same of the fastest rounds


def speeds(turn: Turn) -> dict[str, float]:
    """Of each contender, relative to the plain loop before and after it."""
    found = {}
    for before, run, after in zip(turn[0::2], turn[1::2], turn[2::2], strict=False):
        plain = statistics.median(before["seconds"] + after["seconds"])
        found[run["contender"]] = plain / statistics.median(run["seconds"])
    return found


def standings(turns: list[Turn]) -> dict[str, Standing]:
    """By contender, in the order in which they were first measured."""
    seconds: dict[str, list[float]] = {}
    for run in (run for turn in turns for run in turn):
        seconds.setdefault(run["contender"], []).extend(run["seconds"])
    by_turn = [speeds(turn) | {"plain": 1.0} for turn in turns]
    found = {}
    for name, times in seconds.items():
        own = [each[name] for each in by_turn if name in each]
        ratios = [each[OURS] / each[name] for each in by_turn if {OURS, name} <= each.keys()]
        ours = (statistics.median(ratios), min(times) / min(seconds[OURS])) if ratios else (None, None)
        speed = (statistics.median(own), min(own), max(own))
        found[name] = Standing(1e3 * statistics.median(times), 1e3 * min(times), *speed, *ours)
    return found


def table(results: dict[str, Any]) -> str:
    """A line for each contender of each workload, and what all was measured on."""
    lines = [
        "| workload | contender | ms a round | fastest | speed (plain 1) | of the turns | ours / it | of fastest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for workload, turns in results["turns"].items():
        for name, found in standings(turns).items():
            ratios = ["" if ratio is None else f"{ratio:.2f}" for ratio in (found.ours, found.ours_fastest)]
            times = [f"{found.milliseconds:.0f}", f"{found.fastest:.0f}"]
            cells = [workload, name, *times, f"{found.speed:.2f}", f"{found.least:.2f} - {found.most:.2f}", *ratios]
            lines.append(f"| {' | '.join(cells)} |")
    here, counts = results["machine"], {w: len(turns) for w, turns in results["turns"].items() if turns}
    busy = [run["others"] for turns in results["turns"].values() for turn in turns for run in turn]
    others = [cores for cores in busy if cores is not None]
    lines += ["", *(f"not measured: {reason}" for reason in results["failed"].values())]
    lines += [
        f"{here['processor']}, {len(here['cores']) or 'all'} cores; Python {here['python']}, torch {here['torch']};"
    ]
    lines += [", ".join(here["peers"].values()) + f"; commit {here['commit'][:7]};"]
    lines += ["turns: " + ", ".join(f"{w} {n}" for w, n in counts.items()) + f"; {results['rounds']} rounds a process;"]
    if others:
        lines += [f"cores used by other processes: median {statistics.median(others):.2f}, most {max(others):.2f}"]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text())))
