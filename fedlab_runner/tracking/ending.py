"""The lines about the end of a run: its objective, its last metrics, its folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedlab_runner.core.metric_names import cell_of, shown
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.durations import duration
from fedlab_runner.utils.escaping import visible
from fedlab_runner.utils.files import shell_path

CURVES = "plots/curves.png"  # in the run's folder, if the run draws pictures
NO_EVALUATION = "no evaluation counts"  # in place of the result of a run of 0 rounds
MAX_METRICS = 10  # of the last round are printed; summary.json has the others
_RULES = {  # words for the rule `evaluation.summary`
    "best_of_last": "best of the last evaluations",
    "mean_of_last": "mean of the last evaluations",
    "best": "best evaluation",
    "last": "last evaluation",
}
_TESTED = ("test", "regular", "meme")  # groups of test metrics, beside the cells of the evaluation matrix
# Groups of keys in the order of the lines: tests, training, costs, other measurements.
_GROUPS = (*_TESTED, "train", "comm", "cost", "late")


def judged_by(metric: str, rule: str) -> str:
    """What a run's objective is, in words: `test/accuracy, best of the last evaluations`."""
    return ", ".join(each for each in (metric, _RULES.get(rule, rule)) if each)


def ending(summary: Mapping[str, Any], folder: Path, seconds: float | None) -> list[str]:
    """At most 15 lines: the objective, numbers of the last round with tests first, the folder. `seconds`: the run's."""
    metric, rule = str(summary.get("metric", "")), str(summary.get("rule", ""))
    took = "" if seconds is None else f" in {duration(seconds)}"
    rounds, judged = summary.get("rounds", 0), judged_by(metric, rule)
    result = shown(summary.get("objective"), metric) if rounds else NO_EVALUATION
    lines = [
        f"{summary.get('run_id', 'the run')} has finished {count_of(rounds, 'round')}{took}: {result}"
        + (f" ({judged})" if judged else "")
    ]
    values = {key: value for key, value in summary.get("final", {}).items() if key.count("/") < 2}
    keys = sorted(values, key=_rank)[:MAX_METRICS]
    numbers = [shown(values[key], key) for key in keys]
    name_width, width = (max(map(len, words), default=0) for words in (keys, [each.split(" ")[0] for each in numbers]))
    lines += ["the last round:"] * bool(keys)
    for key, number in zip(keys, numbers, strict=True):
        value, _, unit = number.partition(" ")
        lines.append(f"  {key:<{name_width}}  {value:>{width}} {unit}".rstrip())
    more = len(summary.get("final", {})) - len(keys)
    where = visible(str(folder))
    lines.append(f"  {more} more: {where}/summary.json" if more else f"  all numbers: {where}/summary.json")
    drawn = [f"curves: {where}/{CURVES}"] if (folder / CURVES).exists() else []
    return [*lines, *drawn, f"a page of the results: fedlab-report {visible(shell_path(folder))}"]


def _rank(key: str) -> tuple[int, str]:
    """Test metrics first, with the mean of a cell; then the groups in their order, other numbers of cells, all else."""
    cell = cell_of(key)
    if cell is not None:
        return len(_TESTED) - 1 if key == cell else len(_GROUPS), key
    group = key.partition("/")[0]
    return _GROUPS.index(group) if group in _GROUPS else len(_GROUPS) + 1, key
