"""Turns the ValueErrors of components into lines that name the key or the class at fault."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from traceback import walk_tb
from typing import Any

from fedlab_runner.config.components import Components
from fedlab_runner.datasets.examples import Data
from fedlab_runner.models.base import Architecture
from fedlab_runner.models.mix import Mix
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.errors import UserError


@contextmanager
def faults(node: str, component: Any) -> Iterator[None]:
    """Turns a component's ValueError into a UserError. A field's name at its beginning becomes the field's full key. A
    message without a field or key gets the class and its method.
    """
    try:
        yield
    except ValueError as error:
        message = str(error)
        first = re.split(r"[ .]", message)[0]
        if first in {field.name for field in fields(component)}:
            message = f"{node}.{message}".removeprefix(".")
        elif not isinstance(error, UserError) and first not in {field.name for field in fields(Components)}:
            message = f"{_method(component, error)}{message}"
        raise UserError(message) from error


@contextmanager
def model_faults(model: Architecture | Mix, data: Data) -> Iterator[None]:
    """As `faults`. Given feature vectors, a fault of the image's form names the models that take them."""
    try:
        with faults("model", model):
            yield
    except UserError as error:
        if data.train.inputs.ndim == 2 and str(error).startswith(("model.channels ", "model.image_size ")):
            raise UserError(
                f"model must take vectors of {count_of(data.train.inputs.shape[1], 'feature')}, which are no images: "
                "choose model=logistic or model=mlp, with null channels and image_size"
            ) from error
        raise


def _method(component: object, error: ValueError) -> str:
    """`Class.method: ` of the component's method in which an error was raised; empty if it was raised elsewhere."""
    for frame, _ in walk_tb(error.__traceback__):
        name = frame.f_code.co_name
        # A method's first argument; functions that call the component's methods have it too.
        if hasattr(component, name) and next(iter(frame.f_locals.values()), None) is component:
            return f"{type(component).__name__}.{name}: "
    return ""
