"""`python -m fedlab_runner` is `fedlab`."""

import sys

from fedlab_runner.train import main

sys.exit(main())
