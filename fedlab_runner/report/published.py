"""Published tables (`conf/paper`): their content, the runs of each cell, and what these runs have for it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import OmegaConf

from fedlab_runner.config.build import conf_dir
from fedlab_runner.report.grouping import SeedGroup, text
from fedlab_runner.report.runs import Run
from fedlab_runner.report.stats import mean, std
from fedlab_runner.report.tables import finished
from fedlab_runner.tracking.summary import summarise
from fedlab_runner.utils.errors import UserError

IN_PERCENT = "accuracy in percent"  # part of the unit of a table whose values are percentages
# What a table's ± covers: the seeds of a setting; the last ten evaluations of a run; nothing in a table without ±.
SEEDS, ROUNDS, NONE = "seeds", "rounds", "none"
LAST_EVALUATIONS = 10  # over which a table of rounds has its deviation
TO_TARGET = "rounds_to_target"  # the metric of a table of rounds to `evaluation.target`
OVER_ROUNDS = ("comm/", "cost/")  # metrics of which the mean over all rounds counts; of others the best round counts


@dataclass(frozen=True)
class Paper:
    """The content of one file in `conf/paper`."""

    name: str  # e.g. feddle/table7
    unit: str
    spread: str  # what its ± covers
    columns: Sequence[Mapping[str, Any]]
    rows: Sequence[Mapping[str, Any]]

    @property
    def scale(self) -> float:
        """The factor from this package's unit to the table's."""
        return 100 if IN_PERCENT in self.unit else 1

    def has(self, group: SeedGroup) -> bool:
        """Whether a cell fits this setting."""
        return any(fits(group, {**column, **row["choice"]}) for row in self.rows for column in self.columns)


def load(name: str) -> Paper | None:
    """The table of this name, or the table that the experiment is a part of (`feddle/table1_vit`: Table 1)."""
    folder = conf_dir() / "paper"
    known = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.yaml")}
    parts = [each for each in known if f"{name}_".startswith(f"{each}_")]  # a run folder may name anything
    if not parts:
        return None
    path = known[each := max(parts, key=len)]
    content: Any = OmegaConf.to_container(OmegaConf.load(path))
    there = any("std" in row for row in content["rows"])
    if content.get("spread") not in ((SEEDS, ROUNDS) if there else (NONE,)):
        wanted = f"{SEEDS} or {ROUNDS}: what std is over" if there else f"{NONE}, as no row has a std"
        raise UserError(f"{path}: spread must be {wanted}; got {content.get('spread')}")
    return Paper(each, content["unit"], content["spread"], content["columns"], content["rows"])


def papers(runs: Iterable[Run]) -> list[Paper]:
    """The tables that the experiments of these runs belong to."""
    names = dict.fromkeys(name for run in runs for name in run.experiments)
    found = {paper.name: paper for name in names if (paper := load(name))}
    return [found[name] for name in sorted(found)]


def fits(group: SeedGroup, wanted: Mapping[str, Any]) -> bool:
    """Whether a setting fits a cell, given by the keys of the column and the choice of the row."""
    for key, value in wanted.items():
        have = group.setting.get(key.rpartition("@")[2])
        if key == "experiment":
            if not any(value in run.experiments for run in group.runs):
                return False
        elif value == "out_of_domain":
            if have in (None, "in_domain", "none"):
                return False
        elif isinstance(value, int | float):
            if not _equal(have, value):
                return False
        elif value != "any" and key != "metric" and have != value:
            return False
    return True


def in_cell(
    row: Mapping[str, Any], column: Mapping[str, Any], those: Iterable[SeedGroup], groups: Sequence[SeedGroup]
) -> list[SeedGroup]:
    """The settings of `those` that fit a cell.

    If the row names a `target`, an algorithm and a round, their `evaluation.target` is the mean, over seeds, of what
    that algorithm has in that round under their condition, or, without runs under it, in this column. It is None unless
    there is exactly one setting of that algorithm.
    """
    found = [group for group in those if fits(group, {**column, **row["choice"]})]
    if "target" not in row:
        return found
    others = [group for group in groups if fits(group, {**column, "algorithm": row["target"]["algorithm"]})]

    def aiming(group: SeedGroup) -> SeedGroup:
        beside = [each for each in others if each.condition == group.condition]
        target = _value_in(row["target"]["round"], beside or others)
        return replace(group, runs=[run.aiming(target) for run in group.runs])

    return [aiming(group) for group in found]


def _value_in(number: int, groups: Sequence[SeedGroup]) -> float | None:
    """What the runs of a single setting have in a round: the mean over seeds. None without one, or with several."""
    runs = [run for run in groups[0].runs if not run.damaged] if len(groups) == 1 else []
    then = [(run.metric, each) for run in runs for each in run.rows if each["round"] == number]
    values = [each[metric] for metric, each in then if metric in each]
    return mean(values) if values else None


def meant(paper: Paper) -> str:
    """The meaning of a table's deviations, those of the paper and ours."""
    if paper.spread == ROUNDS:
        return f"{meant_by_paper(paper)}, ours the mean of it over seeds"
    ours = "standard deviation over seeds, ours divided by n - 1"
    return ours if paper.spread == SEEDS else f"{ours}; the paper has none"


