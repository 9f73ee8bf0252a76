"""From a composed config to built components: check everything, then build.

A config is resolved once, checked whole, and built from the checked values. Nothing is built while any `_target_` is
refused. Hydra's `instantiate` is not used: it resolves a second time, and calls whatever a `_target_` names.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException
from omegaconf.resolvers import oc

from fedlab_runner.config import schema, secrets
from fedlab_runner.config.run_id import run_id_of, without_volatile
from fedlab_runner.tracking.metric_direction import direction_of
from fedlab_runner.utils.digest import digest
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import at_least, one_of, within

if TYPE_CHECKING:  # imports torch: not for --help, not for shell completion
    from fedlab_runner.config.components import Components

PRECISIONS = ("float32", "bfloat16", "float64")  # values of the key `precision`
MAX_THREADS = max(64, 4 * (os.cpu_count() or 1))  # more threads wait for each other, and the system may refuse them
NONFINITE = ("stop", "drop", "zero", "clip")  # what `core.update_guard` can do about an update that is not finite


@dataclass(frozen=True)
class Checked:
    """A resolved and checked config: the only form that is built, written or hashed."""

    nodes: Mapping[str, Any]  # values of the right types, components as `schema.Node`
    errors: tuple[str, ...]  # a line for each fault of keys and types

    @property
    def values(self) -> dict[str, Any]:
        """The plain values, with `_target_`s."""
        plain: dict[str, Any] = schema.plain(dict(self.nodes))
        return plain

    @property
    def fingerprint(self) -> dict[str, Any]:
        """The values without the volatile keys: two configs with one fingerprint are one run."""
        if self.errors:
            raise UserError("\n".join(self.errors))
        return without_volatile(self.values)

    @property
    def run_id(self) -> str:
        """The name of the run's folder, `<algorithm>-<8 hex>`."""
        return run_id_of(self.fingerprint)

    def build(self) -> "Components":
        """Builds the components and reads no data. Raises UserError with one line for each fault of the config."""
        from fedlab_runner.config.components import Components

        errors = [*self.errors]
        if any("_target_" in line for line in errors):
            raise UserError("\n".join(errors))
        errors += _setting_faults(self.nodes, errors)
        built = {key: _built(value, key, errors) for key, value in self.nodes.items()}
        errors += _cross_faults(self.nodes, built, errors)
        if errors:
            raise UserError("\n".join(errors))
        return Components(**built)


def conf_dir() -> Path:
    """The config folder: inside the package when installed, else beside it in the repository."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "train.yaml").is_file():
            return folder
    raise UserError(f"no conf/train.yaml in {package} or {package.parent}: install the package again")


def register_resolvers() -> None:
    """Registers the resolvers of `conf/` with OmegaConf. Its own `${oc.env:}` cannot read W&B's key.

    Each process that composes needs the resolvers, so importing `train` registers them.
    """
    OmegaConf.register_new_resolver("run_id", _resolve_run_id, replace=True)
    OmegaConf.register_new_resolver("direction_of", direction_of, replace=True)
    OmegaConf.register_new_resolver("where", _where, replace=True)
    OmegaConf.register_new_resolver("oc.env", _resolve_env, replace=True)


def _where(group: str, name: str, then: Any, otherwise: Any, *, _root_: DictConfig) -> Any:
    """`${where:dataset,CIFAR10,0.01,0.005}` is 0.01 if the dataset's class is CIFAR10, else 0.005.

    For a value of an experiment that depends on another choice of the same run.
    """
    return then if str(_root_[group]["_target_"]).rpartition(".")[2] == name else otherwise


def check(cfg: DictConfig) -> Checked:
    """Resolves and checks a config. Raises UserError where that fails, or for a W&B key or a left interpolation."""
    try:
        values: Any = {str(key): _resolved(cfg, str(key)) for key in cfg if key != "hydra"}
    except OmegaConfBaseException as error:
        known = next((each for each in (error.__cause__, error.__context__) if isinstance(each, UserError)), error)
        line = str(known).splitlines()[0].removeprefix("UserError raised while resolving interpolation: ")
        if isinstance(error, InterpolationToMissingValueError):
            raise UserError(f"{line.rpartition(' ')[2]} is missing: {error.full_key} takes its value") from error
        raise UserError(secrets.redacted(f"{error.full_key or 'the config'}: {line}")) from error
    if faults := [*_key_faults(cfg, values), *_escapes(values)]:
        raise UserError("\n".join(faults))  # no other faults: their lines show values, maybe the key
    values = _bounded(values, values.pop("debug", None))
    errors: list[str] = []
    nodes = schema.convert_fields(values, _hints(), "", errors)
    return Checked(nodes, tuple(errors))


def _resolved(cfg: DictConfig, key: str) -> Any:
    """The value of a top-level key with interpolations resolved. A masked copy of the config would cost three times as
    much.
    """
    if OmegaConf.is_missing(cfg, key):
        return schema.MISSING
    value = cfg[key]
    if OmegaConf.is_config(value):
        return OmegaConf.to_container(value, resolve=True, throw_on_missing=False)
    return value


def build(cfg: DictConfig) -> "Components":
    """Checks a config and builds its components. Raises UserError with one line for each fault of the config."""
    return check(cfg).build()


def run_id(cfg: DictConfig) -> str:
    """The name of the run's folder, `<algorithm>-<8 hex>`."""
    return check(cfg).run_id


