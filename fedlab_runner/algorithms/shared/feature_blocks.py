"""Clients' models as parts of the server model, for clients with different feature blocks (HyFEM, sections 2 and 3).

A client's model is a vector of the server's length D, with zeros for the parts that the client lacks: the extractors of
other blocks, the classifier's columns for them, and the hidden neurons behind its own, which come first. So the vector
computes the same as the client's model (see `models._blocks`), and training keeps its zeros. M clients; h neurons in a
client's hidden layer, H in the server's.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.models._blocks import BlockNetwork
from fedlab_runner.partitions.blocks import by_blocks, common_blocks
from fedlab_runner.utils.errors import UserError

if TYPE_CHECKING:
    from fedlab_runner.core.algorithm import Algorithm


def check_blocks(algorithm: "Algorithm[Any]", fed: Federation) -> None:
    """Raises UserError if the model would read feature blocks that some clients lack."""
    if fed.blocks is None:
        return
    if fed.client_data.num_views > 1:
        raise UserError(
            "augment must be none where clients hold feature blocks: a moved or mirrored example would show a client "
            "parts of other clients' blocks"
        )
    network, d0 = fed.family.module, fed.blocks.shape[1]
    name, common = algorithm.name, common_blocks(fed.blocks)
    if not isinstance(network, BlockNetwork):
        raise UserError(
            f"model must have an extractor for each of the partition's {d0} feature blocks, got "
            f"{type(network).__name__}: use model=blocks_cnn, blocks_resnet or blocks_mlp"
        )
    if algorithm.holds_blocks:
        if network.num_blocks != d0:
            raise UserError(
                f"model must read all of the partition's {d0} feature blocks, got {network.num_blocks}: see its rows, "
                "columns, block_channels or sizes, and set model.blocks=null"
            )
    elif not set(network.numbers) <= set(common):
        remedy = f"set model.blocks={common}" if common else "there are none, so use algorithm=hyfem or standalone"
        raise UserError(
            f"algorithm={name} has one model for all clients, which can read only the feature blocks that all of them "
            f"have: {remedy}"
        )


class BlockLayer(NamedTuple):
    """A linear layer of the classifier in a model's vector."""

    weight: int  # index of its first value
    bias: int  # index of its first value
    inputs: int
    outputs: int

    def weights(self, w: Tensor) -> Tensor:
        """The weights [outputs, inputs], a view of a model [D]."""
        return w[self.weight : self.weight + self.outputs * self.inputs].view(self.outputs, self.inputs)

    def biases(self, w: Tensor) -> Tensor:
        """The biases [outputs], a view of a model [D]."""
        return w[self.bias : self.bias + self.outputs]


