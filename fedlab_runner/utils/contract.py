"""Holds what an own class gives against its contract, so that a breach is one line and not a wrong number."""

from collections.abc import Sized
from numbers import Real
from typing import Any

from fedlab_runner.utils.errors import UserError

MAX_SHOWN_CHARACTERS = 200  # of a text, or of a list of texts, in a message


def require(holds: bool, component: object, method: str, contract: str, given: Any) -> None:
    """Raises UserError, which names the class, its method, the contract and what it has `given`, unless it holds."""
    if not holds:
        raise UserError(f"{type(component).__name__}.{method} must give {contract}, got {in_words(given)}")


def is_named(value: Any) -> bool:
    """Whether a value is a NamedTuple."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def is_number(value: Any) -> bool:
    """Whether a value is one number: of Python, of numpy, or an array or tensor of one value."""
    return isinstance(value, Real) or getattr(value, "shape", None) in ((), (1,))


def in_words(given: Any) -> str:
    """A value in a few words: of an array or a tensor the library, the type, the shape and the range."""
    if (shape := getattr(given, "shape", None)) is None:
        words = isinstance(given, list) and all(isinstance(each, str) for each in given)
        if words or isinstance(given, bool | int | float | str | None):
            shown = repr(given)
            return shown if len(shown) <= MAX_SHOWN_CHARACTERS else f"{shown[:MAX_SHOWN_CHARACTERS]}..."
        return f"a {type(given).__name__}" + (f" of {len(given)}" if isinstance(given, Sized) else "")
    library = type(given).__module__.partition(".")[0]  # numpy and torch name their types alike
    kind = f"{library} {str(given.dtype).removeprefix('torch.')}"
    valued = 0 not in shape and not getattr(given, "is_meta", False)
    ordered = valued and getattr(given.dtype, "kind", "f") in "biuf"
    try:
        ends = f" from {given.min().item():g} to {given.max().item():g}" if ordered else ""
    except NotImplementedError:  # torch orders no complex numbers and no uint16
        ends = ""
    return f"{kind} {list(shape)}{ends}"
