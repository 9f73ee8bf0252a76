"""Finds W&B's API keys, which may be in the environment or the netrc file but in no file that a run writes."""

import netrc
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

VARIABLE = "WANDB_API_KEY"  # the environment variable of W&B's key
MIN_KEY_CHARACTERS = 8  # a shorter key would match other texts by chance


def faults(leaves: Iterable[tuple[str, Any]]) -> list[str]:
    """One line, without the key, for each (name, value) that holds a key."""
    known = _known()
    return [
        f"{redacted(name)} holds a W&B key, which would be written into the run's files: use `wandb login`, or export "
        f"{VARIABLE}"
        for name, value in leaves
        if name.rpartition(".")[2] == VARIABLE or any(key in f"{name} {value}" for key in known)
    ]


def redacted(text: str) -> str:
    """The text, with *** in place of each key that this machine knows."""
    for key in _known():
        text = text.replace(key, "***")
    return text


def in_arguments(arguments: Iterable[str]) -> list[str]:
    """One line for each argument of a command that holds a key."""
    return faults((name.lstrip("+~"), value) for name, _, value in (each.partition("=") for each in arguments))


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The values of a nested config, each with its full key."""
    if isinstance(value, Mapping | list | tuple) and value:
        for key, child in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from leaves(child, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _known() -> list[str]:
    """The keys in this machine's environment and netrc file; they are stored nowhere else."""
    found = [os.environ.get(VARIABLE, "")]
    hosts = ["api.wandb.ai", urlsplit(os.environ.get("WANDB_BASE_URL", "")).hostname]
    try:
        file = netrc.netrc(os.environ.get("NETRC"))
        found += [entry[2] for host in hosts if host and (entry := file.hosts.get(host))]
    except (OSError, netrc.NetrcParseError, RuntimeError):  # no file, a file that netrc cannot parse, no home
        pass
    return [key for key in found if len(key) >= MIN_KEY_CHARACTERS]
