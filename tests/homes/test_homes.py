"""Which tensors each home keeps."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from fedlab_runner.config.build import build
from fedlab_runner.core.client_homes import ClientHomes
from fedlab_runner.core.client_state import ClientStateStore
from fedlab_runner.homes.base import Home
from fedlab_runner.utils.errors import UserError
from tests.helpers.composed import composed
from tests.helpers.toy import CLASSES, CPU, FEATURES, HOMES, home, mlp, model_family, normed


def layered() -> nn.Module:
    norms = nn.LayerNorm(6), nn.GroupNorm(2, 6), nn.RMSNorm(6)
    as_image = nn.Unflatten(1, (1, 6)), nn.InstanceNorm1d(1, affine=True), nn.Flatten()
    return nn.Sequential(nn.Linear(FEATURES, 6), *norms, *as_image, nn.Linear(6, CLASSES))


def frozen() -> nn.Module:
    network = mlp()
    network.get_submodule("0").requires_grad_(False)
    return network


def alike() -> nn.Module:
    """A name that begins with the classifier's."""
    layers = {"fc2": nn.Linear(FEATURES, 6), "act": nn.Tanh(), "fc": nn.Linear(6, CLASSES)}
    return nn.Sequential(OrderedDict(layers))


def tied() -> nn.Module:
    """Two layers with one weight, of which the second has two names."""
    network = mlp()
    first, last = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
    last.weight = first.weight
    return nn.ModuleDict({"first": first, "last": last, "same": last, "rest": network})


def kept(choice: Home | None, build: Any) -> set[str]:
    """The names of the tensors that lie in the mask as a whole; the others lie outside of it as a whole."""
    family = model_family(build)
    mask = ClientHomes(choice, [family], ClientStateStore(None, CPU), 0).mask(family)
    parts = {name: mask[start : start + shape.numel()] for name, (start, shape) in family.layout.items()}
    assert all(bool(part.all()) == bool(part.any()) for part in parts.values())
    return {name for name, part in parts.items() if bool(part.all())}


NORM = {"1.weight", "1.bias", "1.running_mean", "1.running_var"}


@pytest.mark.parametrize(
    ("choice", "build", "expected"),
    [
        (home("none"), normed, set()),
        (home("head"), mlp, {"2.weight", "2.bias"}),
        (home("head"), normed, {"3.weight", "3.bias"}),
        (home("body"), mlp, {"0.weight", "0.bias"}),
        (home("body"), normed, {"0.weight", "0.bias"} | NORM),
        (home("body"), alike, {"fc2.weight", "fc2.bias"}),
        (home("head"), alike, {"fc.weight", "fc.bias"}),
        (home("norm"), normed, NORM),
        (home("norm"), layered, {"1.weight", "1.bias", "2.weight", "2.bias", "3.weight", "5.weight", "5.bias"}),
        (home("prefixes"), normed, set()),
        (home("prefixes", prefixes=["0"]), normed, {"0.weight", "0.bias"}),
        (home("prefixes", prefixes=["0.bias", "3"]), normed, {"0.bias", "3.weight", "3.bias"}),
        (home("prefixes", prefixes=["last"]), tied, {"first.weight", "last.bias"}),
        (home("prefixes", prefixes=["same.bias"]), tied, {"last.bias"}),
        (home("prefixes", prefixes=[""]), frozen, {"2.weight", "2.bias"}),
        (home("prefixes", prefixes=[""]), mlp, {"0.weight", "0.bias", "2.weight", "2.bias"}),
    ],
)
def test_it_keeps(choice: Home | None, build: Any, expected: set[str]) -> None:
    assert kept(choice, build) == expected


@pytest.mark.parametrize(
    ("choice", "build", "fault"),
    [
        (home("norm"), mlp, "home=norm needs a model with norm layers"),
        (home("head"), lambda: nn.Sequential(nn.Linear(FEATURES, 4)), "home=head needs a model that ends in a linear"),
        (home("body"), lambda: nn.Sequential(nn.Linear(FEATURES, 4)), "home=body needs a model that ends in a linear"),
        (home("prefixes", prefixes=["0"]), frozen, r"home\.prefixes has 0, which the model does not train: it has 2"),
        (
            home("prefixes", prefixes=["0", "fc"]),
            mlp,
            r"home\.prefixes has fc, which the model does not train: it has 0, 2",
        ),
        (home("prefixes", prefixes=["1"]), mlp, r"home\.prefixes has 1, "),  # tanh has no values
    ],
)
def test_a_model_without_it_is_refused_in_one_line(choice: Home | None, build: Any, fault: str) -> None:
    with pytest.raises(UserError, match=rf"^{fault}[^\n]*$"):
        kept(choice, build)


@pytest.mark.parametrize("name", sorted(set(HOMES) - {"none"}))
def test_rows_lie_in_one_of_three_places(name: str) -> None:
    with pytest.raises(Exception, match="store_on must be one of device, host, disk, got moon"):
        home(name, store_on="moon")


def test_tensors_are_counted_by_what_is_shared_of_them() -> None:
    family = model_family(normed)
    homes = ClientHomes(home("norm"), [family], ClientStateStore(None, CPU), 0)
    d, p, b = family.size, family.num_params, family.num_buffers
    assert [homes.sent(torch.zeros(4, n)) for n in (d, p, b, 1, 0)] == [4 * (d - 24), 4 * (p - 12), 0, 4, 0]
    assert homes.sent(torch.zeros(())) == 1 and homes.num_shared(family) == d - 24


@dataclass(frozen=True)
class First(Home):
    def keeps(self, module: nn.Module, classifier: str | None, names: Sequence[str]) -> Sequence[str]:
        return names[:1]


def test_an_own_home_keeps_what_it_names_in_the_place_that_the_config_names() -> None:
    cfg = composed()
    cfg.home = {"_target_": f"{__name__}.First"}
    with pytest.raises(UserError, match=r"^home\.store_on is missing: expected a text$"):
        build(cfg)
    cfg.home = {"_target_": f"{__name__}.First", "store_on": "host"}
    built = build(cfg).home
    assert isinstance(built, First) and kept(built, mlp) == {"0.weight"}
