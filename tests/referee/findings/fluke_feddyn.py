"""FedDyn's server goes against the clients' changes, and so do their linear terms.

Paper: Algorithm 1. The server has theta = mean(theta_k) - h / alpha, and -h / alpha is the sum of the changes
theta_k - theta of all rounds, divided by the number of devices: with one device, theta moves by twice its change. fluke
adds alpha (theta - theta_k) instead (algorithms/feddyn.py:172 and 249). A device's loss has - <grad_k, theta>; fluke's
has + alpha <grad_k, theta> (line 159). A device that is asked for the first time begins with the mean of the others'
models, not with theta (line 106).
"""

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.feddyn import FedDyn
from fluke.data import FastDataLoader

data = [FastDataLoader(torch.ones(4, 1), torch.zeros(4).long(), num_labels=2, batch_size=4)]
splitter = DDict(assign=lambda *_: ((data, [None]), None))
optimizer, scheduler = DDict(name="SGD", lr=0.1), DDict(name="StepLR", step_size=1)
client = DDict(
    batch_size=4, local_epochs=1, loss="CrossEntropyLoss", optimizer=optimizer, scheduler=scheduler, alpha=0.1
)
model = torch.nn.Linear(1, 2)
before = model.weight.detach().clone()
FlukeENV().set_eval_cfg(server=False)
built = FedDyn(1, splitter, DDict(client=client, server=DDict(), model=model))
built.finalize = lambda: None  # which would give the client the server's model
built.run(1, 1.0)
step = (built.server.cld_mdl.weight - before) / (built.clients[0].model.weight - before)
print("the server moves", round(float(step[0]), 3), "times as far as the client; right: 2.0")
