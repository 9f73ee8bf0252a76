"""Another head's logits from features that are computed once, and from whole networks where they are not its output."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedlab_runner.algorithms.shared.classifier_head import (
    HeadLogits,
    head_logits,
    head_size,
    identity_head,
    named_head,
    require_body,
)
from fedlab_runner.core.model_family import FunctionalModel
from fedlab_runner.utils.errors import UserError
from tests.helpers import pretended
from tests.helpers.toy import FEATURES, federation, mlp, model_family, normed, server_data


@pytest.mark.parametrize(
    ("build", "kept", "alone", "body"),
    [
        (mlp, True, 40, 0),  # the whole network on all of them, once
        (normed, True, 40, 0),
        (mlp, False, 0, 2 * 9),  # the body on those that were asked for
        (lambda: nn.Sequential(mlp(), nn.Softplus()), True, 16, 2 * 9),  # a minibatch shows that features do not do
    ],
)
def test_they_are_those_of_the_network_with_the_head_in_place(build: object, kept: bool, alone: int, body: int) -> None:
    """The operations are those of the network 5 - 6 - 3 on `alone` examples, of its body on others, and of the head's
    logits and gradient on 2 x 9.
    """
    fed = federation(build=build, server=server_data(40, num_classes=7))
    family, w, data = fed.family, fed.family.init(0), fed.server_data
    layer = family.classifier
    assert layer is not None and data is not None
    logits = HeadLogits(family, w, data, 16, kept)
    for seed in range(2):
        rng = torch.Generator().manual_seed(seed)
        head = torch.randn(head_size(layer, 7), generator=rng, dtype=torch.float64, requires_grad=True)
        index = torch.randperm(40, generator=rng)[:9]
        inputs = family.normalize(data.inputs[index], family.dtype)
        params, buffers = w[: family.num_params], w[family.num_params :]
        expected = family.evaluate(params, buffers, inputs, named_head(family, head))
        found = logits(head, index)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
        gradients = (torch.autograd.grad(z.square().sum(), head)[0] for z in (found, expected))
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-11)
    assert logits.operations == 2 * (alone * (5 * 6 + 6 * 3) + body * 5 * 6 + 2 * 9 * 2 * 6 * 7)


def test_layers_behind_the_classifier_are_tried_on_the_gpu() -> None:
    with pretended.gpu() as device:
        fed = federation(server=server_data(40, num_classes=7), device=device)
        assert fed.family.classifier is not None and fed.server_data is not None
        fed.family.classifier = fed.family.classifier._replace(direct=False)
        require_body("algorithm=feddle", fed.family, fed.server_data)


@pytest.mark.parametrize("build", [mlp, normed])
def test_features_are_the_inputs_of_the_classifier(build: Callable[[], nn.Module]) -> None:
    family, x = model_family(build), torch.randn(9, FEATURES, dtype=torch.float64)
    w = family.init(0)
    module = build().double().eval()
    module.load_state_dict(family.state_dict(w), strict=False)
    model = FunctionalModel(family, *torch.split(w, [family.num_params, family.num_buffers]))
    family.mode(False)
    features = model(x, identity_head(family))
    torch.testing.assert_close(features, module[:-1](x))
    torch.testing.assert_close(head_logits(family, model.params, features), module(x))


def test_features_and_their_logits_need_a_classifier() -> None:
    family = model_family(lambda: nn.Sequential(nn.Conv1d(1, 1, 3), nn.Flatten()))
    with pytest.raises(UserError, match=r"^features need a model that ends in a linear classifier"):
        identity_head(family)
    with pytest.raises(UserError, match=r"^logits of features need a model with a linear classifier"):
        head_logits(family, family.init(0), torch.ones(1, 3))
