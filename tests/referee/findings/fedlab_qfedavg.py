"""q-FedAvg fails, and has another loss.

Paper: Algorithm 2, line 6, F_k(w^t) is the mean loss of the received model on the client's examples. `train` adds up
the losses of the minibatches of the last local epoch, while the model moves (contrib/algorithm/qfedavg.py:66): with
half as large minibatches a client's loss is twice as large. It ends at `self.lr` (line 69), which nothing sets.
"""

import torch
from fedlab.contrib.algorithm.qfedavg import qFedAvgClientTrainer

x, y = torch.ones(8, 1), torch.zeros(8).long()
for size in (8, 4):
    trainer = qFedAvgClientTrainer(torch.nn.Linear(1, 2))
    torch.nn.init.zeros_(trainer.model.weight)
    torch.nn.init.zeros_(trainer.model.bias)
    trainer.setup_optim(1, size, 1e-6, 1.0)
    batches = list(zip(x.split(size), y.split(size), strict=True))
    try:
        trainer.train(trainer.model_parameters, batches)
    except AttributeError as error:
        print("train:", error)
    trainer.lr = 1e-6
    trainer.train(trainer.model_parameters, batches)
    print(f"minibatches of {size}: h L^-1 with q 1 is", round(float(trainer.hk) * 1e-6, 3), "; right: 0.693")
