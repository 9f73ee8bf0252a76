"""The scores of Krum (Blanchard et al., NeurIPS 2017). https://arxiv.org/abs/1703.02757"""

import torch
from torch import Tensor


def krum_scores(distances: Tensor, f: int) -> Tensor:
    """Each update's sum of squared distances to the A - f - 2 updates that are nearest to it [A]; at least to one.

    `distances` [A, A]: squared. A single update has the score 0.
    """
    a = len(distances)
    others = distances + torch.diag(distances.new_full((a,), torch.inf))
    return others.sort(1).values[:, : min(max(a - f - 2, 1), a - 1)].sum(1)
