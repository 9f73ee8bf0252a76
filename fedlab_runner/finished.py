"""Whether a run folder holds a finished run, whole and with the numbers that it was left with."""

import hashlib
import json
import logging
from pathlib import Path

from fedlab_runner.components import Components
from fedlab_runner.export import FILE as MODEL
from fedlab_runner.files import open_to_read
from fedlab_runner.recorder import DIGEST, METRICS, SUMMARY, sealed, write_summary
from fedlab_runner.recording.jsonl import decode
from fedlab_runner.summary import summarise

_log = logging.getLogger("fedlab_runner")


def objective_of_finished(folder: Path, name: str, c: Components) -> float | None:
    """The objective after c.rounds rounds, if this folder holds a finished run of this config that is at least as
    long, and its rows are those that it wrote. A summary that is not theirs is written anew.
    """
    e = c.evaluation
    try:
        with open_to_read(folder / SUMMARY) as file:
            summary = json.load(file)
        with open_to_read(folder / METRICS) as file:
            lines = file.read().splitlines(keepends=True)[: summary["rounds"] + 1]
        rows = [decode(line) for line in lines]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    if summary.get("run_id") != name or [row["round"] for row in rows] != list(range(summary["rounds"] + 1)):
        return None
    if len(rows) <= c.rounds or (c.logger.save_model and not (folder / MODEL).exists() and len(rows) == c.rounds + 1):
        return None  # the last checkpoint has the weights that are asked for now
    whole = {"run_id": name, **summarise(rows, e.metric, e.summary, e.last, e.every, summary["rounds"], e.target)}
    now = sealed(whole, hashlib.sha256(b"".join(lines)).hexdigest())
    if summary.get(DIGEST, now[DIGEST]) != now[DIGEST]:
        _log.warning("%s is not as the finished run left it: the run goes on from a checkpoint", folder / METRICS)
        return None
    if summary != now:
        _log.info("%s is written anew from %s", folder / SUMMARY, METRICS)
        write_summary(folder, now)
    return float(summarise(rows[: c.rounds + 1], e.metric, e.summary, e.last, e.every, c.rounds)["objective"])
