"""One experiment, from a composed config to its objective."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from fedlab_runner.algorithms.shared.feature_blocks import check_blocks
from fedlab_runner.checkpoints.store import CheckpointStore
from fedlab_runner.config.build import Checked, check
from fedlab_runner.config.components import Components
from fedlab_runner.config.run_id import SERVER_DATA
from fedlab_runner.core.client_data import Population, split_off
from fedlab_runner.core.clock import RoundClock
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.core.server_data import ServerData
from fedlab_runner.datasets.examples import Data, Examples, digest_of
from fedlab_runner.datasets.label_noise import add_label_noise
from fedlab_runner.executors.threads import set_threads
from fedlab_runner.experiment import provenance
from fedlab_runner.experiment.artifacts import Leaving
from fedlab_runner.experiment.code_hash import code_of, digest_of_code
from fedlab_runner.experiment.finished import CODE, objective_of_finished
from fedlab_runner.experiment.lock import RunLock
from fedlab_runner.experiment.loop import Simulation
from fedlab_runner.experiment.pruner import Watch
from fedlab_runner.experiment.setup import draw_topology, model_families
from fedlab_runner.partitions.blocks import BlockPartition, with_their_blocks
from fedlab_runner.tracking.jsonl import Row
from fedlab_runner.tracking.metric_direction import check_direction
from fedlab_runner.tracking.recorder import Recorder
from fedlab_runner.tracking.summary import summarise
from fedlab_runner.utils.attempt import Attempt
from fedlab_runner.utils.digest import digest
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.files import remove_leftovers
from fedlab_runner.utils.system import keep_freed_memory

_log = logging.getLogger("fedlab_runner")


@dataclass(frozen=True)
class Prepared:
    """An experiment with its data dealt out: what is run, and what is shown of the partition."""

    simulation: Simulation
    data: Data
    split: list[np.ndarray]


class Outcome(NamedTuple):
    """What is left of a run in the process that ran it."""

    folder: Path
    metrics: list[Row]
    summary: dict[str, Any]
    state: Any
    simulation: Simulation


def run(cfg: DictConfig) -> float:
    """Runs, continues or, when it is finished, only reads the experiment in Hydra's run folder; the objective."""
    hydra: Any = HydraConfig.get()
    check_direction(hydra, str(cfg.evaluation.metric))
    return run_in(Path(hydra.runtime.output_dir), cfg, provenance.command_of(hydra, cfg))


def run_in(folder: Path, cfg: DictConfig, command: str | None = None) -> float:
    """The same in a folder of the caller's; UserError where config, data or folder do not allow it.

    `command`, if there is one that does the same, is noted in the folder."""
    checked = check(cfg)
    components, name = checked.build(), checked.run_id
    with RunLock(folder) as lock:
        finished = objective_of_finished(folder, name, components, code_of(checked.fingerprint))
        if finished is not None:
            judged = f"{components.evaluation.summary} of {components.evaluation.metric}"
            _log.info("%s is finished already: %s %.4f; delete %s to run it anew", name, judged, finished, folder)
            return finished
        with Attempt(folder):
            outcome = _run_locked(folder, lock, name, checked, components, prepare(components, folder), command)
        return float(outcome.summary["objective"])


def run_whole(folder: Path, cfg: DictConfig) -> Outcome:
    """The same for a caller who wants more than the objective; a finished run is loaded from its last checkpoint."""
    checked = check(cfg)
    components, name = checked.build(), checked.run_id
    with RunLock(folder) as lock:
        done = max(CheckpointStore(folder, components.checkpoint.keep).rounds(), default=0)
        if done > components.rounds:
            raise UserError(
                f"rounds must be >= {done}, got {components.rounds}: the run in {folder} has gone on so far; or give "
                "another folder"
            )
        with Attempt(folder):
            prepared = prepare(components, folder)
            return _run_locked(folder, lock, name, checked, components, prepared, None, show_summary=False)


