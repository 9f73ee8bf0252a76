"""FedAvgM's server does not move in the first round.

Paper: Hsu et al., section 4.3, v <- beta v + Delta w, w <- w - v, so that v is Delta w after the first round. fluke
leaves the first Delta w out (algorithms/fedavgm.py:59): the work of that round is lost.
"""

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavgm import FedAVGM
from fluke.data import FastDataLoader

data = [FastDataLoader(torch.ones(4, 1), torch.zeros(4).long(), num_labels=2, batch_size=4)]
splitter = DDict(assign=lambda *_: ((data, [None]), None))
optimizer, scheduler = DDict(name="SGD", lr=0.1), DDict(name="StepLR", step_size=1)
client = DDict(batch_size=4, local_epochs=1, loss="CrossEntropyLoss", optimizer=optimizer, scheduler=scheduler)
model = torch.nn.Linear(1, 2)
before = model.weight.detach().clone()
FlukeENV().set_eval_cfg(server=False)
built = FedAVGM(1, splitter, DDict(client=client, server=DDict(momentum=0.9), model=model))
built.finalize = lambda: None  # which would give the client the server's model
built.run(1, 1.0)
print("the client has moved:", not built.clients[0].model.weight.equal(before))
print("the server has moved:", not model.weight.equal(before), "; right: True")
