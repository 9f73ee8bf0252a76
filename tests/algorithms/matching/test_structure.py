"""Which neurons may change places, and matching them: PFNM with and without growth, graduated assignment."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedlab_runner.algorithms.matching import graduated_assignment, pfnm
from fedlab_runner.algorithms.matching.assignment import hungarian
from fedlab_runner.algorithms.matching.graduated_assignment import Graduated, sinkhorn
from fedlab_runner.algorithms.matching.neurons import NeuronGroup, permute
from fedlab_runner.algorithms.matching.pfnm import PFNM, Gain, Neurons, Server, SquaredDistance, match
from fedlab_runner.algorithms.matching.structure import neuron_groups, require_groups
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.normalize import Normalize
from fedlab_runner.models.cnn_feddle import FeddleCNN
from fedlab_runner.models.cnn_mcmahan import McMahanCNN
from fedlab_runner.models.cnn_small import SmallCNN
from fedlab_runner.models.logistic import Logistic
from fedlab_runner.models.mlp import MLP
from fedlab_runner.models.resnet18 import ResNet18
from fedlab_runner.models.resnet18_torchvision import TorchvisionResNet18
from fedlab_runner.models.timm import Timm
from fedlab_runner.models.vit_lora import ViTLoRA
from fedlab_runner.utils.errors import UserError
from tests.helpers.toy import CLASSES, CPU, FEATURES, algorithm, federation


def task_of(build: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> ModelFamily:
    return ModelFamily(build, CLASSES, normalize=Normalize(None, None), device=CPU, dtype=dtype)


def images(channels: int, size: int) -> Tensor:
    return torch.rand(2, channels, size, size, generator=torch.Generator().manual_seed(0))


def structure(model: Any, channels: int = 3, size: int = 16) -> tuple[ModelFamily, list[NeuronGroup], Tensor]:
    family, inputs = task_of(lambda: model.build(channels, size, CLASSES)), images(channels, size)
    return family, neuron_groups(family, inputs), inputs


def shuffled(groups: list[NeuronGroup], seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.permutation(group.size) for group in groups]


def permuted(w: Tensor, groups: list[NeuronGroup], orders: list[np.ndarray]) -> Tensor:
    for group, order in zip(groups, orders, strict=True):
        w = permute(w, group, order)
    return w


def away_from_initial(family: ModelFamily) -> Tensor:
    """A model whose norms' parameters and statistics differ from channel to channel."""
    return family.init(0) + 0.1 * torch.rand(
        family.size, dtype=family.dtype, generator=torch.Generator().manual_seed(1)
    )


BLOCKS = [f"layer{stage}.{block}.conv1" for stage in (1, 2, 3, 4) for block in (0, 1)]
VIT = {"depth": 2, "embed_dim": 12, "num_heads": 3, "patch_size": 8}
KNOWN = [
    (MLP(None, None, [7, 6]), [7, 6]),
    (SmallCNN(None, None), [16, 32]),
    (McMahanCNN(None, None), [32, 64, 512]),
    (FeddleCNN(None, None, "each"), [32, 64, 64, 128]),
    (FeddleCNN(None, None, "last"), [32, 64, 64, 128]),
    (Timm(None, None, "vit_tiny_patch16_224", False, None, 0.0, VIT), [48, 48]),
    (ResNet18(None, None, "batch"), [64, 64, 128, 128, 256, 256, 512, 512]),
    (TorchvisionResNet18(None, None, None), [64, 64, 128, 128, 256, 256, 512, 512]),
]


@pytest.mark.parametrize(("model", "sizes"), KNOWN, ids=lambda value: type(value).__name__)
def test_hidden_neurons_change_places_and_the_logits_stay(model: Any, sizes: list[int]) -> None:
    family, groups, inputs = structure(model)
    assert [group.size for group in groups] == sizes
    w = away_from_initial(family)
    other = permuted(w, groups, shuffled(groups, 0))
    assert all(not torch.equal(g.incoming(w), g.incoming(other)) for g in groups), "each group has moved"
    before, after = family.predict(w, inputs), family.predict(other, inputs)
    torch.testing.assert_close(after, before, rtol=1e-11, atol=1e-11)


def test_of_a_residual_network_the_channels_inside_the_blocks_move_with_their_norms() -> None:
    _, groups, _ = structure(ResNet18(None, None, "batch"))
    assert [group.name for group in groups] == BLOCKS
    first = groups[0]
    assert [piece.name for piece in first.rows] == [f"layer1.0.{k}" for k in ("conv1.weight", "bn1.weight", "bn1.bias")]
    assert [piece.name for piece in first.columns] == ["layer1.0.conv2.weight"]
    assert [piece.name for piece in first.statistics] == ["layer1.0.bn1.running_mean", "layer1.0.bn1.running_var"]


