"""FedSAM ascends along the sum of this gradient and the last one.

Paper: Algorithm 1, w~ = w + rho g / ||g|| with g of this minibatch. `SAMOptimizer.step` begins with a backward pass
that adds to the gradients of the last step (algorithms/fedsam.py:86). From the second local step on the direction is
wrong.
"""

import torch
from fluke.algorithms.fedsam import SAMOptimizer

w = torch.nn.Parameter(torch.zeros(2))
optimizer = SAMOptimizer([w], rho=1.0, lr=1.0)
for slope in (torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])):
    seen = []

    def closure(slope=slope, seen=seen):
        seen.append(w.detach().clone())
        loss = w @ slope
        loss.backward()
        return loss

    optimizer.step(closure)
    print("gradient", slope.tolist(), "- ascent", [round(v, 3) for v in (seen[1] - seen[0]).tolist()])
