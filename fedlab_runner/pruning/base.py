"""The contract of a pruning rule, which stops runs of a sweep early.

Each choice is a frozen dataclass in a file of this folder, with conf/pruning/<file>.yaml.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

Curve = Mapping[int, float]  # the metric by round, counted from 1; larger is better; values may be infinite or NaN
Others = Callable[[], Sequence[Curve]]  # reads the curves of the sweep's finished runs from disk: call it at most once


class Pruning(Protocol):
    """A rule on curves alone, so that it works with any launcher and sweeper. The run calls it at each evaluation."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @abstractmethod
    def verdict(self, own: Curve, others: Others) -> str | None:
        """Why the run with the curve `own` should stop now, in words for the log; None if it should continue.

        A pure function of the fields and the curves. Raises nothing.
        """
