"""Errors of jobs that differ in their folder alone are told once."""

from dataclasses import asdict
from pathlib import Path

import pytest

from fedlab_runner.report.folders import NoRun
from fedlab_runner.report.headline import failures
from fedlab_runner.sweep import plots
from fedlab_runner.sweep.error_kinds import kind
from fedlab_runner.sweep.records import Job
from fedlab_runner.sweep.table import show
from fedlab_runner.utils import checksummed_json

REFUSED = "/a b/outputs/{0}/config.yaml is of another config: seed ({0} there, 5 here): delete /a b/outputs/{0}"
DIVERGED = "the run diverged in round 3: go on with hydra.run.dir=outputs/{0} and without -m"


@pytest.mark.parametrize(("error", "folder"), [(REFUSED, ""), (DIVERGED, "outputs/{0}")])
def test_the_folder_makes_no_other_kind(error: str, folder: str) -> None:
    assert kind(error.format(0), folder.format(0)) == kind(error.format(17), folder.format(17))
    assert kind(error.format(0), folder.format(0)) != kind(error.format(0) + " soon", folder.format(0))


def test_refused_jobs_are_one_line_of_a_sweep_and_one_row_of_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plots, "plot_sweep", lambda _: [])
    errors = [REFUSED.format(number) for number in range(3)]
    (tmp_path / "jobs").mkdir()
    for number, error in enumerate([*errors, "the disk is full"]):
        job = Job([f"local.lr={number}"], 0, "failed", None, "", error=error)
        (tmp_path / "jobs" / f"{number}.json").write_text(checksummed_json.text(asdict(job)))
    show(tmp_path)
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("failed: ")]
    assert told == [f"failed: {errors[0]}", "failed: the disk is full"]
    section = failures([], [NoRun("failed", f"seed={number}", error) for number, error in enumerate(errors)])
    assert section is not None
    (row,) = section.tables[0].rows
    assert row[1].lines == (errors[0],) and row[3].lines == ("3",)
