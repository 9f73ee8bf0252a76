"""What drawing needs of the environment."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("named", "left"),
    [("module://absent_package.backend", ""), ("module://json.backend", "module://json.backend"), ("pdf", "pdf")],
)
def test_a_notebooks_backend_that_this_environment_lacks_is_no_obstacle(named: str, left: str) -> None:
    """A command in a cell inherits the variable from the notebook's own environment."""
    code = "import os, fedlab_runner.plots; print(os.environ.get('MPLBACKEND', ''))"
    environment = os.environ | {"MPLBACKEND": named}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).strip() == left
