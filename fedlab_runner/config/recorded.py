"""The config in a run's folder. It was checked when the run began, so that an equal one needs no class to check it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedlab_runner.config.run_id import stopping, without_volatile
from fedlab_runner.utils import untrusted
from fedlab_runner.utils.run_files import CONFIG


def same_config(folder: Path, values: dict[str, Any]) -> dict[str, Any] | None:
    """The folder's config if it has exactly these values; None if it has others or cannot be read."""
    try:
        config: dict[str, Any] = untrusted.read_yaml(folder / CONFIG)
    except (OSError, untrusted.Unreadable):
        return None
    return config if _same(config, values) else None


def other_fingerprint(folder: Path, fingerprint: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The fingerprint of the folder's config if it is of another run; None if it is of this one, or cannot be read.

    A run with nonfinite=stop is this run too: another policy may continue it. Without a fingerprint every run is
    another one.
    """
    try:
        theirs = without_volatile(untrusted.read_yaml(folder / CONFIG))
    except (OSError, TypeError, ValueError):
        return None
    ours = () if fingerprint is None else (fingerprint, stopping(fingerprint))
    return None if any(_same(theirs, each) for each in ours) else theirs


def _same(value: Any, other: Any) -> bool:
    """Whether two plain values are equal; true is not 1."""
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(_same(each, other[key]) for key, each in value.items())
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(_same, value, other))
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)
