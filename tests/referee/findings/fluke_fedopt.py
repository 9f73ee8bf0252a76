"""FedOpt's learning rate is applied twice.

Paper: Reddi et al., Algorithm 2: Delta_t is the mean of the clients' changes, and eta multiplies m / (sqrt(v) + tau).
`FedOptServer.aggregate` begins with FedAvg's step, which multiplies Delta_t by the same eta (algorithms/fedopt.py:66,
server.py): tau counts for 1 / eta times as much. Where tau is far above the changes, the step is eta^2 Delta_t / tau.
"""

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedopt import FedOpt
from fluke.data import FastDataLoader

data = [FastDataLoader(torch.ones(4, 1), torch.zeros(4).long(), num_labels=2, batch_size=4)]
splitter = DDict(assign=lambda *_: ((data, [None]), None))
optimizer, scheduler = DDict(name="SGD", lr=1e-3), DDict(name="StepLR", step_size=1)
client = DDict(batch_size=4, local_epochs=1, loss="CrossEntropyLoss", optimizer=optimizer, scheduler=scheduler)
model = torch.nn.Linear(1, 2).double()
data[0].tensors = [data[0].tensors[0].double(), data[0].tensors[1]]
before = model.weight.detach().clone()
FlukeENV().set_eval_cfg(server=False)
server = DDict(mode="adagrad", lr=0.1, beta1=0.0, tau=1.0)
built = FedOpt(1, splitter, DDict(client=client, server=server, model=model))
built.finalize = lambda: None  # which would give the client the server's model
built.run(1, 1.0)
step = (model.weight - before) / (built.clients[0].model.weight - before)
print("the server goes", round(float(step[0]), 3), "of the client's way; right: 0.1")