def test_permuting_there_and_back_is_exact_and_works_on_many_models_at_once() -> None:
    family, groups, _ = structure(SmallCNN(None, None))
    w = torch.stack([away_from_initial(family), family.init(3)])
    order = np.random.default_rng(0).permutation(16)
    there = permute(w, groups[0], order)
    assert torch.equal(there[1], permute(w[1], groups[0], order))
    assert torch.equal(groups[0].incoming(there), groups[0].incoming(w)[:, order])
    assert torch.equal(permute(there, groups[0], np.argsort(order)), w)


class Tied(nn.Module):
    """One layer used twice, and one weight in two layers."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.a = how, nn.Linear(FEATURES, 6)
        self.b, self.c, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)
        if how == "weight":
            self.c.weight = self.b.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.b(self.a(x))
        hidden = self.b(hidden) if self.how == "layer" else self.c(hidden)
        logits: Tensor = self.head(hidden)
        return logits


class Clever(nn.Module):
    """Hidden neurons whose order matters, in ways that a graph shows, does not show, or hides from tracing."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.a, self.head = how, nn.Linear(FEATURES, 6), nn.Linear(6, CLASSES)
        self.scale = nn.Parameter(torch.arange(6.0))
        self.block = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.a(x))
        if self.how == "scaled":
            hidden = hidden * self.scale
        if self.how == "sum" and float(hidden.detach().sum()) > -1:  # not traceable: depends on values
            hidden = hidden + self.block(hidden)
        logits: Tensor = self.head(hidden)
        return logits + self.block[0].weight.sum() * 0


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (lambda: Tied("weight"), []),
        (lambda: Tied("layer"), []),
        (lambda: Clever("scaled"), []),
        (lambda: Clever("sum"), ["block.0"]),
        (lambda: nn.Sequential(nn.Linear(FEATURES, 6), nn.GroupNorm(3, 6), nn.Linear(6, CLASSES)), []),
        (lambda: nn.Sequential(nn.Linear(FEATURES, 6), nn.GroupNorm(1, 6), nn.Linear(6, CLASSES)), ["0"]),
        (lambda: nn.Sequential(nn.Linear(FEATURES, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, CLASSES)), ["0"]),
        (lambda: nn.Sequential(nn.Linear(FEATURES, 6), nn.Softmax(-1), nn.Linear(6, CLASSES)), []),
    ],
    ids=["tied_weight", "layer_twice", "scaled", "untraceable", "groups", "one_group", "layer_norm", "softmax"],
)
def test_only_what_is_known_for_certain_may_move(build: Callable[[], nn.Module], names: list[str]) -> None:
    fed = federation([4], build=build)
    assert [group.name for group in neuron_groups(fed.family, fed.client_data.inputs)] == names