def meant_by_paper(paper: Paper) -> str:
    """The meaning of the paper's own deviations; empty if it has none."""
    rounds = f"over the last {LAST_EVALUATIONS} evaluations of a run (divided by n)"
    return {SEEDS: "standard deviation over seeds", ROUNDS: rounds, NONE: ""}[paper.spread]


def with_runs(paper: Paper, groups: Sequence[SeedGroup]) -> list[int]:
    """The places of the paper's columns with a run."""
    return [
        i
        for i, column in enumerate(paper.columns)
        if any(fits(group, {**column, **row["choice"]}) for group in groups for row in paper.rows)
    ]


def not_run(paper: Paper, groups: Sequence[SeedGroup]) -> list[str]:
    """The columns of the paper's table without a run."""
    there = with_runs(paper, groups)
    return [name for i, name in enumerate(names_of(paper.columns)) if i not in there]


def deviation_of(paper: Paper, groups: Sequence[SeedGroup], column: Mapping[str, Any], ours: Sequence[float]) -> float:
    """The deviation of the runs, over the seeds or evaluations that the paper's deviation covers."""
    if paper.spread != ROUNDS:
        return std(ours)
    key = metric_of(column, groups)
    return mean([found for g in groups for run in g.runs if math.isfinite(found := _over_rounds(run, key))])


def _over_rounds(run: Run, key: str) -> float:
    """The deviation of a finished run's last evaluations."""
    if not run.finished:
        return math.nan
    rows = [row for row in run.rows if row["round"] <= run.rounds]
    return float(
        summarise(rows, key, run.rule, LAST_EVALUATIONS, run.evaluation.get("every", 1), run.rounds)["std_of_last"]
    )


def ours_of(groups: Sequence[SeedGroup], column: Mapping[str, Any]) -> list[float]:
    """The objective of each finished seed, or the metric that the column names.

    For a cost it is the mean over rounds, for a cache the largest value, also of unfinished runs, but not of damaged
    ones. For any other metric it is the value in the best round of a finished run. If a finished run has not reached
    its target, the rounds are infinite.
    """
    if "metric" not in column:
        return finished(groups)
    key = str(column["metric"])
    values = [_metric(run, key) for group in groups for run in group.runs]
    return [each for each in values if not math.isnan(each)]


def _metric(run: Run, key: str) -> float:
    if key == TO_TARGET:
        reached = run.summary.get(TO_TARGET, math.nan)  # without a target
        return math.nan if not run.finished else math.inf if reached is None else float(reached)
    if not key.startswith(OVER_ROUNDS):
        return float(run.summary["at_best"].get(key, math.nan)) if run.finished else math.nan
    known = any(key in row for row in run.rows) and not run.damaged
    values = [row.get(key, 0.0) for row in run.rows if row["round"] > 0]  # a round without the metric had no cost
    return (max(values) if key.endswith("cache_mb") else mean(values)) if known else math.nan


def metric_of(column: Mapping[str, Any], groups: Sequence[SeedGroup]) -> str:
    """The metric of a column."""
    return str(column.get("metric", groups[0].runs[0].metric if groups else "test/accuracy"))


def names_of(columns: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of columns: the keys in which they differ."""
    keys = [
        key
        for key in dict.fromkeys(key for column in columns for key in column)
        if len({text(column.get(key)) for column in columns}) > 1
    ]
    return [
        " ".join(f"{key}={text(column[key])}".removeprefix("metric=") for key in keys if key in column) or "all"
        for column in columns
    ]


def _equal(have: str | None, value: float) -> bool:
    try:
        return have is not None and math.isclose(float(have), value)
    except ValueError:
        return False
