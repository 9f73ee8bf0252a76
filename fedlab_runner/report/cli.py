"""The command `fedlab-report`. Exit codes: 0 done, 2 the command or its folders are wrong."""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from fedlab_runner.report import build, csv_files, html, markdown, published
from fedlab_runner.report.folders import find, to_come
from fedlab_runner.utils import streams
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.escaping import visible
from fedlab_runner.utils.files import write_atomically, write_text_atomically


@streams.protected()
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(
        "fedlab-report", description="One page of runs, finished or not: tables and curves."
    )
    add = parser.add_argument
    add("folders", nargs="*", type=Path, default=[Path("outputs")], help="outputs, outputs/sweeps/<id> or run folders")
    add("--experiment", metavar="NAME", help="only its runs, beside its published table, e.g. feddle/table7")
    add("--target", type=float, action="append", default=[], metavar="X", help="a value to be reached, e.g. 0.8")
    add("--out", type=Path, metavar="FOLDER", help="where to write (default: report, in the folder)")
    given = parser.parse_args(arguments)
    try:
        page, subtitle = write(given.folders, given.out, given.experiment, given.target)
    except UserError as error:
        print(f"error: {visible(str(error))}", file=sys.stderr)
        return 2
    streams.make_optional()  # the page is written
    print(f"{subtitle}\n{visible(os.path.relpath(page))}")
    return 0


def write(
    folders: Sequence[Path], out: Path | None = None, experiment: str | None = None, targets: Sequence[float] = ()
) -> tuple[Path, str]:
    """Writes index.html, report.md with plots/, and the CSV files into `out`; returns the page's path and subtitle.

    Raises UserError where there is nothing to report on or no place to write it.
    """
    runs, unreadable = find(folders)
    groups = build.select(runs, experiment)
    swept = [folder for folder in folders if not experiment or (folder / "jobs").is_dir()]
    report = build.report(groups, experiment, targets, to_come(swept), unreadable)
    out = out or Path(os.path.commonpath([folder.absolute() for folder in folders])) / "report"
    if os.path.exists(out) and not out.is_dir():
        raise UserError(f"--out must be a folder, got the file {out}")
    named = (
        [published.load(experiment)] if experiment else published.papers(run for each in groups for run in each.runs)
    )
    try:
        for section in report.sections:
            for picture in section.pictures:
                path = out / markdown.FOLDER / f"{picture.name}.{picture.kind}"
                write_atomically(path, partial(_put, picture.content))
        known = [paper for paper in named if paper is not None]
        for name, text in csv_files.files(groups, known, targets).items():
            write_text_atomically(out / name, text)
        write_text_atomically(out / "report.md", markdown.document(report))
        write_text_atomically(out / "index.html", html.page(report))
    except OSError as error:
        raise UserError(f"{out} cannot be written to ({error.strerror}): give another folder with --out") from error
    return out / "index.html", report.subtitle


def _put(content: bytes, file: BinaryIO) -> None:
    file.write(content)


if __name__ == "__main__":
    sys.exit(main())
