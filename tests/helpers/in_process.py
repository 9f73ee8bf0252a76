"""The command `fedlab` in the process of a test."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def own_handlers() -> Iterator[None]:
    """Takes back what Hydra does to the root logger."""
    handlers, level = logging.root.handlers[:], logging.root.level
    try:
        yield
    finally:
        for handler in set(logging.root.handlers) - set(handlers):
            handler.close()
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
