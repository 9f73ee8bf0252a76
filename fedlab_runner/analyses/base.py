"""The contract of an analysis: measurements of a run besides the algorithm, as metrics `analysis/<name>`.

Each choice is a frozen dataclass in a file of this folder, with conf/analysis/<file>.yaml.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from fedlab_runner.core.algorithm import Algorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.utils.contract import is_number, require

Memory = TypeVar("Memory")  # None, or dicts, lists and NamedTuples of tensors and plain values, for checkpoints


class Analysis(Protocol[Memory]):
    """A measurement of the algorithm's state before each round. It changes nothing that the algorithm sees.

    It is a pure function of (memory, state, federation), so that a resumed run has the same numbers. Random numbers
    come from a generator of its own, by (fed.seed, Purpose.ANALYSIS, fed.round).
    """

    @abstractmethod
    def check(self, algorithm: Algorithm[Any], fed: Federation) -> None:
        """Raises UserError, one line, if there is nothing to measure. The run calls this before round 0."""

    @abstractmethod
    def init(self) -> Memory:
        """The memory of the analysis before the first round."""

    @abstractmethod
    def observe(
        self, memory: Memory, state: Any, algorithm: Algorithm[Any], fed: Federation
    ) -> tuple[Memory, dict[str, float]]:
        """The memory for the next round, and the metrics of the round that `fed` has just begun.

        The method must not write into `memory` and `state`.
        """


def observed(
    analysis: Analysis[Any], memory: Any, state: Any, algorithm: Algorithm[Any], fed: Federation
) -> tuple[Any, dict[str, float]]:
    """What an analysis finds. Raises UserError where it breaks the contract of `Analysis.observe`."""
    found = analysis.observe(memory, state, algorithm, fed)
    pair = isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)
    require(pair, analysis, "observe", "the next memory and a dict of metrics", found)
    for key, value in found[1].items():
        named = isinstance(key, str) and key.startswith("analysis/")
        require(named, analysis, "observe", "metrics whose keys begin with analysis/", key)
        require(value is None or is_number(value), analysis, "observe", f"a number as {key}", value)
    return found
