"""Small JSON objects in files, with a checksum by which a reader finds damage."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedlab_runner.utils import untrusted

FORMAT = 1  # version of the format
_MARK = ',\n "sha256": "'  # stands between the content and its SHA-256


class Damaged(ValueError):
    """What is wrong with a file. The message follows the file's name."""


def text(content: Mapping[str, Any]) -> str:
    """The text of a file with this content: the object, a key `format`, and at the end the SHA-256 of all before."""
    body = json.dumps({**content, "format": FORMAT}, indent=1).removesuffix("\n}")
    return body + _end(body)


def read(path: Path) -> dict[str, Any]:
    """The content of a file that holds a `text`. Raises Damaged, and OSError where there is no such file."""
    try:
        content = untrusted.read_bytes(path)
        values = untrusted.parse_json(content)
    except untrusted.Unreadable:
        raise Damaged("is damaged") from None
    whole = content.decode()
    body, mark, _ = whole.rpartition(_MARK)
    if not isinstance(values, dict) or not mark or whole != body + _end(body):
        raise Damaged("is damaged")
    if values.pop("format", None) != FORMAT:
        raise Damaged(f"has another format than {FORMAT}, which this version reads")
    del values["sha256"]
    return values


def _end(body: str) -> str:
    return f'{_MARK}{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n'
