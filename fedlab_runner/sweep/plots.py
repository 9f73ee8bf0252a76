"""Pictures of a sweep, in its folder: the objective against each swept number, and curves over the rounds."""

import math
import statistics
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlab_runner.core.metric_names import is_share
from fedlab_runner.methods.registry import Line, Method, method_of, method_style, tell_apart
from fedlab_runner.plots.style import (
    GREY,
    STYLE,
    figure_with_legend,
    in_legend,
    in_percent,
    legend_below,
    over_rounds,
    save,
    series,
)
from fedlab_runner.sweep.ranking import best_first, comparable, judged, short
from fedlab_runner.sweep.records import Job, Row, read
from fedlab_runner.tracking.ending import judged_by
from fedlab_runner.utils import untrusted
from fedlab_runner.utils.escaping import file_name, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LINES = 10  # of a picture: more lines hide each other
MAX_PICTURES = 12  # of curves by the values of the numbers: nobody compares more
MARKERS_ON_LINE = 8  # about the number of markers on a long line
MAX_TICKS = 12  # values of a number that have a place each; more, and numbers that a search draws, are on a scale
AXIS_CHARACTERS = 64  # that fit below an axis side by side; labels that take more are turned
MIN_LOG_RATIO = 10  # of the largest value and the smallest, from which on the scale is logarithmic
MANY_DECADES = 1000  # such a ratio from which on a logarithmic scale names only powers of ten
CAPTION = "Means over seeds, shaded by a standard deviation where a setting has several."  # of the curves
BEST = "The best setting of the other numbers at each value.\n"  # where lines would be too many
# Further curves besides the objective's metric: file, key, and the keys of a band around it.
CURVES = (
    ("update_cosines", "analysis/update_cosine_mean", ("analysis/update_cosine_min", "analysis/update_cosine_max")),
    ("directions", "algorithm/probe_cosine_first", None),
    ("client-global", "client/global", None),  # HyFEM, Figures 5, 10, 13 and 14
    ("client-validation", "client/validation", None),  # DFML, Figure 18
    ("regular-accuracy", "regular/accuracy", None),  # DFML, Figures 7 and 8
    ("meme-accuracy", "meme/accuracy", None),  # DFML, Figure 24
    ("train-loss", "server/train_weighted_loss", None),  # FedWalk, Figure 2
)


def plot_sweep(folder: Path) -> list[Path]:
    """Draws the finished jobs of a sweep into `folder`/plots, and returns the files.

    `<key>.png`, with an SVG beside it: the objective against each swept key whose values are numbers, with a line for
    each combination of the other keys: the mean and the standard deviation over seeds. Where these are too many, it has
    the best setting of the other numbers. Many values, as a search has, are points. `curves.png`: the objective's
    metric over the rounds, with a line for each setting; too many settings for one picture are split by the values of
    the numbers. `curves-best.png` in their place: the best settings, where these would be too many pictures. A sweep
    over several metrics or rules has these pictures of each, with metric and rule in their names. The registry of
    methods gives the lines' style.
    """
    from matplotlib.style import context

    kinds = comparable([row for row in read(folder) if row.values()])
    drawn: list[Path | None] = []
    with context(STYLE):
        for of, rows in kinds.items():
            further = [each for each in CURVES if each[1] != of.metric]
            kind = [each.replace("/", "-") for each in of] if len(kinds) > 1 else []
            drawn += [_against(folder, rows, key, kind) for key in _numbers(rows)]
            varying = {id(row): overrides for row, overrides in zip(rows, _varying(rows), strict=True)}
            keys = {of.metric, *(key for _, each, band in further for key in (each, *(band or ())))}
            for suffix, words, some in _groups(rows) if of.metric else ():
                logged = [[_metrics(job, keys) for job in row.finished] for row in some]
                methods = [_method(row) for row in some]
                labels = _labels(methods, ([each for each in varying[id(row)] if each not in words] for row in some))
                for name, key, band in (("curves", of.metric, None), *further):
                    file = "-".join([name, *suffix, *kind])
                    title = ", ".join([key, *words])
                    drawn.append(_over_rounds(folder, file, key, band, title, methods, labels, logged))
    return [path for path in drawn if path is not None]


