"""HyFEM (Zhang, Yin, Chen and Hong, TMLR 2024): hybrid federated learning. https://openreview.net/forum?id=qc2lmWkvk4"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.algorithms.matching.pfnm import PFNM, Gain, Neurons, SquaredDistance, match
from fedlab_runner.algorithms.shared.averaging import WEIGHTINGS, Models
from fedlab_runner.algorithms.shared.feature_blocks import Layout, blocks_of, train_on_blocks
from fedlab_runner.core.additions import Pull
from fedlab_runner.core.algorithm import Algorithm
from fedlab_runner.core.architectures import ClientGroup
from fedlab_runner.core.client_state import PLACES
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import CohortLoad, Footprint, MemoryItem, rows_of_each
from fedlab_runner.core.own_models import OwnModels, updated
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.core.updates import Updates
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import above, at_least, one_of, unused, within

_log = logging.getLogger("fedlab_runner")
# Values of the fields `cost` and `first_classifiers`.
COSTS = ("pfnm", "l2")
UNIT = 1.0  # sigma, sigma0 and gamma of PFNM, where the fields are null
DEVIATIONS = "[1e-6, 1e6]"  # of sigma and sigma0: float32 holds the gains, which have their fourth powers
FIRST_CLASSIFIERS = ("same", "own")
SUMS = 8  # models that the server holds while it adds up those of clients


class HyFEMState(NamedTuple):
    """The server model, the places of the clients' hidden neurons in it, and with `keep_own` the clients' own
    models.
    """

    params: Tensor  # Theta_0 and w_0 [D]
    places: Tensor  # Pi_m [N, sum of h] int64, layer after layer
    own: OwnModels  # Theta_m and w_m of the clients that have reported; empty without `keep_own`


@dataclass(frozen=True)
class HyFEM(Algorithm[HyFEMState]):
    """Clients with different feature blocks train extractors and a classifier near the server's. The server averages
    the extractors and matches the classifiers' hidden neurons.

    `mu1` and `mu2` pull extractors and classifier to the server's. The Hungarian method matches layer by layer, in up
    to `sweeps` sweeps over the clients. The `cost` of a match is pfnm (its gain with `sigma`, `sigma0`, and `gamma` for
    new neurons; null: 1) or l2 (half the squared distance to the mean of the other clients' neurons; half the squared
    length and `nu`, null: 0, for a new neuron). The server compares neurons on the client's columns and the bias; in
    the last hidden layer `include_outgoing` adds the logits' weights. The server's layers grow up to the model's
    `server_hidden`.

    Clients start each round from the server's parts or, with `keep_own`, from their own models. With
    `first_classifiers` own, a client's own model begins with a classifier drawn by the client's key, so that the
    matching has to find its neurons. Clients keep own models on the device, the host or disk (`store_on`).

    `weighting` (size, uniform) says how clients count. With `send_all` each client receives the whole server model, as
    Algorithm 1 says, instead of its parts; only the counted download differs.

    A model without feature blocks is one block that all clients have, and the server matches nothing. Clients that do
    not report keep their neurons' places, and parts that only they have stay as they were. Values at home follow the
    order of the client's own neurons, without a pull and without a part in the matching.
    """

    holds_blocks: ClassVar[bool] = True
    model_copies: ClassVar[int] = 1  # clients send the trained models
    training_copies: ClassVar[int] = 2  # received and trained models
    step_copies: ClassVar[int] = 2  # the received model in the order of the chunk, and the penalty's gradient

    mu1: float
    mu2: float
    cost: str
    sigma: float | None
    sigma0: float | None
    gamma: float | None
    nu: float | None
    sweeps: int
    include_outgoing: bool
    keep_own: bool
    first_classifiers: str
    weighting: str
    send_all: bool
    store_on: str

    def __post_init__(self) -> None:
        at_least(0, mu1=self.mu1, mu2=self.mu2, nu=self.nu, sweeps=self.sweeps)
        within(DEVIATIONS, sigma=self.sigma, sigma0=self.sigma0)
        above(0, gamma=self.gamma)
        one_of(COSTS, cost=self.cost)
        idle = {"nu": self.nu} if self.cost == "pfnm" else {k: getattr(self, k) for k in ("sigma", "sigma0", "gamma")}
        unused(f"cost={self.cost}", **idle)
        one_of(FIRST_CLASSIFIERS, first_classifiers=self.first_classifiers)
        if self.first_classifiers == "own" and not self.keep_own:
            raise ValueError("keep_own must be true with first_classifiers own, got false")
        one_of(WEIGHTINGS, weighting=self.weighting)
        one_of(PLACES, store_on=self.store_on)

    def check(self, fed: Federation) -> None:
        if len(fed.held_out):
            raise UserError(
                "participation.held_out_clients must be 0 for algorithm=hyfem, which places the neurons of all clients "
                f"in the server model, got {len(fed.held_out)} clients"
            )
        kept = fed.home.mask(fed.family)
        if self.first_classifiers == "own" and bool((kept & Layout.of(fed.family).in_classifier(kept)).any()):
            raise UserError(
                "algorithm.first_classifiers must be same with algorithm=hyfem where part of the classifier stays at "
                "home: that part begins as the run's first model has it"
            )
        if fed.blocks is None:
            _log.warning(
                "algorithm=hyfem has nothing to match without feature blocks: choose partition=random_blocks or "
                "assigned_blocks, and model=blocks_cnn, blocks_resnet or blocks_mlp"
            )

    def home_fault(self) -> str | None:
        return None

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        held = rows_of_each(self.store_on, load, fed.family.size) if self.keep_own else []
        others = (max(0, fed.num_clients - load.arriving) + SUMS) * fed.family.size
        what, remedy = "the models of the clients that do not report", "lower num_clients"
        return self.holding([*held, MemoryItem(others, what, remedy, merging=True, saved=False)])

    def init(self, fed: Federation) -> HyFEMState:
        layout, x = Layout.of(fed.family), fed.family.init(fed.seed)
        return HyFEMState(x, layout.first_places(fed.num_clients, x.device), {})

    def _own(self, state: HyFEMState, fed: Federation, ids: np.ndarray) -> Tensor:
        """The own models [k, D] of clients; for clients that have not reported, their first models."""
        layout, blocks, x = Layout.of(fed.family), blocks_of(fed), fed.family.init(fed.seed)
        rows, places = fed.row_store(self.store_on, len(x)), layout.first_places(1, x.device)[0]
        found = x.new_empty(len(ids), len(x))
        for own, client in zip(found, ids.tolist(), strict=True):
            if client in state.own:
                own.copy_(rows.get(state.own[client]))
            else:
                first = fed.family.init(fed.seed, 1 + client) if self.first_classifiers == "own" else x
                own.copy_(layout.take(first.where(layout.in_classifier(x), x), blocks[client], places))
        return found

    def round(self, state: HyFEMState, fed: Federation) -> HyFEMState:
        sizes = self._sizes(fed)
        received = np.full_like(sizes, self._server_size(state, fed)) if self.send_all else sizes
        cohort = fed.start_cohort((), received + state.places.shape[1])
        arrivals = fed.collect_updates(cohort, Models(self._client_update(state, cohort, fed)), known=("models",))
        reporting = ClientGroup(0, fed.family, arrivals.ids.cpu().numpy())
        if self.keep_own:  # late clients get their model later
            kept = updated(fed, self.store_on, state.own, [(reporting, arrivals.upload.models)])
            state = state._replace(own=kept)
        sent = int(sizes[reporting.ids].sum())
        fed.metrics.count_payload(upload=sent)
        fed.metrics.count_server_flops(2 * sent)
        fed.record_server_cache(0)
        return self._server_update(state, arrivals, fed) if len(arrivals) else state

    def _client_update(self, state: HyFEMState, cohort: Cohort, fed: Federation) -> Tensor:
        """Algorithm 2, lines 1 to 7: the clients' models after local training [K, D]."""
        layout, x, p = Layout.of(fed.family), state.params, fed.family.num_params
        blocks = blocks_of(fed)
        start = x.new_empty(len(cohort), len(x))
        for row, m in zip(start, cohort.client_ids.tolist(), strict=True):
            row.copy_(layout.take(x, blocks[m], state.places[m]))
        mu = torch.full_like(x, self.mu1).masked_fill_(layout.in_classifier(x), self.mu2)
        mu = mu.masked_fill_(fed.home.mask(fed.family), 0)[:p]
        begin = self._own(state, fed, cohort.client_ids) if self.keep_own else start
        # Eq 8, with mu1 or mu2 for each value.
        return train_on_blocks(cohort, fed.blocks, begin, per_client=(start[:, :p],), penalty=Pull(), common=(mu,))

    def _server_update(self, state: HyFEMState, arrivals: Updates[Models], fed: Federation) -> HyFEMState:
        """Algorithm 1, lines 7 and 8: the State after the arrived models."""
        layout, x, blocks = Layout.of(fed.family), state.params, blocks_of(fed)
        ids = arrivals.ids.tolist()
        arrived = dict(zip(ids, arrivals.upload.models, strict=True))
        models = [
            arrived[m] if m in arrived else layout.take(x, blocks[m], state.places[m]) for m in range(fed.num_clients)
        ]
        sizes = torch.from_numpy(fed.client_data.num_examples).double()
        weights = sizes if self.weighting == "size" else torch.ones_like(sizes)
        places = self._matched(state.places, models, weights, ids, fed)
        new, mass = torch.zeros_like(x), torch.zeros_like(x)
        for m, w in arrived.items():
            share = float(weights[m] / weights[ids].sum())
            layout.put(new, share * w, blocks[m], places[m])
            layout.put(mass, share, blocks[m], places[m])
        shared = new / mass.where(mass > 0, torch.ones_like(mass))
        if not bool((mass > 0).all()):  # parts that only clients without a report have
            old, there = torch.zeros_like(x), torch.zeros_like(x)
            for m in set(range(fed.num_clients)) - set(ids):
                layout.put(old, models[m], blocks[m], places[m])
                layout.put(there, 1.0, blocks[m], places[m])
            shared = torch.where(mass > 0, shared, old / there.clamp_min(1))
        return state._replace(params=shared.where(~fed.home.mask(fed.family), x), places=places)

    def _matched(
        self, places: Tensor, models: Sequence[Tensor], weights: Tensor, ids: Sequence[int], fed: Federation
    ) -> Tensor:
        """ModelMatching (Algorithms 2 and 3): the new places [N, sum of h] of all clients' hidden neurons."""
        layout, blocks, device = Layout.of(fed.family), blocks_of(fed), places.device
        if not layout.hidden:
            return places
        new: list[Tensor] = []
        gain, flops = 0.0, 0
        at_home = fed.home.mask(fed.family)
        for number, old in enumerate(layout.by_layer(places)):
            if at_home[layout.layers[number].weight]:
                new.append(old)
                continue
            inputs = [layout.columns(mine, device) for mine in blocks] if number == 0 else list(new[-1])
            clients, shared = self._neurons(layout, number, models, inputs, weights, at_home)
            num_columns = layout.layers[number].inputs + shared
            matching = match(
                clients,
                self._gain(num_columns, models[0]),
                num_columns=num_columns,
                sweeps=self.sweeps,
                rng=generator(fed.seed, Purpose.ALGORITHM, fed.round, number),
                limit=layout.layers[number].outputs,
                start=[row.cpu().numpy() for row in old],
                movable=ids,
                shared=shared,
            )
            new.append(torch.from_numpy(np.stack(matching.assignments)).to(device))
            gain, flops = gain + matching.gain, flops + matching.flops
            fed.metrics.report(**{"server_width" if number == 0 else f"server_width_{number}": matching.width})
        fed.metrics.count_server_flops(flops)
        matched = torch.cat(new, 1)
        moved = float((matched[list(ids)] != places[list(ids)]).double().mean())
        fed.metrics.report(matching_cost=-gain, moved_neurons=moved)
        return matched

    def _neurons(
        self,
        layout: Layout,
        number: int,
        models: Sequence[Tensor],
        inputs: Sequence[Tensor],
        weights: Tensor,
        at_home: Tensor,
    ) -> tuple[list[Neurons], int]:
        """Each client's neurons of hidden layer `number`, and the number of columns that all clients share.

        A neuron's row has its weights on `inputs` (the client's inputs as columns at the server), then the shared
        columns: the bias and, with `include_outgoing`, the outgoing weights. Those in the mask `at_home` [D] are none.
        """
        layer, h, clients = layout.layers[number], layout.hidden[number], []
        last = self.include_outgoing and number + 1 == len(layout.hidden)
        after = layout.layers[number + 1] if last and not at_home[layout.layers[number + 1].weight] else None
        with_bias = not at_home[layer.bias]
        shared = int(with_bias) + (0 if after is None else after.outputs)
        for m, (w, at_server) in enumerate(zip(models, inputs, strict=True)):
            own = at_server if number == 0 else torch.arange(layout.hidden[number - 1], device=w.device)
            parts = [layer.weights(w)[:h, own], layer.biases(w)[:h, None][:, : int(with_bias)]]
            if after is not None:
                parts.append(after.weights(w)[:, :h].T)
            columns = torch.cat([at_server, layer.inputs + torch.arange(shared, device=w.device)])
            weight = float(weights[m] / weights.sum()) if self.cost == "l2" else 1.0
            clients.append(Neurons(torch.cat(parts, 1), columns, weight))
        return clients, shared

    def _gain(self, num_columns: int, like: Tensor) -> Gain:
        if self.cost == "l2":
            return SquaredDistance(self.nu or 0.0)
        return PFNM(self.sigma or UNIT, self.sigma0 or UNIT, self.gamma or UNIT, like.new_zeros(num_columns))

    def _sizes(self, fed: Federation) -> np.ndarray:
        """The number of values that each client sends of its model [N]."""
        layout, x, shared = Layout.of(fed.family), fed.family.vector(fed.family.module), ~fed.home.mask(fed.family)
        parts = torch.stack([layout.own(x, (block,)) & shared for block in range(len(layout.extractors))])
        all_have = int(parts.all(0).sum())
        of_block = parts.sum(1).cpu().numpy() - all_have
        return np.array([all_have + int(of_block[list(blocks)].sum()) for blocks in blocks_of(fed)])

    def _server_size(self, state: HyFEMState, fed: Federation) -> int:
        """The number of values of the server model that some client has, without what stays at home."""
        layout, used = Layout.of(fed.family), torch.zeros_like(state.params)
        for blocks, places in zip(blocks_of(fed), state.places, strict=True):
            layout.put(used, 1.0, blocks, places)
        return int(((used > 0) & ~fed.home.mask(fed.family)).sum())

    def models(self, state: HyFEMState) -> Tensor:
        return state.params

    def client_models(self, state: HyFEMState, fed: Federation, ids: np.ndarray) -> Tensor:
        layout, blocks, clients = Layout.of(fed.family), blocks_of(fed), ids.tolist()
        parts = [layout.take(state.params, blocks[m], state.places[m]) for m in clients if not self.keep_own]
        found = fed.home.fill(self._own(state, fed, ids) if self.keep_own else torch.stack(parts), ids)
        for row, m in zip(found, clients if fed.home.acts else [], strict=False):
            row[~layout.own(row, blocks[m])] = 0  # what a client lacks is nobody's home
        return found

    def cached(self, state: HyFEMState) -> int:
        return 0  # the clients know their places
