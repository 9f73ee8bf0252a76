"""FedBN's clients begin with the mean of the others' batch norm.

Paper: Algorithm 1, batch norm is never averaged. A client that is asked for the first time takes the server's whole
model (algorithms/fedbn.py:38), in which the others' batch norm has been averaged (server.py).
"""

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedbn import FedBN
from fluke.data import FastDataLoader

data = [FastDataLoader(torch.full((4, 1), v), torch.zeros(4).long(), num_labels=2, batch_size=4) for v in (10.0, 0.0)]
splitter = DDict(assign=lambda *_: ((data, [None, None]), None))
optimizer, scheduler = DDict(name="SGD", lr=0.0), DDict(name="StepLR", step_size=1)
client = DDict(batch_size=4, local_epochs=1, loss="CrossEntropyLoss", optimizer=optimizer, scheduler=scheduler)
model = torch.nn.Sequential(torch.nn.BatchNorm1d(1), torch.nn.Linear(1, 2))
FlukeENV().set_eval_cfg(server=False)
built = FedBN(2, splitter, DDict(client=client, server=DDict(), model=model))
built.finalize = lambda: None
for asked in built.clients:
    built.server.get_eligible_clients = lambda _, asked=asked: [asked]
    built.run(1, 0.5)
mean = round(float(built.clients[1].model[0].running_mean), 3)
print("all inputs of the second client are 0; its running mean is", mean, "; right: 0.0")
