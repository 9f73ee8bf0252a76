"""Loads a run folder into PyTorch objects: the models with the run's weights, the test set and the config."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedlab_runner.checkpoints.store import CheckpointStore
from fedlab_runner.config.build import check
from fedlab_runner.config.run_id import VOLATILE, stopping
from fedlab_runner.core.client_state import ClientStateStore
from fedlab_runner.core.global_rng import CPU, kept_globals, own_generators
from fedlab_runner.core.layers.replacement import cast
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.executors.loop import Loop
from fedlab_runner.experiment.export import read_models, saved_round
from fedlab_runner.experiment.loop import Simulation
from fedlab_runner.experiment.resuming import STRANGE, understood
from fedlab_runner.experiment.setup import prepare
from fedlab_runner.tracking.jsonl import Row, decode
from fedlab_runner.tracking.recorder import METRICS
from fedlab_runner.utils import untrusted
from fedlab_runner.utils.errors import RunFailed, UserError
from fedlab_runner.utils.run_files import CONFIG, MODEL_FILE
from fedlab_runner.utils.torch_settings import usual_settings

_log = logging.getLogger("fedlab_runner")
R = TypeVar("R")


class TestSet(Dataset[tuple[Tensor, int]]):
    """Test examples in the form that the modules read: a normalised input [...] and its class."""

    __test__ = False  # pytest must not collect this class

    def __init__(self, examples: Examples, family: ModelFamily) -> None:
        self._examples, self._family = examples, family

    def __len__(self) -> int:
        return len(self._examples.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        rows = torch.tensor(indices)
        inputs = self._family.normalize(self._examples.inputs[rows], self._family.dtype)
        return list(zip(inputs, self._examples.targets[rows].tolist(), strict=True))


@dataclass(frozen=True)
class Loaded:
    """A run that was loaded from its folder."""

    folder: Path
    config: DictConfig
    round: int  # rounds that the models were trained for
    metrics: list[Row]  # a row for the initial model and each round; a non-finite number is NaN
    modules: list[nn.Module]  # the evaluated models, in evaluation mode on the CPU: one, or one of each client
    test: TestSet
    class_names: tuple[str, ...]
    _client_module: Callable[[int], nn.Module] = field(repr=False)

    @property
    def module(self) -> nn.Module:
        """The only model. Raises UserError if each client has a model."""
        if len(self.modules) > 1:
            raise UserError(
                f"{self.folder} holds {len(self.modules)} models, one of each client: take modules[<client>]"
            )
        return self.modules[0]

    def client_module(self, client: int) -> nn.Module:
        """The model that a client uses itself, in evaluation mode: with what it keeps at home, or its own where the
        method gives it one; else the server's. It is that of `client/...` in the evaluation matrix.

        Raises UserError for a client that the run does not have, and where the folder has no checkpoint of `round`.
        """
        return self._client_module(client)


@usual_settings()
@kept_globals()
def load(folder: str | Path, *overrides: str) -> Loaded:
    """Loads the run in a folder, finished or not, and writes nothing. `overrides` set keys that differ on this machine,
    such as "dataset.root=/data".

    The weights are those of `model.safetensors`, or of the newest checkpoint if that is newer. The function reads the
    data set again. Raises UserError, one line, for a folder without a run or its weights, and for missing data.
    """
    folder = Path(folder)
    recorded = _config(folder)
    cfg = _with(recorded, *overrides)
    store = CheckpointStore(folder, keep=1)
    newest, saved = max(store.rounds(), default=-1), saved_round(folder / MODEL_FILE)
    if newest < 0 and saved is None:
        raise UserError(
            f"{folder} has no weights, neither {MODEL_FILE} nor a checkpoint: give its command again, with "
            "logger.save_model=true"
        )
    # on the CPU, client by client: the folder may come from another machine
    with TemporaryDirectory() as place:
        changed = _with(_writing_only_to(place, recorded), *overrides, "device=cpu")
        components = replace(check(changed).build(), executor=Loop(compile=False))
        with _hinting(changed):
            prepared = prepare(components)
    simulation = prepared.simulation

    @cache
    def restored() -> tuple[int, Any]:
        return _of_checkpoint(store, check(recorded).fingerprint, simulation)

    if saved is not None and saved >= newest:
        round, weights = saved, read_models(folder / MODEL_FILE)
    else:
        round, state = restored()
        weights = [family.state_dict(w) for family, w in _rows(store, lambda: simulation.evaluated(state))]
    families = simulation.fed.families
    modules = [_module(families[i % len(families)], values, folder) for i, values in enumerate(weights)]

    @usual_settings()
    def of_client(client: int) -> nn.Module:
        fed, clients = simulation.fed, np.array([client])
        if not 0 <= client < fed.num_clients:
            raise UserError(f"{folder} has the clients 0 to {fed.num_clients - 1}, got {client}")
        if len(modules) > 1:
            return modules[client]
        if newest != round:
            raise UserError(
                f"{folder} lacks the checkpoint after round {round}, which alone has the clients' own models"
            )
        models = _rows(store, lambda: simulation.algorithm.client_models(restored()[1], fed, clients))
        return _module(fed.family, fed.family.state_dict(models[0]), folder)

    test = TestSet(prepared.data.test, families[0])
    return Loaded(folder, cfg, round, _metrics(folder), modules, test, prepared.data.class_names, of_client)


def _config(folder: Path) -> DictConfig:
    try:
        values = untrusted.read_yaml(folder / CONFIG)
    except FileNotFoundError:
        raise UserError(f"{folder} holds no run: it has no {CONFIG}") from None
    except untrusted.Unreadable as error:
        raise UserError(f"{folder / CONFIG} {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{folder / CONFIG} holds no config")
    return OmegaConf.create(values)


@contextmanager
def _hinting(cfg: DictConfig) -> Iterator[None]:
    """Adds to a fault of a key with a text, which may be a place on another machine, how `load` takes another one.

    The message begins with the key, or says to set it.
    """
    try:
        yield
    except UserError as error:
        for key in re.findall(r"(?:^|set |or )(\w+(?:\.\w+)*)", str(error)):
            if isinstance(OmegaConf.select(cfg, key), str):
                raise UserError(f'{error}; load(folder, "{key}=...") takes another one') from None
        raise


def _writing_only_to(place: str, cfg: DictConfig) -> DictConfig:
    """The config of a run that downloads no data and keeps images, if it does, in files in `place`."""
    values = {"download": False, "cache": place}
    keys = [key for key in VOLATILE if key.rpartition(".")[2] in values and OmegaConf.select(cfg, key)]
    return _with(cfg, *(f"{key}={values[key.rpartition('.')[2]]}" for key in keys))


def _with(cfg: DictConfig, *overrides: str) -> DictConfig:
    changed = OmegaConf.merge(cfg, OmegaConf.from_dotlist(list(overrides)))
    assert isinstance(changed, DictConfig)
    return changed


def _of_checkpoint(store: CheckpointStore, fingerprint: dict[str, Any], simulation: Simulation) -> tuple[int, Any]:
    """The round of the newest checkpoint, and the State in it."""
    found = store.load(fingerprint, also=[stopping(fingerprint)])
    assert found is not None
    round, payload = found
    with understood(round, STRANGE):
        frozen, examples = payload["frozen"], payload["examples"]
    if frozen != simulation.frozen:
        raise UserError(
            "the model's frozen weights are not those of the run: bring back the file of model.weights, or the "
            "library's version that has them"
        )
    if examples != simulation.examples:
        _log.warning("the examples, which client has which, the delays or the links are not those of the run")
    simulation.fed.client_state = ClientStateStore(store.folder, torch.device("cpu"), read_only=True)
    return round, _rows(store, lambda: simulation.restored(round, payload))


def _rows(store: CheckpointStore, read: Callable[[], R]) -> R:
    """What `read` makes of clients' rows; UserError where one is missing."""
    try:
        return read()
    except (RunFailed, OSError) as error:
        raise UserError(f"{store.folder} lacks a client's rows: {error}") from None


def _module(family: ModelFamily, values: Mapping[str, Tensor], folder: Path) -> nn.Module:
    """The network of a family with these values by name, in evaluation mode."""
    with own_generators():
        module = cast(family.build(), CPU, family.dtype)
    extra = {name: value for name, value in module.state_dict().items() if not isinstance(value, Tensor)}
    try:
        module.load_state_dict(extra | dict(values))  # fills in batch norm's counters, which no model of a run has
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{folder} has weights of another model than its {CONFIG} says: {reason}") from None
    return module.eval()


def _metrics(folder: Path) -> list[Row]:
    try:
        return [decode(line) for line in untrusted.lines(folder / METRICS)]
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / METRICS} cannot be read ({error})") from None
