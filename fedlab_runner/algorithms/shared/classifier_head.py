"""A second classifier that replaces the last layer of a model, for classes other than those of the clients."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlab_runner.core.classifier import Classifier
from fedlab_runner.core.flops import FlopCounter
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.rng import Purpose, torch_seed
from fedlab_runner.core.server_data import ServerData
from fedlab_runner.utils.errors import UserError


def require_body(what: str, family: ModelFamily, data: ServerData) -> Classifier:
    """The model's classifier. Raises UserError, which begins with `what`, if it or a trained body before it is
    missing, or if layers behind it do not take the classes of the server's examples.
    """
    layer = family.classifier
    if layer is None or bool(family.segments(layer.name)[: family.num_params].all()):
        raise UserError(
            f"{what} needs a model with a body before a linear classifier, which forward() calls as an nn.Linear module"
        )
    if not layer.direct:
        head = torch.zeros(head_size(layer, data.num_classes), dtype=family.dtype, device=family.device)
        index = torch.arange(min(1, len(data)), device=data.inputs.device)
        try:
            HeadLogits(family, family.vector(family.module), data, 1, kept=False)(head, index)
        except Exception as error:
            raise UserError(
                f"{what} needs layers behind the classifier {layer.name} that take {data.num_classes} classes, those "
                "of the server's examples: let the model end in its classifier"
            ) from error
    return layer


def head_size(layer: Classifier, num_classes: int) -> int:
    """The number of values of a head for `num_classes` classes."""
    return num_classes * (layer.num_features + layer.has_bias)


def zero_head(family: ModelFamily, data: ServerData) -> Tensor:
    """A head of zeros for the classes of the server's examples; empty where these are the clients' classes."""
    layer = None if data.in_domain else family.classifier
    size = 0 if layer is None else head_size(layer, data.num_classes)
    return torch.zeros(size, dtype=family.dtype, device=family.device)


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


def identity_head(family: ModelFamily) -> dict[str, Tensor]:
    """The identity in the place of the model's classifier, by its names: with it as `instead` the logits of a model are
    its features [b, F], the inputs of its classifier. Raises UserError for a model that does not end in one.
    """
    layer = family.classifier
    if layer is None or not layer.direct:
        raise UserError("features need a model that ends in a linear classifier, which forward() calls as an nn.Linear")
    weight = torch.eye(layer.num_features, dtype=family.dtype, device=family.device)
    bias = {f"{layer.name}.bias": weight.new_zeros(len(weight))} if layer.has_bias else {}
    return {f"{layer.name}.weight": weight} | bias


def head_logits(family: ModelFamily, params: Tensor, features: Tensor) -> Tensor:
    """Logits [b, C] of the classifier of a model with these parameters [P], from features [b, F]."""
    return F.linear(features, *head_of(family, params))


def head_of(family: ModelFamily, params: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weight [C, F] and bias [C] of the classifier of a model with these parameters [P]. Raises UserError for a model
    without one.
    """
    layer, named = family.classifier, family.views(params)
    if layer is None:
        raise UserError(
            "logits of features need a model with a linear classifier, which forward() calls as an nn.Linear"
        )
    return named[f"{layer.name}.weight"], named.get(f"{layer.name}.bias")


class HeadLogits:
    """Logits of another head on a fixed body w [D], in evaluation mode, for some of the server's examples.

    If the network returns its classifier's output unchanged, `kept` computes the classifier's inputs once for all
    examples, so that the body need not run again.
    """

    def __init__(self, family: ModelFamily, w: Tensor, data: ServerData, batch_size: int, kept: bool) -> None:
        self.operations = 0  # floating-point, so far, of the body and of the heads' logits and gradients
        self._family, self._w, self._data = family, w, data
        self._of_one: int | None = None  # of these, those for each example of a call
        self._features = self._all_features(batch_size) if kept else None

    def __call__(self, head: Tensor, index: Tensor) -> Tensor:
        """Logits [b, C] of a head [C (F + 1)] on the examples [b] int64; counts their gradient by the head too."""
        if self._of_one is None:
            leaf = head.detach().requires_grad_()
            with torch.enable_grad(), FlopCounter() as counter:
                torch.autograd.grad(self._logits(leaf, index[:1]).sum(), leaf)
            self._of_one = counter.total
        self.operations += len(index) * self._of_one
        return self._logits(head, index)

    def _logits(self, head: Tensor, index: Tensor) -> Tensor:
        family, named = self._family, named_head(self._family, head)
        if self._features is None:
            params, buffers = self._w[: family.num_params], self._w[family.num_params :]
            return family.evaluate(params, buffers, self._inputs(index), named)
        name = self._classifier.name
        own = {key.removeprefix(f"{name}."): value for key, value in named.items()}
        layer, features = family.module.get_submodule(name), self._features[index.to(self._features.device)]
        with torch.autocast(family.device.type, family.autocast, enabled=family.autocast is not None):
            logits: Tensor = torch.func.functional_call(layer, own, (features,))
        return logits.to(family.dtype)

    @property
    def _classifier(self) -> Classifier:
        layer = self._family.classifier
        assert layer is not None  # the algorithm's `check` refuses a model without one
        return layer

    def _inputs(self, index: Tensor) -> Tensor:
        """Normalised inputs [b, ...] of the examples [b]."""
        family = self._family
        return family.normalize(self._data.inputs.index_select(0, index).to(family.device), family.dtype)

    @torch.no_grad()
    def _all_features(self, batch_size: int) -> Tensor | None:
        """The classifier's inputs for all examples [n, ...]; None if the network changes the classifier's output."""
        family, seen, parts = self._family, list[tuple[Tensor, Tensor]](), list[Tensor]()
        layer = family.module.get_submodule(self._classifier.name)
        first = self._inputs(torch.arange(1, device=self._data.inputs.device))
        of_body = family.flops(first).forward  # and of the model's own classifier
        hook = layer.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], output)))
        try:
            with family.predicting(self._w) as predict:
                for index in torch.split(torch.arange(len(self._data), device=self._data.inputs.device), batch_size):
                    seen.clear()
                    logits = predict(self._data.inputs.index_select(0, index).to(family.device))
                    self.operations += len(index) * of_body
                    if len(seen) != 1 or not torch.equal(seen[0][1].to(family.dtype), logits):
                        return None
                    parts.append(seen[0][0])
        finally:
            hook.remove()
        return torch.cat(parts)
