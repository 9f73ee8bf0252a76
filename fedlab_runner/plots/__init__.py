"""Pictures and tables of one run."""

import os
from importlib.util import find_spec

# A notebook names its own backend to the programs that it starts. Where their environment lacks it, matplotlib refuses
# to be imported; no picture of this package needs a backend.
_backend = os.environ.get("MPLBACKEND", "")
if _backend.startswith("module://") and find_spec(_backend.removeprefix("module://").partition(".")[0]) is None:
    del os.environ["MPLBACKEND"]
