"""SCAFFOLD with a client of one example makes the server's model NaN.

fluke's data loader leaves out a minibatch of one example (data/__init__.py:271). Such a client takes K = 0 steps, and
option II divides by K (algorithms/scaffold.py:117).
"""

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.scaffold import SCAFFOLD
from fluke.data import FastDataLoader

data = [FastDataLoader(torch.ones(n, 1), torch.zeros(n).long(), num_labels=2, batch_size=4) for n in (1, 4)]
splitter = DDict(assign=lambda *_: ((data, [None, None]), None))
optimizer, scheduler = DDict(name="SGD", lr=0.1), DDict(name="StepLR", step_size=1)
client = DDict(batch_size=4, local_epochs=1, loss="CrossEntropyLoss", optimizer=optimizer, scheduler=scheduler)
model = torch.nn.Linear(1, 2)
FlukeENV().set_eval_cfg(server=False)
SCAFFOLD(2, splitter, DDict(client=client, server=DDict(), model=model)).run(2, 1.0, finalize=False)
print("the server's weights after two rounds:", model.weight.flatten().tolist())
