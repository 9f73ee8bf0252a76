"""FedAdam's bias correction is one round ahead.

A comment says that it is Kingma and Ba's alpha_t, with which the first step has the length eta (Algorithm 1, t = 1).
The round is counted from 1, and 1 is added to it (server/strategy/fedadam.py:179): the first step has the length
eta sqrt(1 + beta_2) / (1 + beta_1). Reddi et al. correct nothing (Algorithm 2).
"""

import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAdam

zero, one = (ndarrays_to_parameters([np.array([value])]) for value in (0.0, 1.0))
strategy = FedAdam(initial_parameters=zero, eta=1.0, beta_1=0.9, beta_2=0.999, tau=0.0)
x, _ = strategy.aggregate_fit(1, [(None, FitRes(Status(Code.OK, ""), one, 1, {}))], [])
print("the first step is", round(float(parameters_to_ndarrays(x)[0][0]), 3), "eta; right: 1.0")
