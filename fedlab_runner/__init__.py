"""An experiment runner for federated, decentralised and hybrid learning.

From Python: `from fedlab_runner import compose, run`; see `fedlab_runner.api`.
"""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedlab_runner.api import Result, compose, run

__version__ = "0.1.0"
__all__ = ["Result", "compose", "run"]

# Before torch loads GNU's OpenMP, whose threads else wait for work at full speed, as long as a time slice: where other
# processes want the cores too, four threads then take 25 times as long as one (docs/speed.md). A user's settings hold.
if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
    os.environ["GOMP_SPINCOUNT"] = "10000"


def __getattr__(name: str) -> Any:
    """Torch and Hydra are loaded by whoever asks for what needs them: the command's --help does not."""
    if name in __all__:
        from fedlab_runner import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
