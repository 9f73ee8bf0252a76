"""Model families: an architecture and its loss, as functions of flat vectors.

Shape letters of the whole package: N clients, K clients in a cohort, A arrivals, D = P + B values of one model (P
trainable parameters, then B float buffers), T local steps, b examples in a minibatch, C classes.
"""

import itertools
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlab_runner.core.classifier import Classifier, candidates
from fedlab_runner.core.flops import FlopCounter
from fedlab_runner.core.global_rng import own_generators, seeded
from fedlab_runner.core.layers.kinds import batch_norms, drops_out, has_convolution, keeps_statistics
from fedlab_runner.core.layers.norms import prepare_norms
from fedlab_runner.core.layers.replacement import cast, prepare
from fedlab_runner.core.layers.tied import call, check_memory, first_names, tied_names
from fedlab_runner.core.losses import CE, LossFunction, losses
from fedlab_runner.core.normalize import Normalize
from fedlab_runner.core.rng import Purpose, torch_seed

ACTIVE_PART = "active_part"  # the attribute of a network that reads a part of its inputs: which part, at present


class Batch(NamedTuple):
    """A normalised minibatch. `mask` is 1 for a real example and 0 for padding; `offsets` are the loss function's
    offsets for the client that has the examples (None: cross entropy).
    """

    inputs: Tensor  # [b, ...]
    targets: Tensor  # [b] int64
    mask: Tensor  # [b]
    offsets: Tensor | None = None  # [C]

    def mean(self, values: Tensor) -> Tensor:
        """The mean of values [b] over the real examples."""
        return (values * self.mask).sum() / self.mask.sum()


class Flops(NamedTuple):
    """Floating-point operations for one example: a multiplication and an addition are two."""

    forward: int
    step: int  # forward and backward


class FunctionalModel:
    """One model of a family as a function of its inputs: the argument `model` of a loss function.

    A loss may regularise `params` [P]. After a call in training mode `buffers` [B] has the updated statistics. A step
    computes no gradient of the logits by the parameters `frozen`.
    """

    def __init__(self, family: "ModelFamily", params: Tensor, buffers: Tensor, frozen: Collection[str] = ()) -> None:
        self.params, self.buffers = params, buffers
        self.family, self.frozen = family, frozen

    def __call__(self, inputs: Tensor, instead: dict[str, Tensor] | None = None) -> Tensor:
        """Logits [b, C] of normalised inputs [b, ...]; `instead` replaces parameters by name."""
        family, values = self.family, self.family.views(self.params)
        values |= {k: values[k].detach() for k in self.frozen if k in values} | (instead or {})
        if not family.writes_buffers:
            return family.forward(values, inputs)
        # Batch norm writes into its statistics. Each needs memory of its own: vmap silently loses a write into a
        # strided view.
        views = family.buffer_views(self.buffers)
        buffers = {k: b.clone(memory_format=torch.contiguous_format) for k, b in views.items()}
        logits = family.forward(values | buffers, inputs)
        self.buffers = torch.cat([b.reshape(-1) for b in buffers.values()])
        return logits