@pytest.mark.parametrize(
    "model",
    [
        Logistic(None, None, False),
        ResNet18(None, None, "group"),
        ViTLoRA(None, None, "vit_tiny_patch16_224", False, None, 2, 4.0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_model_without_known_groups_is_refused_in_one_line(model: Any) -> None:
    family, groups, _ = structure(model)
    assert groups == []

    class Fed:
        client_data = federation([2]).client_data

    fed: Any = Fed()
    fed.family = family
    with pytest.raises(
        UserError, match=r"^algorithm=fedma .* finds none in this \w+ that may change places: use a"
    ) as error:
        require_groups(algorithm("fedma"), fed)
    assert "\n" not in str(error.value)


# --- PFNM ---


def direct_gain(
    v: Tensor, total: Tensor, mass: Tensor, holders: int, mu0: Tensor, j: int, s: float, s0: float
) -> float:
    """PFNM's posterior gain by its formula, one entry after the other."""
    p, p0, value = 1 / s**2, 1 / s0**2, 0.0
    for k in range(len(v)):
        precision = p0 + p * float(mass[k])
        natural = float(mu0[k]) * p0 + p * float(total[k])
        value += (float(v[k]) * p + natural) ** 2 / (p + precision) - natural**2 / precision
    count = min(holders, 10)
    return value + float(np.log(count / (j - count)))


def test_the_gain_is_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    mass = torch.tensor([[2.0, 2, 0, 2], [1, 0, 0, 1], [12, 12, 12, 12]], dtype=torch.float64)
    v, total, mu0 = draw(5, 4), draw(3, 4) * (mass > 0), draw(4)
    holders = torch.tensor([2, 1, 12])
    prior, columns = PFNM(0.7, 1.3, 7.0, mu0), torch.arange(4)
    server = Server(total, mass, holders, torch.tensor([True, True, True]))
    square = v.square().sum(1)
    gain = prior.existing(v, square, server, columns, 20)
    for row in range(5):
        for i in range(3):
            expected = direct_gain(v[row], total[i], mass[i], int(holders[i]), mu0, 20, 0.7, 1.3)
            assert float(gain[row, i]) == pytest.approx(expected, rel=1e-12)
    p, p0 = 1 / 0.49, 1 / 1.69
    base = ((v * p + mu0 * p0) ** 2 / (p + p0) - mu0**2 * p0).sum(1)
    new = prior.new(v, square, columns, 20, 3)
    for k in range(3):
        torch.testing.assert_close(new[:, k], base - 2 * np.log(k + 1) + 2 * np.log(7 / 20))
    unknown = prior.existing(v, square, server._replace(covered=torch.tensor([True, False, True])), columns, 20)
    torch.testing.assert_close(unknown[:, 1], new[:, 0])
    alike = torch.tensor([[2.0], [1], [12]], dtype=torch.float64)  # everyone has all columns
    for rule in (prior, SquaredDistance(1.5)):
        short, whole = (
            rule.existing(v, square, Server(total, each, holders, None), columns, 20)
            for each in (alike, alike.expand(-1, 4))
        )
        torch.testing.assert_close(short, whole)


def neurons(rows: Tensor, columns: Any = None) -> Neurons:
    return Neurons(rows, torch.arange(rows.shape[1]) if columns is None else torch.as_tensor(columns), 1.0)


def prior(d: int, gamma: float = 1.0) -> PFNM:
    return PFNM(1.0, 1.0, gamma, torch.zeros(d, dtype=torch.float64))


def matched(clients: list[Neurons], d: int, **more: Any) -> Any:
    settings = {"sweeps": 5, "rng": np.random.default_rng(0), "limit": max(len(c.rows) for c in clients)} | more
    return match(clients, prior(d), num_columns=d, **settings)


def atoms(n: int, d: int, seed: int = 0) -> Tensor:
    return 4 * torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("limit", [8, 40])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_permutations_are_recovered(limit: int, noise: float) -> None:
    base, rng = atoms(8, 6), np.random.default_rng(1)
    orders = [np.arange(8), *(rng.permutation(8) for _ in range(4))]
    clients = [neurons(base[order] + noise * atoms(8, 6, seed=k) / 4) for k, order in enumerate(orders, 5)]
    found = matched(clients, 6, limit=limit)
    assert found.width == 8 and found.flops > 0
    for assignment, order in zip(found.assignments, orders, strict=True):
        assert assignment.tolist() == order.tolist()


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("gain", [prior(6), SquaredDistance(0.1)], ids=lambda gain: type(gain).__name__)
def test_the_operations_of_a_matching_are_those_that_it_does(
    gain: Gain, alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, product = [0], pfnm.product

    def multiplied(a: Tensor, b: Tensor) -> Tensor:
        counted[0] += 2 * a.numel() * b.shape[1]
        return product(a, b)

    def assigned(gains: Tensor) -> np.ndarray:
        counted[0] += len(gains) * gains.numel()
        return hungarian(gains)

    monkeypatch.setattr(pfnm, "product", multiplied)
    monkeypatch.setattr(pfnm, "hungarian", assigned)
    columns = [torch.arange(6), torch.arange(6) if alike else torch.tensor([0, 2, 3, 5])]
    clients = [Neurons(atoms(4, len(columns[j % 2]), seed=j), columns[j % 2], 0.2) for j in range(5)]
    how: dict[str, Any] = {"sweeps": 2, "rng": np.random.default_rng(0), "limit": 9, "shared": 1}
    assert match(clients, gain, num_columns=6, **how).flops == counted[0] > 0


def test_a_single_client_keeps_its_order() -> None:
    for limit in (5, 9):
        found = matched([neurons(atoms(5, 3))], 3, limit=limit)
        assert found.assignments[0].tolist() == [0, 1, 2, 3, 4] and found.width == 5


@pytest.mark.parametrize("common", [0, 3, 6])
def test_growth_adds_what_is_new_within_its_bounds(common: int) -> None:
    """Two clients of 6 neurons, far from each other but for `common`: max l <= L <= sum l, and L = 12 - common."""
    pool = 10 * torch.eye(12, dtype=torch.float64)
    clients = [neurons(pool[:6]), neurons(pool[6 - common : 12 - common])]
    found = matched(clients, 12, limit=100)
    assert found.width == 12 - common
    assert sorted(set(found.assignments[0]) | set(found.assignments[1])) == list(range(found.width))
    assert all(len(set(a)) == len(a) for a in found.assignments), "each neuron has a place of its own"
    assert len(set(found.assignments[0]) & set(found.assignments[1])) == common


def test_the_width_stays_without_growth_even_when_neurons_differ() -> None:
    pool = atoms(12, 5)
    found = matched([neurons(pool[:6]), neurons(pool[6:])], 5)
    assert found.width == 6 and sorted(found.assignments[1]) == list(range(6))


def test_from_a_start_only_what_is_better_moves_and_neurons_nobody_has_disappear() -> None:
    base = atoms(4, 5)
    clients = [neurons(base), neurons(base), neurons(base[[1, 0, 2, 3]])]
    start = [np.arange(4), np.arange(4), np.array([0, 1, 2, 7])]  # the last is on its own, the first two are crossed
    found = matched(clients, 5, limit=100, start=start)
    assert found.width == 4
    assert [a.tolist() for a in found.assignments] == [[0, 1, 2, 3], [0, 1, 2, 3], [1, 0, 2, 3]]


def test_new_neurons_stay_where_they_were() -> None:
    """A client whose neurons nobody shares gets its places back, so that a matching can come to rest."""
    pool = 10 * torch.eye(6, dtype=torch.float64)
    clients = [neurons(pool[:3]), neurons(pool[3:])]
    start = [np.array([0, 2, 4]), np.array([1, 3, 5])]
    found = matched(clients, 6, limit=100, start=start, sweeps=1)
    assert [a.tolist() for a in found.assignments] == [[0, 2, 4], [1, 3, 5]]


def test_clients_with_other_columns_are_matched_on_what_they_share() -> None:
    """Columns 0-2 and 2-4 and a shared bias, 5; the third client has only columns that nobody else has."""
    base = atoms(4, 6)
    swap = [2, 0, 3, 1]
    clients = [neurons(base[:, [0, 1, 2, 5]], [0, 1, 2, 5]), neurons(base[swap][:, [2, 3, 4, 5]], [2, 3, 4, 5])]
    found = matched(clients, 6, limit=100, shared=1)
    assert found.width == 4 and found.assignments[1].tolist() == swap
    alone = [neurons(base[:, [0, 1, 5]], [0, 1, 5]), neurons(base[:, [3, 4, 5]], [3, 4, 5])]
    fixed = matched(alone, 6, shared=1)
    assert fixed.width == 4 and sorted(fixed.assignments[1]) == [0, 1, 2, 3]


@pytest.mark.parametrize("gain", [prior(7, gamma=3.0), SquaredDistance(0.5)])
def test_the_order_of_a_clients_columns_does_not_matter(gain: Gain) -> None:
    """What is quicker where all clients have all columns finds what is found column by column."""
    rng, pool = np.random.default_rng(3), atoms(14, 7)
    for trial in range(20):
        found = []
        picks = [rng.permutation(14)[: rng.integers(4, 9)] for _ in range(5)]
        rows = [pool[pick] + atoms(len(pick), 7, seed=100 * trial + j) / 3 for j, pick in enumerate(picks)]
        for order in (torch.arange(7), torch.from_numpy(rng.permutation(7))):
            clients = [Neurons(each[:, order], order, 1.0 + j) for j, each in enumerate(rows)]
            stream = np.random.default_rng(trial)
            found.append(match(clients, gain, num_columns=7, sweeps=4, rng=stream, limit=12))
        one, other = found
        assert one.width == other.width and one.gain == pytest.approx(other.gain, rel=1e-9)
        assert [a.tolist() for a in one.assignments] == [a.tolist() for a in other.assignments]


def test_matching_is_the_same_for_one_stream_and_survives_what_is_not_finite() -> None:
    clients = [neurons(atoms(6, 4, seed)) for seed in range(4)]
    one, again = matched(clients, 4, limit=100), matched(clients, 4, limit=100)
    assert [a.tolist() for a in one.assignments] == [a.tolist() for a in again.assignments]
    broken = matched([clients[0], neurons(torch.full((6, 4), float("nan"), dtype=torch.float64))], 4)
    assert sorted(broken.assignments[1]) == list(range(6))


def test_hungarian_maximises() -> None:
    assert hungarian(torch.tensor([[1.0, 2.0, 0.0], [5.0, 5.5, 0.0]])).tolist() == [1, 0]


# --- graduated assignment ---


def graduated(**changes: Any) -> Graduated:
    fields = {"tau": 0.05, "tau_decay": 0.9, "tau_min": 0.005, "sinkhorn_steps": 50, "max_iterations": 2000}
    return Graduated(**(fields | {"pairwise": False} | changes))


def test_sinkhorn_is_doubly_stochastic_and_sharp_when_cold() -> None:
    scores = atoms(5, 5).abs()
    soft = sinkhorn(scores, 200)
    torch.testing.assert_close(soft.sum(0), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(soft.sum(1), torch.ones(5, dtype=torch.float64))
    assert sinkhorn(scores / 0.01, 200).argmax(1).tolist() == hungarian(scores).tolist()


@pytest.mark.parametrize("pairwise", [False, True])
@pytest.mark.parametrize("hidden", [[5], [6, 4]], ids=str)
def test_the_operations_of_graph_matching_are_those_that_it_does(
    hidden: list[int], pairwise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, groups, _ = structure(MLP(None, None, hidden), channels=1, size=4)
    models, counted = torch.stack([family.init(seed) for seed in range(4)]), [0]
    where = graduated_assignment

    def watch(name: str, cost: Callable[..., int]) -> None:
        real = getattr(where, name)

        def counting(*given: Any) -> Any:
            counted[0] += cost(*given)
            return real(*given)

        monkeypatch.setattr(where, name, counting)

    watch("add_product", lambda total, a, b, *alpha: 2 * a.numel() * b.shape[1])
    watch("_mix", lambda moved, models, piece, x: 2 * piece.view(models).numel() * x.shape[-1])
    watch("sinkhorn", lambda scores, steps: 2 * steps * scores.numel())
    watch("hungarian", lambda gains: len(gains) ** 3)
    watch("_order", lambda assignment: -(len(assignment) ** 3))  # which reads the result off
    found = graduated(pairwise=pairwise).assign(models, groups, np.random.default_rng(0))
    assert found.flops == counted[0] > 0


@pytest.mark.parametrize("pairwise", [False, True])
@pytest.mark.parametrize("model", [MLP(None, None, [9, 8]), SmallCNN(None, None)], ids=lambda m: type(m).__name__)
def test_graph_matching_recovers_permutations_of_all_layers(model: Any, pairwise: bool) -> None:
    family, groups, inputs = structure(model, channels=1, size=4)
    w, orders = away_from_initial(family), [shuffled(groups, seed) for seed in (1, 2)]
    models = torch.stack([w, *(permuted(w, groups, order) for order in orders)])
    models = models + 0.01 * torch.randn(models.shape, generator=torch.Generator().manual_seed(3), dtype=models.dtype)
    found = graduated(pairwise=pairwise).assign(models, groups, np.random.default_rng(0))
    assert 22 <= found.iterations < 200 and found.flops > 0
    for g, per_model in enumerate(found.orders):
        assert per_model[0].tolist() == list(range(groups[g].size)), "the first model stays"
        for k, order in enumerate(orders):
            assert per_model[1 + k].tolist() == np.argsort(order[g]).tolist()
    again = permuted(models[1], groups, [per_model[1] for per_model in found.orders])
    torch.testing.assert_close(family.predict(again, inputs), family.predict(models[1], inputs), rtol=1e-11, atol=1e-11)


def test_graph_matching_of_one_model_does_nothing_and_a_cap_still_gives_permutations() -> None:
    family, groups, _ = structure(MLP(None, None, [9, 8]), channels=1, size=4)
    alone = graduated().assign(family.init(0).unsqueeze(0), groups, np.random.default_rng(0))
    assert alone.iterations == 0 and all(order[0].tolist() == sorted(order[0]) for order in alone.orders)
    models = torch.stack([family.init(seed) for seed in range(3)])
    capped = graduated(max_iterations=2).assign(models, groups, np.random.default_rng(0))
    assert capped.iterations == 2
    assert all(sorted(order) == list(range(len(order))) for of_group in capped.orders for order in of_group)


def test_a_temperature_ends_after_a_number_of_iterations_and_the_smallest_is_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where assignments never come to rest: soft at one temperature, then sharp."""
    monkeypatch.setattr(graduated_assignment, "MIN_CHANGE", 0.0)
    family, groups, _ = structure(MLP(None, None, [9, 8]), channels=1, size=4)
    models = torch.stack([family.init(seed) for seed in range(2)])
    found = graduated(tau=0.05, tau_min=0.05).assign(models, groups, np.random.default_rng(0))
    assert found.iterations == 2 * (graduated_assignment.MAX_ITERATIONS_PER_TEMPERATURE + 1)
