"""FedExP extrapolates batch norm's running variance, which may become negative.

FedExP's server step is larger than 1. `aggregate_models` applies it to the buffers too (utils/model.py:968). A model
with a negative running variance predicts NaN.
"""

import torch
from fluke.utils.model import aggregate_models

server, client = torch.nn.BatchNorm1d(1), torch.nn.BatchNorm1d(1)
client.running_var.fill_(0.1)
aggregate_models(server, [client], [1.0], eta=3.0)
print("running variance", server.running_var.item(), "- prediction", server.eval()(torch.ones(1, 1)).item())
