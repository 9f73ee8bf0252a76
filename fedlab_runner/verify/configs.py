"""The config of a bundle's run. Keys that decide the numbers come from the bundle, all other keys from this machine.

A bundle may come from a stranger. Only the keys of its configs that the id of a run covers count. This module or the
person who verifies sets executor, threads, device, folders, downloads, W&B and checkpoints. `config.targets` checks
classes, as in every config.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedlab_runner.api import compose
from fedlab_runner.config import secrets
from fedlab_runner.config.build import Checked, check_plain, conf_dir
from fedlab_runner.config.components import Components
from fedlab_runner.config.faults import MAX_THREADS
from fedlab_runner.config.run_id import VOLATILE
from fedlab_runner.config.targets import NO_MODULE
from fedlab_runner.utils import untrusted
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.run_files import CONFIG

EXECUTORS = "fedlab_runner.executors"  # the package whose executors a bundle may name
# The keys of VOLATILE, by who sets them.
_HERE = ("logger", "checkpoint", "pruning")  # set by this module
_COMPUTED = ("device", "threads", "executor")  # set by the person who verifies, else by the run's notes
_DATA = tuple(key for key in VOLATILE if key.endswith((".root", ".cache", ".download")))  # likewise
_KEPT = ("rounds", "deterministic", "evaluation.target")  # harmless values of the bundle
assert {*_HERE, *_COMPUTED, *_DATA, *_KEPT} == {*VOLATILE}, "each key that is not part of a run's id has its place"

# Last words of the keys of files and folders, in every component: dataset.test_path, model.base.weights.
PLACES = ("root", "cache", "path", "weights")


def read(folder: Path) -> dict[str, Any]:
    """The config in the folder of a bundle's run. Raises UserError unless it is a resolved config."""
    path = folder / CONFIG
    try:
        values = untrusted.read_yaml(path)
    except FileNotFoundError:
        raise UserError(f"it has no {CONFIG}: the run had not begun") from None
    except untrusted.Unreadable as fault:
        raise UserError(f"{CONFIG} {fault}") from None
    if not isinstance(values, dict):
        raise UserError(f"{CONFIG} holds no config")
    if "hydra" in values:
        raise UserError(f"{CONFIG} holds settings of Hydra, which no run writes there")
    # An interpolation could carry this machine's environment into numbers and files.
    if found := next((name for name, value in secrets.leaves(values, "") if "${" in f"{name}{value}"), None):
        raise UserError(f"{CONFIG}: {found} holds an interpolation, which no run writes there")
    return values


def checked(values: Mapping[str, Any]) -> Checked:
    """The config, its keys, types and classes checked. Raises UserError where this version does not take it."""
    try:
        result = check_plain(values)
    except UserError:
        raise
    except Exception as error:  # a named module may need an extra, and a stranger's values may be odd
        raise UserError(f"{CONFIG}: {error!r}") from error
    if result.errors:
        raise UserError(with_remedy("; ".join(result.errors[:3])))
    return result


@cache
def fingerprint(folder: Path) -> dict[str, Any]:
    """The values that decide the numbers of a bundle's run, checked once: to check a config takes longer than all other
    checks of its run. Raises UserError as `read` and `checked` do.
    """
    return checked(read(folder)).fingerprint


def with_remedy(fault: str) -> str:
    """The fault of a config; for a module that this machine lacks, with the remedy."""
    return f"{fault}; if it is your own, give --config-dir FOLDER, its folder" if NO_MODULE in fault else fault