def _against(folder: Path, rows: Sequence[Row], key: str, kind: Sequence[str]) -> Path | None:
    """Draws the objective against one key; None if no two values share the other keys, or for too many lines.

    `kind`: parts of the file's name that tell it from the pictures of other objectives.
    """
    from matplotlib.ticker import LogLocator

    numbers = _numbers(rows)
    lines = _lines(rows, {key})
    if best := len(lines) > MAX_LINES and len(numbers) > 1:
        lines = _lines(rows, {*numbers})
    by_value = {rest: _best_by_value(line, key) for rest, line in lines.items()}
    if len(lines) > MAX_LINES or all(len(line) < 2 for line in by_value.values()):
        return None
    names = {float(text): text for row in rows if (text := _values(row).get(key))}
    places = sorted(names)
    methods = [_method(line[0]) for line in lines.values()]
    labels = _labels(methods, lines)
    figure = figure_with_legend(folder.name, labels)
    axes = figure.subplots()
    scaled = len(places) > MAX_TICKS or any(not each.is_integer() and float(f"{each:.4g}") != each for each in places)
    for look, name, line in zip(tell_apart(methods), labels, by_value.values(), strict=True):
        x = sorted(line) if scaled else [places.index(value) for value in sorted(line)]
        _draw(axes, look, x, [line[value].values() for value in sorted(line)], name, joined=not scaled)
    if not scaled:
        texts = [label(names[value]) for value in places]
        level = len(texts) * (max(map(len, texts)) + 1) <= AXIS_CHARACTERS
        turned: dict[str, Any] = {} if level else {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(range(len(places)), texts, **turned)  # 0, 0.001, 0.1 fit no scale
    elif places[-1] >= MIN_LOG_RATIO * places[0] > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if places[-1] < MANY_DECADES * places[0] else (1,)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
    of = judged(rows[0])
    axes.set(title=label(judged_by(*of) or "objective"), xlabel=label(key))
    if is_share(of.metric):
        in_percent(axes.yaxis)
    legend_below(axes, BEST * best + CAPTION, several=len(lines) > 1)
    return _saved(figure, folder, "-".join([key, *kind]))


def _lines(rows: Sequence[Row], free: Collection[str]) -> dict[tuple[str, ...], list[Row]]:
    """The settings that have all of the keys `free`, by their other varying overrides."""
    lines: dict[tuple[str, ...], list[Row]] = {}
    for row, varying in zip(rows, _varying(rows), strict=True):
        if _values(row).keys() >= {*free}:
            rest = tuple(each for each in varying if each.partition("=")[0] not in free)
            lines.setdefault(rest, []).append(row)
    return lines


def _best_by_value(rows: Sequence[Row], key: str) -> dict[float, Row]:
    """The best setting of each value of a key."""
    return {float(_values(row)[key]): row for row in reversed(best_first(rows))}


def _over_rounds(
    folder: Path,
    name: str,
    key: str,
    band: tuple[str, str] | None,
    title: str,
    methods: Sequence[Method],
    labels: Sequence[str],
    logged: Sequence[Sequence[Sequence[Mapping[str, Any]]]],
) -> Path | None:
    """Draws a metric over the rounds, a line for each setting; None if no run has it.

    `methods` and `labels` are the settings'; `logged` has a run's rows by setting and job.
    """
    if not any(found := [_by_round(runs, key) for runs in logged]):
        return None
    caption = CAPTION if band is None else "Means over seeds, shaded from the smallest to the largest client."
    figure = figure_with_legend(folder.name, labels)
    axes = figure.subplots()
    for look, text, runs, values in zip(tell_apart(methods), labels, logged, found, strict=True):
        if not values:
            continue
        _draw(axes, look, list(values), list(values.values()), text, spread=band is None)
        if band is not None:
            low, high = ([statistics.fmean(each) for each in _by_round(runs, edge).values()] for edge in band)
            axes.fill_between(list(values), low, high, color=look.colour, alpha=0.12, linewidth=0)
    over_rounds(axes, label(title))
    if is_share(key):
        in_percent(axes.yaxis)
    if "cosine" in key:
        axes.axhline(0, color=GREY, linewidth=0.8)
    legend_below(axes, caption)
    return _saved(figure, folder, name)


def _saved(figure: "Figure", folder: Path, name: str) -> Path:
    path = folder / "plots" / f"{file_name(name)}.png"
    save(figure, path)
    return path


def _groups(rows: Sequence[Row]) -> list[tuple[Sequence[str], Sequence[str], Sequence[Row]]]:
    """The settings by picture, each with the parts of a file's name and of a title that other pictures do not have."""
    if len(rows) <= MAX_LINES:
        return [((), (), rows)] if len(rows) > 1 else []
    numbers = _numbers(rows)
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        shared = tuple(each for each in row.setting if each.partition("=")[0] in numbers)
        groups.setdefault(shared, []).append(row)
    found = [(shared, shared, some) for shared, some in groups.items() if 1 < len(some) <= MAX_LINES]
    if 0 < len(found) <= MAX_PICTURES:
        return [*found]
    return [(("best",), (f"best {MAX_LINES} of {len(rows)} settings",), best_first(rows)[:MAX_LINES])]


def _by_round(runs: Sequence[Sequence[Mapping[str, Any]]], key: str) -> dict[int, list[float]]:
    """The finite values of a metric over those of some runs that have it, by the rounds in which all these have one: a
    mean of fewer seeds would leave the line.
    """
    found = [each for run in runs if (each := dict(zip(*series(run, key), strict=True)))]
    shared = set.intersection(*map(set, found)) if found else set()
    return {round: [each[round] for each in found] for round in sorted(shared)}


def _draw(
    axes: "Axes",
    look: Line,
    x: Sequence[float],
    values: Sequence[Sequence[float]],
    name: str,
    spread: bool = True,
    joined: bool = True,
) -> None:
    """The means of the values at each x, as a line (`joined`) or as points, and a band of one standard deviation if
    there are several.
    """
    means = [statistics.fmean(each) for each in values]
    stds = [statistics.stdev(each) if len(each) > 1 else 0.0 for each in values]
    every = max(1, len(x) // MARKERS_ON_LINE) if joined else 1
    style, marker, colour = look.linestyle if joined else "none", look.marker, look.colour
    axes.plot(x, means, linestyle=style, color=colour, marker=marker, markevery=every, label=in_legend(name))
    if spread and any(stds):
        low, high = ([m + sign * s for m, s in zip(means, stds, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _method(row: Row) -> Method:
    """The method of a setting, from the config of its first run, or else from its overrides."""
    for job in row.finished[:1]:
        with suppress(OSError, untrusted.Unreadable):
            config = untrusted.read_yaml(Path(job.folder) / "config.yaml")
            if isinstance(config, Mapping):
                return method_of(config)
    values = _values(row)
    return method_style(values.get("algorithm", ""), values)


def _labels(methods: Sequence[Method], overrides: Iterable[Sequence[str]]) -> list[str]:
    """The names of lines: the method if there are several, and the overrides that its name does not express."""
    several = len({method.key for method in methods}) > 1
    found = []
    for method, some in zip(methods, overrides, strict=True):
        told = {"algorithm", *method.told} if several else set()
        rest = [each for each in some if each.partition("=")[0].rpartition("@")[2] not in told]
        found.append(" ".join([method.name] * several + rest) or "(defaults)")
    return short(found)


def _values(row: Row) -> dict[str, str]:
    """The overrides of a setting, by key."""
    return {key: value for key, _, value in (each.partition("=") for each in row.setting)}


def _varying(rows: Sequence[Row]) -> list[list[str]]:
    """The overrides of each setting that not all settings share."""
    shared = set.intersection(*(set(each.setting) for each in rows)) if len(rows) > 1 else set()
    return [[each for each in row.setting if each not in shared] for row in rows]


def _numbers(rows: Sequence[Row]) -> list[str]:
    """The keys with different values in the sweep, all of them numbers."""
    values: dict[str, set[str]] = {}
    for row in rows:
        for key, value in _values(row).items():
            values.setdefault(key, set()).add(value)
    return sorted(key for key, found in values.items() if len(found) > 1 and all(map(_is_number, found)))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _metrics(job: Job, keys: Collection[str]) -> list[dict[str, Any]]:
    """Some metrics in the rows of a job's run that have any, up to the job's last round; empty if its folder was moved
    or is on another machine.
    """
    from fedlab_runner.tracking.jsonl import decode

    last = job.summary.get("rounds")
    stop = last + 1 if isinstance(last, int) and 0 <= last < sys.maxsize else None
    try:
        rows = map(decode, islice(untrusted.lines(Path(job.folder) / "metrics.jsonl"), stop))
        kept = ({key: row[key] for key in ("round", *keys) if key in row} for row in rows)
        return [row for row in kept if len(row) > 1]
    except (OSError, ValueError):
        return []
