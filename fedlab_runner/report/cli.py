"""The command `fedlab-report`. Exit codes: 0 done, 2 the command or its folders are wrong."""

import argparse
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from fedlab_runner.core.metric_names import not_a_share
from fedlab_runner.report import build, bundle, csv_files, figures, latex, markdown, page, svg
from fedlab_runner.report.folders import FoundRuns, find, without_run
from fedlab_runner.report.formatting import MAX_DECIMALS
from fedlab_runner.utils import streams, version
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.escaping import visible
from fedlab_runner.utils.files import check_working_folder, write_atomically, write_text_atomically

FIGURES = "figures"  # folder of a paper's panels
TABLES, REFERENCES = "tables.tex", "references.bib"  # files for a paper


@streams.protected()
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(
        "fedlab-report", description="One page of runs, finished or not: tables and curves."
    )
    add = parser.add_argument
    add("folders", nargs="*", type=Path, default=[Path("outputs")], help="outputs, outputs/sweeps/<id> or run folders")
    add("--experiment", metavar="NAME", help="only its runs, beside its published table, e.g. feddle/table7")
    add("--target", type=float, action="append", default=[], metavar="X", help="a target, e.g. 0.8; repeatable")
    add(
        "--digits",
        type=int,
        choices=range(MAX_DECIMALS + 1),
        metavar="N",
        help=f"decimals of results, 0 to {MAX_DECIMALS} (default: by their deviation over seeds)",
    )
    add("--out", type=Path, metavar="FOLDER", help="where to write (default: report, in the folder)")
    add("--latex", action="store_true", help="also write tables.tex and references.bib for a paper")
    add("--interval", action="store_true", help="in tables.tex 95 %% intervals instead of standard deviations")
    add(
        "--figures",
        choices=figures.KINDS,
        help="also write single panels for a paper, as wide as a column and as the text",
    )
    add("--bundle", type=Path, metavar="FILE.zip", help="also write the runs and tables as one file, for fedlab-verify")
    add("--version", action="version", version=version.words())
    given = parser.parse_args(arguments)
    try:
        check_working_folder()
        if given.interval and not given.latex:
            raise UserError("--interval needs --latex: it is of tables.tex alone")
        found = find(given.folders)
        index, subtitle = write(
            given.folders,
            given.out,
            given.experiment,
            given.target,
            given.latex,
            given.interval,
            given.figures,
            given.digits,
            found,
        )
        more = [*([TABLES, REFERENCES] if given.latex else []), *([FIGURES] if given.figures else [])]
        bundled = given.bundle and bundle.write(given.bundle, given.folders, given.experiment, given.target, found)
    except UserError as error:
        print(f"error: {visible(str(error))}", file=sys.stderr)
        return 2
    streams.make_optional()  # the page is on disk
    print(subtitle, *(visible(os.path.relpath(index.with_name(name))) for name in (index.name, *more)), sep="\n")
    if bundled:
        print(bundle.words(bundled))
    return 0


def write(
    folders: Sequence[Path],
    out: Path | None = None,
    experiment: str | None = None,
    targets: Sequence[float] = (),
    for_latex: bool = False,
    interval: bool = False,
    kind: str | None = None,
    digits: int | None = None,
    found: FoundRuns | None = None,
) -> tuple[Path, str]:
    """Writes index.html, report.md with plots/, and the CSV files into `out`; returns the page's path and subtitle.

    `for_latex`: also tables.tex (with 95 % intervals if `interval`) and references.bib. `kind`: also figures/ of this
    kind. `digits`: the decimals of results; None: by their deviation over seeds. `found`: the runs in the folders;
    None: they are read.

    Raises UserError if there are no runs, if a target is wrong, or if `out` cannot be written.
    """
    found = found or find(folders)
    runs = found.runs
    groups = build.select([replace(run, digits=digits) for run in runs], experiment)
    if strange := [each for each in targets if not math.isfinite(each)]:
        raise UserError(f"--target must be a finite number, got {strange[0]:g}")
    if wrong := [each for each in targets if all(not_a_share(run.metric, each) for run in runs)]:
        raise UserError(f"--target must be <= 1 for {runs[0].metric}, a share, got {wrong[0]:g}: 0.8 is 80 %")
    name = folders[0].resolve().name if len(folders) == 1 and os.path.isdir(folders[0] / "jobs") else ""
    others = without_run(folders, found, experiment)
    report = build.report(groups, experiment, targets, others, found.unreadable, name)
    out = out or Path(os.path.commonpath([folder.absolute() for folder in folders])) / "report"
    if os.path.exists(out) and not out.is_dir():
        raise UserError(f"--out must be a folder, got the file {out}")
    try:
        for section in report.sections:
            for chart in section.charts:
                path = out / markdown.FOLDER / f"{chart.name}.svg"
                write_atomically(path, partial(_put, svg.file(chart)))
        known = build.papers_of([run for each in groups for run in each.runs], experiment)
        for name, text in csv_files.files(groups, known, targets).items():
            write_text_atomically(out / name, text)
        if for_latex:
            write_text_atomically(out / TABLES, latex.document(groups, known, interval))
            write_text_atomically(out / REFERENCES, latex.references(groups))
        for name, content in figures.files(report, kind) if kind else ():
            write_atomically(out / FIGURES / name, partial(_put, content))
        write_text_atomically(out / "report.md", markdown.document(report))
        write_text_atomically(out / "index.html", page.page(report))
    except OSError as error:
        raise UserError(f"{out} cannot be written to ({error.strerror}): give another folder with --out") from error
    return out / "index.html", report.subtitle


def _put(content: bytes, file: BinaryIO) -> None:
    file.write(content)


if __name__ == "__main__":
    sys.exit(main())
