"""The command `fedlab-verify`.

Exit codes: 0 all checks hold, 1 a check does not, 2 the command or the file is wrong, 128 + n stopped by signal n.
"""

import argparse
import re
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fedlab_runner.config import secrets
from fedlab_runner.utils import signals, streams, version
from fedlab_runner.utils.errors import Interrupted, UserError
from fedlab_runner.utils.escaping import visible
from fedlab_runner.utils.files import check_working_folder

TOLERANCE = 0.01  # one percentage point of an accuracy, one percent of another value

_OF_CELLS = ("rounds", "draw", "tolerance", "config_dir", "out")  # options of runs that are computed again


@streams.protected()
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(
        "fedlab-verify",
        description="Checks a bundle of fedlab-report: hashes, tables, summaries; with --cells it computes runs again.",
        epilog="Nothing in a bundle is executed, and nothing is downloaded unless dataset.download=true.",
    )
    add = parser.add_argument
    add("bundle", type=Path, metavar="FILE.zip", help="a bundle of fedlab-report --bundle")
    add(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="keys of this machine: dataset.root=/data device=cpu threads=2",
    )
    add(
        "--cells",
        default="0",
        metavar="N",
        help="compute N runs of different settings again, or the runs of these names",
    )
    add("--rounds", type=int, metavar="N", help="compute only N rounds of each run (default: all)")
    add("--draw", type=int, metavar="N", help="another number draws other runs")
    add(
        "--tolerance",
        type=float,
        metavar="X",
        help=f"default {TOLERANCE}: of an accuracy, or relative",
    )
    add("--config-dir", type=Path, metavar="FOLDER", help="your folder of the modules that configs name")
    add("--version", action="version", version=version.words())
    add(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="keep the computed runs there, and continue runs in this folder",
    )
    given = parser.parse_intermixed_args(arguments)
    try:
        check_working_folder()
        _check(given)
        given.draw = given.draw or 0
        given.tolerance = TOLERANCE if given.tolerance is None else given.tolerance
        with signals.raised(), tempfile.TemporaryDirectory(prefix="fedlab-verify-") as place:
            from fedlab_runner.verify.unpack import unpack  # with libraries that take seconds to import
            from fedlab_runner.verify.verification import verify

            folder = Path(place)
            (folder / "bundle").mkdir()
            unpack(given.bundle, folder / "bundle")
            return 0 if verify(folder / "bundle", given.out or folder / "runs", given) else 1
    except UserError as error:
        print(f"error: {_line(error)}", file=sys.stderr)
        return 2
    except (Interrupted, KeyboardInterrupt) as stop:
        ended = stop if isinstance(stop, Interrupted) else Interrupted(signal.SIGINT)
        print(f"{ended}; the same command begins again, with --out it continues", file=sys.stderr)
        return 128 + ended.signal


def _check(given: argparse.Namespace) -> None:
    """Raises UserError for a wrong argument."""
    if given.rounds is not None and given.rounds < 0:
        raise UserError(f"--rounds must be >= 0, got {given.rounds}")
    if given.tolerance is not None and not 0 <= given.tolerance < 1:
        raise UserError(f"--tolerance must be in [0, 1), got {given.tolerance:g}")
    if strange := next((each for each in given.overrides if not re.match(r"[\w.@+]+=", each)), None):
        raise UserError(f"cannot read {strange!r}: expected key=value")
    ignored = [f"--{name}".replace("_", "-") for name in _OF_CELLS if getattr(given, name) is not None]
    ignored += given.overrides
    if ignored and not given.cells.strip("0"):
        raise UserError(f"{ignored[0]} needs --cells: without it no run is computed again")


def _line(error: Exception) -> str:
    return visible(secrets.redacted("; ".join(str(error).splitlines())))


if __name__ == "__main__":
    sys.exit(main())
