"""An experiment runner for federated, decentralised and hybrid learning.

From Python: `from fedlab_runner import compose, load, run`; see `fedlab_runner.api`.
"""

import os
from typing import TYPE_CHECKING, Any

from fedlab_runner.utils.version import __version__

if TYPE_CHECKING:
    from fedlab_runner.api import Result, compose, load, run
    from fedlab_runner.experiment.loading import Loaded

__all__ = ["Loaded", "Result", "__version__", "compose", "load", "run"]

# Set before torch loads GNU's OpenMP. By default its threads wait for work at full speed for a whole time slice. Four
# threads then take 25 times as long as one if other processes are busy (docs/speed.md). A user's settings stay.
if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
    os.environ["GOMP_SPINCOUNT"] = "1000"


def __getattr__(name: str) -> Any:
    """Imports the API, and with it torch and Hydra, on first use: `fedlab --help` needs neither."""
    if name in __all__:
        from fedlab_runner import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
