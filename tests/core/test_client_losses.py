"""The loss of each client's model on its own examples."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.client_losses import client_losses
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.normalize import Normalize

CPU = torch.device("cpu")


def test_only_own_examples_count() -> None:
    """Clients of many sizes in one call; what fills a short row is an example on which no model has a finite loss."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(161, 5, dtype=torch.float64), torch.randint(3, (161,))
    inputs[0] = float("inf")
    split = [np.arange(1, 1), np.arange(1, 2), np.arange(2, 10), np.arange(10, 161)]
    family = ModelFamily(lambda: nn.Linear(5, 3), 3, normalize=Normalize(None, None), device=CPU, dtype=torch.float64)
    models = torch.stack([family.init(seed) for seed in range(4)])
    client_data = ClientData(inputs, targets, split, CPU)
    found = client_losses(family, client_data, np.arange(4), models)
    expected = [
        F.cross_entropy(family.predict(w, inputs[mine]), targets[mine]) if len(mine) else torch.zeros(())
        for w, mine in zip(models, split, strict=True)
    ]
    torch.testing.assert_close(found, torch.stack(expected).double(), rtol=0, atol=1e-12)
    of_one, of_copies = (client_losses(family, client_data, np.arange(4), w) for w in (models[0], models[[0] * 4]))
    torch.testing.assert_close(of_one, of_copies, rtol=0, atol=1e-12)
