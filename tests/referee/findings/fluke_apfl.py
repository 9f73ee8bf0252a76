"""APFL's clients never train their own models.

Paper: Algorithm 1, v <- v - eta grad_v f(alpha v + (1 - alpha) w). `merge_models` makes a copy that autograd does not
know to come from v, so that v's optimiser finds no gradient (algorithms/apfl.py:91 to 94). At the end of a round v
becomes the mixture (line 105), which the paper keeps apart. With alpha 1 v would be trained alone.
"""

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.apfl import APFL
from fluke.data import FastDataLoader

data = [FastDataLoader(torch.ones(4, 1), torch.zeros(4).long(), num_labels=2, batch_size=4)]
splitter = DDict(assign=lambda *_: ((data, [None]), None))
optimizer, scheduler = DDict(name="SGD", lr=0.1), DDict(name="StepLR", step_size=1)
model = torch.nn.Linear(1, 2)
client = DDict(batch_size=4, local_epochs=1, loss="CrossEntropyLoss", optimizer=optimizer, scheduler=scheduler)
before = model.weight.detach().clone()
FlukeENV().set_eval_cfg(server=False)
client.update(model=model, lam=1.0)
built = APFL(1, splitter, DDict(client=client, server=DDict(), model=model))
built.run(5, 1.0)
print(
    "the client's own model has moved:", not built.clients[0].personalized_model.weight.equal(before), "; right: True"
)
