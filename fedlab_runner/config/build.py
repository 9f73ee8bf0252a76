"""From a composed config to built components: check everything, then build.

A config is resolved once, checked whole, and built from the checked values. Nothing is built while any `_target_` is
refused. Hydra's `instantiate` is not used: it resolves a second time, and calls whatever a `_target_` names.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException
from omegaconf.resolvers import oc

from fedlab_runner.config import faults, schema, secrets
from fedlab_runner.config.recorded import same_config
from fedlab_runner.config.run_id import run_id_of, without_volatile
from fedlab_runner.tracking.metric_direction import direction_of
from fedlab_runner.utils import exits
from fedlab_runner.utils.digest import digest
from fedlab_runner.utils.errors import UserError

if TYPE_CHECKING:  # imports torch: not for --help, not for shell completion
    from fedlab_runner.config.components import Components

RUN_ID = "${run_id:}"  # in the names of folders


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

    @exits.refused()
    def build(self) -> "Components":
        """Builds the components and reads no data. Raises UserError with one line for each fault of the config."""
        from fedlab_runner.config.components import Components

        errors = [*self.errors]
        if any("_target_" in line for line in errors):
            raise UserError("\n".join(errors))
        errors += faults.of_settings(self.nodes, errors)
        built = {key: _built(value, key, errors) for key, value in self.nodes.items()}
        errors += faults.across(self.nodes, built, errors)
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
    """Registers the resolvers of `conf/` with OmegaConf. Its own `${oc.env:}` reads no key that `secrets` finds.

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
    """Resolves and checks a config. Raises UserError where that fails, or for a secret key or a left interpolation."""
    return _checked(resolved(cfg))


def check_plain(values: Mapping[str, Any]) -> Checked:
    """Checks a config that was resolved before, such as a run's, as `check` does, in half the time."""
    return _checked(_allowed({**values}, {}))


@exits.refused()  # of modules that are imported
def _checked(values: dict[str, Any]) -> Checked:
    errors: list[str] = []
    nodes = schema.convert_fields(values, _hints(), "", errors)
    return Checked(nodes, tuple(errors))


def resolved(cfg: DictConfig) -> dict[str, Any]:
    """The values of a config, whose types and ranges are not checked yet. Raises UserError as `check` does."""
    try:
        values: Any = {str(key): _resolved(cfg, str(key)) for key in cfg if key != "hydra"}
    except OmegaConfBaseException as error:
        known = next((each for each in (error.__cause__, error.__context__) if isinstance(each, UserError)), error)
        line = str(known).splitlines()[0].removeprefix("UserError raised while resolving interpolation: ")
        if isinstance(error, InterpolationToMissingValueError):
            raise UserError(f"{line.rpartition(' ')[2]} is missing: {error.full_key} takes its value") from error
        raise UserError(secrets.redacted(f"{error.full_key or 'the config'}: {line}")) from error
    hydra = OmegaConf.select(cfg, "hydra")
    return _allowed(values, {} if hydra is None else OmegaConf.to_container(hydra, resolve=False))


def _allowed(values: dict[str, Any], hydra: Any) -> dict[str, Any]:
    """Resolved values with their bounds. Raises UserError where they, or Hydra's part, hold a secret key, or for a left
    interpolation.
    """
    if found := [*secrets.faults([*secrets.leaves(values, ""), *secrets.leaves(hydra, "hydra")]), *_escapes(values)]:
        raise UserError("\n".join(found))  # no other faults: their lines show values, maybe the key
    _check_bounds({"debug": values.get("debug")}, {"debug": values}, "")
    return bounded(values)


def bounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config without the group `debug`, with the bounds that it gives them."""
    own = {key: value for key, value in values.items() if key != "debug"}
    of_run: dict[str, Any] = _bounded(own, values.get("debug"))
    return of_run


def unchecked_fingerprint(cfg: DictConfig) -> dict[str, Any] | None:
    """The fingerprint of a config whose types and ranges are not checked yet; None for a config with a fault."""
    try:
        return without_volatile(resolved(cfg))
    except (AttributeError, OmegaConfBaseException, TypeError, ValueError):
        return None


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


def _check_bounds(bounds: Mapping[str, Any], values: Any, path: str) -> None:
    """Raises UserError for a bound that is no number, and for one of a part, whose keys have the bounds."""
    for key, bound in bounds.items():
        name, value = schema.join(path, key), values.get(key) if isinstance(values, dict) else None
        of, part = name.removeprefix("debug."), isinstance(value, dict) and isinstance(bound, int | float)
        if isinstance(bound, dict) and bound and not isinstance(value, int | float):
            _check_bounds(bound, value, name)
        elif part or not isinstance(bound, int | float | None) or isinstance(bound, bool) or bound != bound:
            wanted = f"bounds of the keys of {of}" if part else f"a number, the bound of {of}"
            raise UserError(f"{name} must be {wanted}, got {bound!r}")


def _bounded(value: Any, bound: Any, key: str = "") -> Any:
    """The config with its numbers bounded by those of the group `debug`. A list's bound holds for each item. A limit
    `max_...` that is null, none at all, becomes its bound.
    """
    if isinstance(value, list):
        return [_bounded(each, bound) for each in value]
    if isinstance(value, dict) and isinstance(bound, dict):
        return {name: _bounded(each, bound.get(name), str(name)) for name, each in value.items()}
    if value is None and key.startswith("max_") and isinstance(bound, int | float):
        return bound
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
    if not faults.has_fault(path, errors):
        try:
            return value.cls(**fields)
        except ValueError as error:  # any other exception is a bug of a constructor
            errors.append(f"{path}.{error}")
    return value


def _escapes(values: Mapping[str, Any]) -> list[str]:
    """Values that still hold an interpolation: a later reader would resolve it unchecked."""
    return [
        f"{name} holds an escaped interpolation, \\${{...}}: write the value itself"
        for name, value in secrets.leaves(values, "")
        if "${" in f"{name}{value}"
    ]


def _without_hydra(cfg: DictConfig) -> DictConfig:
    return OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])


def checked_run_id(cfg: DictConfig) -> str:
    """The name of the run's folder. Raises UserError with one line for each fault of the config."""
    values = resolved(cfg)
    if (name := _recorded(cfg, values)) is not None:
        return name
    checked = _checked(values)
    checked.build()
    return checked.run_id


def _resolve_run_id(*, _root_: DictConfig) -> str:
    """`${run_id:}`. A faulty config raises, so that no folder is made; in a sweep other jobs continue."""
    try:
        return checked_run_id(_root_)
    except UserError:
        if OmegaConf.select(_root_, "hydra.mode") != RunMode.MULTIRUN:
            raise
        return f"invalid-{digest(OmegaConf.to_container(_without_hydra(_root_)))}"


def _recorded(cfg: DictConfig, values: dict[str, Any]) -> str | None:
    """The id of a run whose folder has a config of these values: it was checked before, so that torch is not imported.

    None where the config has to be checked.
    """
    several = OmegaConf.select(cfg, "hydra.mode") == RunMode.MULTIRUN
    place: Any = OmegaConf.to_container(cfg.hydra.sweep if several else cfg.hydra.run, resolve=False)
    folder = f"{place.get('dir')}/{place.get('subdir')}" if several else str(place.get("dir"))
    try:
        name = run_id_of(without_volatile(values))
        return name if same_config(Path(folder.replace(RUN_ID, name)), values) else None
    except (LookupError, TypeError, ValueError, AttributeError):  # the check names what is wrong
        return None


def _resolve_env(key: str, *default: Any) -> Any:
    """`${oc.env:}`, which refuses the keys of `secrets`: the config would carry them into the run's files."""
    if found := secrets.faults([(f"${{oc.env:{key}}}", os.environ.get(key))]):
        raise UserError(found[0])
    return oc.env(key, *default)
