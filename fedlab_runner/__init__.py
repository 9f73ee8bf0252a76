"""An experiment runner for federated, decentralised and hybrid learning.

From Python: `from fedlab_runner import compose, run`; see `fedlab_runner.api`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedlab_runner.api import Result, compose, run

__version__ = "0.1.0"
__all__ = ["Result", "compose", "run"]


def __getattr__(name: str) -> Any:
    """Torch and Hydra are loaded by whoever asks for what needs them: the command's --help does not."""
    if name in __all__:
        from fedlab_runner import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
