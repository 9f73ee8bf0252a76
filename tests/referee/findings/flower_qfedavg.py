"""QFedAvg takes one loss for all clients, or fails.

Paper: Algorithm 2, line 6, Delta_k = F_k(w)^q Delta w_k with the loss F_k of client k. `aggregate_fit` evaluates the
server's model once (server/strategy/qfedavg.py:192) and uses this loss for all clients, so that none counts for more.
Without an `evaluate_fn` the loss has no value at all. The newer strategy (serverapp/strategy/qfedavg.py) is right.
"""

from typing import Any

import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import QFedAvg

zero, left, right = (ndarrays_to_parameters([np.array([value])]) for value in (0.0, -1.0, 1.0))
results: Any = [(None, FitRes(Status(Code.OK, ""), y, 1, {"loss": f})) for y, f in ((left, 1.0), (right, 9.0))]
for evaluate in (lambda *_: (5.0, {}), None):
    strategy = QFedAvg(q_param=1.0, qffl_learning_rate=0.1, evaluate_fn=evaluate)
    strategy.pre_weights = parameters_to_ndarrays(zero)
    try:
        x, _ = strategy.aggregate_fit(1, results, [])
        there = float(parameters_to_ndarrays(x)[0][0])
        print(f"clients at -1 (loss 1) and 1 (loss 9): the server goes to {there}; right: 0.267")
    except NameError as error:
        print("without evaluate_fn:", error)
