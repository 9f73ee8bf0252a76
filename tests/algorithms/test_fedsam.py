"""FedSAM: identities with other methods, and closed forms of its steps."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fedlab_runner.core.executor import Executor
from fedlab_runner.core.model_family import Batch, FunctionalModel
from tests.helpers.identities import BUILDS, EXECUTORS, close, trained
from tests.helpers.toy import algorithm, federation, local, normed, run


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("build", BUILDS)
def test_fedsam_without_ascent_is_fedavg_bit_for_bit(executor: Executor, build: Any) -> None:
    fed = {"executor": executor, "build": build, "training": local(momentum=0.5, clip_norm=1.0)}
    assert torch.equal(trained("fedsam", 3, fed, rho=0.0), trained("fedavg", 3, fed))
    assert not torch.allclose(trained("fedsam", 3, fed, rho=0.1), trained("fedavg", 3, fed))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_fedsam_is_its_step_written_out(executor: Executor) -> None:
    """One client, two full-batch steps: the statistics are those of the first pass, made of the parameters w."""
    fed = federation([8], build=normed, executor=executor, training=local(epochs=2))
    p, w = fed.family.num_params, fed.family.init(0)
    inputs, targets = fed.client_data.inputs, fed.client_data.targets
    mask = torch.ones(8, dtype=torch.float64)

    def gradient(params: Tensor, buffers: Tensor) -> tuple[Tensor, Tensor]:
        fed.family.mode(True)
        leaf = params.detach().requires_grad_()
        model = FunctionalModel(fed.family, leaf, buffers)
        (g,) = torch.autograd.grad(fed.family.loss(model, Batch(inputs, targets, mask)), leaf)
        return g, model.buffers

    x, buffers = w[:p], w[p:]
    for _ in range(2):
        g, updated = gradient(x, buffers)
        ascended, _ = gradient(x + 0.3 * g / g.norm(), buffers)
        x, buffers = x - 0.1 * ascended, updated
    fed.begin(0, 1.0)
    close(run(algorithm("fedsam", rho=0.3), fed, 1).params, torch.cat([x, buffers]), atol=1e-9)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_fedsam_stands_still_where_the_gradient_is_zero(executor: Executor) -> None:
    """A single class and weights that are certain of it."""
    fed = federation([8], executor=executor)
    fed.client_data.targets.zero_()
    x = fed.family.init(0)
    views = fed.family.views(x)
    views["2.bias"].copy_(torch.tensor([1e4, -1e4, -1e4]))
    built: Any = algorithm("fedsam")
    assert torch.equal(run(built, fed, 1, state=built.init(fed)._replace(params=x)).params, x)
