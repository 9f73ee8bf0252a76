"""Quotes texts that Hydra cannot read on a command line."""

import re

from hydra.core.override_parser.overrides_parser import OverridesParser, create_functions
from hydra.errors import HydraException

_FUNCTIONS = frozenset(create_functions().functions)  # of Hydra, such as range: a faulty call is no text


def quoted(override: str) -> str | None:
    """The override with its value, or the elements of its list, quoted for Hydra; None if Hydra cannot read that."""
    key, _, value = override.partition("=")
    if (several := re.fullmatch(r"\[([^][{}]*)\]", value)) is not None:
        elements = map(str.strip, several[1].split(","))  # Hydra drops blanks beside commas
        value = ",".join(each if re.fullmatch(r"[\w.+-]*", each, re.ASCII) else _text(each) for each in elements)
        found = f"{key}=[{value}]"
    elif key and value and value[0] not in "'\"[{" and value.partition("(")[0] not in _FUNCTIONS:
        found = f"{key}={_text(value)}"
    else:
        return None
    try:
        read = OverridesParser.create().parse_override(found).value()
    except HydraException:
        return None
    return found if several or read == override.partition("=")[2] else None


def _text(value: str) -> str:
    return value if value[0] in "'\"" else '"' + value.replace('"', '\\"') + '"'
