"""SCAFFOLD's control variates have the wrong sign, and with option I users share one.

Paper: Algorithm 1, line 12, c_i+ = g_i(x) (option I) or c_i - c + (x - y_i) / (K eta_l) (option II). pfl takes the
model's change y_i - x for both (algorithm/scaffold.py:133 and 157) and still steps along g - c_i + c: the correction
pushes the clients apart. With option I the change is a buffer that the model reuses (model/pytorch.py:243), so that
what is stored for one user is overwritten by the next.
"""

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))

    def loss(self, a):
        return (a * self.w).sum()  # the gradient is a

    def metrics(self, a):
        return {"n": Weighted(0, 1)}


for option in (1, 2):
    users, module, storage = iter("01"), Model(), InMemoryUserStateStorage()
    data = FederatedDataset(
        lambda u: PyTorchTensorDataset([torch.tensor([1.0 + 2 * int(u)])], u), lambda u=users: next(u)
    )
    SCAFFOLD().run(
        SCAFFOLDParams(
            1, 1, 2, None, population=2, use_gradient_as_control_variate=option == 1, user_state_storage=storage
        ),
        SimulatedBackend(data, data),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=1),
        NNEvalHyperParams(local_batch_size=1),
        send_metrics_to_platform=False,
    )
    found = [round(float(storage.load_state(user, "local_c")["w"]), 3) for user in "01"]
    print(f"option {option}: the users' control variates are {found}; right: [1.0, 3.0], their gradients")
