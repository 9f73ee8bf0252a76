"""Runs one experiment, from a composed config to its objective; continues a stopped run and reads a finished one."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from fedlab_runner.checkpoints.store import CheckpointStore
from fedlab_runner.config.build import Checked, check
from fedlab_runner.config.components import Components
from fedlab_runner.core.global_rng import kept_globals
from fedlab_runner.experiment import provenance
from fedlab_runner.experiment.artifacts import RunArtifacts
from fedlab_runner.experiment.code_hash import Code, code_of, digest_of_code
from fedlab_runner.experiment.failure import noted
from fedlab_runner.experiment.finished import CODE_DIGEST, objective_of_finished
from fedlab_runner.experiment.labelling import label_of
from fedlab_runner.experiment.lock import RunLock
from fedlab_runner.experiment.loop import Simulation
from fedlab_runner.experiment.pruner import Pruner
from fedlab_runner.experiment.resuming import check_folder
from fedlab_runner.experiment.setup import Prepared, prepare
from fedlab_runner.tracking.jsonl import Row
from fedlab_runner.tracking.recorder import DIGEST, Recorder
from fedlab_runner.tracking.summary import summarise
from fedlab_runner.utils import exits
from fedlab_runner.utils.attempt import Attempt
from fedlab_runner.utils.files import remove_leftovers
from fedlab_runner.utils.frames import in_one_chunk
from fedlab_runner.utils.torch_settings import usual_settings

_log = logging.getLogger("fedlab_runner")


class Outcome(NamedTuple):
    """The result of a run in the process that ran it."""

    folder: Path
    metrics: list[Row]
    summary: dict[str, Any]
    state: Any
    simulation: Simulation


def run(cfg: DictConfig) -> float:
    """Runs or continues the experiment in Hydra's run folder, or reads a finished one; returns the objective."""
    hydra: Any = HydraConfig.get()
    return run_in(Path(hydra.runtime.output_dir), cfg, partial(provenance.command_of, hydra))


@exits.refused()
@usual_settings()
@kept_globals()
def run_in(folder: Path, cfg: DictConfig, command_of: Callable[[str], str] | None = None) -> float:
    """Runs or continues the experiment in a folder, or reads a finished one; returns the objective.

    The folder gets a note of a command line that does the same; `command_of` makes it from the run's id. Raises
    UserError if config, data or folder do not allow the run.
    """
    checked = check(cfg)
    components, name = checked.build(), checked.run_id
    with RunLock(folder) as lock:
        code = code_of(checked.fingerprint)
        finished = objective_of_finished(folder, name, checked.values, code)
        if finished is not None:
            return finished
        command = None if command_of is None else command_of(name)
        store = CheckpointStore(folder, components.checkpoint.keep)
        check_folder(store, checked.fingerprint, components.rounds)
        with Attempt(folder, store.rounds), noted(folder, lock), exits.refused():
            outcome = _run_locked(folder, lock, name, checked, components, prepare(components, folder), code, command)
        return float(outcome.summary["objective"])


@exits.refused()
@usual_settings()
@kept_globals()
def run_whole(folder: Path, cfg: DictConfig) -> Outcome:
    """Runs or continues the experiment in a folder, or loads a finished one from its last checkpoint.

    Raises UserError if config, data or folder do not allow the run.
    """
    checked = check(cfg)
    components, name = checked.build(), checked.run_id
    with RunLock(folder) as lock:
        code = code_of(checked.fingerprint)
        store = CheckpointStore(folder, components.checkpoint.keep)
        check_folder(store, checked.fingerprint, components.rounds)
        with Attempt(folder, store.rounds), noted(folder, lock), exits.refused():
            prepared = prepare(components, folder)
            return _run_locked(folder, lock, name, checked, components, prepared, code, None, show_summary=False)


@in_one_chunk
def _run_locked(
    folder: Path,
    lock: RunLock,
    name: str,
    checked: Checked,
    c: Components,
    prepared: Prepared,
    code: Code,
    command: str | None,
    show_summary: bool = True,
) -> Outcome:
    """Runs to the end in a locked run folder, and writes config, summary and plots there.

    Raises Pruned where the rule `pruning` of a sweep ends the run.
    """
    pruner = Pruner(folder, c.pruning, c.evaluation, c.rounds)
    remove_leftovers(folder, folder / "checkpoints")
    pruner.start()
    fed = prepared.simulation.fed
    fed.trainer.executor = fed.executor.bind_run(folder, c.rounds)
    tracked_as = provenance.tracked_as(folder, name, c.logger.is_shared)
    record = partial(provenance.record, folder, command, tracked_as, torch.get_num_threads(), code, fed.family.device)
    artifacts = RunArtifacts(folder, name, checked.values, prepared, record, c.logger.draws)
    recorder = Recorder(
        folder,
        c.logger,
        run_id=name,
        tracked_as=tracked_as,
        config=checked.values,
        rounds=c.rounds,
        label=label_of(folder, checked.values, checked.fingerprint),
        commit=artifacts.start(),
        show_summary=show_summary,
        hold=lock.renew,
    )
    with recorder:
        store = CheckpointStore(folder, c.checkpoint.keep)
        show = partial(artifacts.show_partition, recorder)
        look = partial(pruner.look, recorder.rows)
        state = prepared.simulation.run(
            recorder, store, c.checkpoint, checked.fingerprint, code, on_start=show, on_round=look
        )
        artifacts.show_results(recorder, state, c.model.architectures()[0] if c.logger.save_model else None)
        rows, e = recorder.rows(), c.evaluation
        found = summarise(rows, e.metric, e.summary, e.last, e.every, c.rounds, e.target)
        for warning in found.get("warnings", []):
            _log.warning("%s", warning)
        summary = {"run_id": name, **found, CODE_DIGEST: digest_of_code(code)}
        recorder.finish(summary)  # the last file that the run writes
    return Outcome(folder, rows, {**summary, DIGEST: recorder.digest()}, state, prepared.simulation)
