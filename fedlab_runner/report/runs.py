"""A run as its own files have it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedlab_runner.tracking.jsonl import Row
from fedlab_runner.tracking.metric_direction import lower_is_better
from fedlab_runner.tracking.recorder import METRICS
from fedlab_runner.tracking.summary import RULES, summarise


@dataclass(frozen=True)
class Run:
    """One run folder. `rows` and `timings` are those of `metrics.jsonl` and `timings.jsonl`, up to the first torn line.

    `choices` has the file chosen for each place of the config; `error` is why a job of a sweep failed, if it says so;
    `warnings` are what the run has to say of its own result.
    """

    folder: Path
    config: Mapping[str, Any]
    choices: Mapping[str, str]
    rows: Sequence[Row]
    timings: Sequence[Row]
    commands: Sequence[str]
    commits: Sequence[str]
    error: str | None = None
    pruned: bool = False  # given up by the rule of its sweep
    damaged: bool = False  # its rows are not those that it ended with
    warnings: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The name of the folder, which is the id of the run."""
        return self.folder.name

    @property
    def seed(self) -> Any:
        """The seed; None where a broken config has none, a text where it is no number."""
        seed = self.config.get("seed")
        return seed if isinstance(seed, int | float | str | None) else str(seed)

    @property
    def rounds(self) -> int:
        """How many rounds the run is to have."""
        rounds = self.config.get("rounds")
        return rounds if isinstance(rounds, int) else 0

    @property
    def done(self) -> int:
        """The last round that is on file; -1: not even the initial model."""
        return self.rows[-1]["round"] if self.rows else -1

    @property
    def finished(self) -> bool:
        """Whether all rounds are there, as they were; a run that was made longer and stopped is not finished."""
        return self.done >= self.rounds > 0 and not self.damaged

    @property
    def metric(self) -> str:
        """What the run is judged by."""
        return str(self.evaluation.get("metric", "test/accuracy"))

    @property
    def rule(self) -> str:
        """How one number is made of its evaluations."""
        return str(self.evaluation.get("summary", RULES[0]))

    @property
    def lower_is_better(self) -> bool:
        """Whether a smaller value of the metric is better."""
        return lower_is_better(self.metric)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The summaries of the rounds that there are, as `summary.json` of a finished run has them."""
        e = self.evaluation
        rows = [row for row in self.rows if row["round"] <= self.rounds]
        return summarise(rows, self.metric, self.rule, e.get("last", 5), e.get("every", 1), self.rounds)

    @property
    def objective(self) -> float | None:
        """The number that counts; None for a run that is not finished."""
        return float(self.summary["objective"]) if self.finished else None

    @property
    def status(self) -> str:
        """In words: finished, or how far it is, or why it ended."""
        if self.finished:
            return "finished"
        if self.damaged:
            return f"damaged: {METRICS} is not as the run left it; its command mends or refuses it"
        if self.error is not None:
            return f"failed: {self.error}" + (f" (round {self.done} of {self.rounds})" if self.done > 0 else "")
        if not self.rows:
            return "not begun"
        return f"{'given up, ' if self.pruned else ''}round {max(self.done, 0)} of {self.rounds}"

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to come."""
        return self.finished or self.pruned or self.error is not None

    @property
    def evaluation(self) -> Mapping[str, Any]:
        """Its part of the config; empty where a broken one has none."""
        found = self.config.get("evaluation")
        return found if isinstance(found, Mapping) else {}
