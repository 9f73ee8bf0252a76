"""A report's numbers as CSV, unrounded: one file of runs, one of settings, one of published tables."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedlab_runner.report.grouping import SeedGroup, text
from fedlab_runner.report.published import NONE, SEEDS, Paper, deviation_of, in_cell, ours_of
from fedlab_runner.report.stats import mean, reached, std, total
from fedlab_runner.report.tables import CACHE, SUMS, by_condition, finished, largest_cache
from fedlab_runner.report.targets import targets
from fedlab_runner.tracking.summary import RULES
from fedlab_runner.utils.escaping import csv_text


def files(groups: Sequence[SeedGroup], papers: Sequence[Paper], wanted: Sequence[float]) -> dict[str, str]:
    """The files by name."""
    found = {"runs.csv": _text(_runs(groups, wanted)), "settings.csv": _text([_setting(group) for group in groups])}
    if papers:
        found["paper.csv"] = _text([row for paper in papers for row in _published(paper, groups)])
    return found


def _runs(groups: Sequence[SeedGroup], wanted: Sequence[float]) -> list[dict[str, Any]]:
    """A row for each run: its summaries, its costs, and `rounds to <target>` for each target of its condition."""
    rows = []
    for condition, members in by_condition(groups).items():
        goals = targets(members, wanted)
        for group in members:
            for run in group.runs:
                row: dict[str, Any] = {"run": run.name, "condition": condition, "method": group.method}
                row |= {"seed": run.seed, "status": run.status, "rounds": run.done, "objective": run.objective}
                keys = (*RULES, "std_of_last", "best_round")
                row |= {key: run.summary[key] for key in keys} if run.rows else {}
                row |= {key: total(run.rows, key) for key, *_ in SUMS}
                row[CACHE] = largest_cache(run)
                for goal in goals:
                    row[f"rounds to {goal:g}"] = when = reached(run, goal)
                    row[f"MB uploaded to {goal:g}"] = (
                        None if when is None else total(run.rows, "comm/upload_mb", until=when)
                    )
                row |= {"commit": " ".join(run.commits), "command": " ; ".join(run.commands)}
                row["warnings"] = "; ".join(run.warnings)
                rows.append(row)
    return rows


def _setting(group: SeedGroup) -> dict[str, Any]:
    values = finished([group])
    return {
        "condition": group.condition,
        "method": group.method,
        "runs": len(group.runs),
        "seeds finished": len(values),
        "metric": group.runs[0].metric,
        "rule": group.runs[0].rule,
        "mean": mean(values),
        "std": std(values),
    }


def _published(paper: Paper, groups: Sequence[SeedGroup]) -> list[dict[str, Any]]:
    """A row for each cell of the paper's table and each setting that fits it (or no setting), in the paper's unit."""
    found = []
    for row in paper.rows:
        for i, column in enumerate(paper.columns):
            cells: list[SeedGroup | None] = [*in_cell(row, column, groups, groups)]
            for group in cells or [None]:
                ours = [] if group is None else ours_of([group], column)
                values = [paper.scale * each for each in ours]
                theirs = row["mean"][i]
                found.append(
                    {
                        "table": paper.name,
                        "row": row["name"],
                        "column": _label_of(column),
                        "condition": group.condition if group else "",
                        "method": group.method if group else "",
                        "seeds": len(values),
                        "mean": mean(values),
                        "std": math.nan if group is None else paper.scale * deviation_of(paper, [group], column, ours),
                        "std over": SEEDS if paper.spread == NONE else paper.spread,
                        "paper mean": theirs,
                        "paper std": row["std"][i] if "std" in row else None,
                        "difference": mean(values) - theirs if theirs is not None else math.nan,
                    }
                )
    return found


def _label_of(column: Mapping[str, Any]) -> str:
    """The keys of a column in words."""
    return " ".join(f"{key}={text(value)}" for key, value in column.items())


def _text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV with the keys of all rows; a missing or non-finite value is empty."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return csv_text([keys, *([_plain(row.get(key)) for key in keys] for row in rows)])


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
