"""Curves of a run over its rounds, drawn without a display."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlab_runner.core.metric_names import COUNT_PREFIX
from fedlab_runner.plots.style import BLUE, GREY, ORANGE, STYLE, new_figure, save, series

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_curves(path: Path, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Draws test accuracy, and train and test loss, over the rounds; `rows` as in `metrics.jsonl`."""
    from matplotlib.style import context

    with context(STYLE):
        figure = new_figure(9, 3.6, title)
        accuracy, loss = figure.subplots(1, 2)
        _accuracy(accuracy, *series(rows, "test/accuracy"))
        _losses(loss, rows)
        save(figure, path)


def plot_staleness(path: Path, rows: Sequence[Mapping[str, Any]], title: str) -> bool:
    """Draws the staleness of updates on arrival, in rounds: over the rounds, and as a histogram if rows hold counts.

    Returns False, and draws nothing, where no update was late.
    """
    from matplotlib.style import context

    counts = staleness_counts(rows)
    mean = series(rows, "late/staleness_mean")[1]
    panels = [draw for draw, late in ((_staleness_over_rounds, mean), (staleness_histogram, counts)) if any(late)]
    if not panels:
        return False
    with context(STYLE):
        figure = new_figure(4.5 * len(panels), 3.6, title)
        for axes, draw in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            draw(axes, rows)
        save(figure, path)
    return True


def staleness_counts(rows: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """The number of updates by staleness in rounds, summed over the keys `late/staleness_count/<staleness>`."""
    counts: dict[int, float] = {}
    for row in rows:
        for key, value in row.items():
            if key.startswith(COUNT_PREFIX) and value > 0:
                age = int(key.removeprefix(COUNT_PREFIX))
                counts[age] = counts.get(age, 0) + value
    return dict(sorted(counts.items()))


def _staleness_over_rounds(axes: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    axes.set(title="Staleness on arrival", xlabel="round", ylabel="rounds")
    rounds, oldest = series(rows, "late/staleness_max")
    axes.fill_between(rounds, oldest, color=BLUE, alpha=0.2, linewidth=0, label="up to the oldest")
    axes.plot(*series(rows, "late/staleness_mean"), color=BLUE, linewidth=1.2, label="mean")
    axes.set_ylim(0, 1.25 * axes.get_ylim()[1])  # room for the legend
    axes.legend(loc="upper left", ncols=2)


def staleness_histogram(axes: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    """Draws the number of updates by staleness over all `rows`, which must hold counts."""
    from matplotlib.ticker import MaxNLocator

    counts = staleness_counts(rows)
    axes.bar(list(counts), list(counts.values()), width=0.9, color=BLUE)
    mean = sum(age * count for age, count in counts.items()) / sum(counts.values())
    axes.axvline(mean, color=ORANGE, linestyle="--", label=f"mean {mean:.1f}")
    axes.set(title="Updates by staleness", xlabel="rounds between start and arrival", ylabel="updates")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(axis="x", visible=False)
    axes.legend()


def _accuracy(axes: "Axes", rounds: list[int], values: list[float]) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set(title="Test accuracy", xlabel="round")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    if not values:
        return
    axes.plot(rounds, values, color=BLUE, marker="o" if len(values) <= 40 else "", markersize=3)
    best = max(range(len(values)), key=values.__getitem__)
    label = f"best {values[best]:.2%} in round {rounds[best]}"
    axes.scatter([rounds[best]], [values[best]], s=45, color=ORANGE, zorder=3, label=label)
    axes.set_ylim(0, min(1.02, values[best] * 1.1) or 1.0)
    axes.legend(loc="lower right")


def _losses(axes: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    axes.set(title="Loss", xlabel="round")
    lines = (("train/loss", "train", GREY, 1.0), ("test/loss", "test", BLUE, 1.6))
    for key, label, colour, width in lines:
        rounds, values = series(rows, key)
        if values:
            axes.plot(rounds, values, color=colour, linewidth=width, label=label)
    if axes.lines:
        axes.legend()
