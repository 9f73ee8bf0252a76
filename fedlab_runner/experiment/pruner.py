"""Ends a run of a sweep by the rule `pruning`, and notes that in the run's folder."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlab_runner.pruning.base import Curve, Pruning
from fedlab_runner.pruning.none import NoPruning
from fedlab_runner.sweep import records
from fedlab_runner.tracking.jsonl import Row, clean, decode
from fedlab_runner.tracking.metric_direction import lower_is_better
from fedlab_runner.tracking.recorder import METRICS
from fedlab_runner.tracking.summary import evaluations, summarise
from fedlab_runner.utils import checksummed_json, untrusted
from fedlab_runner.utils.errors import Pruned
from fedlab_runner.utils.files import write_text_atomically
from fedlab_runner.utils.sweep_job import sweep_folder

if TYPE_CHECKING:  # imports torch: not for fedlab-report, which reads the notes
    from fedlab_runner.evaluation.evaluator import Evaluation

NOTE_FILE = "pruned.json"  # in the run's folder
_log = logging.getLogger("fedlab_runner")


class Pruner:
    """Compares one run with the finished runs of its sweep. Outside of a sweep it prunes nothing."""

    def __init__(self, folder: Path, pruning: Pruning, evaluation: "Evaluation", rounds: int) -> None:
        self._path, self._pruning, self._evaluation, self._rounds = folder / NOTE_FILE, pruning, evaluation, rounds
        values = {field.name: getattr(pruning, field.name) for field in fields(pruning)}
        self._rule = {"pruning": type(pruning).__name__, **values}
        self._sweep = sweep_folder()
        self._own: dict[int, float] = {}  # the run's own curve
        self._read = 0  # how many rows of the run it is of
        self._known: dict[Path, Curve] = {}  # by run folder: curves of finished runs, read once
        self._changed: int | None = None  # when the records were last written, as of the last look at them

    def start(self) -> None:
        """Raises Pruned if the same rule of the same sweep has already ended this run."""
        if self._sweep is None and not isinstance(self._pruning, NoPruning):
            _log.warning("pruning has no effect: it compares the runs of a sweep, and this run belongs to none (no -m)")
        note = read_note(self._path.parent)
        whole = {"round", "objective", "reason"} <= note.keys()
        same = self._sweep is not None and (note.get("rule"), note.get("sweep")) == (self._rule, self._sweep.name)
        if same and whole:
            raise Pruned(note["round"], math.nan if note["objective"] is None else note["objective"], note["reason"])
        self._path.unlink(missing_ok=True)

    def look(self, history: Callable[[], Sequence[Row]], round: int) -> None:
        """If the rule ends a run with this history, notes that and raises Pruned."""
        e = self._evaluation
        if self._sweep is None or isinstance(self._pruning, NoPruning):
            return
        if round >= self._rounds or not e.due(round, self._rounds):
            return
        rows = history()
        self._own |= self._curve(rows[self._read :])  # a long run has many evaluations of many rows
        self._read = len(rows)
        reason = self._pruning.verdict(self._own, self._others)
        if reason is None:
            return
        objective = float(summarise(rows, e.metric, e.summary, e.last, e.every, self._rounds)["objective"])
        note = {"round": round, "objective": objective, "reason": reason, "rule": self._rule, "sweep": self._sweep.name}
        write_text_atomically(self._path, checksummed_json.text(clean(note)))
        raise Pruned(round, objective, reason)

    def _others(self) -> list[Curve]:
        """The curves of the sweep's finished runs."""
        assert self._sweep is not None
        if (changed := records.changed(self._sweep)) == self._changed:  # hundreds of records cost more than a round
            return list(self._known.values())
        self._changed = changed
        for folder in records.finished(self._sweep):
            if folder == self._path.parent or folder in self._known:
                continue
            if rows := _rows(folder / METRICS):
                self._known[folder] = self._curve(rows)
            else:
                self._changed = None  # it is read again in the next round
        return list(self._known.values())

    def _curve(self, rows: Sequence[Row]) -> Curve:
        """The evaluations that count, negated for a metric of which smaller values are better."""
        e = self._evaluation
        sign = -1 if lower_is_better(e.metric) else 1
        return {row["round"]: sign * row[e.metric] for row in evaluations(rows, e.metric, e.every, self._rounds)}


def read_note(folder: Path) -> Mapping[str, Any]:
    """The note in a run's folder; empty if the run was not pruned or the note cannot be read."""
    try:
        return checksummed_json.read(folder / NOTE_FILE)
    except (OSError, checksummed_json.Damaged):
        return {}


def _rows(path: Path) -> list[Row]:
    try:
        return [decode(line) for line in untrusted.lines(path)]
    except (OSError, ValueError):  # removed, or running again
        return []
