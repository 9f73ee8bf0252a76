"""SCAFFOLD's global step size scales the server's model instead of its step.

Paper: Algorithm 1, line 17, x <- x + eta_g Delta x. fluke multiplies the clients' weights by it
(algorithms/scaffold.py:164), which gives eta_g times the mean of the clients' models. Here they hardly move.
"""

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.scaffold import SCAFFOLD
from fluke.data import FastDataLoader

data = [FastDataLoader(torch.ones(4, 1), torch.zeros(4).long(), num_labels=2, batch_size=4) for _ in range(2)]
splitter = DDict(assign=lambda *_: ((data, [None, None]), None))
optimizer, scheduler = DDict(name="SGD", lr=1e-6), DDict(name="StepLR", step_size=1)
client = DDict(batch_size=4, local_epochs=1, loss="CrossEntropyLoss", optimizer=optimizer, scheduler=scheduler)
model = torch.nn.Linear(1, 2)
before = model.weight.detach().clone()
FlukeENV().set_eval_cfg(server=False)
SCAFFOLD(2, splitter, DDict(client=client, server=DDict(global_step=0.5), model=model)).run(1, 1.0, finalize=False)
print("the server's weights are", [round(v, 3) for v in (model.weight / before).flatten().tolist()], "times as large")