@dataclass(frozen=True)
class Layout:
    """The places of a model's parts in its vector of D values."""

    size: int  # D
    extractors: list[list[slice]]  # of each block, of parameters and of buffers
    layers: list[BlockLayer]  # of the classifier
    hidden: tuple[int, ...]  # h of each hidden layer
    num_features: int  # of a block

    @staticmethod
    def of(family: ModelFamily) -> "Layout":
        """The layout of a family's models. A model other than a BlockNetwork is one extractor that gives the logits."""
        network = family.module
        if not isinstance(network, BlockNetwork):
            return Layout(family.size, [[slice(0, family.size)]], [], (), 0)
        extractors = [_spans(family, f"extractors.{block}.") for block in range(network.num_blocks)]
        where, layers = family.layout, []
        for name, (start, shape) in where.items():
            if name.startswith("classifier.") and name.endswith("weight"):
                layers.append(BlockLayer(start, where[name.removesuffix("weight") + "bias"][0], shape[1], shape[0]))
        return Layout(family.size, extractors, layers, network.hidden, network.num_features)

    def first_places(self, num_clients: int, device: torch.device) -> Tensor:
        """Places [M, sum of h] that put each client's neurons on the server's first neurons."""
        places = torch.cat([torch.arange(h, device=device) for h in self.hidden] or [torch.arange(0, device=device)])
        return places.repeat(num_clients, 1)

    def by_layer(self, places: Tensor) -> tuple[Tensor, ...]:
        """The places [..., sum of h] of each hidden layer [..., h]."""
        return torch.split(places, list(self.hidden), -1) if self.hidden else ()

    def take(self, x: Tensor, blocks: Sequence[int], places: Tensor) -> Tensor:
        """P_m Theta_0 and Pi_m w_0: a client's part [D] of a server model x [D], by blocks and places [sum of h]."""
        w = torch.zeros_like(x)
        for span in self._spans_of(blocks):
            w[span] = x[span]
        for layer, own, of_server in self._parts(blocks, places):
            layer.weights(w)[own.at] = layer.weights(x)[of_server.at]
            layer.biases(w)[own.rows] = layer.biases(x)[of_server.rows]
        return w

    def put(self, total: Tensor, w: Tensor | float, blocks: Sequence[int], places: Tensor) -> None:
        """Adds a client's model w [D], or a number for each of its values, to its place in `total` [D]."""
        for span in self._spans_of(blocks):
            total[span] += w[span] if isinstance(w, Tensor) else w
        for layer, own, of_server in self._parts(blocks, places):
            weights, biases = (
                (w, w) if not isinstance(w, Tensor) else (layer.weights(w)[own.at], layer.biases(w)[own.rows])
            )
            layer.weights(total)[of_server.at] += weights
            layer.biases(total)[of_server.rows] += biases

    def own(self, x: Tensor, blocks: Sequence[int]) -> Tensor:
        """The mask [D] of the values that a client with these blocks has in its vector."""
        places = self.first_places(1, x.device)[0]
        return self.take(torch.ones_like(x), blocks, places) > 0

    def columns(self, blocks: Sequence[int], device: torch.device) -> Tensor:
        """The indices of the classifier's inputs that come from these blocks."""
        return torch.cat([torch.arange(b * self.num_features, (b + 1) * self.num_features) for b in blocks]).to(device)

    def in_classifier(self, x: Tensor) -> Tensor:
        """The mask [D] of the values that belong to the classifier."""
        mask = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for layer in self.layers:
            layer.weights(mask).fill_(True)
            layer.biases(mask).fill_(True)
        return mask

    def _spans_of(self, blocks: Sequence[int]) -> Iterator[slice]:
        for block in blocks:
            yield from self.extractors[block]

    def _parts(self, blocks: Sequence[int], places: Tensor) -> Iterator[tuple[BlockLayer, "_Part", "_Part"]]:
        """Each layer with the client's part of it, in the client's vector and in the server's vector."""
        if not self.layers:
            return
        device = places.device
        inputs, outputs = self.columns(blocks, device), torch.arange(self.layers[-1].outputs, device=device)
        own = [inputs, *(torch.arange(h, device=device) for h in self.hidden), outputs]
        of_server = [inputs, *self.by_layer(places), outputs]
        for layer, mine, theirs in zip(self.layers, pairwise(own), pairwise(of_server), strict=True):
            yield layer, _Part(mine[1], mine[0]), _Part(theirs[1], theirs[0])


class _Part(NamedTuple):
    """Some rows and columns of a matrix."""

    rows: Tensor
    columns: Tensor

    @property
    def at(self) -> tuple[Tensor, Tensor]:
        return self.rows.unsqueeze(1), self.columns


def _spans(family: ModelFamily, prefix: str) -> list[slice]:
    """The slices of a model's vector that hold a submodule: its parameters, then its buffers."""
    places = [
        (start, start + shape.numel()) for name, (start, shape) in family.layout.items() if name.startswith(prefix)
    ]
    spans = []
    for buffers in (False, True):
        part = [place for place in places if (place[0] >= family.num_params) == buffers]
        if part:
            spans.append(slice(min(start for start, _ in part), max(end for _, end in part)))
    return spans


def blocks_of(fed: Federation) -> list[tuple[int, ...]]:
    """The feature blocks of each client's model."""
    count = fed.family.module.num_blocks if isinstance(fed.family.module, BlockNetwork) else 1
    everything = np.ones((fed.num_clients, count), dtype=bool)
    return [tuple(np.flatnonzero(mine).tolist()) for mine in (everything if fed.blocks is None else fed.blocks)]


def reading(family: ModelFamily, blocks: Sequence[int]) -> AbstractContextManager[None]:
    """A context in which the family's models skip the extractors of other blocks, whose values must be zero."""
    network = family.module
    return network.only(blocks) if isinstance(network, BlockNetwork) else nullcontext()


def train_on_blocks(
    cohort: Cohort,
    owned: np.ndarray | None,
    start: Tensor,
    per_client: tuple[Tensor, ...] = (),
    **how: Any,
) -> Tensor:
    """The clients' models after local training [K, D], one call for the clients with the same blocks.

    `owned` is `Federation.blocks`, `start` is [K, D]; the others are arguments of `Cohort.train`.
    """
    if owned is None:
        return cohort.train(start, per_client=per_client, **how)
    y = start.clone()
    for blocks, rows in by_blocks(owned[cohort.client_ids]):
        with reading(cohort.family, blocks):
            own = tuple(t[rows] for t in per_client)
            y[rows] = cohort.select(rows).train(start[rows], per_client=own, **how)
    return y
