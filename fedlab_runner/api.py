"""Experiments from Python, such as a notebook, run as the command line runs them.

>>> from fedlab_runner import compose, run
>>> cfg = compose("algorithm=fedavg", "model=logistic", "rounds=2", "logger=none")  # as after `fedlab`
>>> cfg.local.lr = 0.1
>>> result = run(cfg, "outputs/from-python")
>>> [row["round"] for row in result.metrics]  # the rows of metrics.jsonl
[0, 1, 2]
>>> result.objective == result.summary["objective"] == result.metrics[-1]["test/accuracy"]
True
>>> result.federation.num_clients
50
>>> tuple(result.models.shape)  # one model of 64 x 10 weights and 10 biases, a vector
(1, 650)
>>> run(cfg, "outputs/from-python").objective == result.objective  # the finished run is read
True
>>> from fedlab_runner import load
>>> loaded = load("outputs/from-python")  # any run's folder
>>> loaded.module  # with the run's weights
Sequential(
  (0): Flatten(start_dim=1, end_dim=-1)
  (1): Linear(in_features=64, out_features=10, bias=True)
)
>>> inputs, target = loaded.test[0]  # as the module reads them
>>> loaded.module(inputs[None]).shape, len(loaded.test), loaded.config.local.lr
(torch.Size([1, 10]), 270, 0.1)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from fedlab_runner.config import plugins
from fedlab_runner.config.build import register_resolvers, run_id
from fedlab_runner.config.composing import composed
from fedlab_runner.config.explain import QUOTE, explain
from fedlab_runner.config.override_faults import ADD_M
from fedlab_runner.core.federation import Federation
from fedlab_runner.experiment.loading import Loaded
from fedlab_runner.experiment.loading import load as load_folder
from fedlab_runner.experiment.loop import Simulation
from fedlab_runner.experiment.run import run_whole
from fedlab_runner.tracking.jsonl import Row
from fedlab_runner.utils.errors import UserError


@dataclass(frozen=True)
class Result:
    """A finished run: its numbers and its final state."""

    folder: Path
    metrics: Sequence[Row]  # a row for the initial model and each round; a non-finite number is NaN
    summary: Mapping[str, Any]  # as in summary.json; a non-finite number is NaN
    state: Any  # of the algorithm, after the last round
    simulation: Simulation  # algorithm, federation, test data: everything that decides the numbers

    @property
    def objective(self) -> float:
        """The objective of the run: the value of `evaluation.metric` that `summary.json` names."""
        return float(self.summary["objective"])

    @property
    def federation(self) -> Federation:
        """Clients, model (`family`), clock and server data."""
        return self.simulation.fed

    @property
    def models(self) -> Tensor | list[Tensor]:
        """The evaluated models as vectors [n, D]; `federation.family.predict` takes one vector.

        Clients' own models are in the order of the clients. With several architectures (`federation.families`) the
        result is a list of vectors [D_i].
        """
        models = [w for _, w in self.simulation.evaluated(self.state)]
        return torch.stack(models) if len(self.federation.families) == 1 else models


def compose(*overrides: str) -> DictConfig:
    """The config that `fedlab <overrides>` would run; you may change it. Raises UserError for a faulty override."""
    _check_texts(overrides)
    register_resolvers()
    plugins.register()
    try:
        return composed(overrides)
    except Exception as error:
        lines = explain(error, overrides)
        if lines is None:
            raise
        text = "\n".join(lines).replace(ADD_M, "call run once for each of them")
        raise UserError(text.replace(QUOTE, "quote the text within the override: ")) from error


def run(cfg: DictConfig, folder: str | Path | None = None) -> Result:
    """Runs or continues an experiment in a folder, by default `outputs/<run id>`. A finished run is only loaded.

    A larger `rounds` continues a finished run. A smaller one is refused, as the state of that round is gone; a command
    reads its number, and `load` the folder.

    A run sets PyTorch's settings and the global generators of its process, and puts them back. In threads of one
    process a second `run`, `load` or `client_module` waits for the first: give runs side by side a process each.

    Raises UserError where config, data or folder do not allow the run, and Diverged.
    """
    if not isinstance(cfg, DictConfig):
        raise UserError(f"run takes a config of compose, got a {type(cfg).__name__}: write run(compose(...))")
    if folder is not None:
        _check_folder(folder, "the second argument of run", "leave it out for outputs/<run id>")
    return Result(*run_whole(Path("outputs") / run_id(cfg) if folder is None else Path(folder), cfg))


def load(folder: str | Path, *overrides: str) -> Loaded:
    """The run in a folder, finished or not: `module` (or `modules`) with its weights, `test`, `config`, `metrics`.

    `load` trains and writes nothing. The weights are those of `model.safetensors`, or of the newest checkpoint if that
    is newer. `load` reads the data set again: it downloads nothing, and decodes images into a temporary file.
    `overrides` set keys that differ on this machine, such as "dataset.root=/data" or "dataset.cache=/images". Raises
    UserError, one line, for a folder without a run or its weights, and for missing data.
    """
    _check_folder(folder, "the first argument of load", "give that of a run, as result.folder")
    _check_texts(overrides)
    register_resolvers()
    plugins.register()
    return load_folder(folder, *overrides)


def _check_folder(folder: object, what: str, way: str) -> None:
    if folder == "" or not isinstance(folder, str | Path):
        raise UserError(f"{what} is a folder, got {folder!r}: {way}")


def _check_texts(overrides: Sequence[Any]) -> None:
    for each in overrides:
        if not isinstance(each, str):
            raise UserError(f'an override is a text, such as "seed=1", got {each!r}: write a list as *[...]')
