"""How torch's threads wait for work. Imported before torch, which loads GNU's OpenMP.

By default these threads wait at full speed for a whole time slice. Four threads then take 25 times as long as one if
other processes are busy (docs/speed.md). A user's settings stay.
"""

import os
import sys

set_too_late = False  # torch was loaded before
if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
    os.environ["GOMP_SPINCOUNT"] = "1000"
    set_too_late = "torch" in sys.modules
