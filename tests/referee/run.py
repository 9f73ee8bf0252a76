"""`make referee`: the methods of this package beside those of libraries that others wrote.

    python -m tests.referee.run [--folder ENVS] [--only REGEX]
Each oracle runs in an environment of its own, as `make bench-peers` has them. What is found is written to
docs/generate/referee.json, from which `make docs` makes docs/referee.md. Oracles that are not asked for stay as
recorded.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.environments import PINNED, cause, python_of
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.files import write_text_atomically
from tests.referee.comparison import SEED
from tests.referee.oracle import MODULES, rows

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "docs" / "generate" / "referee.json"
FINDINGS = Path(__file__).parent / "findings"
SECONDS = 1800.0  # an oracle that takes longer is stuck
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "PYTHONWARNINGS": "ignore"}


def environments() -> Path:
    """The folder in which `make` keeps the libraries' environments."""
    return Path(sys.prefix) / "peers"


def findings(oracle: str) -> list[Path]:
    """The reproductions of an oracle's faults, each a script `ORACLE_NAME.py`."""
    return sorted(FINDINGS.glob(f"{oracle}_*.py"))


def child(python: Path, arguments: list[str]) -> str:
    """What a program prints on stdout; UserError where it fails."""
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    command = [str(python), *arguments]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
    if ended.returncode:
        raise UserError(f"{' '.join(arguments)}: exit code {ended.returncode}: {cause(ended.stderr)}")
    return ended.stdout


def measured(oracle: str, python: Path) -> list[dict[str, Any]]:
    """What an oracle's rows give."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        child(python, ["-m", "tests.referee.oracle", oracle, str(out)])
        found: list[dict[str, Any]] = json.loads(out.read_text())
    return found


def printed(script: Path, python: Path) -> list[str]:
    """The lines that a reproduction prints; fluke's progress bars are left out."""
    lines = child(python, [str(script.relative_to(ROOT))]).splitlines()
    return [line.rstrip() for line in lines if line.strip() and not re.search(r"-:--:--|\d:\d\d:\d\d", line)]


def parts(found: dict[str, Any]) -> bool:
    """Whether a row's two sides part."""
    return "cause" in found


def surprises(oracle: str, found: list[dict[str, Any]]) -> list[str]:
    """Rows that part without a cause in the code, that agree in spite of one, or that raised."""
    lines = []
    for row, each in zip(rows(oracle), found, strict=True):
        what = f"{oracle}: {' '.join(str(each[key]) for key in ('method', 'partition', 'metric') if key in each)}"
        what += f" ({row.setting})" if row.setting else ""
        if "error" in each:
            lines.append(f"{what}: {each['error']}")
        elif parts(each) != bool(row.cause):
            lines.append(
                f"{what}: " + ("parts, and the row gives no cause" if parts(each) else "agrees; drop its cause")
            )
    return lines


def recorded() -> dict[str, Any]:
    """What was found last."""
    found: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {"oracles": {}}
    return found


def main() -> int:
    """Measure what is asked for and record it; one line on stderr for each surprise."""
    parser = argparse.ArgumentParser(prog="tests.referee.run")
    parser.add_argument("--folder", type=Path, default=environments(), help="of the environments, made where missing")
    parser.add_argument("--only", default="", help="oracles whose name has this regular expression")
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    record, failed = recorded(), list[str]()
    for oracle in (name for name in MODULES if re.search(options.only, name)):
        try:
            python = python_of(oracle, options.folder)
            found = measured(oracle, python)
            outputs = {path.stem: printed(path, python) for path in findings(oracle)}
        except (UserError, subprocess.TimeoutExpired) as error:
            failed.append(f"{oracle}: {error}")
            continue
        failed += surprises(oracle, found)
        record["oracles"][oracle] = {
            "version": PINNED[oracle],
            "commit": commit,
            "seed": SEED,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "rows": found,
            "findings": outputs,
        }
        print(f"{oracle}: {len(found)} rows, {sum(map(parts, found))} part", file=sys.stderr, flush=True)
    write_text_atomically(RECORD, json.dumps(record, indent=1, sort_keys=True) + "\n")
    print("\n".join([*failed, "next: make docs"]), file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
