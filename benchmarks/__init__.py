"""How fast the package is, beside the plain PyTorch loop that a user would write; `make bench`."""

import fedlab_runner  # noqa: F401  # before torch is loaded, as in a run: it sets how OpenMP's threads wait
