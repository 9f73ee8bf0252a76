"""FedRep's clients share one head, where the model is a module.

Paper: Algorithm 1, each client has a head h_i of its own. `FedRep` hands the same module to all clients
(algorithms/fedrep.py:69); other personal algorithms copy it. The body and the head are those of the client that trained
last. With the name of a model in the place of a module each client has its own.
"""

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedrep import FedRep
from fluke.data import FastDataLoader
from fluke.nets import EncoderHeadNet

data = [FastDataLoader(torch.ones(4, 1), torch.full((4,), c), num_labels=2, batch_size=4) for c in (0, 1)]
splitter = DDict(assign=lambda *_: ((data, [None, None]), None))
optimizer, scheduler = DDict(name="SGD", lr=0.1), DDict(name="StepLR", step_size=1)
client = DDict(batch_size=4, local_epochs=1, loss="CrossEntropyLoss", optimizer=optimizer, scheduler=scheduler)
client.model = EncoderHeadNet(torch.nn.Linear(1, 1), torch.nn.Linear(1, 2))
FlukeENV().set_eval_cfg(server=False)
built = FedRep(2, splitter, DDict(client=client, server=DDict(), model=torch.nn.Linear(1, 1)))
heads = [client.model.get_local().weight for client in built.clients]
print("the two clients have one head:", heads[0] is heads[1], "; right: False")
