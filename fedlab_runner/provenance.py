"""By which commands and from which code a run came to be: one line in its folder for each start."""

import json
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedlab_runner.files import append_line

FILE = "commands.jsonl"


def record(folder: Path, command: str | None, threads: int) -> str | None:
    """Notes that the run in `folder` was started by `command` (None: by a program) with so many threads, and returns
    the commit.
    """
    commit, versions = _commit(), {"python": platform.python_version(), **_versions()}
    line = {"command": command, "commit": commit, "threads": threads, "versions": versions}
    append_line(folder / FILE, json.dumps(line))
    return commit


def _versions() -> dict[str, str]:
    """Of ourselves and of the libraries that numbers depend on."""
    found = {}
    for name in ("fedlab-runner", "torch", "torchvision", "timm", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a checkout that was not installed
            continue
    return found


def _commit() -> str | None:
    """The git commit of the code that runs, marked when files differ from it; None outside a repository."""
    try:
        return _git("rev-parse", "HEAD") + ("-dirty" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
