"""The components of an experiment; the type hints are the schema of the config's top level."""

from dataclasses import dataclass
from typing import Any

from fedlab_runner.aggregators.base import Aggregator
from fedlab_runner.analyses.base import Analysis
from fedlab_runner.augment.base import Augment
from fedlab_runner.checkpoints.store import Checkpointing
from fedlab_runner.client_splits.base import ClientSplit
from fedlab_runner.core.algorithm import Algorithm
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.local_training import LocalTraining
from fedlab_runner.core.losses import LossFunction
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.delays.base import Delay
from fedlab_runner.evaluation.evaluator import Evaluation
from fedlab_runner.homes.base import Home
from fedlab_runner.homes.none import NoHome
from fedlab_runner.lr_schedules.base import LRSchedule
from fedlab_runner.models.base import Architecture
from fedlab_runner.models.mix import Mix
from fedlab_runner.participation.base import Participation
from fedlab_runner.partitions.base import Partition
from fedlab_runner.pruning.base import Pruning
from fedlab_runner.server_data.base import ServerDataSource
from fedlab_runner.server_optimizers.base import ServerOptimizer
from fedlab_runner.topologies.base import Topology
from fedlab_runner.tracking.logger import Logger


@dataclass(frozen=True)
class Components:
    """The top-level values of a config, groups as built objects."""

    rounds: int
    seed: int
    device: str
    num_clients: int
    precision: str
    deterministic: bool
    threads: int | None
    train_fraction: float
    label_noise: float
    drop_empty: bool
    nonfinite: str
    algorithm: Algorithm[Any]
    dataset: Dataset
    server_data: ServerDataSource
    auxiliary_data: ServerDataSource
    probe_data: ServerDataSource
    partition: Partition
    client_split: ClientSplit
    delay: Delay
    topology: Topology
    model: Architecture | Mix
    loss: LossFunction
    augment: Augment
    participation: Participation
    local: LocalTraining
    lr_schedule: LRSchedule
    aggregator: Aggregator
    server_optimizer: ServerOptimizer
    home: Home | NoHome
    executor: Executor
    evaluation: Evaluation
    analysis: Analysis[Any]
    logger: Logger
    checkpoint: Checkpointing
    pruning: Pruning
