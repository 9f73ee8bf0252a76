"""Networks in which a tensor has several names."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedlab_runner.core.network_trial import try_network
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from tests.helpers.toy import CLASSES, FEATURES, algorithm, federation, model_family, run

WIDTH = 4


def twice() -> nn.Module:
    """One layer at two places, with statistics of its own."""
    layer = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh())
    return nn.Sequential(nn.Linear(FEATURES, WIDTH), layer, layer, nn.Linear(WIDTH, CLASSES))


class Alias(nn.Module):
    """A second name for the last layer of a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)])
        self.head = self.layers[-1]

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.layers[0](inputs)))
        return logits


def tied() -> nn.Module:
    """Two layers with one weight."""
    first, again = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    again.weight = first.weight
    return nn.Sequential(nn.Linear(FEATURES, WIDTH), first, nn.Tanh(), again, nn.Linear(WIDTH, CLASSES))


class Decoding(nn.Module):
    """One parameter of two names in one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Parameter(torch.randn(WIDTH, FEATURES))
        self.decode, self.head = self.encode, nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(inputs @ self.encode.T) @ self.decode)
        return logits


BUILDS = [twice, Alias, tied, Decoding]


@pytest.mark.parametrize("build", BUILDS)
def test_a_model_is_the_same_in_each_way_of_computing(build: Callable[[], nn.Module]) -> None:
    family = model_family(build)
    own, inputs = list(family._own), torch.randn(9, FEATURES, dtype=torch.float64)
    try_network(family, inputs)
    assert family.alone is None
    w = family.init(1)
    p = family.num_params
    expected = family.predict(w, inputs)
    torch.testing.assert_close(family.evaluate(w[:p], w[p:], inputs), expected)
    values = [*family.module.parameters(), *(b for b in family.module.buffers() if b.is_floating_point())]
    assert all(mine is its for mine, its in zip(values, own, strict=True)), "the module has its own values again"
    module = build().double().eval()
    module.load_state_dict(family.state_dict(w))
    torch.testing.assert_close(module(inputs), expected)


@pytest.mark.parametrize("build", BUILDS)
def test_all_values_train(build: Callable[[], nn.Module]) -> None:
    states = []
    for executor in (Loop(compile=False), Vectorized(chunk_size=None, compile=False)):
        fed = federation([8] * 4, build=build, executor=executor)
        try_network(fed.family, fed.client_data.inputs)
        states.append(run(algorithm("fedavg"), fed, 2).params)
    one, other = states
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
    moved = fed.family.views((one - fed.family.init(fed.seed))[: fed.family.num_params])
    assert all(bool(each.any()) for name, each in moved.items() if name.endswith("weight"))
