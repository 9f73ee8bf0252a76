"""The config in a run's folder. It was checked when the run began, so that an equal one needs no class to check it."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedlab_runner.config.run_id import stopping, without_volatile
from fedlab_runner.utils import untrusted
from fedlab_runner.utils.digest import canonical
from fedlab_runner.utils.run_files import CONFIG


def same_config(folder: Path, values: dict[str, Any]) -> dict[str, Any] | None:
    """The folder's config if it has exactly these values; None if it has others or cannot be read."""
    try:
        config: dict[str, Any] = _read(folder / CONFIG)
    except (OSError, ValueError):
        return None
    return config if _same(config, values) else None


def other_fingerprint(folder: Path, fingerprint: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The fingerprint of the folder's config if it is of another run; None if it is of this one, or cannot be read.

    A run with nonfinite=stop is this run too: another policy may continue it. Without a fingerprint every run is
    another one.
    """
    try:
        theirs = without_volatile(_read(folder / CONFIG))
    except (OSError, TypeError, ValueError):
        return None
    ours = () if fingerprint is None else (fingerprint, stopping(fingerprint))
    return None if canonical(theirs) in map(canonical, ours) else theirs


def _read(path: Path) -> Any:
    """The config in a file, which the start of a job needs several times."""
    now = path.stat()
    return _parsed(path.absolute(), (now.st_ino, now.st_size, now.st_mtime_ns))


@lru_cache(maxsize=1)
def _parsed(path: Path, stamp: tuple[int, int, int]) -> Any:
    return untrusted.read_yaml(path)


def _same(recorded: Any, given: Any) -> bool:
    """Whether a recorded plain value has the type and the value of a given one, or is the float of a given int: a key
    that takes floats alone records 1 as 1.0. A key that takes both may tell a recorded 1 from a given 1.0.
    """
    if isinstance(recorded, dict) and isinstance(given, dict):
        return recorded.keys() == given.keys() and all(_same(each, given[key]) for key, each in recorded.items())
    if isinstance(recorded, list) and isinstance(given, list):
        return len(recorded) == len(given) and all(map(_same, recorded, given))
    alike = type(recorded) is type(given) or (type(recorded), type(given)) == (float, int)
    return alike and bool(recorded == given)
