"""FedNova scales the server's model where clients take different numbers of steps.

Paper: section 5, x <- x - tau_eff sum_i p_i eta d_i, so that a client that does not move leaves x where it is. fluke
takes sum_i (p_i tau_eff / a_i) y_i (algorithms/fednova.py:83), and these weights do not sum to 1. Here the learning
rate is 0.
"""

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fednova import FedNova
from fluke.data import FastDataLoader

data = [FastDataLoader(torch.ones(n, 1), torch.zeros(n).long(), num_labels=2, batch_size=4) for n in (4, 40)]
splitter = DDict(assign=lambda *_: ((data, [None, None]), None))
optimizer, scheduler = DDict(name="SGD", lr=0.0), DDict(name="StepLR", step_size=1)
client = DDict(batch_size=4, local_epochs=1, loss="CrossEntropyLoss", optimizer=optimizer, scheduler=scheduler)
model = torch.nn.Linear(1, 2)
before = model.weight.detach().clone()
FlukeENV().set_eval_cfg(server=False)
FedNova(2, splitter, DDict(client=client, server=DDict(weighted=True), model=model)).run(1, 1.0, finalize=False)
print("the server's weights are", [round(v, 3) for v in (model.weight / before).flatten().tolist()], "times as large")
