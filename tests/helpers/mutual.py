"""Models of several architectures that learn from each other."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.mutual_learning import Learners, mutual_learning, mutual_losses, teacher_weights
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.joint_work import JointWorkers
from fedlab_runner.core.losses import WSM
from fedlab_runner.core.model_family import Batch
from tests.helpers.mixed import mixed, stacks
from tests.helpers.toy import local


def learnt(
    executor: Executor, *, taught: bool = False, act: Any = lambda: None, **how: Any
) -> tuple[list[Tensor], float]:
    """Two epochs of seven models of several architectures, or of the first as taught by the others; and the FLOPs."""
    how = {"loss_function": WSM(), "training": local(momentum=0.9, weight_decay=5e-4, clip_norm=1.0)} | how
    fed = mixed(executor=executor, **how)
    students = [Learners(family, stack) for family, stack in zip(fed.families, stacks(fed), strict=True)]
    teachers = students[1:] if taught else []
    students = students[:1] if taught else students
    count, k = (sum(len(s.models) for s in some) for some in ((*students, *teachers), students))
    weights = teacher_weights(torch.arange(1.0, 1.0 + count, dtype=torch.float64))[:k]

    def objective(logits: Tensor, batch: Batch) -> Tensor:
        act()
        return mutual_losses(logits, batch, weights, 0.6, 0.4, weigh_samples=True)

    fed.begin(1, 1.0)
    if isinstance(fed.executor, JointWorkers):  # whose workers begin with the first cohort
        for group in fed.by_architecture(np.arange(fed.num_clients)):
            fed.cohort(group.ids, group.family).train(group.family.init(0), counted=False)
    return mutual_learning(fed, 2, students, 2, objective, teachers), fed.collect()["cost/server_gflops"]
