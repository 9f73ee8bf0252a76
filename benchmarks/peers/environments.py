"""An environment for each library of others, made once: a venv with it at one version, from the package index."""

import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from fedlab_runner.utils.errors import UserError

# The peers of `make bench-peers`, and the oracles of `make referee` too.
PINNED = {
    "flower": "flwr[simulation]==1.41.0",
    "pfl": "pfl[pytorch]==0.6.0",
    "fedlab": "fedlab==1.3.0",
    "fluke": "fluke-fl==0.8.1",
    "flwr-datasets": "flwr-datasets==0.6.1",
    "torchmetrics": "torchmetrics==1.9.0",
    "byzfl": "byzfl==0.0.11",
}


def python_of(peer: str, folder: Path) -> Path:
    """The interpreter of a peer's environment in this folder, made where it is missing or of another version.

    It sees this environment's packages behind its own: all contenders run the same torch, which is not installed again.
    """
    home = (folder / peer).absolute()
    python, stamp, ours = home / "bin" / "python", home / "installed", sysconfig.get_path("purelib")
    wanted = f"{PINNED[peer]}\n{ours}\n"
    if not (python.exists() and stamp.exists() and stamp.read_text() == wanted):
        print(f"{peer}: installing {PINNED[peer]} into {home}", file=sys.stderr, flush=True)
        venv.create(home, clear=True, symlinks=True)
        site = sysconfig.get_path("purelib", "venv", {"base": str(home)})
        Path(site, "benchmark.pth").write_text(f"{ours}\n")
        command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
        ended = subprocess.run([*command, "install", "--quiet", PINNED[peer]], capture_output=True, text=True)
        if ended.returncode:
            raise UserError(f"{peer}: {PINNED[peer]} cannot be installed into {home}: {cause(ended.stderr)}")
        stamp.write_text(wanted)
    return python


def cause(text: str) -> str:
    """What a command that failed says of it: its first error, or else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it says nothing"]
    return next((line for line in lines if re.match(r"[\w.]*(error|exception)\b", line, re.IGNORECASE)), lines[-1])
