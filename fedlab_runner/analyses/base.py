"""What is measured beside the algorithm: one file and one frozen dataclass a choice, with conf/analysis/<file>.yaml.

An analysis looks at the State before each round and writes metrics, `analysis/<name>`. It changes nothing that the
algorithm sees, and what it remembers from round to round is checkpointed with the run.
"""

from typing import Any, Protocol, TypeVar

from fedlab_runner.core.algorithm import Algorithm
from fedlab_runner.core.federation import Federation

Memory = TypeVar("Memory")  # None, or dicts, lists and NamedTuples of tensors and plain values


class Analysis(Protocol[Memory]):
    """A measurement by a function of (memory, State, federation), so that a resumed run has the same numbers."""

    def check(self, algorithm: Algorithm[Any], fed: Federation) -> None:
        """Raises UserError, one line, where there is nothing to measure."""

    def init(self) -> Memory:
        """What it remembers before the first round."""

    def observe(
        self, memory: Memory, state: Any, algorithm: Algorithm[Any], fed: Federation
    ) -> tuple[Memory, dict[str, float]]:
        """What it remembers next (never written into), and the metrics of the round that `fed` has just begun."""
