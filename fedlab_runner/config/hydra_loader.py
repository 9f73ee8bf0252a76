"""Checks a composed config before Hydra acts on it, above all Hydra's own part `hydra.*`.

`train.main` runs Hydra within `checked()`. Hydra, and each launcher's process, then calls `Loader.load_configuration`
once for each job, after composing and before it makes folders, opens log files and builds callbacks, launcher and
sweeper from names in the config: Hydra has no other place for a check.
"""

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from fedlab_runner.config import config_files, schema, secrets
from fedlab_runner.config.hydra_values import faults
from fedlab_runner.config.listing import NO_GROUPS
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.pickled import Pickled

_all_choices = defaults_list._create_interpolation_map
MAX_COMPOSED = 200  # configs of jobs' choices that are kept, 0.03 MB each
MAX_PARSED = 4096  # overrides of jobs that are kept parsed: most jobs share most of them


class Loader(ConfigLoaderImpl):
    """Hydra's loader. It refuses a config whose `hydra.*` names a stranger's code, a config with a secret key, a choice
    that two places have, and a config without the part that the command shows (`shown`).
    """

    def __init__(self, *args: Any, shown: tuple[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._shown = shown
        self._read: tuple[tuple[str | None, list[str]], Any] | None = None
        self._sweep_id = uuid.uuid4().hex
        self._first: tuple[tuple[str | None, list[str]], DictConfig] | None = None

    def __getstate__(self) -> dict[str, Any]:  # a launcher sends the loader to other processes with every job
        return self.__dict__ | {"_read": None, "_first": None}

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """The config of a job. Hydra composes all jobs before the first one starts, and each job again when it starts.
        Most jobs differ in values: the loader composes the files of the same choices once, and sets values in a copy.
        """
        cfg = self._with_values(master_config, sweep_overrides)
        return super().load_sweep_config(master_config, sweep_overrides) if cfg is None else cfg

    def _with_values(self, master: DictConfig, job: list[str]) -> DictConfig | None:
        """A job's config, from that of its choices; None where the job adds or drops keys, or has a fault, which Hydra
        reports.
        """
        sweep = self._sweep(master)
        overrides = [*map(_parsed, job)]
        values = defaults_list.Overrides(sweep.repository, overrides).config_overrides
        sets_values = all(each.type == OverrideType.CHANGE and not each.is_hydra_override() for each in values)
        if not sets_values or any(each.is_sweep_override() for each in overrides):
            return None
        choices = tuple(line for line, own in zip(job, overrides, strict=True) if own not in values)
        if (composed := sweep.composed.pop(choices, None)) is None:
            composed = Pickled(super().load_sweep_config(master, list(choices)))
        sweep.composed[choices] = composed
        if len(sweep.composed) > MAX_COMPOSED:
            del sweep.composed[next(iter(sweep.composed))]
        cfg: DictConfig = composed.copy()
        try:
            self._apply_overrides_to_config(values, cfg)
        except ConfigCompositionException:
            return None
        cfg.hydra.overrides.task = job
        naming = cfg.hydra.job.config.override_dirname
        cfg.hydra.job.override_dirname = get_overrides_dirname(
            overrides, naming.exclude_keys, naming.item_sep, naming.kv_sep
        )
        OmegaConf.copy_cache(from_config=master, to_config=cfg)
        own = {each.key_or_group: each.value() for each in values}  # the rest was checked with the choices
        if secrets.faults(secrets.leaves([own, job], "")):
            _refuse(faults(cfg))
        return cfg

    def _sweep(self, master: DictConfig) -> "_Sweep":
        if self._sweep_id not in _sweeps:
            _sweeps.clear()
            words: Any = OmegaConf.to_container(master.hydra.overrides.hydra)  # not resolved
            _, repository = self._parse_overrides_and_create_caching_repo(master.hydra.job.config_name, words)
            _sweeps[self._sweep_id] = _Sweep(repository)
        return _sweeps[self._sweep_id]

    def _parse_overrides_and_create_caching_repo(self, config_name: str | None, overrides: list[str]) -> Any:
        """Hydra asks for the choices of each group separately. The loader reads the files and folders of one command
        line once.
        """
        if self._read is None or self._read[0] != (config_name, overrides):
            found = super()._parse_overrides_and_create_caching_repo(config_name, overrides)
            self._read = (config_name, list(overrides)), found
        return self._read[1]

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """Hydra composes the config of a command first without a look at sweeps, to read `hydra.mode`. Then it composes
        the same config with the mode among the overrides: the loader adds the mode to the first one.
        """
        several = validate_sweep_overrides and run_mode == RunMode.MULTIRUN
        if several and any(each.startswith("hydra.run.dir=") for each in overrides):
            raise UserError("hydra.run.dir is for a single run: hydra.sweep.dir is the folder of all runs of a sweep")
        if validate_sweep_overrides and (cfg := self._take_first(config_name, overrides, run_mode)) is not None:
            parsed, _ = self._parse_overrides_and_create_caching_repo(config_name, overrides)
            self.validate_sweep_overrides_legal(parsed, run_mode, from_shell)
            return cfg
        if not validate_sweep_overrides:
            try:
                cfg = self._checked(config_name, overrides, RunMode.RUN, from_shell, False)
                self._first = (config_name, [*overrides]), cfg
                return cfg
            except ConfigCompositionException as error:  # choices may be missing that the jobs of a sweep have
                if "You must specify" not in str(error):
                    raise
        return self._checked(config_name, overrides, run_mode, from_shell, validate_sweep_overrides)

    def _take_first(self, config_name: str | None, overrides: list[str], run_mode: RunMode) -> DictConfig | None:
        """The config that was composed first, with its mode; None where this command is another one."""
        if self._first is None:
            return None
        (name, words), cfg = self._first
        mode = f"hydra.mode={run_mode.name}"
        if name != config_name or overrides not in (words, [*words, mode]):
            return None
        self._first = None
        if overrides != words:
            cfg.hydra.mode = run_mode
            cfg.hydra.overrides.hydra.append(mode)
        return cfg

    def _checked(self, *asked: Any) -> DictConfig:
        cfg = super().load_configuration(*asked)
        _refuse([*faults(cfg), *ambiguous_choices(cfg), *_no_part(cfg, self._shown)])
        return cfg

    def list_groups(self, parent_name: str) -> list[str]:
        """The groups that `--help` lists."""
        return [each for each in super().list_groups(parent_name) if parent_name or each not in NO_GROUPS]


@dataclass
class _Sweep:
    """What the jobs of a sweep share in a process. A launcher sends its processes a loader with each job."""

    repository: Any  # of Hydra: the groups
    composed: dict[tuple[str, ...], Pickled] = field(default_factory=dict)  # configs by choices, the last used last


_sweeps: dict[str, _Sweep] = {}  # by the id of the loader; the last one alone


@lru_cache(MAX_PARSED)
def _parsed(override: str) -> Override:
    return OverridesParser.create().parse_overrides([override])[0]


class Completing(Loader):
    """The loader of shell completion; it also offers choices in a group's folders, as experiment=feddle/table7."""

    def get_group_options(
        self, group_name: str, results_filter: ObjectType | None = ObjectType.CONFIG, *args: Any, **kwargs: Any
    ) -> list[str]:
        options = super().get_group_options(group_name, results_filter, *args, **kwargs)
        if results_filter == ObjectType.CONFIG:
            for folder in super().get_group_options(group_name, ObjectType.GROUP, *args, **kwargs):
                inner = self.get_group_options(f"{group_name}/{folder}", results_filter, *args, **kwargs)
                options = [*options, *(f"{folder}/{name}" for name in inner)]
        return options


@contextlib.contextmanager
def checked(completing: bool = False, shown: tuple[str, str] | None = None) -> Iterator[None]:
    """Within the block Hydra composes with this loader, and so do its launchers in other processes. `shown`: which
    config the command shows (`job`, `hydra` or `all`), and which part of it; None: the command shows no part.
    """
    loader = partial(Completing if completing else Loader, shown=shown)
    with (
        config_files.registered(),
        mock.patch("hydra._internal.hydra.ConfigLoaderImpl", loader),
        mock.patch.object(defaults_list, "_create_interpolation_map", _choices_of_interpolations),
    ):
        yield


def _choices_of_interpolations(overrides: Any, defaults: list[Any], self_added: bool) -> DictConfig:
    """What Hydra makes for each file of a config, for the defaults that hold an interpolation: a third of the time of
    composing. A file that has none needs nothing.
    """
    if any(each.is_interpolation() for each in defaults):
        return _all_choices(overrides, defaults, self_added)
    return OmegaConf.create({})


def _refuse(found: list[str]) -> None:
    if found:
        raise UserError("\n".join(found))


def ambiguous_choices(cfg: DictConfig) -> Iterator[str]:
    """One line for each choice that several folders have: Hydra would silently take the first."""
    runtime = OmegaConf.select(cfg, "hydra.runtime")
    sources = runtime.config_sources if runtime else ()
    folders = list(dict.fromkeys(Path(each.path).resolve() for each in sources if each.schema == "file"))
    choices: Any = OmegaConf.to_container(runtime.choices) if len(folders) > 1 else {}  # `???`: each job has its own
    for group, choice in choices.items():
        files = [folder / group.partition("@")[0] / f"{choice}.yaml" for folder in folders]
        if len(found := [str(path) for path in files if path.is_file()]) > 1:
            yield f"{group}={choice} is in several places, rename all but one: {', '.join(found)}"


def _no_part(cfg: DictConfig, shown: tuple[str, str] | None) -> Iterator[str]:
    """One line where the config that the command shows has no value at the key of the part."""
    if shown is None or shown[1] == "_global_":
        return
    kind, part = shown
    holder = "hydra" if part.partition(".")[0] == "hydra" else "job"
    if kind not in (holder, "all"):
        yield f"--cfg {kind} does not show {part}: give --cfg {holder}"
    elif OmegaConf.select(cfg, part) is None:
        keys = [*schema.key_names(OmegaConf.to_container(cfg, resolve=False))]
        yield f"{part} is null" if part in keys else schema.unknown_key(part, keys, droppable=False)
