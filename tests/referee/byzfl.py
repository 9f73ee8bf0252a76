"""byzfl (https://github.com/LPD-EPFL/byzfl): its aggregators over this package's updates and those of its attacks."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.referee.comparison import Row, Setting

LIARS, CLIENTS = 2, 8  # updates of an attack, and all updates of a round
SHARE = LIARS / CLIENTS


def aggregated(name: str, **fields: Any) -> Callable[[Setting], Iterator[Tensor]]:
    """The server's model after each round; byzfl aggregates the changes of its own model, in NumPy's float64."""

    def theirs(setting: Setting) -> Iterator[Tensor]:
        import byzfl

        rule, x = getattr(byzfl, name)(**fields), setting.draws.x0.vector
        for arrived in setting.arrived:
            x = x + torch.from_numpy(rule((arrived.models - x).numpy()))
            yield x

    return theirs


def attack(name: str, **fields: Any) -> Callable[[np.ndarray], np.ndarray]:
    """An attack of byzfl: from the honest updates to one that lies."""

    def lie(honest: np.ndarray) -> np.ndarray:
        import byzfl

        made: np.ndarray = getattr(byzfl, name)(**fields)(honest)
        return made

    return lie


ATTACKS = {
    "SignFlipping": attack("SignFlipping"),
    "InnerProductManipulation": attack("InnerProductManipulation", tau=3.0),
    "ALittleIsEnough": attack("ALittleIsEnough", tau=1.5),
}
UNTIL_IT_STANDS = 2000  # iterations of Weiszfeld's algorithm
RULES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("Median", {}, {"name": "median"}),
    ("TrMean", {"f": LIARS}, {"name": "trimmed_mean", "byzantine": SHARE}),
    ("Krum", {"f": LIARS}, {"name": "krum", "byzantine": SHARE}),
    ("MultiKrum", {"f": LIARS}, {"name": "multi_krum", "byzantine": SHARE}),
    (
        *("GeometricMedian", {"nu": 1e-6, "T": UNTIL_IT_STANDS}),
        {"name": "geometric_median", "nu": 1e-6, "iterations": UNTIL_IT_STANDS},
    ),
]
NEIGHBOURS = (
    "a score adds up the n - f - 2 nearest others (Blanchard et al., section 4); byzfl's the n - f - 1 nearest "
    "(aggregators/aggregators.py:531)"
)
START = (
    "after three iterations the start still counts: the mean, as in the authors' code; byzfl starts at the received "
    "model (aggregators/aggregators.py:406)"
)
NOT_HERE = ["CenteredClipping", "MDA", "MoNNA", "Meamed", "CAF", "SMEA", "pre-aggregators", "more attacks"]


def row(name: str, fields: dict[str, Any], rule: dict[str, Any], attacked: str, more: str = "", cause: str = "") -> Row:
    """Six honest clients and two that lie alike."""
    return Row(
        "fedavg",
        aggregated(name, **fields),
        f"{name}{more}, {attacked}",
        {"weighting": "uniform"},
        cohort=CLIENTS,
        aggregator=rule,
        attack=ATTACKS[attacked],
        liars=LIARS,
        cause=cause or (NEIGHBOURS if name == "Krum" else ""),
    )


SHORT = {"name": "geometric_median", "nu": 0.1, "iterations": 3}
ROWS = [
    *(row(*each, attacked) for each in RULES for attacked in ATTACKS),
    row("GeometricMedian", {"nu": 0.1, "T": 3}, SHORT, "SignFlipping", " of nu 0.1, T 3", START),
]
