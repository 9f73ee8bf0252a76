"""Curves of a run over its rounds, drawn without a display."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlab_runner.core.metric_names import COUNT_PREFIX
from fedlab_runner.plots.style import (
    BLUE,
    GREY,
    ORANGE,
    STYLE,
    in_percent,
    marker,
    new_figure,
    over_rounds,
    save,
    series,
)
from fedlab_runner.tracking.summary import evaluations

if TYPE_CHECKING:
    from matplotlib.axes import Axes


LOSSES = ("train/loss", "test/loss")  # metric keys in the panel of losses
# Of the picture of staleness.
STALENESS_CAPTION = "Staleness: the rounds between a client's start and the arrival of its update."


def plot_curves(path: Path, rows: Sequence[dict[str, Any]], title: str, every: int) -> bool:
    """Draws test accuracy, and train and test loss, over the rounds; `rows` as in `metrics.jsonl`. Its best round is
    one that counts in the summary, of a run that evaluates `every` so many rounds.

    It leaves out a panel without finite values. Returns False, and draws nothing, if both panels have none.
    """
    from matplotlib.style import context

    there = [
        (draw, words)
        for draw, keys, words in (
            (
                partial(_accuracy, every=every),
                ("test/accuracy",),
                "Accuracy of the evaluated model on the test set, with its best round.",
            ),
            (_losses, LOSSES, "Loss: the clients' mean while they train, and the evaluated model's on the test set."),
        )
        if any(series(rows, key)[0] for key in keys)
    ]
    if not there:
        return False
    with context(STYLE):
        figure = new_figure(4.5 * len(there), 3.8, title, " ".join(words for _, words in there))
        for axes, (draw, _) in zip(figure.subplots(1, len(there), squeeze=False)[0], there, strict=True):
            draw(axes, rows)
        save(figure, path)
    return True


def plot_staleness(path: Path, rows: Sequence[Mapping[str, Any]], title: str) -> bool:
    """Draws the staleness of updates on arrival, in rounds: over the rounds, and as a histogram if rows hold counts.

    Returns False, and draws nothing, if no update was late.
    """
    from matplotlib.style import context

    counts = staleness_counts(rows)
    mean = series(rows, "late/staleness_mean")[1]
    panels = [draw for draw, late in ((_staleness_over_rounds, mean), (staleness_histogram, counts)) if any(late)]
    if not panels:
        return False
    with context(STYLE):
        figure = new_figure(4.5 * len(panels), 3.8, title, STALENESS_CAPTION)
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
    over_rounds(axes, "Staleness on arrival", "rounds")
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
        axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.grid(axis="x", visible=False)
    axes.legend()


def _accuracy(axes: "Axes", rows: Sequence[dict[str, Any]], every: int) -> None:
    over_rounds(axes, "Test accuracy")
    in_percent(axes.yaxis)
    rounds, values = series(rows, "test/accuracy")
    axes.plot(rounds, values, color=BLUE, marker=marker(len(values)))
    # Without the initial model, and the last round before the run was made longer.
    counting = {row["round"] for row in evaluations(rows, "test/accuracy", every, rows[-1]["round"])}
    if places := [i for i, round in enumerate(rounds) if round in counting]:
        best = max(places, key=values.__getitem__)
        label = f"best {100 * values[best]:.2f} % in round {rounds[best]:,}"
        axes.scatter([rounds[best]], [values[best]], s=45, color=ORANGE, zorder=3, label=label)
        axes.legend()
    low, high = axes.get_ylim()
    axes.set_ylim(max(0.0, low), min(1.02, high))


def _losses(axes: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    over_rounds(axes, "Loss")
    lines = zip(LOSSES, ("train", "test"), (GREY, BLUE), ("--", "-"), strict=True)
    for key, label, colour, dash in lines:
        rounds, values = series(rows, key)
        if values:
            axes.plot(rounds, values, dash, color=colour, label=label, marker=marker(len(values)))
    axes.legend()
