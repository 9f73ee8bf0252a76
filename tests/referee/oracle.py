"""One oracle in its own environment: python -m tests.referee.oracle NAME OUT writes what is found as JSON."""

import importlib
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

# The module of this folder that has an oracle's rows. dp-accounting has nothing here to be compared with yet:
# docs/referee.md says so.
MODULES = {
    "flower": "flower",
    "pfl": "pfl",
    "fluke": "fluke",
    "fedlab": "fedlab",
    "byzfl": "byzfl",
    "flwr-datasets": "partitioners",
    "torchmetrics": "torchmetrics",
}
DIGITS = 2  # of a recorded number


def module(oracle: str) -> Any:
    """An oracle's module here; the oracle itself is imported only when a row is measured."""
    return importlib.import_module(f"tests.referee.{MODULES[oracle]}")


def rows(oracle: str) -> list[Any]:
    """An oracle's rows of the methods that this package has."""
    return [row for row in module(oracle).ROWS if getattr(row, "here", True)]


def not_here(oracle: str) -> list[str]:
    """Its methods that this package does not have."""
    waiting = [row.setting for row in module(oracle).ROWS if not getattr(row, "here", True)]
    return [*waiting, *getattr(module(oracle), "NOT_HERE", ())]


def measure(oracle: str) -> list[dict[str, Any]]:
    """What is found of each row; a row that raises has the error in the place of a number."""
    measured = importlib.import_module(
        "tests.referee.comparison" if hasattr(rows(oracle)[0], "method") else f"tests.referee.{MODULES[oracle]}"
    ).measure
    found = []
    for row in rows(oracle):
        try:
            found.append({key: _rounded(value) for key, value in measured(row).items()})
        except Exception as error:
            traceback.print_exc()
            found.append({"setting": row.setting, "error": f"{type(error).__name__}: {error}".splitlines()[0]})
    return found


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def main() -> None:
    """Measure the rows of the oracle that is asked for."""
    torch.set_num_threads(1)
    Path(sys.argv[2]).write_text(json.dumps(measure(sys.argv[1])))


if __name__ == "__main__":
    main()
