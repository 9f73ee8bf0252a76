"""No analysis."""

from dataclasses import dataclass
from typing import Any

from fedlab_runner.analyses.base import Analysis
from fedlab_runner.core.algorithm import Algorithm
from fedlab_runner.core.federation import Federation


@dataclass(frozen=True)
class NoAnalysis(Analysis[None]):
    """The run measures nothing besides the metrics that every run logs."""

    def check(self, algorithm: Algorithm[Any], fed: Federation) -> None:
        return

    def init(self) -> None:
        return None

    def observe(
        self, memory: None, state: Any, algorithm: Algorithm[Any], fed: Federation
    ) -> tuple[None, dict[str, float]]:
        return None, {}
