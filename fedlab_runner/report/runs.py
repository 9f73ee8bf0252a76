"""A run, in the form in which a report reads it from the run's folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from fedlab_runner.sweep import states
from fedlab_runner.tracking.jsonl import Row
from fedlab_runner.tracking.metric_direction import lower_is_better
from fedlab_runner.tracking.recorder import METRICS
from fedlab_runner.tracking.summary import RULES, summarise


@dataclass(frozen=True)
class Run:
    """A run's folder. `rows` and `timings` are the lines of `metrics.jsonl` and `timings.jsonl` up to a torn line.

    `choices`: the choice for each place of the config. `noted`: the state of the job in its sweep's record. `error`:
    the error that ended the run, if one did. `warnings`: the run's own warnings about its result. `experiments`: those
    of all commands that asked for the run. `name_parts`: how many parts at the end of the folder's path tell the run
    from all others. `digits`: the decimals with which a report shows its objective; None: those that mean something in
    view of the deviation over seeds.
    """

    folder: Path
    config: Mapping[str, Any]
    choices: Mapping[str, str]
    rows: Sequence[Row]
    timings: Sequence[Row]
    commands: Sequence[str]
    commits: Sequence[str]
    noted: str | None = None
    error: str | None = None
    pruned: bool = False  # whether the rule `pruning` of its sweep ended the run
    damaged: bool = False  # whether the rows differ from those of its summary
    warnings: Sequence[str] = ()
    experiments: Sequence[str] = ()
    name_parts: int = 1
    digits: int | None = None

    @property
    def name(self) -> str:
        """The end of the folder's path that tells the run from the others: its last part, usually the id of the run."""
        return "/".join(self.folder.parts[-self.name_parts :])

    @cached_property
    def changed(self) -> float:
        """The time at which the last round was written, in seconds since 1970; 0 without a round."""
        try:
            return (self.folder / METRICS).stat().st_mtime
        except OSError:
            return 0.0

    @property
    def seed(self) -> Any:
        """The seed; None if a broken config has none, a text if it is not a number."""
        seed = self.config.get("seed")
        return seed if isinstance(seed, int | float | str | None) else str(seed)

    @property
    def rounds(self) -> int:
        """The number of rounds that the config asks for; -1 if a broken config has none."""
        rounds = self.config.get("rounds")
        return rounds if isinstance(rounds, int) else -1

    @property
    def done(self) -> int:
        """The last recorded round; -1: none, not even that of the initial model."""
        return self.rows[-1]["round"] if self.rows else -1

    @property
    def finished(self) -> bool:
        """Whether the files have all rounds, undamaged. A run that was made longer and stopped is not finished."""
        return self.done >= self.rounds >= 0 and not self.damaged

    @property
    def rank(self) -> tuple[bool, int]:
        """The rank among the copies of a run, of which the largest counts: undamaged before damaged, then by length."""
        return not self.damaged, self.done

    @property
    def metric(self) -> str:
        """The metric of the run's objective."""
        return str(self.evaluation.get("metric", "test/accuracy"))

    @property
    def rule(self) -> str:
        """The rule that makes the objective from the evaluations."""
        return str(self.evaluation.get("summary", RULES[0]))

    @property
    def lower_is_better(self) -> bool:
        """Whether a smaller value of the metric is better."""
        return lower_is_better(self.metric)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The summary of the recorded rounds, as in the `summary.json` of a finished run."""
        e = self.evaluation
        rows = [row for row in self.rows if row["round"] <= self.rounds]
        return summarise(
            rows, self.metric, self.rule, e.get("last", 5), e.get("every", 1), self.rounds, e.get("target")
        )

    @property
    def objective(self) -> float | None:
        """The run's objective; None if the run is not finished."""
        return float(self.summary["objective"]) if self.finished else None

    @property
    def state(self) -> str:
        """The state, one of `states.ALL`."""
        if self.finished:
            return states.FINISHED
        if self.damaged:
            return states.DAMAGED
        if self.error is not None:
            return states.FAILED
        if self.pruned:
            return states.PRUNED
        if self.noted == states.STOPPED:
            return states.STOPPED
        begun = self.rows or self.noted == states.UNFINISHED
        return states.UNFINISHED if begun else states.NOT_BEGUN

    @property
    def status(self) -> str:
        """The state, with the present round and the reason of the run's end."""
        if self.state == states.DAMAGED:
            return f"damaged: {METRICS} is not as the run left it; its command mends or refuses it"
        words = self.state + (f": {self.error}" if self.state == states.FAILED else "")
        told = self.rows and self.state != states.FINISHED
        return f"{words} (round {max(self.done, 0)} of {self.rounds})" if told else words

    @property
    def evaluation(self) -> Mapping[str, Any]:
        """The part `evaluation` of the config; empty if a broken config has none."""
        found = self.config.get("evaluation")
        return found if isinstance(found, Mapping) else {}

    def aiming(self, target: float | None) -> "Run":
        """The same run with this `evaluation.target`; None: without one."""
        return replace(self, config={**self.config, "evaluation": {**self.evaluation, "target": target}})


def told_apart(runs: Sequence[Run]) -> list[Run]:
    """The runs of different folders with names of which no two are equal."""
    of_name: dict[str, list[Path]] = {}
    for run in runs:
        of_name.setdefault(run.folder.name, []).append(run.folder)
    parts = {name: _parts_needed(folders) for name, folders in of_name.items()}
    return [replace(run, name_parts=parts[run.folder.name]) for run in runs]


def _parts_needed(folders: Sequence[Path]) -> int:
    """How many parts at the ends of different paths tell them apart."""
    return next(n for n in count(1) if len({each.parts[-n:] for each in folders}) == len(folders))
