"""Short digests of plain values, the same in every process and on every machine."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def digest(value: Any) -> str:
    """Eight hex digits of a plain value; equal for two values of one `canonical` text."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:8]


def canonical(value: Any) -> str:
    """The text of a plain value; the order of keys does not matter, 1 equals 1.0, a tuple a list, and true is not 1."""
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
