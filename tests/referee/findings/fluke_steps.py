"""FedNova counts a step that a client did not take.

Its number of steps is epochs times `n_batches` (algorithms/fednova.py:67), which counts a last minibatch of one
example. The data loader leaves that minibatch out (data/__init__.py:271).
"""

import torch
from fluke.data import FastDataLoader

loader = FastDataLoader(torch.ones(9, 1), torch.zeros(9).long(), num_labels=2, batch_size=4)
print("steps taken:", len(list(loader)), "- steps counted:", loader.n_batches)
