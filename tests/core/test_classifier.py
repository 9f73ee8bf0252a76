"""The trial finds the linear layer that gives the logits."""

import pickle
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlab_runner.core.classifier import candidates, giving_logits
from fedlab_runner.core.client_homes import ClientHomes
from fedlab_runner.core.joined_models import Carrying, Pair
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.network_trial import try_network
from fedlab_runner.core.normalize import Normalize
from fedlab_runner.utils.errors import UserError
from tests.helpers.toy import CLASSES, FEATURES, algorithm, federation, home, mlp, model_family

INPUTS = torch.rand(4, FEATURES, dtype=torch.float64)
WIDTH = 4


class Heads(nn.Module):
    """A body and linear layers of C outputs, of which forward makes the logits."""

    def __init__(self, combine: Callable[["Heads", Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.combine = nn.Linear(FEATURES, WIDTH), combine
        self.head, self.other = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.combine(self, torch.tanh(self.body(inputs)))


class Kept(Heads):
    """Has a layer that it does not use."""

    def __init__(self) -> None:
        super().__init__(_first)


def _first(network: Heads, features: Tensor) -> Tensor:
    logits: Tensor = network.head(features)
    return logits


def heads(combine: Callable[[Heads, Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Heads(combine)


class Functional(nn.Module):
    """Takes the weight of its last layer, which it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.body(inputs)), self.head.weight)


def convolution() -> nn.Module:
    """Without a linear layer."""
    return nn.Sequential(nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, CLASSES, FEATURES), nn.Flatten())


def behind(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES), *layers)


# The name of the layer that gives the logits (None: none does), and whether nothing acts on its output.
CASES: dict[str, tuple[Callable[[], nn.Module], str | None, bool]] = {
    "the last": (mlp, "2", True),
    "as wide": (lambda: nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Tanh(), nn.Linear(CLASSES, CLASSES)), "2", True),
    "unused": (Kept, "head", True),
    "computed for nothing": (heads(lambda m, x: (m.head(x), m.other(x))[0]), "head", True),
    "two heads": (heads(lambda m, x: (m.head(x) + m.other(x)) / 2), None, False),
    "in place": (heads(lambda m, x: m.head(x).mul_(2)), "head", False),
    "at two places": (heads(lambda m, x: m.head(x) + m.head(x.flip(1))), "head", False),
    "a softmax behind": (behind(nn.LogSoftmax(1)), "2", False),
    "a layer behind": (behind(nn.Softplus()), "2", False),
    "a trained layer behind": (behind(nn.LayerNorm(CLASSES)), None, False),
    "trained statistics behind": (behind(nn.BatchNorm1d(CLASSES, affine=False)), None, False),
    "none": (heads(lambda m, x: x[:, :CLASSES]), None, False),
    "not called": (Functional, None, False),
}
# What homes ask for where there is no classifier, and where there are two heads.
ONE = "that ends in a linear classifier, which it trains and forward() calls as an nn.Linear module"
OF_TWO = "with one linear classifier, and none of head, other alone gives its logits"


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_layer_on_whose_output_alone_the_logits_depend(name: str) -> None:
    build, expected, direct = CASES[name]
    family = model_family(build)
    try_network(family, INPUTS)
    found = family.classifier
    assert (found and found.name) == expected and (found is None or found.direct == direct)
    assert not any(m._forward_hooks for m in family.module.modules())


def test_it_is_found_in_what_the_network_has_compiled() -> None:
    network = nn.Sequential(nn.Tanh(), torch.compile(nn.Linear(FEATURES, CLASSES), backend="eager")).double()
    with torch.no_grad():
        network(INPUTS[:2])  # compiles it, before there are hooks
        layers = candidates(network, CLASSES, dict(network.named_parameters()))
        found = giving_logits(network, layers, lambda: network(INPUTS[:2]), lambda: network(INPUTS[2:]))
    assert found is not None and found.name == "1._orig_mod" and found.direct


@pytest.mark.parametrize(
    ("build", "wanted"),
    [(CASES["two heads"][0], OF_TWO), (Functional, ONE), (convolution, ONE)],
)
@pytest.mark.parametrize("name", ["head", "body"])
def test_homes_refuse_a_network_without_one(name: str, build: Callable[[], nn.Module], wanted: str) -> None:
    fed = federation(build=build)
    try_network(fed.family, INPUTS)
    with pytest.raises(UserError, match=rf"^home={name} needs a model {re.escape(wanted)}: take home=prefixes$"):
        ClientHomes(home(name), [fed.family], fed.client_state, 0)


@pytest.mark.parametrize("name", ["two heads", "a layer behind"])
def test_fedgen_refuses_a_network_whose_logits_are_not_its_output(name: str) -> None:
    fed = federation(build=CASES[name][0])
    try_network(fed.family, INPUTS)
    with pytest.raises(UserError, match=r"^algorithm=fedgen needs a model that ends in a linear classifier[^\n]*$"):
        algorithm("fedgen").check(fed)


def test_what_is_derived_from_the_family_has_it_too() -> None:
    family = model_family(Kept)
    try_network(family, INPUTS)
    joined = [Pair(family, model_family()).family, Carrying(family, 2).family]
    assert [each.classifier and each.classifier.name for each in joined] == ["first.head", "network.head"]
    assert all(each.classifier and f"{each.classifier.name}.weight" in each.layout for each in joined)


def test_it_goes_to_worker_processes() -> None:
    family = model_family(Kept)
    try_network(family, INPUTS)
    assert pickle.loads(pickle.dumps(family)).classifier == family.classifier != model_family(Kept).classifier


def test_a_distilled_network_of_timm_has_none() -> None:
    timm = pytest.importorskip("timm", reason="needs the extra timm")
    how = {"img_size": 32, "depth": 1, "num_classes": CLASSES}
    family = ModelFamily(
        lambda: timm.create_model("deit_tiny_distilled_patch16_224", **how),
        CLASSES,
        normalize=Normalize(None, None),
        device=torch.device("cpu"),
    )
    try_network(family, torch.rand(3, 3, 32, 32))
    assert family.classifier is None
