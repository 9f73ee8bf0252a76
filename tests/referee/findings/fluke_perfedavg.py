"""Per-FedAvg keeps the step to the personal model.

Paper: Algorithm 1, w <- w - beta (I - alpha H) grad f(w~) with w~ = w - alpha grad f(w). fluke's model is at w~ when it
makes the second step (algorithms/per_fedavg.py:173 and 181), so that it also moves by -alpha grad f(w). Here beta is
next to 0, and w should stay.
"""

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.per_fedavg import PerFedAVG
from fluke.data import FastDataLoader

data = [FastDataLoader(torch.ones(4, 1), torch.zeros(4).long(), num_labels=2, batch_size=2)]
splitter = DDict(assign=lambda *_: ((data, [None]), None))
optimizer, scheduler = DDict(name="SGD", lr=0.1), DDict(name="StepLR", step_size=1)
client = DDict(batch_size=2, local_epochs=1, loss="CrossEntropyLoss", optimizer=optimizer, scheduler=scheduler)
client.update(mode="FO", beta=1e-12)
model = torch.nn.Linear(1, 2)
torch.nn.init.zeros_(model.weight)
torch.nn.init.zeros_(model.bias)
FlukeENV().set_eval_cfg(server=False)
PerFedAVG(1, splitter, DDict(client=client, server=DDict(), model=model)).run(1, 1.0)
print("the server's weights are", [round(v, 3) for v in model.weight.flatten().tolist()], "; right: [0.0, 0.0]")
