"""What the identity tests of algorithms share."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import Update
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.updates import Updates
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from tests.helpers.mixed import sliceable
from tests.helpers.toy import algorithm, federation, mlp, normed, run, server_data, tensors

EXECUTORS: list[Executor] = [Loop(compile=False), Vectorized(chunk_size=3, compile=False)]
BUILDS = [mlp, normed]
LATE: dict[str, Any] = {"sizes": [6, 3, 9, 1, 12, 8, 5, 7, 2, 10], "cohort": 3, "std": 2.0}
OUT_OF_DOMAIN = server_data(60, num_classes=4)


class Sent(NamedTuple):
    """An upload for methods that read changes and for those that read models."""

    rows: Tensor
    statistics: Tensor
    models: Tensor


def close(a: Any, b: Any, atol: float = 1e-10) -> None:
    """Two tensors, or all tensors of two States, are equal up to `atol`."""
    for mine, theirs in zip(tensors(a), tensors(b), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=atol)


def arrivals(
    rows: Tensor,
    ids: list[int] | None = None,
    staleness: list[int] | None = None,
    num_examples: list[int] | None = None,
    statistics: Tensor | None = None,
    upload: Any = Update,
) -> Updates[Any]:
    """Updates [A, D] as a server receives them: of clients 0, 1, ..., fresh, of one example each, unless said."""
    n = len(rows)
    own = (rows, rows[:, :0] if statistics is None else statistics, rows)
    return Updates(
        upload(*own[: len(upload._fields)]),
        torch.tensor(list(range(n)) if ids is None else ids),
        torch.tensor(num_examples or [1] * n),
        torch.tensor(staleness or [0] * n),
    )


def evaluated(name: str, rounds: int = 3, fed: dict[str, Any] | None = None, **overrides: Any) -> Tensor:
    """The model that is evaluated after some rounds."""
    built = algorithm(name, **overrides)
    return built.models(run(built, federation(**(fed or {})), rounds))


def trained(name: str, rounds: int = 3, fed: dict[str, Any] | None = None, **overrides: Any) -> Tensor:
    """The server's model after some rounds."""
    state: Any = run(algorithm(name, **overrides), federation(**(fed or {})), rounds)
    result: Tensor = state.params
    return result


def equal_widths_average_whole_models(name: str, **how: Any) -> None:
    """Asserts that a method that cuts models by channels is uniform decentralised FedAvg where all have one width."""
    for build in (sliceable(3), mlp):
        one = run(algorithm(name, **how), federation([8] * 6, build=build, cohort=3), 4)
        close(one.models, run(algorithm("dec_fedavg"), federation([8] * 6, build=build, cohort=3), 4).models)
