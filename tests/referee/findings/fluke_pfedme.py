"""pFedMe's clients train as FedAvg's do, and send their personal models.

Paper: Algorithm 1, theta minimises f(theta) + lambda / 2 ||theta - w||^2, and the client sends w. The optimiser gets
theta itself in the place of w (algorithms/pfedme.py:125), whose distance from theta is 0; the client sends theta. Here
lambda is so large that theta should stay near w.
"""

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.pfedme import PFedMe
from fluke.data import FastDataLoader

data = [FastDataLoader(torch.ones(4, 1), torch.zeros(4).long(), num_labels=2, batch_size=4)]
splitter = DDict(assign=lambda *_: ((data, [None]), None))
FlukeENV().set_eval_cfg(server=False)
for lamda in (0.0, 9.0):
    optimizer, scheduler = DDict(name="SGD", lr=0.1, lamda=lamda, mu=0.0), DDict(name="StepLR", step_size=1)
    client = DDict(
        batch_size=4, local_epochs=1, loss="CrossEntropyLoss", optimizer=optimizer, scheduler=scheduler, k=50
    )
    model = torch.nn.Linear(1, 2)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    PFedMe(1, splitter, DDict(client=client, server=DDict(beta=1.0), model=model)).run(1, 1.0)
    print(f"lambda {lamda}: the server's weights are", [round(v, 3) for v in model.weight.flatten().tolist()])