def prepare(components: Components, folder: Path | None = None) -> Prepared:
    """Loads the data, deals it out and builds the federation, whose files are in a run folder; UserError where the
    config does not fit the data.
    """
    c = components
    keep_freed_memory()
    threads = set_threads(c.threads, folder)
    with _faults("dataset", c.dataset):
        data: Data = c.dataset.load(c.seed).thinned(c.train_fraction, c.seed)
    with _faults("model", c.model):
        data = data.fit(c.model.channels, c.model.image_size)
    server_data, rest = _server_data(c, data)
    with _faults("evaluation", c.evaluation):
        data = _tested(c.evaluation.held_out, data, rest, c.seed)
    with _faults("", c):
        train = add_label_noise(data.train, c.label_noise, len(data.class_names), c.seed)
    with _faults("partition", c.partition):
        users = None if train.users is None else train.users.numpy()
        strata = train.strata.numpy()
        split = c.partition.split(strata, users, c.num_clients, generator(c.seed, Purpose.PARTITION))
        blocks = None
        if isinstance(c.partition, BlockPartition):
            blocks = c.partition.owned(strata, c.num_clients, generator(c.seed, Purpose.PARTITION))
            split = with_their_blocks(split, blocks, train.present)
    if c.drop_empty and (empty := sum(not len(part) for part in split)):
        _log.warning("%d of %d clients got no examples and take no part (drop_empty)", empty, len(split))
        split = [part for part in split if len(part)]
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if c.device == "auto" else c.device)
    with _faults("model", c.model):
        tasks = model_families(c, data, device, len(split))
    if any(task.has_batch_norm for task in tasks) and c.local.batch_size == 1:
        raise UserError("local.batch_size must be > 1 for a model with batch norm, got 1")
    trained_on, kept_back = split_off(split, c.validation, c.seed) if c.validation else (split, None)
    with _faults("augment", c.augment):
        population = Population(train.inputs, train.targets, trained_on, device, augment=c.augment)
    validation = None if kept_back is None else Population(train.inputs, train.targets, kept_back, device)
    with _faults("participation", c.participation), _faults("delay", c.delay):
        clock = RoundClock(population.num_examples, c.participation, c.delay, c.seed)
    with _faults("topology", c.topology):
        topology = draw_topology(c, population.num_clients)
    most = max([*population.num_examples, *(len(each) for each in server_data.values() if each is not None)], default=0)
    fed = Federation(
        task=tasks,
        population=population,
        clock=clock,
        executor=c.executor,
        local=c.local.at_most(int(most)),
        seed=c.seed,
        **{name: None if examples is None else examples.to(device) for name, examples in server_data.items()},
        topology=topology,
        validation=validation,
        nonfinite=c.nonfinite,
        folder=folder,
        blocks=blocks,
    )
    with _faults("algorithm", c.algorithm):
        check_blocks(c.algorithm, fed)
        c.algorithm.check(fed)
    with _faults("analysis", c.analysis):
        c.analysis.check(c.algorithm, fed)
    test = data.test._replace(inputs=data.test.inputs.to(device), targets=data.test.targets.to(device))
    examples = _digest(train, data.test, split, server_data)
    simulation = Simulation(c.algorithm, fed, test, c.evaluation, c.analysis, c.lr_schedule, c.rounds, examples)
    sizes = " or ".join(f"{task.size:,}" for task in tasks)
    where = f"{device}" if threads == 1 else f"{device}, {threads} threads"
    _log.info("%d clients, %s values a model, on %s", population.num_clients, sizes, where)
    return Prepared(simulation, data, split)


def _server_data(c: Components, data: Data) -> tuple[dict[str, ServerData | None], Data]:
    """Each set of the server's own examples by its node, and the data that they leave; no two share an example."""
    found: dict[str, ServerData | None] = {}
    for node in SERVER_DATA:
        source = getattr(c, node)
        try:
            with _faults(node, source):
                found[node], data = source.reserve(data, c.seed)
        except UserError as error:  # the choices name the node where they mostly stand
            raise UserError(re.sub(r"\bserver_data\b", node, str(error))) from error
    return found, data


def _digest(
    train: Examples, test: Examples, split: Sequence[np.ndarray], server_data: Mapping[str, ServerData | None]
) -> str:
    """Of who has which examples; of images in a cache only the labels, as their file has checksums of its own."""
    kept = [each for each in server_data.values() if each is not None]
    arrays = (train.inputs, train.targets, train.present, test.inputs, test.targets, test.present)
    return digest_of([*arrays, *split, *(each.targets for each in kept), *(e.inputs for e in kept if not e.mapped)])


def _tested(held_out: int, data: Data, rest: Data, seed: int) -> Data:
    """The data without those test examples that the server has taken, or `held_out` of them if that is more."""
    size = len(data.test.targets)
    if held_out >= size:
        raise ValueError(f"held_out must be less than the test set's {size} examples, got {held_out}")
    return data.hold_out(held_out, seed)[1] if held_out > size - len(rest.test.targets) else rest


def _run_locked(
    folder: Path,
    lock: RunLock,
    name: str,
    checked: Checked,
    c: Components,
    prepared: Prepared,
    command: str | None,
    show_summary: bool = True,
) -> Outcome:
    """Runs to the end in a run folder, and leaves there the config, the summary and the plots; Pruned if `pruning` in a
    sweep wants no more of it.
    """
    watch = Watch(folder, c.pruning, c.evaluation, c.rounds)
    remove_leftovers(folder, folder / "checkpoints")
    watch.start()
    fed = prepared.simulation.fed
    fed.executor = fed.executor.in_run(folder, c.rounds)
    code = code_of(checked.fingerprint)
    record = partial(provenance.record, folder, command, torch.get_num_threads(), code)
    leaving = Leaving(folder, name, checked.values, prepared, record)
    recorder = Recorder(
        folder,
        c.logger,
        run_id=name if folder.name == name else f"{name}-{digest(str(folder.absolute()))[:4]}",  # one id, one folder
        config=checked.values,
        rounds=c.rounds,
        job_type=type(c.algorithm).__name__,
        commit=leaving.start(),
        show_summary=show_summary,
        hold=lock.renew,
    )
    with recorder:
        store = CheckpointStore(folder, c.checkpoint.keep)
        show = partial(leaving.show_partition, recorder)
        look = partial(watch.look, recorder.rows)
        state = prepared.simulation.run(
            recorder, store, c.checkpoint, checked.fingerprint, on_start=show, on_round=look
        )
        leaving.show_results(recorder, state, c.logger.save_model)
        rows, e = recorder.rows(), c.evaluation
        summary = summarise(rows, e.metric, e.summary, e.last, e.every, c.rounds, e.target)
        for warning in summary.get("warnings", []):
            _log.warning("%s", warning)
        recorder.finish({"run_id": name, **summary, CODE: digest_of_code(code)})  # the last that is written
    return Outcome(folder, rows, summary, state, prepared.simulation)


@contextmanager
def _faults(node: str, component: Any) -> Iterator[None]:
    """What a component refuses is an error of the user's; one that begins with a field gets the field's place."""
    try:
        yield
    except ValueError as error:
        message = str(error)
        if re.split(r"[ .]", message)[0] in {field.name for field in fields(component)}:
            message = f"{node}.{message}".removeprefix(".")
        raise UserError(message) from error
