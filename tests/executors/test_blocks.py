"""Steps that an executor keeps belong to the feature blocks that a network reads."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedlab_runner.algorithms.shared.feature_blocks import reading
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.executors import cuda_graph, graphs
from fedlab_runner.executors.cuda_graph import CudaGraph
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from tests.executors.test_contract import train
from tests.helpers import tape
from tests.helpers.toy import federation, local
from tests.reference.harness import blocks


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> list[ModelFamily]:
    """Where the family goes whose graphs are functions that must meet no other blocks than at their first call, as a
    compiled one would.
    """
    families: list[ModelFamily] = []

    def graph_of(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        met: set[Any] = set()

        def step(*args: Any) -> Any:
            met.add(families[0].active_part)
            assert len(met) == 1
            return function(*args)

        return step

    monkeypatch.setattr(graphs, "graph_of", graph_of)
    monkeypatch.setattr(cuda_graph, "record", tape.record)
    return families


class Here(CudaGraph):
    """The same on a CPU."""

    check = Vectorized.check


EXECUTORS: list[Executor] = [
    Loop(compile=True),
    Vectorized(chunk_size=None, compile=True),
    Here(chunk_size=None, compile=False),
]


@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize("executor", EXECUTORS, ids=lambda each: type(each).__name__)
def test_other_blocks_have_steps_of_their_own(
    executor: Executor, clip_norm: float | None, compiling: list[ModelFamily]
) -> None:
    how: dict[str, Any] = {"build": blocks, "training": local(clip_norm=clip_norm)}
    fed, plain = federation(executor=executor, **how), federation(**how)
    compiling.append(fed.family)
    for read in ((0, 1), (2,), (0, 1)):
        models = []
        for each in (fed, plain):
            each.begin(0, 1.0)
            with reading(each.family, read):
                models.append(train(each)[0])
        torch.testing.assert_close(*models, rtol=1e-9, atol=1e-9)
