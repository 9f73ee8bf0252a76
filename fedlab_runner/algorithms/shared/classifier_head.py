"""A second classifier for a model's body, in place of its last layer: for classes that are not the clients'."""

import math

import torch
from torch import Tensor

from fedlab_runner.core.model_family import Classifier, ModelFamily
from fedlab_runner.core.rng import Purpose, torch_seed
from fedlab_runner.utils.errors import UserError


def require_body(what: str, family: ModelFamily) -> Classifier:
    """The model's classifier; UserError, beginning with `what`, where it has none or no trained body before it."""
    layer = family.classifier
    if layer is None or bool(family.segments(layer.name)[: family.num_params].all()):
        raise UserError(f"{what} needs a model with a body before a linear classifier")
    return layer


def head_size(layer: Classifier, num_classes: int) -> int:
    """The number of values of a head for `num_classes` classes."""
    return num_classes * (layer.num_features + layer.has_bias)


def new_head(family: ModelFamily, layer: Classifier, num_classes: int, seed: int) -> Tensor:
    """A fresh head [num_classes (features + bias)], drawn from the seed as torch initialises a linear layer."""
    rng = torch.Generator().manual_seed(torch_seed(seed, Purpose.AUXILIARY_HEAD))
    bound = 1 / math.sqrt(layer.num_features)
    values = torch.rand(head_size(layer, num_classes), generator=rng, dtype=torch.float64)
    return ((2 * values - 1) * bound).to(family.device, family.dtype)


def named_head(family: ModelFamily, head: Tensor) -> dict[str, Tensor]:
    """A head [C (F + 1)] of C classes and F features, under the names of the model's classifier; {} if it is empty."""
    layer = family.classifier
    if not len(head) or layer is None:
        return {}
    classes = len(head) // (layer.num_features + layer.has_bias)
    weight, bias = torch.split(head, [classes * layer.num_features, classes * layer.has_bias])
    named = {f"{layer.name}.weight": weight.view(classes, -1)}
    return named | {f"{layer.name}.bias": bias} if layer.has_bias else named
