"""The metrics of one round, for `metrics.jsonl`, and its times in seconds, for `timings.jsonl`."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.training_cost import StepCosts
from fedlab_runner.core.work import Work

FLOAT_BYTES = 4  # bytes of a value that clients or the server send, in any precision of the simulation


class RoundMetrics:
    """The metrics of the current round. No result of an algorithm may depend on them."""

    def __init__(self) -> None:
        self._step_costs = StepCosts()
        self.begin()

    def begin(self) -> None:
        """Starts a round: all counts are zero."""
        self.values: dict[str, float] = {}
        self.timings: dict[str, float] = {}  # seconds, as `time/<name>`
        self.trained_on = 0  # examples behind train/loss

    def report(self, **scalars: float) -> None:
        """Sets an algorithm's diagnostics, as `algorithm/<name>`."""
        self.values |= {f"algorithm/{name}": value for name, value in scalars.items()}

    def record(self, values: Mapping[str, float]) -> None:
        """Sets metrics by their full keys."""
        self.values |= values

    def count_payload(self, *, upload: int = 0, download: int = 0, models: int | None = None) -> None:
        """Adds values sent to the server (`upload`) and from it (`download`), and models sent between clients."""
        self._add("comm/upload_mb", upload * FLOAT_BYTES / 1e6)
        self._add("comm/download_mb", download * FLOAT_BYTES / 1e6)
        if models is not None:
            self._add("comm/models", models)

    def count_server_flops(self, flops: int) -> None:
        """Adds the server's floating-point operations."""
        self._add("cost/server_gflops", flops / 1e9)

    def count_client_flops(self, work: Work, *, losses_reported: bool) -> None:
        """Adds the operations of a cohort's local training and, if `losses_reported`, of the models' losses."""
        if not work.num_steps.any():
            return
        flops = self._step_costs.of(work).of(work)
        if losses_reported:
            flops += _flops_of_losses(work.family, work.client_data, work.ids)
        self._add("cost/client_gflops", flops / 1e9)

    def count_client_losses(self, family: ModelFamily, client_data: ClientData, ids: np.ndarray) -> None:
        """Adds the operations of a pass of clients `ids` over all their examples, without gradients."""
        self._add("cost/client_gflops", _flops_of_losses(family, client_data, ids) / 1e9)

    def record_server_cache(self, values: int) -> None:
        """Sets how many values the server keeps besides its model."""
        self.values["cost/server_cache_mb"] = values * FLOAT_BYTES / 1e6

    def record_loss(self, loss: float, examples: int) -> None:
        """Adds the mean loss of local training on `examples` examples to the round's mean."""
        before, self.trained_on = self.trained_on, self.trained_on + examples
        mean = self.values.get("train/loss", 0.0)
        self.values["train/loss"] = (mean * before + loss * examples) / self.trained_on if before else loss

    def add(self, values: Mapping[str, float], trained_on: int) -> None:
        """Adds a round's metrics of some clients, with `trained_on` examples behind their train/loss."""
        for key, value in values.items():
            if key == "train/loss":
                self.record_loss(value, trained_on)
            elif key.startswith(("comm/", "cost/")):
                self._add(key, value)
            else:
                self.values[key] = value

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """A context whose seconds are added to `time/<name>`."""
        began = time.monotonic()
        yield
        self.timings[f"time/{name}"] = self.timings.get(f"time/{name}", 0.0) + time.monotonic() - began

    def _add(self, key: str, amount: float) -> None:
        self.values[key] = self.values.get(key, 0) + amount


def _flops_of_losses(family: ModelFamily, client_data: ClientData, ids: np.ndarray) -> int:
    example = family.normalize(client_data.inputs[:1], family.dtype)
    return int(client_data.num_examples[ids].sum()) * family.flops(example).forward
