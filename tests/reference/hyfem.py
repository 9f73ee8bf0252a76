"""HyFEM (Zhang, Yin, Chen and Hong, TMLR 2024), Algorithms 1 to 3.

On purpose: clients are matched one after another (Algorithm 3, not "in parallel" as in Algorithm 2); a minibatch stands
for the one sample of Algorithm 2, line 4; the bias is a column of a neuron's row. Clients that do not report keep their
neurons, and parts that only they have stay as they were: in the paper all clients report.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.reference.matching import PFNM, Array, Cost, Neurons, SquaredDistance, match
from tests.reference.plain import Case, Fields, Net, Problem, Sent

Parts = dict[str, Tensor]  # values of a model by name


class Network(NamedTuple):
    """Extractors h_i of blocks and a classifier F, whose vectors have room for the server's widest."""

    net: Net  # of the server
    extractors: list[Net]
    sizes: list[int]  # of the blocks of an example
    layers: list[str]  # of the classifier: names without .weight and .bias
    h: tuple[int, ...]  # hidden neurons of a client in each layer
    f: int  # features of a block

    @staticmethod
    def of(p: Problem) -> "Network":
        module: Any = p.net.module
        extractors = [Net(lambda each=each: deepcopy(each)) for each in module.extractors]
        names = [k.removesuffix(".weight") for k in p.net.shapes if k.startswith("classifier") and "weight" in k]
        sizes = [each[0].in_features for each in module.extractors]
        return Network(p.net, extractors, sizes, names, module.hidden, module.num_features)

    def places(self, held: list[int], pi: list[Array]) -> dict[str, tuple[Array, ...]]:
        """P_m and Pi_m: for each tensor of the classifier the rows and columns of the server's that a client has."""
        inputs = np.concatenate([np.arange(i * self.f, (i + 1) * self.f) for i in held])
        logits = np.arange(self.net.shapes[f"{self.layers[-1]}.bias"][0])
        found = {}
        for name, columns, rows in zip(self.layers, [inputs, *pi], [*pi, logits], strict=True):
            found |= {f"{name}.weight": np.ix_(rows, columns), f"{name}.bias": (rows,)}
        return found

    def own(self, held: list[int]) -> dict[str, tuple[Array, ...]]:
        """Where a client has them in its own vector: its neurons come first."""
        return self.places(held, [np.arange(h) for h in self.h])

    def is_of(self, name: str, held: list[int]) -> bool:
        """Whether a tensor belongs to an extractor that a client has."""
        return any(name.startswith(f"extractors.{i}.") for i in held)

    def take(self, server: Parts, held: list[int], pi: list[Array]) -> Parts:
        """P_m Theta_0 and Pi_m w_0, zero where the client has nothing."""
        mine = {k: v.clone() if self.is_of(k, held) else torch.zeros_like(v) for k, v in server.items()}
        for (name, at), own in zip(self.places(held, pi).items(), self.own(held).values(), strict=True):
            mine[name][own] = server[name][at]
        return mine

    def put(self, total: Parts, mine: Parts, held: list[int], pi: list[Array], weight: float = 1.0) -> None:
        """Adds weight * (P_m^T Theta_m, Pi_m^T w_m) to `total`."""
        for name, values in mine.items():
            if self.is_of(name, held):
                total[name] += weight * values
        for (name, at), own in zip(self.places(held, pi).items(), self.own(held).values(), strict=True):
            total[name][at] += weight * mine[name][own]

    def predict(self, mine: Parts, held: list[int], x: Tensor, alone: bool) -> tuple[Tensor, Parts]:
        """F_m(w_m; H_m(Theta_m; x)), and the extractors' new statistics. `alone`: the client has a single example."""
        parts, features, new = torch.split(x, self.sizes, 1), [], {}
        for i in held:
            h, prefix = self.extractors[i], f"extractors.{i}."
            theta = h.joined({k: mine[prefix + k] for k in h.shapes | h.stats})
            feature, s = (h.eval(*theta, parts[i]), theta.s) if alone else h.train(*theta, parts[i])
            features.append(feature)
            new |= {prefix + k: v.detach() for k, v in h.statistics(s).items()}
        v = torch.cat(features, 1)
        for number, (name, at) in enumerate(zip(self.layers, list(self.own(held).values())[::2], strict=True)):
            weight, bias = mine[f"{name}.weight"][at], mine[f"{name}.bias"][: len(at[0])]
            v = F.linear(v if number == 0 else F.relu(v), weight, bias)
        return v, new


