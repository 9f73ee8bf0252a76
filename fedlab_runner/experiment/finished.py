"""Whether a run folder holds a finished run, whole and with the numbers that it was left with."""

import hashlib
import logging
from itertools import islice
from pathlib import Path

from fedlab_runner.config.components import Components
from fedlab_runner.experiment import provenance
from fedlab_runner.experiment.code_hash import Code, changed, digest_of_code
from fedlab_runner.experiment.export import FILE as MODEL
from fedlab_runner.tracking.jsonl import decode
from fedlab_runner.tracking.recorder import DIGEST, METRICS, SUMMARY, sealed, write_summary
from fedlab_runner.tracking.summary import summarise
from fedlab_runner.utils import untrusted
from fedlab_runner.utils.errors import UserError

_log = logging.getLogger("fedlab_runner")
CODE = "code_sha256"  # in a summary: of what its numbers were computed by


def objective_of_finished(folder: Path, name: str, c: Components, code: Code) -> float | None:
    """The objective after c.rounds rounds, if this folder holds a finished run of this config that is at least as
    long, and its rows are those that it wrote. A summary that is not theirs is written anew.

    UserError where another code made them, unless `checkpoint.same_code` allows it.
    """
    e = c.evaluation
    try:
        summary = untrusted.read_json(folder / SUMMARY)
        lines = list(islice(untrusted.lines(folder / METRICS), summary["rounds"] + 1))
        rows = [decode(line) for line in lines]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    complete = len(rows) == summary["rounds"] + 1 and [row["round"] for row in rows] == list(range(len(rows)))
    if summary.get("run_id") != name or not complete:
        return None
    if len(rows) <= c.rounds or (c.logger.save_model and not (folder / MODEL).exists() and len(rows) == c.rounds + 1):
        return None  # the last checkpoint has the weights that are asked for now
    whole = {"run_id": name, **summarise(rows, e.metric, e.summary, e.last, e.every, summary["rounds"], e.target)}
    whole[CODE] = summary.get(CODE, digest_of_code(code))  # older versions did not write it
    now = sealed(whole, hashlib.sha256(b"".join(lines)).hexdigest())
    if summary.get(DIGEST, now[DIGEST]) != now[DIGEST]:
        _log.warning("%s is not as the finished run left it: the run goes on from a checkpoint", folder / METRICS)
        return None
    if whole[CODE] != digest_of_code(code):
        _other_code(folder, whole[CODE], code, c.checkpoint.same_code)
    if summary != now:
        _log.info("%s is written anew from %s", folder / SUMMARY, METRICS)
        write_summary(folder, now)
    return float(summarise(rows[: c.rounds + 1], e.metric, e.summary, e.last, e.every, c.rounds)["objective"])


def _other_code(folder: Path, digest: str, code: Code, refuse: bool) -> None:
    theirs = [each for each in provenance.codes(folder) if digest_of_code(each) == digest]
    what = f"{folder} holds a run that other code has finished"
    what += f" (changed: {changed(theirs[-1], code)})" if theirs else ""
    if refuse:
        raise UserError(f"{what}: delete it to run anew, or set checkpoint.same_code=false to take its number")
    _log.warning("%s: its number is taken", what)