def fingerprint(cfg: DictConfig) -> dict[str, Any]:
    """The values that decide the numbers of a run; see `Checked`."""
    return check(cfg).fingerprint


def rounds_of(cfg: DictConfig) -> Any:
    """The number of rounds that a run of this config has."""
    return _bounded(cfg.get("rounds"), OmegaConf.select(cfg, "debug.rounds"))


def _bounded(value: Any, bound: Any) -> Any:
    """The config with its numbers bounded by those of the group `debug`. A list's bound holds for each item."""
    if isinstance(value, list):
        return [_bounded(each, bound) for each in value]
    if isinstance(value, dict) and isinstance(bound, dict):
        return {key: _bounded(each, bound.get(key)) for key, each in value.items()}
    numbers = isinstance(value, int | float) and isinstance(bound, int | float) and not isinstance(value, bool)
    return min(value, bound) if numbers else value


@cache
def _hints() -> dict[str, Any]:
    """The type of each top-level value. The classes import torch, so a check of types or ranges imports torch too. Only
    faults that Hydra itself finds, such as an unknown key, are reported without torch.
    """
    from fedlab_runner.config.components import Components

    return get_type_hints(Components)


def _built(value: Any, path: str, errors: list[str]) -> Any:
    """The value with its components built, inner components first, so that a message names the innermost fault.

    A component with a fault is not built.
    """
    if isinstance(value, list):
        return [_built(each, f"{path}[{i}]", errors) for i, each in enumerate(value)]
    if isinstance(value, dict):
        return {key: _built(each, schema.join(path, str(key)), errors) for key, each in value.items()}
    if not isinstance(value, schema.Node):
        return value
    fields = {key: _built(each, schema.join(path, key), errors) for key, each in value.fields.items()}
    if not _has_fault(path, errors):
        try:
            return value.cls(**fields)
        except ValueError as error:  # any other exception is a bug of a constructor
            errors.append(f"{path}.{error}")
    return value


def _key_faults(cfg: DictConfig, values: Mapping[str, Any]) -> list[str]:
    """Places that hold a W&B key, in the config and in Hydra's part of it."""
    hydra = OmegaConf.select(cfg, "hydra")
    settings = {} if hydra is None else OmegaConf.to_container(hydra, resolve=False)
    return secrets.faults([*secrets.leaves(values, ""), *secrets.leaves(settings, "hydra")])


def _escapes(values: Mapping[str, Any]) -> list[str]:
    """Values that still hold an interpolation: a later reader would resolve it unchecked."""
    return [
        f"{name} holds an escaped interpolation, \\${{...}}: write the value itself"
        for name, value in secrets.leaves(values, "")
        if "${" in f"{name}{value}"
    ]


def _without_hydra(cfg: DictConfig) -> DictConfig:
    return OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])


