"""Prepares an experiment: loads the data, partitions it, and builds the federation."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fedlab_runner.algorithms.shared.feature_blocks import check_blocks
from fedlab_runner.client_splits.base import Parts, checked_split
from fedlab_runner.config.component_faults import faults, model_faults
from fedlab_runner.config.components import Components
from fedlab_runner.core.architectures import shape_of
from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.clock import RoundClock
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.global_rng import CPU, seed_globals
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.network_trial import try_network
from fedlab_runner.core.normalize import Normalize
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.core.server_data import ServerData
from fedlab_runner.datasets.examples import Data, Examples, digest_of
from fedlab_runner.datasets.label_noise import add_label_noise
from fedlab_runner.delays.base import drawn_delays
from fedlab_runner.delays.none import NoDelay
from fedlab_runner.evaluation.matrix import check_matrix
from fedlab_runner.executors.threads import set_threads
from fedlab_runner.experiment.export import check_savable
from fedlab_runner.experiment.loop import Simulation
from fedlab_runner.experiment.placement import device_of
from fedlab_runner.experiment.run_data import run_data
from fedlab_runner.homes.base import Home
from fedlab_runner.models.base import Architecture, built
from fedlab_runner.partitions.base import dealt
from fedlab_runner.partitions.blocks import BlockPartition, with_their_blocks
from fedlab_runner.topologies.base import check_participants, drawn_links
from fedlab_runner.topologies.graphs import describe
from fedlab_runner.topologies.mesh import Mesh
from fedlab_runner.utils.contract import require
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.determinism import repeat_exactly
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.system import keep_freed_memory

_log = logging.getLogger("fedlab_runner")
MAX_NUMBERS = 10  # of clients without examples, which a message names


@dataclass(frozen=True)
class Prepared:
    """An experiment that is ready to run, with the data and the partition that plots show."""

    simulation: Simulation
    data: Data
    split: list[np.ndarray]
    parts: Parts

    @property
    def uses(self) -> dict[str, list[int]]:
        """The columns of the partition's table: how many examples of each client serve each use, and whether the client
        is held out (1) or not (0).
        """
        parts, out = self.parts, set(self.simulation.fed.held_out.tolist())
        tested = parts.test or [np.empty(0, np.int64)] * len(self.split)
        uses = {"train": parts.train, "validation": parts.validation, "test": tested}
        counts = {name: [len(mine) for mine in lists] for name, lists in uses.items()}
        return counts | {"held_out": [int(client in out) for client in range(len(self.split))]}


def prepare(components: Components, folder: Path | None = None) -> Prepared:
    """Loads the data, partitions it and builds the federation, which keeps its files in a run folder.

    Raises UserError if the config does not fit the data.
    """
    c = components
    seed_globals(CPU, c.seed)
    keep_freed_memory()
    threads = set_threads(c.threads, folder)
    data, server_data = run_data(c)
    with faults("", c):
        train = add_label_noise(data.train, c.label_noise, len(data.class_names), c.seed)
    with faults("partition", c.partition):
        users = None if train.users is None else train.users.numpy()
        strata = train.strata.numpy()
        split = dealt(c.partition, strata, users, c.num_clients, generator(c.seed, Purpose.PARTITION))
        blocks = None
        if isinstance(c.partition, BlockPartition):
            blocks = c.partition.owned(strata, c.num_clients, generator(c.seed, Purpose.PARTITION))
            split = with_their_blocks(split, blocks, train.present)
    require(any(map(len, split)), c.partition, "split", "some client an example", split)
    if c.drop_empty:
        split = _with_examples(c, split)
    device = device_of(c.device)
    if device.type != "cpu":
        repeat_exactly(c.deterministic)
    with model_faults(c.model, data):
        families = model_families(c, data, device, len(split))
    if any(family.has_batch_norm for family in families) and c.local.batch_size == 1:
        raise UserError("local.batch_size must be > 1 for a model with batch norm, got 1")
    test = data.test._replace(inputs=data.test.inputs.to(device), targets=data.test.targets.to(device))
    with faults("client_split", c.client_split):
        parts = checked_split(c.client_split, split, data.train, data.test, c.seed)
    with faults("augment", c.augment):
        client_data = ClientData(train.inputs, train.targets, parts.train, device, augment=c.augment)
    inputs, targets = client_data.inputs, client_data.targets
    for family in families if len(inputs) else []:
        with faults("model", c.model):
            try_network(family, inputs)
    for family in families:
        if c.logger.save_model:
            check_savable(family)
        with faults("executor", c.executor):
            c.executor.check(family)
    validation = ClientData(inputs, targets, parts.validation, device) if any(map(len, parts.validation)) else None
    client_tests = None
    if parts.test is not None:  # labels without noise
        inputs, targets = (test.inputs, test.targets) if parts.from_test_set else (inputs, data.train.targets)
        client_tests = ClientData(inputs, targets, parts.test, device)
    delay = NoDelay("client") if c.algorithm.decentralized else c.delay
    with faults("participation", c.participation), faults("delay", c.delay):
        clock = RoundClock(client_data.num_examples, c.participation, delay, c.seed)
        delays = drawn_delays(delay, generator(c.seed, Purpose.DELAY), np.arange(client_data.num_clients))
    with faults("topology", c.topology):
        topology = draw_topology(c, client_data.num_clients)
    most = max(
        [*client_data.num_examples, *(len(each) for each in server_data.values() if each is not None)], default=0
    )
    fed = Federation(
        family=families,
        client_data=client_data,
        clock=clock,
        executor=c.executor,
        local=c.local.at_most(int(most)),
        seed=c.seed,
        **{name: None if examples is None else examples.to(device) for name, examples in server_data.items()},
        topology=topology,
        validation=validation,
        client_tests=client_tests,
        nonfinite=c.nonfinite,
        aggregator=c.aggregator,
        server_optimizer=c.server_optimizer,
        home=c.home if isinstance(c.home, Home) else None,
        folder=folder,
        blocks=blocks,
    )
    if topology is not None:
        check_participants(topology, fed.participants)
    with faults("aggregator", c.aggregator):
        c.aggregator.check(fed.cohort_size)
    with faults("algorithm", c.algorithm):
        check_blocks(c.algorithm, fed)
        c.algorithm.check(fed)
    with faults("analysis", c.analysis):
        c.analysis.check(c.algorithm, fed)
    with faults("evaluation", c.evaluation):
        check_matrix(c.evaluation, c.algorithm, fed)
    given = _digest(train, data.test, split, server_data, delays if topology is None else topology)
    simulation = Simulation(c.algorithm, fed, test, c.evaluation, c.analysis, c.lr_schedule, c.rounds, given)
    homes = [int(fed.home.mask(family).sum()) for family in families]
    sizes = " or ".join(
        f"{family.size:,}" + (f" ({home:,} of them at home)" if home else "")
        for family, home in zip(families, homes, strict=True)
    )
    where = f"{device}" if threads == 1 else f"{device}, {threads} threads"
    _log.info("%s, %s values a model, on %s", count_of(client_data.num_clients, "client"), sizes, where)
    return Prepared(simulation, data, split, parts)


def _with_examples(c: Components, split: list[np.ndarray]) -> list[np.ndarray]:
    """The clients that have examples. Warns of the others. Raises UserError where the config has clients by number, and
    some would be other ones.
    """
    kept = [part for part in split if len(part)]
    empty = [str(client) for client, part in enumerate(split) if not len(part)]
    if not empty:
        return split
    numbers = ", ".join(empty[:MAX_NUMBERS]) + (", ..." if len(empty) > MAX_NUMBERS else "")
    left_out, anew = f"{len(empty)} of {len(split)} clients got no examples", int(empty[0]) < len(kept)
    for key in ("participation", "algorithm", "topology" if c.algorithm.decentralized else "delay"):
        if anew and getattr(c, key).names_clients:
            raise UserError(
                f"drop_empty must be false with this {key}, which has clients by number: {left_out} ({numbers}), and "
                "the clients behind them would be numbered anew"
            )
    others = f" and numbers the others anew, from 0 to {len(kept) - 1}" if anew else ""
    _log.warning("%s: the run leaves them out (%s)%s (drop_empty)", left_out, numbers, others)
    return kept


def _digest(
    train: Examples,
    test: Examples,
    split: Sequence[np.ndarray],
    server_data: Mapping[str, ServerData | None],
    network: np.ndarray,
) -> str:
    """A digest of the examples, of their owners, and of `network`: the delays [N] or, without a server, the links
    [N, N].
    """
    kept = [each for each in server_data.values() if each is not None]
    arrays = (train.inputs, train.targets, train.present, test.inputs, test.targets, test.present)
    of_server = [*(each.targets for each in kept), *(each.inputs for each in kept)]
    return digest_of([*arrays, *split, *of_server, network])


def model_families(c: Components, data: Data, device: torch.device, num_clients: int) -> list[ModelFamily]:
    """A model family for each architecture."""
    dtype = torch.float64 if c.precision == "float64" else torch.float32
    num_classes, models = len(data.class_names), c.model.architectures()
    if len(models) > num_clients:
        raise ValueError(f"models must be at most as many as the {num_clients} clients, got {len(models)}")
    if len(models) > 1 and not c.algorithm.heterogeneous:
        name = c.algorithm.name
        raise UserError(
            f"algorithm={name} needs one architecture for all clients, got {len(models)}: choose another model, or "
            "algorithm=dfml, dec_fedavg, fml"
        )
    channels, image_size = shape_of(data.train.inputs)

    def family(model: Architecture) -> ModelFamily:
        if model.warning is not None:
            _log.warning("%s", model.warning)
        return ModelFamily(
            partial(built, model, channels, image_size, num_classes),
            num_classes,
            normalize=Normalize.of(data.mean, data.std, dtype, device),
            device=device,
            dtype=dtype,
            autocast=torch.bfloat16 if c.precision == "bfloat16" else None,
            loss_function=c.loss,
        )

    return [family(model) for model in models]


def draw_topology(c: Components, num_clients: int) -> np.ndarray | None:
    """The topology [N, N] of a decentralised algorithm, drawn from the seed and logged; None for others. It warns
    of a topology or a delay that the algorithm does not use.
    """
    name = c.algorithm.name
    if not c.algorithm.decentralized:
        if not isinstance(c.topology, Mesh):
            _log.warning("algorithm=%s has a server: the topology is not used", name)
        return None
    if not isinstance(c.delay, NoDelay):
        _log.warning("algorithm=%s has no server, so that no client is late: the delay is not used", name)
    linked = drawn_links(c.topology, generator(c.seed, Purpose.TOPOLOGY), num_clients)
    _log.info("topology: %s", describe(linked))
    return linked
