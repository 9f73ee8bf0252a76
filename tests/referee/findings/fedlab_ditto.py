"""Ditto's trainer cannot run.

`local_process` calls the module `tqdm` and two methods that do not exist (contrib/algorithm/ditto.py:42 to 45). `train`
reads `self.args` (line 58), which `setup_optim` does not set.
"""

import torch
from fedlab.contrib.algorithm.ditto import DittoSerialClientTrainer


class Data:
    def get_dataloader(self, client, batch_size):
        return [(torch.ones(4, 1), torch.zeros(4).long())]


clients = DittoSerialClientTrainer(torch.nn.Linear(1, 2), 1)
clients.setup_dataset(Data())
clients.setup_optim(epochs=1, batch_size=4, lr=0.1)
parameters = clients.model_parameters
for call in (lambda: clients.local_process([parameters], [0]), lambda: clients.train(parameters, parameters, [])):
    try:
        call()
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
