"""Small JSON objects in files that tell whether they are as they were written."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedlab_runner.utils import untrusted

FORMAT = 1
_MARK = ',\n "sha256": "'  # before the SHA-256 of all that stands before this


class Damaged(ValueError):
    """What is wrong with a file, in words that follow its name."""


def text(content: Mapping[str, Any]) -> str:
    """The object as a file holds it: with a key `format`, and at the end the SHA-256 of all before it."""
    body = json.dumps({**content, "format": FORMAT}, indent=1).removesuffix("\n}")
    return body + _end(body)


def read(path: Path) -> dict[str, Any]:
    """What `text` was made of. A file of an older version, without format and sum, is read as it stands.

    Raises Damaged, and OSError where there is no such file.
    """
    try:
        content = untrusted.read_bytes(path)
        values = untrusted.parse_json(content)
    except untrusted.Unreadable:
        raise Damaged("is damaged") from None
    whole = content.decode()
    body, mark, _ = whole.rpartition(_MARK)
    if not isinstance(values, dict) or (mark and whole != body + _end(body)) or (not mark and "format" in values):
        raise Damaged("is damaged")
    if values.pop("format", FORMAT) != FORMAT:
        raise Damaged(f"has another format than {FORMAT}, which this version reads")
    values.pop("sha256", None)
    return values


def _end(body: str) -> str:
    return f'{_MARK}{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n'
