"""FedDyn's clients train as FedAvg's do.

Paper: Algorithm 1, the loss has - <grad_k, theta> + alpha / 2 ||theta - theta_received||^2. FedLab computes both terms
of `model_parameters` (contrib/algorithm/feddyn.py:74 and 75), a copy that autograd does not follow. Here alpha is so
large that theta should stay near the received model.
"""

import torch
from fedlab.contrib.algorithm.feddyn import FedDynSerialClientTrainer

torch.manual_seed(0)
data = [(torch.ones(4, 1), torch.zeros(4).long())]
model = torch.nn.Linear(1, 2)
for alpha in (0.0, 9.0):
    clients = FedDynSerialClientTrainer(model, num_clients=1)
    clients.setup_optim(epochs=50, batch_size=4, lr=0.1, alpha=alpha)
    moved = clients.train(0, torch.zeros(4), data)[0].norm()
    print(f"alpha {alpha}: the client moves by", round(float(moved), 3))
