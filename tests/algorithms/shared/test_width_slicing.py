"""Models as parts of the widest one: what a cut is, and what can be cut."""

from typing import Any

import pytest
import torch

from fedlab_runner.algorithms.shared.width_slicing import check_sliceable, places
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.normalize import Normalize
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.models.dfml_cnn import DFMLCNN
from fedlab_runner.models.preact_resnet import PreActResNet
from fedlab_runner.models.vit_small import SmallViT
from fedlab_runner.utils.errors import UserError
from tests.helpers.mixed import KINDS, PARTIAL, WIDTHS, mixed, sliceable
from tests.helpers.toy import algorithm, federation

CUTS = {
    "cnn": [DFMLCNN(None, None, w) for w in ([8, 6], [4, 3], [3, 1])],
    "resnet": [PreActResNet(None, None, w) for w in ([8, 12], [4, 6], [4, 2])],
    "vit": [SmallViT(None, None, d, 2, 4, 2, 3, 0.1, "cardinal") for d in (8, 4, 3)],
}


def families(models: Any) -> list[ModelFamily]:
    return [
        ModelFamily(
            lambda model=model: model.build(2, 8, 3),
            3,
            normalize=Normalize(None, None),
            device=torch.device("cpu"),
            dtype=torch.float64,
        )
        for model in models
    ]


@pytest.mark.parametrize("kind", CUTS)
def test_a_cut_of_channels_is_a_cut_of_every_tensor(kind: str) -> None:
    """HeteroFL's sets: each tensor of the narrow model is the first corner of the wide one's, and comes back whole."""
    wide, *narrow = families(CUTS[kind])
    w = wide.init(0)
    whole = wide.views(w[: wide.num_params]) | wide.buffer_views(w[wide.num_params :])
    for family in narrow:
        index = places(family, wide, lambda label, k, of: torch.arange(k))
        assert len(index) == family.size and len(index.unique()) == family.size
        part = w[index]
        for name, value in (
            family.views(part[: family.num_params]) | family.buffer_views(part[family.num_params :])
        ).items():
            if name == "head.weight" and kind == "cnn":
                continue  # a flattened map: its corner is below
            assert torch.equal(value, whole[name][tuple(slice(n) for n in value.shape)]), name
        embedded = torch.full_like(w, torch.nan)
        embedded[index] = part
        assert torch.equal(embedded[index], part), "slice after embed is the identity"
    assert torch.equal(places(wide, wide, lambda label, k, of: torch.arange(k)), torch.arange(wide.size))


def test_channels_of_a_flattened_map_stay_together() -> None:
    wide, narrow, _ = families(CUTS["cnn"])
    index = places(narrow, wide, lambda label, k, of: torch.tensor([4, 0, 2]) if label == "conv2" else torch.arange(k))
    w = wide.init(0)
    head = wide.views(w)["head.weight"].view(3, 6, 4)  # classes, channels, 2x2 pixels
    assert torch.equal(narrow.views(w[index])["head.weight"].view(3, 3, 4), head[:, [4, 0, 2]])
    assert torch.equal(narrow.views(w[index])["conv2.weight"], wide.views(w)["conv2.weight"][[4, 0, 2]][:, :4])


@pytest.mark.parametrize("kind", CUTS)
def test_permuted_channels_compute_the_same(kind: str) -> None:
    """A model of full width with all channels in another order is the same function: no axis is forgotten."""
    wide = families(CUTS[kind])[0]
    rng = generator(0, Purpose.ALGORITHM)
    index = places(wide, wide, lambda label, k, of: torch.from_numpy(rng.permutation(of)))
    w, x = wide.init(0), torch.randn(4, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    w = w + 0.1 * torch.rand(
        len(w), dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )  # norms that differ
    assert not torch.equal(w[index], w)
    torch.testing.assert_close(wide.predict(w[index], x), wide.predict(w, x), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("builds", "fault"),
    [
        (KINDS, "use model=dfml_cnn, preact_resnet or vit_small"),
        ((sliceable(3), sliceable(3, norm=True)), "only one of two models has a layer norm.bias"),
    ],
)
def test_models_that_cannot_be_cut_are_refused(builds: Any, fault: str) -> None:
    for name in PARTIAL:
        with pytest.raises(UserError, match=rf"^algorithm={name} needs models that differ in width alone: {fault}"):
            algorithm(name).check(mixed(builds=builds, cohort=3))


def test_it_is_said_where_there_is_nothing_to_cut(caplog: pytest.LogCaptureFixture) -> None:
    for name in PARTIAL:
        algorithm(name).check(federation([5] * 4, cohort=2))
        assert f"algorithm={name} averages whole models, as all have one width" in caplog.text
    caplog.clear()
    algorithm("heterofl").check(mixed(builds=WIDTHS, cohort=3))
    assert not caplog.text


def test_the_layer_that_cannot_be_cut_is_named() -> None:
    fed = mixed(cohort=3)
    for models, layer in (
        ([DFMLCNN(None, None, [8, 6]), DFMLCNN(None, None, [4, 7])], r"conv2\.weight cannot be cut"),
        ([DFMLCNN(None, None, [8, 6]), DFMLCNN(None, None, [8])], r"only one of two models has a layer conv2\.bias"),
        (
            [SmallViT(None, None, 8, 1, 4, heads, 4, 0.1, "cardinal") for heads in (1, 2)],
            r"layer1\.qkv\.weight cannot be cut from",
        ),
    ):
        fed.families = tuple(families(models))
        with pytest.raises(UserError, match=layer):
            check_sliceable(algorithm("heterofl"), fed)
