"""Finds the keys of W&B and Hugging Face that this machine knows. They may be in no file that a run writes."""

import netrc
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedlab_runner.utils import untrusted

# What a user does with a token instead.
_FACE = "a Hugging Face token, which would be written into the run's files: use `hf auth login`, or export it"
# The environment variables of keys, and what a user does with a key instead.
VARIABLES = {
    "WANDB_API_KEY": "a W&B key, which would be written into the run's files: use `wandb login`, or export it",
    "HF_TOKEN": _FACE,
    "HUGGING_FACE_HUB_TOKEN": _FACE,
}
MIN_KEY_CHARACTERS = 8  # a shorter key would match other texts by chance


def faults(leaves: Iterable[tuple[str, Any]]) -> list[str]:
    """One line, without the key, for each (name, value) that holds a key."""
    known, found = _known(), []
    for name, value in leaves:
        last, held = name.rpartition(".")[2], (each for key, each in known.items() if key in f"{name} {value}")
        if variable := last if last in VARIABLES else next(held, None):
            found.append(f"{redacted(name)} holds {VARIABLES[variable]} as {variable}")
    return found


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


def _known() -> dict[str, str]:
    """The keys in this machine's environment, netrc file and Hugging Face's file, each with its variable; they are
    stored nowhere else.
    """
    wandb, face, _ = VARIABLES
    found = {os.environ.get(variable, ""): variable for variable in VARIABLES}
    hosts = ["api.wandb.ai", urlsplit(os.environ.get("WANDB_BASE_URL", "")).hostname]
    with suppress(OSError, netrc.NetrcParseError, RuntimeError):  # no file, a file that netrc cannot parse, no home
        file = netrc.netrc(os.environ.get("NETRC"))
        found |= {entry[2]: wandb for host in hosts if host and (entry := file.hosts.get(host))}
    with suppress(OSError, untrusted.Unreadable, UnicodeDecodeError, RuntimeError):  # no plain file, no text, no home
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        folder = os.environ.get("HF_HOME") or f"{cache}/huggingface"
        path = Path(os.environ.get("HF_TOKEN_PATH") or f"{folder}/token").expanduser()
        found[untrusted.read_bytes(path).decode().strip()] = face
    return {key: variable for key, variable in found.items() if len(key) >= MIN_KEY_CHARACTERS}
