"""Keys of W&B, which belong into the environment or the netrc file and into nothing that a run writes."""

import netrc
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

VARIABLE = "WANDB_API_KEY"
MIN_KEY_CHARACTERS = 8  # characters; less would be found by chance


def faults(leaves: Iterable[tuple[str, Any]]) -> list[str]:
    """One line for each place (name, value) that holds a key; the line does not."""
    known = _known()
    return [
        f"{redacted(name)} holds a W&B key, which would be written into the run's files: use `wandb login`, or export "
        f"{VARIABLE}"
        for name, value in leaves
        if name.rpartition(".")[2] == VARIABLE or any(key in f"{name} {value}" for key in known)
    ]


def redacted(text: str) -> str:
    """The text without the keys that this machine knows."""
    for key in _known():
        text = text.replace(key, "***")
    return text


def in_arguments(arguments: Iterable[str]) -> list[str]:
    """The same for arguments of a command, `key=value` or other."""
    return faults((name.lstrip("+~"), value) for name, _, value in (each.partition("=") for each in arguments))


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The values in a nested config with the places where they stand."""
    if isinstance(value, Mapping | list | tuple) and value:
        for key, child in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from leaves(child, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _known() -> list[str]:
    """The keys that this machine knows: they are looked for and kept nowhere."""
    found = [os.environ.get(VARIABLE, "")]
    hosts = ["api.wandb.ai", urlsplit(os.environ.get("WANDB_BASE_URL", "")).hostname]
    try:
        file = netrc.netrc(os.environ.get("NETRC"))
        found += [entry[2] for host in hosts if host and (entry := file.hosts.get(host))]
    except (OSError, netrc.NetrcParseError, RuntimeError):  # none, one that only other programs read, no home
        pass
    return [key for key in found if len(key) >= MIN_KEY_CHARACTERS]
