"""Holds what a function that an algorithm adds to local steps takes and gives against its contract."""

from collections.abc import Callable
from inspect import signature
from typing import Any

from torch import Tensor

from fedlab_runner.utils.contract import in_words
from fedlab_runner.utils.errors import UserError


def named(function: object) -> str:
    """The name of a function, or of the class of an instance, as its author wrote it."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def check_arguments(function: Callable[..., Any], first: tuple[str, ...], count: int) -> None:
    """Raises UserError unless the function takes its `first` arguments and as many tensors."""
    try:
        signature(function).bind(*first, *range(count))
    except TypeError as error:
        raise UserError(
            f"{named(function)} gets {', '.join(first)} and {count} tensors, those of per_client, per_step and common: "
            f"{error}"
        ) from error
    except ValueError:  # a function of torch's own, which has no signature
        return


def check_scalar(function: object, found: Any, rule: str, *, moves: bool) -> None:
    """Raises UserError unless `found` is a scalar, which depends on the parameters if any of them `moves`."""
    if not isinstance(found, Tensor) or found.dim():
        raise UserError(f"{named(function)} must give a scalar, {rule}, got {in_words(found)}")
    if moves and not found.requires_grad:
        raise UserError(
            f"{named(function)} must give a scalar that depends on the model's parameters, got one without a gradient: "
            "compute it with torch alone, without detach() and item()"
        )


def check_size(name: str, found: Any, size: int) -> None:
    """Raises UserError, which begins with the `name`, unless a function gave a value for each of `size` parameters."""
    if not isinstance(found, Tensor) or found.shape != (size,) or not found.is_floating_point():
        raise UserError(f"{name} must give a value for each parameter, a tensor [{size}], got {in_words(found)}")
