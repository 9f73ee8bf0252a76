"""A finished run in a run folder: recognised by its config, its code and the checksum of its rows."""

import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from fedlab_runner.config.build import resolved
from fedlab_runner.config.recorded import same_config
from fedlab_runner.config.run_id import run_id_of, without_volatile
from fedlab_runner.core.metric_names import shown
from fedlab_runner.experiment import provenance
from fedlab_runner.experiment.code_hash import Code, changed, code_of, digest_of_code
from fedlab_runner.experiment.lock import RunLock
from fedlab_runner.tracking.ending import CURVES, NO_EVALUATION, judged_by
from fedlab_runner.tracking.jsonl import decode
from fedlab_runner.tracking.recorder import DIGEST, METRICS, SUMMARY, with_digest, write_summary
from fedlab_runner.tracking.summary import summarise
from fedlab_runner.utils import untrusted
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.files import shell_path
from fedlab_runner.utils.run_files import CONFIG, MODEL_FILE, OTHER_FOLDER

_log = logging.getLogger("fedlab_runner")
CODE_DIGEST = "code_sha256"  # key of a summary: the digest of the code that computed its numbers


def objective_of_same(folder: Path, cfg: DictConfig) -> float | None:
    """The objective of a finished run of exactly this config and code; None: `objective_of_finished` has to look.

    The config was checked when the run began, so that no class is needed: nothing here imports torch.
    """
    if (config := same_config(folder, resolved(cfg))) is None:
        return None
    faults = OSError, LookupError, TypeError, ValueError, AttributeError  # the check of the config names what is wrong
    with RunLock(folder), suppress(*faults):
        fingerprint = without_volatile(config)
        code = code_of(fingerprint, bases=False)
        if untrusted.read_json(folder / SUMMARY)[CODE_DIGEST] == digest_of_code(code):
            return objective_of_finished(folder, run_id_of(fingerprint), config, code, logging.DEBUG)
    return None


def objective_of_finished(
    folder: Path, name: str, config: Mapping[str, Any], code: Code, level: int = logging.WARNING
) -> float | None:
    """The objective after the config's rounds, if the folder holds a finished, undamaged run of this config that is at
    least as long; else None. Writes a summary again that does not fit the rows, and logs damage with this level.

    Raises UserError where other code made the rows, unless `checkpoint.same_code` is false, and where a longer run was
    not evaluated after the config's rounds.
    """
    e, logger, rounds = config["evaluation"], config["logger"], config["rounds"]
    try:
        summary = untrusted.read_json(folder / SUMMARY)
        lines = list(islice(untrusted.lines(folder / METRICS), summary["rounds"] + 1))
        rows = [decode(line) for line in lines]
        code_digest, rows_digest = summary[CODE_DIGEST], summary[DIGEST]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    complete = len(rows) == summary["rounds"] + 1 and [row["round"] for row in rows] == list(range(len(rows)))
    if summary.get("run_id") != name or not complete:
        return None
    asked = [folder / MODEL_FILE] * logger["save_model"] + [folder / CURVES] * bool(logger["pictures"])
    if len(rows) <= rounds or (len(rows) == rounds + 1 and not all(path.exists() for path in asked)):
        return None  # the run continues from its last checkpoint and writes the missing weights or pictures
    rule = e["metric"], e["summary"], e["last"], e["every"]
    whole = {"run_id": name, **summarise(rows, *rule, summary["rounds"], e["target"])}
    whole[CODE_DIGEST] = code_digest = _recorded(code_digest, folder, code)
    now = with_digest(whole, hashlib.sha256(b"".join(lines)).hexdigest())
    if rows_digest != now[DIGEST]:
        _log.log(level, "%s is not as the finished run left it: the run continues from a checkpoint", folder / METRICS)
        return None
    if code_digest != digest_of_code(code):
        _report_other_code(folder, code_digest, code, config["checkpoint"]["same_code"])
    if e["metric"] not in rows[rounds]:
        raise UserError(
            f"rounds={rounds}: the run in {folder} has {summary['rounds']} rounds and no evaluation after round "
            f"{rounds}; give a multiple of evaluation.every={e['every']} as rounds, or {OTHER_FOLDER}"
        )
    if summary != now:
        _log.info("%s is written again from %s", folder / SUMMARY, METRICS)
        write_summary(folder, now)
    objective = float(summarise(rows[: rounds + 1], *rule, rounds)["objective"])
    found = f"{shown(objective, e['metric']) if rounds else NO_EVALUATION} ({judged_by(e['metric'], e['summary'])})"
    ways = "a page of the results: fedlab-report {0}; delete {0} to run again".format(shell_path(folder))
    _log.info("%s is finished already: %s; %s%s", name, found, ways, _lacking(folder, logger))
    return objective


def _lacking(folder: Path, logger: Mapping[str, Any]) -> str:
    """What else a new run would give: its copy in the tracker that is asked for, if it was recorded with another."""
    asked, theirs = str(logger["_target_"]), None
    tracker = asked.rpartition(".")[2].removesuffix("Logger").lower()  # empty: none
    if not tracker or logger.get("mode") == "disabled":
        return ""
    with suppress(OSError, AttributeError, LookupError, TypeError, ValueError):
        recorded = untrusted.read_yaml(folder / CONFIG)["logger"]
        theirs = "" if recorded.get("mode") == "disabled" else recorded["_target_"]
    return "" if theirs in (None, asked) else f" with logger={tracker}, which has nothing of this one"


def _recorded(code_digest: str, folder: Path, code: Code) -> str:
    """The digest of the code that finished the run: that of the summary. If no start of the run had that digest, so
    that it is damaged, and the last start had this code, it is this code's digest.
    """
    starts, now = [digest_of_code(each) for each in provenance.codes(folder)], digest_of_code(code)
    return now if code_digest not in starts and starts[-1:] == [now] else code_digest


def _report_other_code(folder: Path, digest: str, code: Code, refuse: bool) -> None:
    """Warns that other code finished the run, or raises UserError."""
    theirs = [each for each in provenance.codes(folder) if digest_of_code(each) == digest]
    what = f"{folder} holds a run that other code has finished"
    what += f" (changed: {changed(theirs[-1], code)})" if theirs else ""
    if refuse:
        raise UserError(f"{what}: delete it to run again, or set checkpoint.same_code=false to take its number")
    _log.warning("%s: the run returns the number of that code", what)
