"""The proximal term that the docs of FedProx ask clients for is a norm that is not squared.

Paper: equation 2, mu/2 ||w - w^t||^2. The docstring sums `(local_weights - global_weights).norm(2)` over the layers
(server/strategy/fedprox.py:57, serverapp/strategy/fedprox.py:67). Its pull is as strong near w^t as far from it, so
that mu means another thing. The server's step is right.
"""

import torch
from flwr.serverapp.strategy import FedProx

print(next(line.strip() for line in str(FedProx.__doc__).splitlines() if ".norm(2)" in line))
for distance in (0.01, 1.0):
    w = torch.full((1,), distance, requires_grad=True)
    (1 / 2 * w.norm(2)).backward()
    print(f"||w - w^t|| {distance}: pull {w.grad.item()}; right: {distance}")
