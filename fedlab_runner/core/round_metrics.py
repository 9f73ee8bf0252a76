"""The metrics of one round, for `metrics.jsonl`, and its times in seconds, for `timings.jsonl`."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from torch import Tensor

from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.training_cost import StepCosts
from fedlab_runner.core.work import Work
from fedlab_runner.utils.contract import in_words, is_number
from fedlab_runner.utils.errors import UserError

# What some metrics of counts are given in. They are sums of whole numbers, whose order changes no bit.
UNITS = {
    "comm/upload_mb": 1e6,
    "comm/download_mb": 1e6,
    "cost/client_gflops": 1e9,
    "cost/server_gflops": 1e9,
}
RECORDED = ("aggregator", "algorithm", "late")  # groups of the metrics that `record` sets
FLOAT_BYTES = 4  # bytes of a float that clients or the server send, in any precision of the simulation


class SomeMetrics(NamedTuple):
    """A round's metrics of some clients."""

    values: dict[str, float]
    counts: dict[str, int]  # behind the values that are sums of whole numbers
    trained_on: int  # examples behind train/loss


class RoundMetrics:
    """The metrics of the current round. No result of an algorithm may depend on them."""

    def __init__(self) -> None:
        self._step_costs = StepCosts()
        self.begin()

    def begin(self) -> None:
        """Starts a round: all counts are zero."""
        self.values: dict[str, float] = {}
        self.timings: dict[str, float] = {}  # seconds, as `time/<name>`
        self._counts: dict[str, int] = {}
        self._trained_on = 0  # examples behind train/loss

    def report(self, **scalars: float) -> None:
        """Sets an algorithm's diagnostics, as `algorithm/<name>`. Raises UserError for what is no number."""
        self.record({f"algorithm/{name}": value for name, value in scalars.items()})

    def record(self, values: Mapping[str, float]) -> None:
        """Sets metrics by their full keys, for the run itself; an algorithm uses `report`. Raises UserError for what is
        no number, and for a key of another group than those of RECORDED.
        """
        for key, value in values.items():
            if key.partition("/")[0] not in RECORDED:
                raise UserError(
                    f"an algorithm must not set the metric {key!r}: fed.metrics.report(name=...) sets algorithm/name"
                )
            if value is not None and not is_number(value):
                raise UserError(f"the metric {key!r} must be a number, got {in_words(value)}")
        self.values |= values

    def count_payload(
        self, *, upload: int = 0, download: int = 0, models: int | None = None, value_bytes: int = FLOAT_BYTES
    ) -> None:
        """Adds values of `value_bytes` bytes each that are sent to the server (`upload`) and from it (`download`), and
        models sent between clients.
        """
        self._add("comm/upload_mb", upload * value_bytes)
        self._add("comm/download_mb", download * value_bytes)
        if models is not None:
            self._add("comm/models", models)

    def count_server_flops(self, flops: int) -> None:
        """Adds the server's floating-point operations."""
        self._add("cost/server_gflops", flops)

    def count_client_flops(self, work: Work, *, losses_reported: bool) -> None:
        """Adds the operations of a cohort's local training and, if `losses_reported`, of the models' losses."""
        flops = self._step_costs.of(work).of(work) if work.num_steps.any() else 0
        if losses_reported:
            flops += _flops_of_losses(work.family, work.client_data, work.ids)
        self._add("cost/client_gflops", flops)

    def count_client_losses(self, family: ModelFamily, client_data: ClientData, ids: np.ndarray) -> None:
        """Adds the operations of a pass of clients `ids` over all their examples, without gradients."""
        self._add("cost/client_gflops", _flops_of_losses(family, client_data, ids))

    def record_server_cache(self, values: int) -> None:
        """Sets how many values the server keeps besides its model."""
        self.values["cost/server_cache_mb"] = values * FLOAT_BYTES / 1e6

    def record_loss(self, loss: float, examples: int) -> None:
        """Adds the mean loss of local training on `examples` examples to the round's mean."""
        before, self._trained_on = self._trained_on, self._trained_on + examples
        mean = self.values.get("train/loss", 0.0)
        self.values["train/loss"] = (mean * before + loss * examples) / self._trained_on if before else loss

    def told(self) -> SomeMetrics:
        """These metrics, for the metrics of another process."""
        return SomeMetrics(self.values, self._counts, self._trained_on)

    def add(self, some: SomeMetrics) -> None:
        """Adds a round's metrics of some clients."""
        for key, value in some.values.items():
            if key == "train/loss":
                self.record_loss(value, some.trained_on)
            elif key in some.counts:
                self._add(key, some.counts[key])
            else:
                self.values[key] = value

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """A context whose seconds are added to `time/<name>`."""
        began = time.monotonic()
        yield
        self.timings[f"time/{name}"] = self.timings.get(f"time/{name}", 0.0) + time.monotonic() - began

    def _add(self, key: str, amount: int) -> None:
        self._counts[key] = self._counts.get(key, 0) + amount
        self.values[key] = self._counts[key] / UNITS[key] if key in UNITS else self._counts[key]


def bytes_of_a_value(tensor: Tensor) -> int:
    """The bytes that a value of a tensor counts when it is sent: those of a float, or fewer if its type has fewer."""
    return min(FLOAT_BYTES, tensor.element_size())


def _flops_of_losses(family: ModelFamily, client_data: ClientData, ids: np.ndarray) -> int:
    example = family.normalize(client_data.inputs[:1], family.dtype)
    return int(client_data.num_examples[ids].sum()) * family.flops(example).forward