class ModelFamily:
    """An architecture on given data, with its loss and precision. A model of the family is a vector of D = P + B
    values.

    `build` makes a new network. `module` is the template that applies every model. Parameters without a gradient stay
    in the template: all models share them, and no vector holds them.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        num_classes: int,
        *,
        normalize: Normalize,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        autocast: torch.dtype | None = None,
        loss_function: LossFunction | None = None,
    ) -> None:
        self.build, self.num_classes, self.loss_function = build, num_classes, loss_function or CE()
        self.normalize, self.device, self.dtype, self.autocast = normalize, device, dtype, autocast
        with own_generators():
            self.module = self._prepared()
        self._first, self._tied = first_names(self.module), tied_names(self.module)
        trainable = {k: p for k, p in self.module.named_parameters() if p.requires_grad}
        floats = {k: b for k, b in self.module.named_buffers() if b.is_floating_point()}
        self._params = [(k, p.shape, p.numel()) for k, p in trainable.items()]
        self._buffers = [(k, b.shape, b.numel()) for k, b in floats.items()]
        self._own: list[Tensor] = [*trainable.values(), *floats.values()]
        self.num_params = sum(n for *_, n in self._params)
        self.num_buffers = sum(n for *_, n in self._buffers)
        self.size = self.num_params + self.num_buffers
        owners = [m for m in self.module.modules() if any(b.is_floating_point() for b in m.buffers(recurse=False))]
        self.writes_buffers = not all(getattr(m, "carried", False) for m in owners)  # a network may
        self.models = [self.num_params]  # the parameters of each model that a vector holds (`core.joined_models`)
        variances = [torch.full((n,), k.endswith("running_var")) for k, _, n in self._buffers]
        self._variances = torch.cat([*variances, torch.empty(0, dtype=torch.bool)]).to(device)  # [B]
        self.has_batch_norm = bool(batch_norms(self.module))
        self.mixes = keeps_statistics(self.module)  # whether, in training, an example changes another's logits
        self._mode: tuple[bool, bool] | None = None  # the last arguments of `mode`
        self._flops: dict[Hashable, Flops] = {}
        self.compiled: dict[Any, Any] = {}  # compiled functions of this family, None where that failed
        self.has_convolution = has_convolution(self.module)
        self.draws = drops_out(self.module)  # whether training draws random numbers
        self.alone: str | None = None  # why models compute alone; `core.network_trial` finds it, `mixes` and `draws`
        layers = candidates(self.module, num_classes, trainable)
        # The layer that gives the logits, None if none does; `core.network_trial` finds it, until then the last counts.
        self.classifier: Classifier | None = layers[-1] if layers else None

    def __getstate__(self) -> dict[str, Any]:
        """Without what executors have compiled, which is of one process."""
        return self.__dict__ | {"compiled": {}}

    def _prepared(self) -> nn.Module:
        module = self.build()
        check_memory(module)  # before a cast copies
        module = cast(module, self.device, self.dtype)
        prepare_norms(module, self.autocast)
        return prepare(module, self.autocast)

    def init(self, seed: int, number: int = 0) -> Tensor:
        """A fresh model [D], a function of (seed, number)."""
        return seeded(lambda: self.vector(self._prepared()), torch_seed(seed, Purpose.INIT, client=number), "build()")

    def vector(self, module: nn.Module) -> Tensor:
        """The vector [D] of a module of this family."""
        values = dict(module.named_parameters()) | dict(module.named_buffers())
        return torch.cat([values[k].detach().reshape(-1) for k, *_ in self._params + self._buffers])

    def state_dict(self, w: Tensor) -> dict[str, Tensor]:
        """The tensors of a model [D] under PyTorch's names, with the frozen parameters."""
        named = self.views(w[: self.num_params]) | self.buffer_views(w[self.num_params :])
        values = {k: named.get(self._first.get(k, k), v) for k, v in self.module.state_dict().items()}
        return {k: v.detach().clone() for k, v in values.items() if isinstance(v, Tensor)}

    def views(self, params: Tensor) -> dict[str, Tensor]:
        """The trainable parameters by name, as views of [P]."""
        parts = torch.split(params, [n for *_, n in self._params])
        return {k: part.view(shape) for (k, shape, _), part in zip(self._params, parts, strict=True)}

    def buffer_views(self, buffers: Tensor) -> dict[str, Tensor]:
        """The float buffers by name, as views of [B]."""
        parts = torch.split(buffers, [n for *_, n in self._buffers])
        return {k: part.view(shape) for (k, shape, _), part in zip(self._buffers, parts, strict=True)}

    @property
    def layout(self) -> dict[str, tuple[int, torch.Size]]:
        """(first index in a model's vector, shape) of each trainable parameter and float buffer, by name."""
        tensors = self._params + self._buffers
        starts = itertools.accumulate((n for *_, n in tensors), initial=0)
        return {k: (start, shape) for start, (k, shape, _) in zip(starts, tensors, strict=False)}

    def segments(self, prefix: str) -> Tensor:
        """The mask [D] of the values that belong to the submodule or parameter `prefix`."""
        named = self._params + self._buffers
        pieces = [torch.full((n,), k == prefix or k.startswith(prefix + ".")) for k, _, n in named]
        return torch.cat(pieces).to(self.device)

    def mode(self, training: bool, *, frozen_norm: bool = False) -> None:
        """Sets the module to training or evaluation; `frozen_norm` makes batch norm train on its stored statistics."""
        if self._mode == (training, frozen_norm):
            return
        self._mode = (training, frozen_norm)
        self.module.train(training)
        for norm in batch_norms(self.module) if training and frozen_norm else []:
            norm.eval()

    def _back_to(self, mode: tuple[bool, bool] | None) -> None:
        """Sets the module to an earlier mode; None: it had none yet."""
        if mode is not None:
            self.mode(mode[0], frozen_norm=mode[1])

    def forward(self, values: dict[str, Tensor] | None, inputs: Tensor, module: nn.Module | None = None) -> Tensor:
        """Logits [b, C] of a module (None: the family's) with these values by name (None: its own values)."""
        module = self.module if module is None else module
        with self._lowered():  # `call` costs more than a small layer does
            logits: Tensor = module(inputs) if values is None else call(module, values, self._tied, inputs)
        return logits.to(self.dtype)

    def _lowered(self) -> AbstractContextManager[None]:
        """A context in the precision of autocast, if there is one."""
        return nullcontext() if self.autocast is None else torch.autocast(self.device.type, self.autocast)

    @contextmanager
    def bound(self, w: Tensor) -> Iterator[list[Tensor]]:
        """A context in which the module's own values are views of w [D]; yields its trainable parameters.

        Training in the context writes batch norm's statistics into w.
        """
        shapes = self._params + self._buffers
        parts, kept = torch.split(w, [n for *_, n in shapes]), [value.data for value in self._own]
        try:
            for value, (_, shape, _), part in zip(self._own, shapes, parts, strict=True):
                value.data = part.view(shape)
            yield self._own[: len(self._params)]
        finally:
            for value, before in zip(self._own, kept, strict=True):
                value.data = before

    def loss(self, model: FunctionalModel, batch: Batch) -> Tensor:
        """The mean loss over the real examples of a minibatch."""
        return batch.mean(losses(model(batch.inputs), batch.targets, batch.offsets))

    def like(self, build: Callable[[], nn.Module]) -> "ModelFamily":
        """The family of another architecture with this one's classes, normalisation, precision and loss function."""
        kept = ("normalize", "device", "dtype", "autocast", "loss_function")
        found = ModelFamily(build, self.num_classes, **{name: getattr(self, name) for name in kept})
        found.draws, found.mixes = found.draws or self.draws, found.mixes or self.mixes
        found.alone = self.alone
        return found

    def bound_loss(self, inputs: Tensor, targets: Tensor, offsets: Tensor | None) -> Tensor:
        """The mean loss, on a minibatch without padding, of the model that the module is bound to."""
        logits = self.forward(None, inputs)
        if offsets is None:  # one call, bit for bit as `losses`
            return F.cross_entropy(logits, targets, reduction="none").mean()
        return losses(logits, targets, offsets).mean()

    def predict(self, w: Tensor, inputs: Tensor) -> Tensor:
        """Logits [b, C] of a model [D] on stored inputs, in evaluation mode."""
        with self.predicting(w) as predict:
            return predict(inputs)

    @contextmanager
    def predicting(self, w: Tensor) -> Iterator[Callable[[Tensor], Tensor]]:
        """A context for the predictions of one model [D]: yields the function of stored inputs that gives its logits
        [b, C] in evaluation mode.

        All calls share what autocast makes of the model's values. The module's mode is afterwards as it was.
        """
        before = self._mode
        try:
            with torch.no_grad(), self.bound(w), self._lowered():
                self.mode(False)
                yield lambda inputs: self.forward(None, self.normalize(inputs, self.dtype))
        finally:
            self._back_to(before)

    def evaluate(
        self, params: Tensor, buffers: Tensor, inputs: Tensor, instead: dict[str, Tensor] | None = None
    ) -> Tensor:
        """Logits [b, C] on normalised inputs, in evaluation mode; `instead` replaces parameters by name. The module's
        mode is afterwards as it was: a loss may call this in the middle of a step.
        """
        before = self._mode
        self.mode(False)
        logits = self.forward(self.views(params) | self.buffer_views(buffers) | (instead or {}), inputs)
        self._back_to(before)
        return logits

    def bad_statistics(self, buffers: Tensor) -> Tensor:
        """Which rows of buffers [K, B] have a value that is not finite or a running variance below zero: [K] bool."""
        return (~torch.isfinite(buffers) | (self._variances & (buffers < 0))).any(1)

    def flops(self, inputs: Tensor, instead: dict[str, Tensor] | None = None) -> Flops:
        """The operations for one of these normalised inputs [b, ...]: matrix products, convolutions and attention.

        `instead` replaces parameters by name. A step has the gradients of those of them that require one.
        """
        own = instead or {}
        kind = inputs.shape[1:], *((name, t.shape, t.requires_grad) for name, t in own.items())
        if kind not in self._flops:
            w = torch.ones(self.size, dtype=self.dtype, device=self.device)
            params, buffers = w[: self.num_params].requires_grad_(), w[self.num_params :]
            with torch.enable_grad(), FlopCounter() as counter:
                logits = self.evaluate(params, buffers, inputs[:1], instead)
                forward = counter.total
                torch.autograd.grad(logits.sum(), [params, *(t for t in own.values() if t.requires_grad)])
                self._flops[kind] = Flops(forward, counter.total)
        return self._flops[kind]

    @property
    def active_part(self) -> Hashable:
        """The part of the network that computes at present, such as the feature blocks that it reads; None: all of it.

        The cost of a step depends on it, and so does a compiled or recorded step.
        """
        return getattr(self.module, ACTIVE_PART, None)

    def batch(self, inputs: Tensor, targets: Tensor, mask: Tensor) -> Batch:
        """The minibatch of stored examples, normalised; leading dimensions are kept."""
        return Batch(self.normalize(inputs, self.dtype), targets, mask)
