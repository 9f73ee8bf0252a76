"""When a run of a sweep is given up: one file and one frozen dataclass a choice, with conf/pruning/<file>.yaml."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

Curve = Mapping[int, float]  # a metric by round
Others = Callable[[], Sequence[Curve]]  # it reads files: to be called only where it matters


class Pruning(Protocol):
    """A rule that knows nothing but curves, so that it works under any launcher and any sweeper."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def verdict(self, own: Curve, others: Others) -> str | None:
        """Why the run with the curve `own` should end now, given those of the sweep's finished runs; None: go on.

        Larger is better, in all of them.
        """
