"""The command `fedlab`, also `python -m fedlab_runner`."""

import sys

from fedlab_runner.utils import signals


def command() -> None:
    """Runs `train.main` and ends the process with its exit code."""
    signals.end_silently()  # before modules are imported, which takes a while
    from fedlab_runner.train import main

    sys.exit(main())


if __name__ == "__main__":
    command()
