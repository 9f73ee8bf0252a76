"""Another head's logits from features that are computed once, and from whole networks where they are not its output."""

import pytest
import torch
from torch import nn

from fedlab_runner.algorithms.shared.classifier_head import HeadLogits, head_size, named_head
from tests.helpers.toy import federation, mlp, normed, server_data


@pytest.mark.parametrize(
    ("build", "kept", "examples"),
    [
        (mlp, True, 40),  # all of them, once
        (normed, True, 40),
        (mlp, False, 2 * 9),  # those that were asked for
        (lambda: nn.Sequential(mlp(), nn.Softplus()), True, 16 + 2 * 9),  # a minibatch shows that features do not do
    ],
)
def test_they_are_those_of_the_network_with_the_head_in_place(build: object, kept: bool, examples: int) -> None:
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
    assert logits.examples == examples
