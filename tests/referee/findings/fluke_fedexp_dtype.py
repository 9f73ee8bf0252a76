"""FedExP turns a float64 model into float32.

`flatten_parameters` makes the model's parameters views of a new float32 vector (utils/model.py:853). The second round
of a float64 run fails.
"""

import torch
from fluke.utils.model import flatten_parameters

model = torch.nn.Linear(1, 1).double()
flatten_parameters(model)
print("the model's type was float64 and is", model.weight.dtype)
