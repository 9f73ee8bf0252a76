"""Holds what a data set gives against its contract."""

import math
from typing import Any

import torch
from torch import Tensor

from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import Data, Examples
from fedlab_runner.utils.contract import require


def loaded(dataset: Dataset, seed: int) -> Data:
    """The data of a data set. Raises UserError where they break the contract of `Dataset.load`."""
    data = dataset.load(seed)
    require(isinstance(data, Data), dataset, "load", "a Data", data)
    names = data.class_names
    right = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    require(right, dataset, "load", "as class_names a tuple of texts", names)
    for part in ("train", "test"):
        _check_examples(dataset, part, getattr(data, part), len(data.class_names))
    like, images = data.train.inputs, data.train.inputs.ndim == 4
    same = data.test.inputs.dtype == like.dtype and data.test.inputs.shape[1:] == like.shape[1:]
    require(same, dataset, "load", "test.inputs of the shape and type of train.inputs", data.test.inputs)
    for name, above, words in (("mean", -math.inf, "finite numbers"), ("std", 0, "finite numbers > 0")):
        value = getattr(data, name)
        right = value is None if not images else value is not None and len(value) in (1, 3, like.shape[1])
        require(right, dataset, "load", f"as {name} a number for each channel, or None for features", value)
        within = all(above < each < math.inf for each in (() if value is None else value))
        require(within, dataset, "load", f"as {name} {words}", value)
    return data


def _check_examples(dataset: Dataset, part: str, examples: Examples, classes: int) -> None:
    require(isinstance(examples, Examples), dataset, "load", f"as {part} an Examples", examples)
    inputs = examples.inputs
    stored = isinstance(inputs, Tensor) and (inputs.dtype, inputs.ndim) in ((torch.uint8, 4), (torch.float32, 2))
    stored = stored and (inputs.ndim == 2 or inputs.shape[2] == inputs.shape[3])
    words = f"{part}.inputs as a tensor, uint8 [n, channels, side, side] or float32 [n, features]"
    require(stored, dataset, "load", words, inputs)
    require(len(inputs) > 0, dataset, "load", f"one example or more as {part}", inputs)
    if inputs.ndim == 2:
        require(bool(inputs.isfinite().all()), dataset, "load", f"finite {part}.inputs", inputs)
        free = f"{part}.inputs without a gradient's history (x.detach())"
        require(not inputs.requires_grad, dataset, "load", free, inputs)
    n = len(inputs)
    check_labels(dataset, "load", f"{part}.targets", examples.targets, n, classes)
    for name in ("strata", "users"):
        value = getattr(examples, name)
        if value is not None or name == "strata":
            check_labels(dataset, "load", f"{part}.{name}", value, n, None)


def check_labels(component: object, method: str, name: str, labels: Any, size: int, classes: int | None) -> None:
    """Raises UserError unless the labels are int64 [size], from 0 to classes - 1 (None: any)."""
    right = isinstance(labels, Tensor) and labels.dtype == torch.int64 and labels.shape == (size,)
    if right and size:
        right = int(labels.min()) >= 0 and (classes is None or int(labels.max()) < classes)
    words = f"{name} as a tensor, int64 [{size}]" + (" >= 0" if classes is None else f" from 0 to {classes - 1}")
    require(right, component, method, words, labels)
