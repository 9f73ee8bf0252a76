"""What compiled steps do in their own way on a CPU has the values and gradients of PyTorch's."""

from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.utils import fresh_cache

from fedlab_runner.core.layers import pooling
from fedlab_runner.core.work import Executor
from fedlab_runner.executors import _compiler_passes as passes
from fedlab_runner.executors.loop import Loop
from tests.executors.test_contract import COMPILED, train
from tests.helpers.toy import CLASSES, federation


def network() -> nn.Module:
    """Of feature vectors of 5, with a pooling, and a layer for each size of update."""
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 5, 1)), nn.Upsample(scale_factor=2), nn.Conv2d(1, 3, 1), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(15, 8), nn.ReLU(), nn.Linear(8, CLASSES)),
    )


@pytest.mark.slow  # minutes of compiling
@pytest.mark.parametrize("executor", COMPILED, ids=["loop", "cohort", "chunks", "processes"])
@pytest.mark.filterwarnings("ignore")  # what torch's compiler warns about is not ours
def test_compiled_steps_that_pool_and_update_in_place_equal_eager_ones(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates: list[dict[str, Any]] = []
    poolings: list[int] = []
    replace, pool = passes._replace, pooling.pooled
    monkeypatch.setattr(passes, "MIN_VALUES", 8 * 15)  # one of the two layers
    monkeypatch.setattr(passes, "_replace", lambda match, **found: (updates.append(found), replace(match, **found)))
    monkeypatch.setattr(pooling, "pooled", lambda x, side: (poolings.append(side), pool(x, side))[1])
    fed, plain = federation(executor=executor, build=network), federation(executor=Loop(compile=False), build=network)
    with fresh_cache():  # a graph of before would not be gone through again
        for round, factor in enumerate((1.0, 0.5)):
            for each in (fed, plain):
                each.begin(round, factor)
            for mine, theirs in zip(train(fed), train(plain), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)
    one_by_one = isinstance(executor, Loop) or executor is COMPILED[-1]
    assert len(updates) == one_by_one and poolings
