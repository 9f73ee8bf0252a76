"""FedNova's default option steps N / K times too far, for K of N clients.

The weights are 1 / K and sum to 1 over the clients that take part. The option `weighted_scale` multiplies their mean
by N / K again (contrib/algorithm/fednova.py:37). The option `weighted_com` agrees with this package.
"""

import torch
from fedlab.contrib.algorithm.fednova import FedNovaServerHandler

server = FedNovaServerHandler(torch.nn.Linear(1, 1), global_round=1, sample_ratio=0.5)
server.num_clients = 8
server.setup_optim()
before = server.model_parameters.clone()
server.global_update([[before + 1.0, torch.tensor([1.0])] for _ in range(4)])  # each of four clients moved by 1
print("the server moves by", [round(v, 3) for v in (server.model_parameters - before).tolist()], "; right: 1.0")