class Settings:
    """The settings of recomputation: `overrides` of the person who verifies, such as `device=cpu` or
    `dataset.root=/data`. A place of files holds for each run whose config has its key.

    Raises UserError for a faulty override, or one of a key that decides the numbers.
    """

    def __init__(self, overrides: Sequence[str]) -> None:
        self._given = {each.partition("=")[0] for each in overrides}
        if strange := next((key for key in self._given if not _may_be_set(key)), None):
            raise UserError(
                f"{strange} cannot be set: only keys of {', '.join(_COMPUTED)} and places of files (dataset.root, "
                "delay.path, model.weights) can"
            )
        places = [each.partition("=") for each in overrides if _is_place(each.partition("=")[0])]
        self._places = {key: OmegaConf.from_dotlist([f"place={value}"]).place for key, _, value in places}
        self._overrides = [each for each in overrides if not _is_place(each.partition("=")[0])]
        if self._overrides:
            _ = self._ours  # reports a faulty override before any computation

    @cached_property
    def _ours(self) -> dict[str, Any]:
        """The config of this machine. Only its keys that a run's id does not cover count."""
        values = OmegaConf.to_container(compose("logger=none", *self._overrides), resolve=True)
        assert isinstance(values, dict)
        return {str(key): value for key, value in values.items()}

    @property
    def downloads(self) -> bool:
        """Whether the command allows the download of a data set."""
        return any(key.endswith(".download") and value is True for key, value in self._places.items())

    def chooses(self, key: str) -> bool:
        """Whether the person who verifies has set this key, or one inside it."""
        return any(_head(each) == key for each in self._given)

    def config(self, values: Mapping[str, Any], rounds: int, noted: Mapping[str, Any]) -> DictConfig:
        """The config of a run with these values for `rounds` rounds. `noted`: the last start in its commands.jsonl."""
        values = {**values, "rounds": rounds, **{key: self._ours[key] for key in _HERE}}
        threads, machine = noted.get("threads"), noted.get("machine")
        if self.chooses("threads") or type(threads) is not int or not 1 <= threads <= MAX_THREADS:
            threads = self._ours["threads"]
        on_cpu = isinstance(machine, Mapping) and "gpu" not in machine and not self.chooses("device")
        values |= {"threads": threads, "device": "cpu" if on_cpu else self._ours["device"]}
        recorded = None if self.chooses("executor") else executor(values.get("executor"))
        values["executor"] = recorded or self._ours["executor"]
        cfg = OmegaConf.create(values)
        for key in (*_DATA, *self._places):
            parent, _, last = key.rpartition(".")
            node = OmegaConf.select(cfg, parent)
            if isinstance(node, DictConfig) and last in node:
                node[last] = self._places[key] if key in self._places else _default(last, node)
        return cfg


def executor(node: Any) -> dict[str, Any] | None:
    """The executor of a bundle, adapted to this machine; None unless it is one of this package's executors.

    A bundle sets no number of processes and no address of a cluster: the results do not depend on them.
    """
    target = node.get("_target_") if isinstance(node, Mapping) else None
    kind = target.removeprefix(f"{EXECUTORS}.") if isinstance(target, str) else ""
    if kind in ("processes.Processes", "ray.Ray"):
        inner = executor(node.get("inner"))
        return inner and {"_target_": f"{EXECUTORS}.processes.Processes", "workers": None, "inner": inner}
    if kind == "auto.Auto":
        return {**node, "workers": None}
    if kind == "cuda_graph.CudaGraph" and not _has_gpu():
        return {
            "_target_": f"{EXECUTORS}.vectorized.Vectorized",
            "chunk_size": node.get("chunk_size"),
            "compile": False,
        }
    known = ("loop.Loop", "vectorized.Vectorized", "cuda_graph.CudaGraph")
    return dict(node) if kind in known else None


def _may_be_set(key: str) -> bool:
    return _is_place(key) or _head(key) in _COMPUTED


def _is_place(key: str) -> bool:
    """Whether a key, such as `dataset.root`, says where files are or whether to fetch them."""
    head, last = key.partition(".")[0], key.rpartition(".")[2]
    known = head in {field.name for field in fields(Components)} - {*_HERE, *_COMPUTED}
    return known and (last == "download" or last.rpartition("_")[2] in PLACES)


def _default(last: str, node: DictConfig) -> Any:
    """The place of data in this machine's config, without downloads or caches."""
    if last == "root":
        return _roots().get(str(node.get("_target_")), node.root)
    return False if last == "download" else None


def _head(key: str) -> str:
    """`executor` of `executor.inner.compile` and of `+executor@executor.inner`."""
    return key.lstrip("+").partition("@")[0].partition(".")[0]


def _roots() -> dict[str, Any]:
    """The folder of each data set by its class, as in the config files of this package, without classes whose folder
    the user gives.
    """
    found, own = dict[str, Any](), set[str]()
    for path in (path for group in ("dataset", "server_data") for path in (conf_dir() / group).glob("*.yaml")):
        node: Any = OmegaConf.load(path)
        if OmegaConf.is_missing(node, "root"):
            own.add(node._target_)
        elif "root" in node:
            found[node._target_] = node.root
    return {target: root for target, root in found.items() if target not in own}


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
