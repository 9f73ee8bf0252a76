"""Each client's gradient of its mean loss."""

import numpy as np
import torch
from torch.nn import functional as F

from tests.helpers.toy import RAGGED, asked, federation, home, local


def test_a_gradient_is_that_of_the_mean_loss_alone() -> None:
    """Without decay, momentum, bounds and the round's rate; of all examples or of the first minibatch."""
    setting = local(momentum=0.9, weight_decay=0.1, clip_norm=1e-3, update_norm=1e-3)
    fed, ids = federation(training=setting), np.arange(len(RAGGED))
    fed.begin(1, 0.5)
    data, family = fed.client_data, fed.family
    plan = data.plan(ids, setting, seed=0, round=1, drop_single=False)
    own = torch.stack([family.init(seed) for seed in range(len(ids))])
    for x, steps in ((own[0], None), (own, None), (own, 1)):
        found = fed.cohort(ids).gradients(x, steps)
        for k, w in enumerate(x.expand_as(own)):
            leaf = w.clone().requires_grad_()
            rows = data.members(k) if steps is None else plan.indices[k, 0, : plan.sizes[k, 0]]
            logits = family.forward(family.views(leaf), data.inputs[rows])
            (g,) = torch.autograd.grad(F.cross_entropy(logits, data.targets[rows]), leaf)
            torch.testing.assert_close(found[k], g, rtol=0, atol=1e-12)


def test_values_at_home_have_no_gradient() -> None:
    fed, ids = federation(home=home("head")), np.arange(len(RAGGED))
    x, kept = fed.family.init(0), fed.home.mask(fed.family)[: fed.family.num_params]
    found, whole = asked(fed, ids.tolist()).gradients(x), fed.cohort(ids).gradients(x)
    assert torch.equal(found, torch.where(kept, 0.0, whole)) and bool((whole[:, kept] != 0).any())
