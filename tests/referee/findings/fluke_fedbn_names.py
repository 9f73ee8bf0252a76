"""FedBN keeps layers that are not batch norm, where names begin alike.

fluke keeps each tensor whose name begins with that of a batch norm layer (algorithms/fedbn.py:45), without the dot:
where layer 1 is batch norm, layers 10 to 19 stay at home too.
"""

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedbn import FedBN
from fluke.data import FastDataLoader

data = [FastDataLoader(torch.rand(4, 1), torch.zeros(4).long(), num_labels=2, batch_size=4)]
splitter = DDict(assign=lambda *_: ((data, [None]), None))
optimizer, scheduler = DDict(name="SGD", lr=0.1), DDict(name="StepLR", step_size=1)
client = DDict(batch_size=4, local_epochs=1, loss="CrossEntropyLoss", optimizer=optimizer, scheduler=scheduler)
tanh = [torch.nn.Tanh() for _ in range(8)]
model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1), *tanh, torch.nn.Linear(1, 2))
FlukeENV().set_eval_cfg(server=False)
built = FedBN(1, splitter, DDict(client=client, server=DDict(), model=model))
built.run(1, 1.0)
kept = [name for name in model.state_dict() if name not in built.clients[0]._to_keep]
print("parameters that the client keeps:", [name for name in kept if name.endswith(("weight", "bias"))])
print("right: ['1.weight', '1.bias']")
