"""The contract of an analysis: what a run measures beside the algorithm, as metrics `analysis/<name>`.

Each choice is a frozen dataclass in a file of this folder, with conf/analysis/<file>.yaml.
"""

from abc import abstractmethod
from typing import Any, Protocol, TypeVar

from fedlab_runner.core.algorithm import Algorithm
from fedlab_runner.core.federation import Federation

Memory = TypeVar("Memory")  # None, or dicts, lists and NamedTuples of tensors and plain values: checkpoints hold it


class Analysis(Protocol[Memory]):
    """A measurement on the algorithm's state before each round. It changes nothing that the algorithm sees.

    It is a pure function of (memory, state, federation), so that a resumed run has the same numbers. An analysis that
    draws takes a generator of its own from (fed.seed, Purpose.ANALYSIS, fed.round).
    """

    @abstractmethod
    def check(self, algorithm: Algorithm[Any], fed: Federation) -> None:
        """Raises UserError, one line, where there is nothing to measure. The run calls this before round 0."""

    @abstractmethod
    def init(self) -> Memory:
        """What the analysis remembers before the first round."""

    @abstractmethod
    def observe(
        self, memory: Memory, state: Any, algorithm: Algorithm[Any], fed: Federation
    ) -> tuple[Memory, dict[str, float]]:
        """The memory for the next round and the metrics of the round that `fed` has just begun.

        `memory` and `state` must not be written into.
        """
