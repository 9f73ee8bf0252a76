"""Models as parts of the widest model, by channels: partial training (DFML, appendix A.3.3)."""

import itertools
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.decentralized import Clients, Meeting, record_exchange, train
from fedlab_runner.core.algorithm import DecentralizedAlgorithm
from fedlab_runner.core.architectures import ClientGroup
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.own_models import updated
from fedlab_runner.utils.errors import UserError

_log = logging.getLogger(__name__)

# choose(label, k, J): the k of a layer's J channels that a model gets, int64 [k]
Choose = Callable[[str, int, int], Tensor]


class SlicedLayer(NamedTuple):
    """One tensor of a model's vector."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[Any, ...]  # a models._widths.Axis or None for each dimension


def layers(family: ModelFamily) -> list[SlicedLayer] | None:
    """All tensors of a model's vector, in order; None if the network does not say how to cut it."""
    axes: Mapping[str, Any] | None = getattr(family.module, "axes", None)
    if axes is None:
        return None
    return [SlicedLayer(name, tuple(shape), axes[name]) for name, (_, shape) in family.layout.items()]


def check_sliceable(algorithm: Any, fed: Federation) -> None:
    """Raises UserError, which names the layer, if a client's model is not a part of a wider client's model.

    Warns if all models have one width, so that nothing is cut.
    """
    name = algorithm.name
    if len(fed.families) == 1:
        _log.warning(
            "algorithm=%s averages whole models, as all have one width (several widths: model=dfml/h1_cnn)", name
        )
    ordered = sorted(fed.families, key=lambda family: family.num_params)
    for small, wide in itertools.pairwise(ordered):
        fault = _fault(layers(small), layers(wide))
        if fault:
            raise UserError(f"algorithm={name} needs models that differ in width alone: {fault}")


def _fault(small: list[SlicedLayer] | None, wide: list[SlicedLayer] | None) -> str | None:
    if small is None or wide is None:
        return (
            "use model=dfml_cnn, preact_resnet or vit_small, which can be cut, in a mix of widths (model=dfml/h1_cnn)"
        )
    names, theirs = [layer.name for layer in small], [layer.name for layer in wide]
    if missing := sorted(set(names) ^ set(theirs)):
        return f"only one of two models has a layer {missing[0]}"
    for mine, its in zip(small, wide, strict=True):
        for k, j, axis in zip(mine.shape, its.shape, mine.axes, strict=True):
            if (axis is None and k != j) or k > j:
                return f"layer {mine.name} cannot be cut from {list(its.shape)} to {list(mine.shape)}"
    return None


def places(small: ModelFamily, wide: ModelFamily, choose: Choose) -> Tensor:
    """The index in a vector of `wide` of each value of a model of `small`: int64 [D_small]."""
    mine, its = layers(small), layers(wide)
    if mine is None or its is None:  # a single architecture, as check_sliceable refuses others
        return torch.arange(small.size, device=small.device)
    chosen: dict[str, Tensor] = {}
    parts, offset = [], 0
    for layer, whole in zip(mine, its, strict=True):
        index = torch.full((), offset)
        for d, (k, j, axis) in enumerate(zip(layer.shape, whole.shape, layer.axes, strict=True)):
            along = torch.arange(k) if axis is None else _along(axis, k, j, chosen, choose)
            index = index.unsqueeze(-1) + along * math.prod(whole.shape[d + 1 :])
        parts.append(index.reshape(-1))
        offset += math.prod(whole.shape)
    return torch.cat(parts).to(small.device)


def _along(axis: Any, k: int, j: int, chosen: dict[str, Tensor], choose: Choose) -> Tensor:
    """The k indices of a dimension of j values that a model has; dimensions of one label have the same channels."""
    if axis.label not in chosen:
        chosen[axis.label] = choose(axis.label, k // axis.block, j // axis.block)
    channels: Tensor = chosen[axis.label].unsqueeze(1) * axis.block
    return (channels + torch.arange(axis.block)).reshape(-1)


def partial_training(
    algorithm: DecentralizedAlgorithm[Any],
    state: Clients,
    meeting: Meeting,
    fed: Federation,
    choose: Callable[[int], Choose],
    alike: bool,
    cut_from: Callable[[int], Choose] | None = None,
) -> Clients:
    """A round of Algorithm 3: a value of the widest model becomes its mean over the participants' models that have it.

    `choose(client)` gives the channels of a client's model; with `alike` all clients of an architecture have the same.
    `cut_from(client)` gives the channels from which the client's model was last cut: the mean puts the model back there
    before it is cut again. The widest model is then that of all clients, so that a channel is the same in all rounds,
    and a client keeps the values that no participant has.
    """
    trained = train(fed, state.models, meeting.participants)
    record_exchange(fed, [t.group for t in trained], meeting.aggregator)
    shapes = fed.families if cut_from else [t.group.family for t in trained]
    wide = max(shapes, key=lambda family: family.num_params)
    total = torch.zeros(wide.size, dtype=wide.dtype, device=wide.device)
    owners, parts = torch.zeros_like(total), []
    for group, _, after in trained:
        where = _places_of(group, wide, choose, alike)
        for index, w in zip(_places_of(group, wide, cut_from, False) if cut_from else where, after, strict=True):
            total.index_add_(0, index, w)
            owners.index_add_(0, index, torch.ones_like(w))
        parts.append((group, after, where))
        fed.metrics.count_server_flops(2 * after.numel())
    # Eq 6 divides by |P| even if fewer models have the value, which would shrink it.
    whole = total / owners.clamp_min(1)
    new = [
        (group, torch.stack([whole[index].where(owners[index] > 0, w) for index, w in zip(where, after, strict=True)]))
        for group, after, where in parts
    ]
    return Clients(updated(fed, algorithm.store_on, state.models, new), meeting.next)


def _places_of(group: ClientGroup, wide: ModelFamily, choose: Callable[[int], Choose], alike: bool) -> list[Tensor]:
    """`places` of each client of a group."""
    if alike:
        return [places(group.family, wide, choose(int(group.ids[0])))] * len(group.ids)
    return [places(group.family, wide, choose(int(client))) for client in group.ids]
