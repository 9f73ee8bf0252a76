"""Runs that draw nothing: drawing takes longer than all else in most runs of a test."""

from collections.abc import Callable
from typing import Any

NOTHING = {
    "plot_partition": None,
    "plot_blocks": None,
    "plot_topology": None,
    "plot_curves": None,
    "plot_clients": False,
    "plot_staleness": False,
    "plot_diagnostics": (),
}


def leave_out(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """From here on no run of this process draws; a MonkeyPatch's `setattr` takes it back."""
    from fedlab_runner.experiment import artifacts

    for name, drawn in NOTHING.items():
        put(artifacts, name, lambda *_, drawn=drawn: drawn)
