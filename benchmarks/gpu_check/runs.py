"""Small runs of any algorithm, with checkpoints and without pictures."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig

from benchmarks.gpu_check.finding import Setting
from fedlab_runner import compose
from fedlab_runner.checkpoints.store import CheckpointStore
from fedlab_runner.config.build import build, conf_dir, fingerprint
from fedlab_runner.config.components import Components
from fedlab_runner.experiment.code_hash import code_of
from fedlab_runner.experiment.loop import Simulation
from fedlab_runner.experiment.run import prepare
from fedlab_runner.tracking.jsonl import Row
from fedlab_runner.tracking.label import Label
from fedlab_runner.tracking.recorder import METRICS, Recorder

# For every algorithm, whether it asks for it or not: examples on the server, a leash task, late clients.
EVERYONE = (
    *("dataset=synthetic", "dataset.noise=0.5", "partition=dirichlet", "delay.std=1", "evaluation.every=1"),
    *("server_data=in_domain", "server_data@auxiliary_data=in_domain"),
    *("logger=none", "logger.progress=false", "checkpoint.seconds=null"),
)
SIZES = ("dataset.num_train=2000", "dataset.num_test=500", "num_clients=20", "participation.cohort_size=6")
TINY = (
    *("dataset.num_train=200", "dataset.num_test=100", "num_clients=6", "participation.cohort_size=3"),
    *("server_data.size=20", "auxiliary_data.size=20", "local.epochs=1"),
)


class Run(NamedTuple):
    """A run that is ready to begin, or to continue from what its folder has."""

    folder: Path
    cfg: DictConfig
    components: Components
    simulation: Simulation

    def go(self) -> list[Row]:
        """Its metrics, once it has ended."""
        c, fed = self.components, self.simulation.fed
        fed.trainer.executor = fed.executor.bind_run(self.folder, c.rounds)
        how: dict[str, Any] = {"run_id": "check", "config": {}, "rounds": c.rounds, "label": Label(), "commit": None}
        with Recorder(self.folder, c.logger, **how) as recorder:
            store = CheckpointStore(self.folder, c.checkpoint.keep)
            named = fingerprint(self.cfg)
            self.simulation.run(recorder, store, c.checkpoint, named, code_of(named), on_start=lambda: None)
            return recorder.rows()

    @property
    def metrics(self) -> bytes:
        """What two equal runs have in common."""
        return (self.folder / METRICS).read_bytes()


def prepared(folder: Path, setting: Setting, *overrides: str, device: torch.device | None = None) -> Run:
    """A run in a folder, on the setting's device or another."""
    sizes = TINY if setting.tiny else SIZES
    cfg = compose(*EVERYONE, *sizes, f"device={device or setting.device}", *overrides)
    components = build(cfg)
    folder.mkdir(parents=True, exist_ok=True)
    return Run(folder, cfg, components, prepare(components, folder).simulation)


def algorithms() -> Iterator[str]:
    """All that can be chosen."""
    yield from sorted(path.stem for path in (conf_dir() / "algorithm").glob("*.yaml"))