def _setting_faults(values: Mapping[str, Any], errors: list[str]) -> list[str]:
    """The range faults of the top-level values, for those of the right type."""
    checks: dict[str, Callable[..., None]] = {
        "rounds": partial(at_least, 0),
        "seed": partial(at_least, 0),
        "num_clients": partial(at_least, 1),
        "threads": partial(within, f"[1, {MAX_THREADS}]"),
        "train_fraction": partial(within, "(0, 1]"),
        "label_noise": partial(within, "[0, 1]"),
        "nonfinite": partial(one_of, NONFINITE),
        "precision": partial(one_of, PRECISIONS),
        "device": _check_device,
    }
    faults = []
    for key, check_value in checks.items():
        if not _has_fault(key, errors):
            try:
                check_value(**{key: values[key]})
            except ValueError as error:
                faults.append(str(error))
    return faults


def _check_device(device: str) -> None:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise ValueError(f"device must be one of auto, cpu, cuda, cuda:<index>, got {device}")


def _cross_faults(values: Mapping[str, Any], built: Mapping[str, Any], errors: list[str]) -> list[str]:
    """Faults of a value that depend on another value or on the machine."""
    faults = []
    if not _has_fault("participation", errors) and not _has_fault("num_clients", errors):
        try:
            built["participation"].check(values["num_clients"])
        except ValueError as error:
            faults.append(f"participation.{error}")
    if values.get("nonfinite") == "clip" and not _has_fault("local", errors) and built["local"].update_norm is None:
        faults.append(
            "nonfinite must be stop, drop or zero where local.update_norm is null, got clip: the rest of an update "
            "that is not finite needs a bound"
        )
    if not _has_fault("server_optimizer", errors) and not _has_fault("algorithm", errors):
        algorithm = built["algorithm"]
        if built["server_optimizer"].acts and not algorithm.makes_server_steps:
            faults.append(
                f"server_optimizer must be none with algorithm={algorithm.name}, where no server makes steps from "
                "clients' updates"
            )
    if not _has_fault("aggregator", errors) and not _has_fault("algorithm", errors):
        algorithm = built["algorithm"]
        if built["aggregator"].acts and not algorithm.takes_aggregator():
            faults.append(
                f"aggregator must be mean with algorithm={algorithm.name}, whose server does not step by the mean of "
                "clients' updates"
            )
    if not _has_fault("home", errors) and not _has_fault("algorithm", errors):
        algorithm = built["algorithm"]
        if built["home"].acts and (fault := algorithm.home_fault()) is not None:
            faults.append(f"home must be none with algorithm={algorithm.name}, {fault}")
    if not _has_fault("device", errors) and values["device"].startswith("cuda"):
        faults += _cuda_faults(values["device"])
    return faults


def _has_fault(path: str, errors: list[str]) -> bool:
    """Whether one of the errors is about this value or something inside it."""
    return any(error.startswith((f"{path} ", f"{path}.", f"{path}[")) for error in errors)


def _cuda_faults(device: str) -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return [f"device must be cpu or auto, got {device}: torch finds no CUDA GPU on this machine"]
    index, count = int(device.partition(":")[2] or 0), torch.cuda.device_count()
    return [] if index < count else [f"device must be one of cuda:0 to cuda:{count - 1}, got {device}"]


def _resolve_run_id(*, _root_: DictConfig) -> str:
    """`${run_id:}`. A faulty config raises, so that no folder is made; in a sweep other jobs continue."""
    try:
        checked = check(_root_)
        checked.build()
        return checked.run_id
    except UserError:
        if OmegaConf.select(_root_, "hydra.mode") != RunMode.MULTIRUN:
            raise
        return f"invalid-{digest(OmegaConf.to_container(_without_hydra(_root_)))}"


def _resolve_env(key: str, *default: Any) -> Any:
    """`${oc.env:}`, which refuses W&B's key: the config would carry the key into the run's files."""
    if faults := secrets.faults([(f"${{oc.env:{key}}}", os.environ.get(key))]):
        raise UserError(faults[0])
    return oc.env(key, *default)
