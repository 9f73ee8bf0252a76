"""The id of a run: a function of the config values that decide its numbers, and of nothing else."""

import copy
from collections.abc import Mapping
from typing import Any

from fedlab_runner.utils.digest import digest

SERVER_DATA = ("server_data", "probe_data", "auxiliary_data")  # the nodes of the group `server_data`
# Keys that may change when a run is continued: how far, how fast and where it runs, and what it writes.
VOLATILE = (
    *(
        "rounds",
        "executor",
        "logger",
        "device",
        "deterministic",
        "threads",
        "checkpoint",
        "pruning",
        "evaluation.target",
    ),
    *(f"{node}.{key}" for node in ("dataset", *SERVER_DATA) for key in ("root", "cache", "download")),
    *(f"{node}.dataset.{key}" for node in SERVER_DATA for key in ("root", "cache", "download")),
)


def without_volatile(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config without the keys that do not decide the numbers of a round."""
    kept = copy.deepcopy(dict(config))
    for key in VOLATILE:
        node, last = _parent(kept, key)
        node.pop(last, None)
    return kept


def _parent(config: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """The mapping that holds a key, and the key's last part; an empty mapping where the config has none there."""
    *parents, last = key.split(".")
    node: Any = config
    for parent in parents:
        node = node.get(parent, {}) if isinstance(node, dict) else {}
    return node if isinstance(node, dict) else {}, last


def stopping(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """The fingerprint of the same run with nonfinite=stop.

    A run with any other policy may continue that run: no update was non-finite so far, so the policies agree.
    """
    return {**fingerprint, "nonfinite": "stop"}


def run_id_of(fingerprint: Mapping[str, Any]) -> str:
    """`<algorithm>-<8 hex>`: the algorithm's file name and a hash of the fingerprint; the same in every process.

    If an algorithm has another one as its `base`, both names stand there: `fedwalk-scaffold-<8 hex>`.
    """
    parts, node = [], fingerprint["algorithm"]
    while isinstance(node, Mapping) and "_target_" in node:
        parts.append(node["_target_"].split(".")[-2])
        node = node.get("base")
    return "-".join([*parts, digest(fingerprint)])