def hyfem(
    p: Problem,
    *,
    mu1: float,
    mu2: float,
    cost: str,
    sigma: float | None,
    sigma0: float | None,
    gamma: float | None,
    nu: float | None,
    sweeps: int,
    include_outgoing: bool,
    keep_own: bool,
    first_classifiers: str,
    weighting: str,
    send_all: bool,
) -> Iterator[Fields]:
    assert p.blocks is not None
    network, M = Network.of(p), range(p.num_clients)
    held = [np.flatnonzero(row).tolist() for row in p.blocks]  # I_m
    pm = [p.n(m) / sum(map(p.n, M)) if weighting == "size" else 1 / p.num_clients for m in M]

    def client_update(server: Parts, start: Parts, m: int, pi: list[Array], t: int) -> Parts:
        """Algorithm 2, lines 1 to 7."""
        anchor, mine = network.take(server, held[m], pi), start
        for b in p.batches(m, t):
            leaves = {k: v.clone().requires_grad_() for k, v in mine.items() if k in network.net.shapes}
            logits, s = network.predict(mine | leaves, held[m], p.data.x[b], p.n(m) == 1)
            loss = F.cross_entropy(logits, p.data.y[b])
            grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
            for (k, theta), g in zip(leaves.items(), grads, strict=True):
                # Theta <- Theta - eta (grad l + mu1 (Theta - P_m Theta_0)); w <- w - eta (grad l + mu2 (w - Pi_m w_0))
                mu = mu1 if k.startswith("extractors") else mu2
                mine = mine | {k: theta.detach() - p.local.lr * (g + mu * (theta.detach() - anchor[k]))}
            mine = mine | s
        return mine

    def model_matching(models: list[Parts], pi: list[list[Array]], reporting: list[int], t: int) -> list[list[Array]]:
        """Algorithm 3: Pi_m of all clients, from the first layer to the last hidden one; the output is not matched."""
        new: list[list[Array]] = [[] for _ in M]
        for number, name in enumerate(network.layers[:-1]):
            after = network.layers[number + 1] if include_outgoing and number + 2 == len(network.layers) else None
            room, inputs = network.net.shapes[f"{name}.weight"]
            shared = 1 + (network.net.shapes[f"{after}.bias"][0] if after else 0)
            neurons = []
            for m in M:
                # w_{m,l}[j] on the server's columns: those of P_m in the first layer, of Pi_m of the layer before
                rows, columns = network.own(held[m])[f"{name}.weight"]
                at = columns[0] if number == 0 else new[m][number - 1]
                v, has = np.zeros((len(rows), inputs + shared)), np.zeros(inputs + shared, dtype=bool)
                v[:, at] = models[m][f"{name}.weight"][rows, columns].numpy()
                v[:, inputs] = models[m][f"{name}.bias"][: len(rows)].numpy()
                if after:
                    v[:, inputs + 1 :] = models[m][f"{after}.weight"][:, : len(rows)].T.numpy()
                has[at], has[inputs:] = True, True
                neurons.append(Neurons(v, has, pm[m] if cost == "l2" else 1.0))
            start, rng = [pi[m][number] for m in M], p.rng("ALGORITHM", t, number)
            for m, own in enumerate(match(neurons, dist, sweeps, rng, room, start, reporting, shared)):
                new[m].append(own)
        return new

    def dist(has: Array) -> Cost:
        """dist_1 and dist_2 of Eq 20."""
        if cost == "l2":
            return SquaredDistance(nu or 0.0)
        return PFNM(sigma or 1.0, sigma0 or 1.0, gamma or 1.0, np.zeros(has.sum()))

    server = p.net.parts(p.x0)  # line 1: w_0, Theta_0, Pi_m
    pi = [[np.arange(h) for h in network.h] for _ in M]
    own: list[Parts] = []
    if keep_own:
        for m in M:
            first = p.net.parts(p.net.model(p.initial(number=1 + m)))
            classifiers = {k: v for k, v in first.items() if k.startswith("classifier")}
            start = server | classifiers if first_classifiers == "own" else server
            own.append(network.take(start, held[m], pi[m]))
    sent: list[tuple[Sent, Parts]] = []
    reported = set[int]()
    for t in range(p.num_rounds):  # line 2
        for k in p.cohort(t):  # lines 3 to 5
            m = k.client
            # line 2 of Algorithm 2; keep_own is Eq 22: clients continue from their own models
            start = own[m] if keep_own else network.take(server, held[m], pi[m])
            mine = client_update(server, start, m, pi[m], t)
            sent.append((Sent(t, m, k.due, p.x0, p.x0), mine))
        here = {u.client: mine for u, mine in sent if u.due == t}
        for m in here if keep_own else ():  # a late client has its model later
            own[m] = here[m]
            reported.add(m)
        if here:
            silent = [m for m in M if m not in here]
            models = [here[m] if m in here else network.take(server, held[m], pi[m]) for m in M]
            pi = model_matching(models, pi, list(here), t)  # line 8
            # lines 7 and 8: (sum p_m P_m^T P_m)^-1 sum p_m P_m^T Theta_m, and the same with Pi_m and w_m
            total, mass, rest, there = ({k: torch.zeros_like(v) for k, v in server.items()} for _ in range(4))
            ones = {k: torch.ones_like(v) for k, v in server.items()}
            for m in here:
                network.put(total, models[m], held[m], pi[m], pm[m])
                network.put(mass, ones, held[m], pi[m], pm[m])
            for m in silent:
                network.put(rest, models[m], held[m], pi[m])
                network.put(there, ones, held[m], pi[m])
            for k in server:  # entries that nobody has are 0: the inverse does not exist there
                mean = total[k] / torch.where(mass[k] > 0, mass[k], 1)
                server[k] = torch.where(mass[k] > 0, mean, rest[k] / there[k].clamp(min=1))
        x = p.net.joined(server).vector
        places = torch.from_numpy(np.stack([np.concatenate(each) for each in pi]))
        yield {"params": x, "places": places, "own": {m: p.net.joined(own[m]).vector for m in reported}}


APART = {"keep_own": True, "first_classifiers": "own"}  # neurons begin in other places
ONE = {"epochs": 1}
CASES = [
    Case("hyfem", hyfem, {}, ONE, cohort=8, models=(("blocks",),), equations="Algorithms 1 to 3, Eq 20"),
    Case(
        "hyfem own",
        hyfem,
        APART | {"sigma": 0.3, "gamma": 6.0, "sweeps": 3},
        ONE,
        models=(("blocks_deep",),),
        equations="Eq 22",
    ),
    Case(
        "hyfem l2, late",
        hyfem,
        APART | {"cost": "l2", "nu": 0.02, "include_outgoing": True},
        ONE,
        std=1.5,
        models=(("blocks_deep",),),
        equations="Algorithms 1 to 3, Eq 5",
    ),
    Case(
        "hyfem uniform, late",
        hyfem,
        APART | {"sigma": 0.3, "weighting": "uniform"},
        ONE,
        std=1.5,
        models=(("blocks_norm",),),
    ),
]
