"""The contract of an analysis: measurements of a run besides the algorithm, as metrics `analysis/<name>`.

Each choice is a frozen dataclass in a file of this folder, with conf/analysis/<file>.yaml.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from fedlab_runner.checkpoints.state_packing import comes_back
from fedlab_runner.core.algorithm import Algorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.utils.contract import is_number, require

Memory = TypeVar("Memory")  # tensors, plain values, and dicts, lists and tuples of them, for checkpoints


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
        """The memory of the analysis before the first round.

        A NamedTuple comes back from a checkpoint if this memory has one of its class in its place, itself or as a field
        of a NamedTuple, or if the annotation of such a field names it, as `dict[int, list[Entry]]`.
        """

    @abstractmethod
    def observe(
        self, memory: Memory, state: Any, algorithm: Algorithm[Any], fed: Federation
    ) -> tuple[Memory, dict[str, float]]:
        """The memory for the next round, and the metrics of the round that `fed` has just begun.

        The method must not write into `memory` and `state`.
        """


def observed(
    analysis: Analysis[Any], first: Any, memory: Any, state: Any, algorithm: Algorithm[Any], fed: Federation
) -> tuple[Any, dict[str, float]]:
    """What an analysis finds whose memory was `first` at the beginning. Raises UserError where it breaks the contract
    of `Analysis.observe`, and where no run could continue from a checkpoint of its memory.
    """
    found = analysis.observe(memory, state, algorithm, fed)
    pair = isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)
    require(pair, analysis, "observe", "the next memory and a dict of metrics", found)
    whole = comes_back(found[0], like=first, of=f"the memory that {type(analysis).__name__}.observe gives")
    words = "a memory whose NamedTuples that of init has, or the annotations of its fields name"
    require(whole, analysis, "observe", words, found[0])
    for key, value in found[1].items():
        named = isinstance(key, str) and key.startswith("analysis/")
        require(named, analysis, "observe", "metrics whose keys begin with analysis/", key)
        require(value is None or is_number(value), analysis, "observe", f"a number as {key}", value)
    return found
