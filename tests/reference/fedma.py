"""FedMA (Wang et al., ICLR 2020), Algorithm 1, with a fixed width and PFNM's matching.

On purpose: no neuron is added, and a client sends its whole model. So all clients are on all neurons of the server,
and the prior, the deviations and gamma, here the authors', have no part: they add the same to every assignment.
`layerwise` is the paper's layer after layer; otherwise all layers are matched in one round. The paper has no batch
norm: its parameters belong to a neuron's row, and its statistics move along.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from tests.reference.chain import Layer, hidden_layers
from tests.reference.matching import PFNM, Neurons, match
from tests.reference.plain import Case, Fields, Model, Problem, Sent, arrived, mean, sgd, sizes


def fedma(
    p: Problem,
    *,
    sweeps: int | None,
    layerwise: bool,
    first_models: str,
    matched: bool,
    late_policy: str,
    weighting: str,
) -> Iterator[Fields]:
    layers, x, sent = hidden_layers(p.net), p.x0, list[Sent]()

    def aligned(t: int, number: int, here: Sequence[Sent], models: list[Model]) -> list[Model]:
        """BBP-MAP of layer `number`: the models that arrived with its neurons in the order of the largest client's."""
        layer, parts = layers[number], [p.net.parts(y) for y in models]
        v = [np.concatenate([y[k].reshape(layer.size, -1).numpy() for k in layer.rows], 1) for y in parts]
        widths = [parts[0][k].reshape(layer.size, -1).shape[1] for k in layer.rows]
        mu0 = np.repeat([0.1 if k.endswith("bias") else 0.0 for k in layer.rows], widths)
        prior = PFNM(sigma=1.0, sigma0=1.0, gamma=7.0, mu0=mu0)  # as in the authors' code
        largest = sorted(range(len(here)), key=lambda j: -p.n(here[j].client))  # largest client first
        has, rng = np.ones(sum(widths), dtype=bool), p.rng("ALGORITHM", t, number)
        places = match(
            [Neurons(v[j], has) for j in largest], lambda _: prior, 5 if sweeps is None else sweeps, rng, layer.size
        )
        new = list(models)
        for j, pi in zip(largest, places, strict=True):
            new[j] = p.net.joined(permuted(parts[j], layer, pi))
        return new

    own = {n: p.x0 for n in range(p.num_clients)}  # what clients keep
    if first_models == "own":
        own = {n: p.net.model(p.initial(number=1 + n)) for n in own}
    keeps = layerwise or first_models == "own"
    taken = set(own) if first_models == "own" else set[int]()  # who continues with its own model
    last = set[int]()  # the clients in the last matching of this pass
    matched_layers = 0  # in this pass
    for t in range(p.num_rounds):
        frozen = [k for layer in layers[:matched_layers] for k in layer.rows + layer.statistics]
        for k in p.cohort(t):
            n = k.client
            parts = p.net.parts(own[n] if n in taken else x)
            start = p.net.joined(parts | {name: p.net.parts(x)[name] for name in frozen})
            y = train(p, start, n, t, frozen) if frozen else sgd(p, start, n, t)
            sent.append(Sent(t, n, k.due, start, y))
        here = arrived(sent, t, late_policy)
        if not layerwise:
            taken -= {u.client for u in arrived(sent, t)}  # a client begins with its own model once
        if here:
            models, n = [u.y for u in here], sizes(p, here, weighting)
            if not layerwise and matched:
                for number in range(len(layers)):
                    models = aligned(t, number, here, models)
            if layerwise and matched_layers < len(layers):
                models = aligned(t, matched_layers, here, models)
                taken = last = {u.client for u in here}  # they retrain the layers above, theirs in the new order
                own |= {u.client: y for u, y in zip(here, models, strict=True)}
            # the average of the matched models; of the last layer the weighted average (line "n = N")
            average = p.net.parts(Model(mean([y.w for y in models], n), mean([y.s for y in models], n)))
            x = p.net.joined(average | {name: p.net.parts(x)[name] for name in frozen})
            if layerwise:
                if matched_layers < len(layers):
                    matched_layers += 1
                else:  # section 3.3: the next pass begins from the matched model
                    matched_layers, taken, last = 0, set(), set()
        done = [k for layer in layers[:matched_layers] for k in layer.rows + layer.statistics]
        mask = p.net.joined({name: torch.full_like(v, name in done) for name, v in p.net.parts(x).items()})
        n = range(p.num_clients) if keeps else []
        yield {
            "params": x.vector,
            "layer": matched_layers,
            "told": layers[matched_layers - 1].size if matched_layers else 0,
            "frozen": mask.vector,
            "models": {i: own[i].vector for i in last},
            "taken": torch.tensor([i in taken for i in n]),
        }


def permuted(parts: dict[str, torch.Tensor], layer: Layer, pi: np.ndarray) -> dict[str, torch.Tensor]:
    """Pi W of the layer's rows and W Pi^T of the columns that read it: neuron i moves to place pi[i]."""
    at, new = torch.from_numpy(pi), {k: v.clone() for k, v in parts.items()}
    for k in layer.rows + layer.statistics:
        new[k][at] = parts[k]
    new[layer.columns][:, at] = parts[layer.columns]
    return new


def train(p: Problem, start: Model, client: int, t: int, frozen: Sequence[str]) -> Model:
    """Local training of the layers above the frozen ones."""
    parts = p.net.parts(start)
    free = p.net.joined({k: torch.full_like(v, k not in frozen) for k, v in parts.items()}).w
    w, s = start
    for b in p.batches(client, t):
        g, s = p.gradient(w, s, b, client)
        w = w - p.local.lr * free * g
    return p.net.joined(p.net.parts(Model(w, s)) | {k: parts[k] for k in frozen})


APART = {"first_models": "own"}  # neurons begin in other places
LAYERS = {"layerwise": True, "late_policy": "discard"}
DEEP = (("deep",),)
CASES = [
    Case("fedma", fedma, APART, models=(("mlp",), ("deep",)), equations="Algorithm 1, BBP-MAP"),
    Case("fedma late", fedma, APART | {"weighting": "uniform"}, std=1.5, models=(("batch_norm",),)),
    Case("fedma layerwise", fedma, LAYERS, models=DEEP, equations="Algorithm 1, section 3.3"),
    Case("fedma layerwise, late", fedma, LAYERS | APART | {"sweeps": 1}, std=0.7, cohort=6, models=DEEP),
    Case("fedma unmatched", fedma, {"matched": False, "late_policy": "discard"}, std=1.5, models=DEEP),
]
