"""States packed into plain values for a checkpoint, and unpacked.

NamedTuples become plain tuples, so that reading a file needs no class that the file names.
"""

from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from fedlab_runner.utils.errors import UserError


def pack(value: Any, named: Callable[[Tensor], Any] = lambda tensor: tensor, *, of: str = "a checkpoint") -> Any:
    """The value as nested dicts, lists and plain tuples of tensors and plain values; `named(tensor)` replaces each
    tensor.

    Raises UserError for a value of another class, which would come back as something else. The message names `of`, what
    holds the value, and the field.
    """
    kind = type(value)
    if isinstance(value, Tensor):
        return named(value)
    if hasattr(value, "_fields"):
        fields = zip(value._fields, value, strict=True)
        return tuple([pack(item, named, of=f"{name} in {of}") for name, item in fields])
    if kind in (tuple, list):
        return kind([pack(item, named, of=of) for item in value])
    if kind is dict:
        if others := {_name(type(key)) for key in value if type(key) not in (str, int)}:
            raise UserError(f"{of} must have texts or whole numbers (int) as keys of dicts, not {', '.join(others)}")
        return {key: pack(item, named, of=of) for key, item in value.items()}
    if value is None or kind in (bool, int, float, str):  # numpy.float64 is a float, but of a class of its own
        return value
    raise UserError(f"{of} must hold tensors, numbers, texts, and tuples, lists or dicts of them, not {_name(kind)}")


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def unpack(packed: Any, *, like: Any) -> Any:
    """The packed value with the NamedTuple classes of `like`, a value of the same structure, and with those that the
    annotations of its fields name.
    """
    if hasattr(like, "_fields"):
        items = zip(packed, like, _parts(type(like), (), 0) or (), strict=True)
        return type(like)._make(
            unpack(item, like=inner) if hasattr(inner, "_fields") else _rebuilt(item, hint)
            for item, inner, hint in items
        )
    return packed


def comes_back(value: Any, *, like: Any, of: str = "a checkpoint") -> bool:
    """Whether a value keeps its NamedTuples in a checkpoint, which is read with the classes of `like`. Raises
    UserError, as `pack` does, for a value that cannot be packed.
    """
    packed = pack(value, of=of)
    return fits(packed, layout(value), like=like) and classes(unpack(packed, like=like)) == classes(value)


def classes(value: Any) -> list[type]:
    """The classes of the NamedTuples in a value, from the outside inwards."""
    if not isinstance(value, dict | list | tuple):
        return []
    inner = [each for item in (value.values() if isinstance(value, dict) else value) for each in classes(item)]
    return [type(value), *inner] if hasattr(value, "_fields") else inner


def differs(packed: Any, *, like: Any) -> bool:
    """Whether a packed value differs from `like`, a value of the same structure, in the types of its parts, or in the
    types and sizes of the tensors that both have. The fields of a NamedTuple have the types that its class declares.
    """
    if hasattr(like, "_fields"):
        return _mistyped(packed, type(like)) or any(
            differs(item, like=each) for item, each in zip(packed, like, strict=True)
        )
    if isinstance(packed, Tensor) and isinstance(like, Tensor):
        rows_come_later = like.dim() > 0 and not len(like)
        return packed.dtype != like.dtype or packed.shape[rows_come_later:] != like.shape[rows_come_later:]
    if isinstance(like, dict | list | tuple):
        return not isinstance(packed, dict if isinstance(like, dict) else (list, tuple))
    if isinstance(like, bool | str | int | float):
        return not isinstance(packed, int | float if isinstance(like, int | float) else type(like))
    return False


_hints = cache(get_type_hints)
# The classes of values that an annotation allows. An annotation that is not listed allows any value.
_PLAIN: dict[Any, Any] = {each: each for each in (int, bool, str, Tensor, NoneType)} | {float: (float, int)}


def _mistyped(packed: Any, hint: Any) -> bool:
    """Whether an annotation forbids a packed value. An annotation without known types forbids none."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return all(_mistyped(packed, each) for each in inner)
    if kind is dict:
        key, item = inner or (Any, Any)
        return not isinstance(packed, dict) or any(_mistyped(k, key) or _mistyped(v, item) for k, v in packed.items())
    parts = _parts(kind, inner, len(packed) if isinstance(packed, list | tuple) else 0)
    if parts is None:
        return not isinstance(packed, _PLAIN.get(kind, object))
    return not isinstance(packed, list | tuple) or len(packed) != len(parts) or any(map(_mistyped, packed, parts))


def _rebuilt(packed: Any, hint: Any) -> Any:
    """A packed value with the NamedTuples that an annotation names."""
    if get_origin(hint) in (Union, UnionType):
        hint = next((each for each in get_args(hint) if not _mistyped(packed, each)), Any)
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is dict and inner and isinstance(packed, dict):
        return {key: _rebuilt(item, inner[1]) for key, item in packed.items()}
    parts = _parts(kind, inner, len(packed)) if isinstance(packed, list | tuple) else None
    if parts is None or len(parts) != len(packed):
        return packed
    items = map(_rebuilt, packed, parts)
    return kind._make(items) if hasattr(kind, "_fields") else type(packed)(items)


def _parts(kind: Any, inner: tuple[Any, ...], count: int) -> list[Any] | None:
    """The annotations of the parts of a NamedTuple, tuple or list of `count` parts; None for another annotation."""
    if hasattr(kind, "_fields"):
        return [_hints(kind).get(name, Any) for name in kind._fields]
    if kind is tuple and inner and inner[-1] is not ...:
        return [*inner]
    return [inner[0] if inner else Any] * count if kind in (list, tuple) else None


def layout(value: Any) -> dict[str, Any] | None:
    """The field names of a NamedTuple, each with the layout of its value; None for any other value."""
    return {name: layout(getattr(value, name)) for name in value._fields} if hasattr(value, "_fields") else None


def fits(packed: Any, names: dict[str, Any] | None, *, like: Any) -> bool:
    """Whether a packed value with this layout has the fields of `like`."""
    if not hasattr(like, "_fields"):
        return True
    if not isinstance(packed, tuple) or names is None or not len(packed) == len(names) == len(like._fields):
        return False
    if list(names) != [*like._fields]:
        return False
    inner = zip(packed, like._fields, like, strict=True)
    return all(fits(item, names[name], like=each) for item, name, each in inner)
