"""FedDyn's server subtracts its model once, where it must do so for each client.

Paper: Algorithm 1, h <- h - alpha / m sum_k (theta_k - theta). FedLab has sum_k theta_k - theta
(contrib/algorithm/feddyn.py:23). Here the clients have not moved, and the server should stay where it is.
"""

import torch
from fedlab.contrib.algorithm.feddyn import FedDynServerHandler

server = FedDynServerHandler(torch.nn.Linear(1, 1), global_round=1, sample_ratio=1.0)
server.num_clients = 4
server.setup_optim(alpha=0.1)
theta = server.model_parameters.clone()
server.global_update([[theta.clone()] for _ in range(4)])
print(
    "the server's model is",
    [round(v, 3) for v in (server.model_parameters / theta).tolist()],
    "times as large; right: 1.0",
)
