"""An experiment runner for federated, decentralised and hybrid learning.

From Python: `from fedlab_runner import compose, load, run`; see `fedlab_runner.api`.
"""

from typing import TYPE_CHECKING, Any

import fedlab_runner.utils.own_modules  # before the user's own are imported
import fedlab_runner.utils.waiting_threads  # noqa: F401  # before anything imports torch
from fedlab_runner.utils.version import __version__

if TYPE_CHECKING:
    from fedlab_runner.api import Result, compose, load, run
    from fedlab_runner.experiment.loading import Loaded

__all__ = ["Loaded", "Result", "__version__", "compose", "load", "run"]


def __getattr__(name: str) -> Any:
    """Imports the API, and with it torch and Hydra, on first use: `fedlab --help` needs neither."""
    if name in __all__:
        from fedlab_runner import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
