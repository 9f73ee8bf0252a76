"""The version of this package."""

import platform
from importlib.metadata import PackageNotFoundError, version

__version__ = "0.1.0"


def words() -> str:
    """What `--version` prints: this version, and those of Python, torch and Hydra, which are not imported."""
    others = [f"Python {platform.python_version()}"]
    for name in ("torch", "hydra-core"):
        try:
            others.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return f"fedlab_runner {__version__} ({', '.join(others)})"
