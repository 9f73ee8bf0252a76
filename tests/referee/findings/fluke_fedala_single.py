"""FedALA never ends with a client of one example.

fluke's data loader leaves out a minibatch of one example (data/__init__.py:271). The loop that learns the weights until
their losses are steady (algorithms/fedala.py:108) then sees no loss.
"""

import signal

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedala import FedALA
from fluke.data import FastDataLoader
from fluke.nets import EncoderHeadNet

data = [FastDataLoader(torch.ones(n, 1), torch.zeros(n).long(), num_labels=2, batch_size=4) for n in (1, 4)]
splitter = DDict(assign=lambda *_: ((data, [None, None]), None))
optimizer, scheduler = DDict(name="SGD", lr=0.1), DDict(name="StepLR", step_size=1)
client = DDict(batch_size=4, local_epochs=1, loss="CrossEntropyLoss", optimizer=optimizer, scheduler=scheduler)
model = EncoderHeadNet(torch.nn.Linear(1, 1), torch.nn.Linear(1, 2))
FlukeENV().set_eval_cfg(server=False)
built = FedALA(2, splitter, DDict(client=client, server=DDict(), model=model))
signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError))
signal.alarm(10)
try:
    built.run(2, 1.0)
    print("two rounds have ended")
except TimeoutError:
    print("\nafter 10 seconds, finished rounds:", built.rounds, "; right: 2")
