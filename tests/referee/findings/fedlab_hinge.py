"""FedAsync's hinge weight is another function.

Paper: section 5.2, s(t - tau) = 1 / (a (t - tau - b) + 1) beyond b. FedLab has 1 / (a (t - tau - b + 1))
(contrib/algorithm/basic_server.py:191): the weight jumps at b where a is not 1.
"""

import torch
from fedlab.contrib.algorithm.basic_server import AsyncServerHandler

server = AsyncServerHandler(torch.nn.Linear(1, 1), global_round=10)
server.setup_optim(alpha=1.0, strategy="hinge", a=10, b=4)
for staleness in (4, 5, 6):
    server.round = staleness
    paper = 1.0 if staleness <= 4 else 1 / (10 * (staleness - 4) + 1)
    print(f"staleness {staleness}: {float(server.adapt_alpha(0)):.4f}; right: {paper:.4f}")
