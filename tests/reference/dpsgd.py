"""D-PSGD (Lian et al., NeurIPS 2017), Algorithm 1, with local epochs in place of one gradient."""

from collections.abc import Iterator

import torch
from torch import Tensor

from tests.reference.decentralized import by_client, clients, first_models, reached
from tests.reference.plain import Case, Fields, Model, Net, Problem, sgd
from tests.reference.submodels import WIDTHS, indices


def dpsgd(p: Problem, *, order: str) -> Iterator[Fields]:
    x = first_models(p)  # x_{0,i}, equal for one architecture
    for t in range(p.num_rounds):
        there = sorted(p.sample(t, clients(p)))
        y = {i: sgd(p, x[i], i, t) for i in there}  # lines 2 and 3: gradients at the local model
        late = order == "average_while_training"
        sent = {i: Model(x[i].w, y[i].s) if late else y[i] for i in there}
        average = neighbourhood_average(p, there, sent)  # line 4: x_{k+1/2,i} = sum_j W_ij x_{k,j}
        for i, mean in average.items():  # line 5: x_{k+1,i} <- x_{k+1/2,i} - gamma g_i; y - x is the sum of these
            x[i] = Model(mean.w + y[i].w - x[i].w, mean.s) if late else mean
        yield {"models": by_client(x)}


def neighbourhood_average(p: Problem, there: list[int], sent: dict[int, Model]) -> dict[int, Model]:
    """Each value by the weights of the graph of those clients that have it."""
    if len(p.nets) == 1:
        weights = metropolis(p, there)
        return {
            i: Model(*(sum(weights[i, j] * sent[j][part] for j in there) for part in (0, 1)))  # type: ignore[misc]
            for i in there
        }
    wide = max((p.net_of(i) for i in there), key=lambda net: net.num_params)
    size = wide.num_params + wide.num_stats
    where = {i: in_wide(p.net_of(i), wide) for i in there}
    spread = {
        i: torch.full((size,), torch.nan, dtype=wide.dtype).index_copy(0, where[i], sent[i].vector) for i in there
    }
    new = {i: torch.zeros(size, dtype=wide.dtype) for i in there}
    for v in range(size):
        owners = [i for i in there if not spread[i][v].isnan()]
        weights = metropolis(p, owners)
        for i in owners:
            new[i][v] = sum(weights[i, j] * spread[j][v] for j in owners)
    return {i: p.net_of(i).model(new[i][where[i]]) for i in there}


def in_wide(net: Net, wide: Net) -> Tensor:
    """The place in the vector of the widest model of each value of a model that has its first channels."""
    numbered = wide.parts(wide.model(torch.arange(wide.num_params + wide.num_stats, dtype=torch.float64)))
    cut = indices(net, wide, lambda size, of: list(range(size)))
    mine = {name: numbered[name][cut[name]] for name in net.shapes | net.stats}
    return net.joined(mine).vector.long()


def metropolis(p: Problem, among: list[int]) -> dict[tuple[int, int], float]:
    """W_ij = 1 / (1 + max(d_i, d_j)) for linked i and j, W_ii = 1 - sum_j W_ij (Xiao, Boyd and Kim, 2007)."""
    near = {i: [j for j in reached(p, i) if j in among] for i in among}
    weights = {(i, j): 1 / (1 + max(len(near[i]), len(near[j]))) if j in near[i] else 0.0 for i in among for j in among}
    return weights | {(i, i): 1 - sum(weights[i, j] for j in near[i]) for i in among}


OTHER = {"order": "average_while_training"}
CASES = [
    Case("dpsgd", dpsgd, cohort=8, equations="Algorithm 1 with lines 4 and 5 exchanged"),
    Case("dpsgd ring", dpsgd, topology="ring", cohort=8, equations="Algorithm 1 with lines 4 and 5 exchanged"),
    Case("dpsgd ring, as written", dpsgd, OTHER, topology="ring", cohort=8, equations="Algorithm 1"),
    Case("dpsgd ring, some", dpsgd, OTHER, topology="ring", cohort=5, equations="Algorithm 1"),
    Case("dpsgd widths", dpsgd, models=WIDTHS, topology="ring", cohort=6),
    Case("dpsgd widths, as written", dpsgd, OTHER, models=WIDTHS[1:], topology="ring", cohort=8),
]
