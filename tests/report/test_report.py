"""Reports: every number is that of the runs' own files, and whatever is missing is said."""

import base64
import csv
import errno
import hashlib
import html
import json
import math
import os
import re
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from fedlab_runner import train
from fedlab_runner.config.hydra_record import EXPERIMENTS
from fedlab_runner.plots.partition import write_partition_table
from fedlab_runner.report import (
    beside,
    build,
    bundle,
    cli,
    curves,
    figures,
    folders,
    markdown,
    matrix_charts,
    metric_sections,
    page,
    published,
    significance,
    stats,
    tables,
    targets,
)
from fedlab_runner.report.content import Chart, Report, ReportTable, Section, cell
from fedlab_runner.report.folders import find
from fedlab_runner.report.grouping import group
from fedlab_runner.sweep.records import Job, run_folder
from fedlab_runner.utils import checksummed_json, untrusted
from fedlab_runner.utils.errors import UserError
from tests.helpers.bundles import contents
from tests.helpers.in_process import own_handlers
from tests.helpers.report_files import curve, write_failed_job, write_note, write_run

EVERY = ("evaluation.every=1", "rounds=3")


def written(outputs: Path, **options: object) -> dict[str, str]:
    """The files of a report on a folder."""
    page, _ = cli.write([outputs], **options)  # type: ignore[arg-type]
    return {path.name: path.read_text() for path in page.parent.iterdir() if path.is_file()}


def column(text: str, method: str, i: int = 1) -> list[str]:
    """The lines of a cell of the first table in a markdown report that has a row of that name."""
    (line,) = [line for line in text.split("\n## ")[2].splitlines() if line.startswith(f"| {method} |")]
    return [each.strip() for each in line.strip("| ").split(" | ")[i].split("<br>")]


def cells(text: str, method: str) -> list[str]:
    """The cells after the name, of that row of the first table in a markdown report."""
    (line,) = [line for line in text.split("\n## ")[2].splitlines() if line.startswith(f"| {method} |")]
    return [each.strip() for each in line.strip("| ").split(" | ")[1:]]


def records(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAvg and FedBuff on four seeds, of which one FedBuff has failed, and FedProx half way."""
    folder = tmp_path_factory.mktemp("work") / "outputs"
    for seed, (one, other) in enumerate([(0.5, 0.61), (0.52, 0.64), (0.48, 0.63), (0.5, 0.9)]):
        upload = {"comm/upload_mb": 1.5, "cost/server_gflops": 0.25, "cost/server_cache_mb": seed + 1.0}
        write_run(folder, "algorithm=fedavg", f"seed={seed}", *EVERY, rows=curve(0.1, 0.3, 0.4, one, **upload))
        rows = curve(0.1, 0.45, 0.5, other, **upload)
        late = write_run(folder, "algorithm=fedbuff", f"seed={seed}", *EVERY, rows=rows[: 2 if seed == 3 else 4])
    write_failed_job(folder, late, "the run diverged in round 2")
    write_note(late, "the run diverged in round 2")
    half = write_run(folder, "algorithm=fedprox", "seed=0", *EVERY, rows=curve(0.1, 0.2))
    with (half / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "test/accu')  # as it is being written
    return folder


def test_the_table_has_mean_and_std_of_the_seeds_with_the_best_in_bold(outputs: Path) -> None:
    text = written(outputs)["report.md"]
    values = [0.61, 0.64, 0.63]
    best = f"**{100 * statistics.mean(values):.1f} ± {100 * statistics.stdev(values):.1f}**"
    assert column(text, "FedBuff") == [best, "3 seeds", "1 failed"]
    assert "over 4 seeds, where no other number is given" in text
    values = [0.5, 0.52, 0.48, 0.5]
    assert column(text, "FedAvg") == [f"{100 * statistics.mean(values):.1f} ± {100 * statistics.stdev(values):.1f}"]
    assert column(text, "FedProx") == ["unfinished", "seed 0: unfinished (round 1 of 3), 20.0\xa0% so far"]
    assert "## What failed" in text and "| FedBuff | the run diverged in round 2 | all | 1 |" in text


def test_the_overview_says_how_small_the_data_of_all_runs_are(tmp_path: Path) -> None:
    """As `+debug=tiny` makes them: beside a paper's numbers nothing else says so."""
    for seed in range(2):
        write_run(tmp_path, f"seed={seed}", "train_fraction=0.02", *EVERY, rows=curve(0.1, 0.2, 0.3, 0.4))
    assert ", train_fraction=0.02, label_noise=0, " in written(tmp_path)["report.md"]


def test_the_csv_has_the_numbers_unrounded(outputs: Path) -> None:
    files = written(outputs)
    rows = {(row["method"], row["seed"]): row for row in records(files["runs.csv"])}
    assert len(rows) == 9
    for (method, seed), row in rows.items():
        (folder,) = outputs.glob(row["run"])
        logged = [
            json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines() if line.endswith("}")
        ]
        assert row["command"] == f"fedlab algorithm={method} seed={seed} evaluation.every=1 rounds=3"
        assert int(row["rounds"]) == logged[-1]["round"]
        if row["status"] == "finished":
            assert float(row["objective"]) == max(each["test/accuracy"] for each in logged[1:])
            assert float(row["comm/upload_mb"]) == math.fsum(each.get("comm/upload_mb", 0) for each in logged) == 4.5
            assert float(row["cost/server_cache_mb"]) == int(seed) + 1
        else:
            assert row["objective"] == ""
    (fedbuff,) = [row for row in records(files["settings.csv"]) if row["method"] == "fedbuff"]
    assert float(fedbuff["mean"]) == statistics.fmean([0.61, 0.64, 0.63]) and fedbuff["seeds finished"] == "3"


def test_rounds_and_bytes_to_a_target(outputs: Path) -> None:
    groups = group(find([outputs]).runs)
    table = targets.to_target(groups, [0.5, 0.55])
    assert table is not None and list(table.header[1:3]) == ["rounds", "uploaded"]
    assert list(table.spans) == [("", 1), ("to 50\xa0%", 2), ("to 55\xa0%", 2)] and table.units[2] == "MB"
    found = {row[0].lines[0]: row[1:] for row in table.rows}
    assert found["FedAvg"][0].lines == ("3 ± 0", "1 never reached") and not found["FedAvg"][0].bold
    assert found["FedAvg"][1].lines == ("4.5 ± 0",)
    assert found["FedBuff"][0].lines == ("2 ± 0", "1 failed") and not found["FedBuff"][0].bold, "not every seed"
    assert found["FedBuff"][1].lines == ("3 ± 0",), "up to that round"
    assert found["FedAvg"][2].lines == ("never reached",) and found["FedProx"][2].lines == ("unfinished",)
    assert targets.targets(groups, []) == [0.5, 0.59]  # of 0.6267


def test_many_bytes_to_a_target_have_the_digits_of_their_deviation(tmp_path: Path) -> None:
    for seed, sent in enumerate((12_345_678.0, 12_545_679.0)):
        rows = curve(0.1, 0.5, **{"comm/upload_mb": sent})
        write_run(tmp_path, "algorithm=fedavg", f"seed={seed}", "rounds=1", "evaluation.every=1", rows=rows)
    table = targets.to_target(group(find([tmp_path]).runs), [0.5])
    assert table is not None and table.rows[0][2].lines == ("12,445,678 ± 141,422",)


def test_a_target_has_the_rule_of_the_best_and_no_damaged_run(tmp_path: Path) -> None:
    """Each of two methods would be the first: one on a single seed, the other by a damaged run."""
    for name, seeds, rise in (("fedavg", 3, 0.1), ("fedbuff", 3, 0.2), ("fedprox", 1, 0.3)):
        for seed in range(seeds):
            costs = {"cost/server_gflops": 1.0, "late/staleness_count/1": 1.0}
            rows = curve(*(rise * round for round in range(4)), **costs)
            folder = write_run(tmp_path, f"algorithm={name}", f"seed={seed}", *EVERY, rows=rows)
            if (name, seed) == ("fedbuff", 2):
                (folder / "summary.json").write_text(json.dumps({"rounds": 3, "metrics_sha256": "of other rows"}))
    groups = group(find([tmp_path]).runs)
    table = targets.to_target(groups, [0.3])
    assert table is not None
    found = {row[0].lines[0]: row[1] for row in table.rows}
    assert found["FedBuff"].lines == ("2 ± 0", "1 damaged")
    assert found["FedProx"].lines == ("1",)
    assert [name for name, each in found.items() if each.bold] == ["FedAvg"]
    rows = records(written(tmp_path, targets=[0.3])["runs.csv"])
    reached = {row["rounds to 0.3"] for row in rows if row["status"].startswith("damaged")}
    assert reached == {""}, "not in the files either"
    damaged = next(run for each in groups for run in each.runs if run.damaged)
    alone = group([damaged])
    assert curves.curve_of(alone[0]).rounds == [] and tables.costs(alone).rows[0][1].lines == (
        "\N{EN DASH}",
        "1 damaged",
    )
    assert math.isnan(published._metric(damaged, "cost/server_gflops"))
    late = [metric_sections.staleness(each, curves.lines_of(each)) for each in (groups, alone)]
    assert late[0] and not late[1]


def test_costs_are_sums_of_what_each_round_logged(outputs: Path) -> None:
    table = tables.costs(group(find([outputs]).runs))
    assert list(table.header) == ["method", "rounds", "uploaded", "server's work", "largest cache"]
    assert list(table.units) == ["", "", "MB", "GFLOPs", "MB"]
    found = {row[0].lines[0]: [each.lines for each in row[1:]] for row in table.rows}
    assert found["FedAvg"] == [("3",), ("4.5",), ("0.75",), ("2.5 ± 1.3",)]
    assert found["FedBuff"][:2] == [("3", "1 failed"), ("4.5",)], "the rounds of the seed that failed do not count"
    assert found["FedProx"][0] == ("1", "1 unfinished")


def test_differences_are_tested_over_the_seeds_that_both_have(outputs: Path) -> None:
    table, notes = significance.significance(group(find([outputs]).runs))
    assert table is not None and notes == []
    ((_, method, against, seeds, difference, interval, p, adjusted, said),) = table.rows
    assert (method.lines, against.lines, seeds.lines) == (("FedAvg",), ("FedBuff",), ("3",))
    one, other = [0.5, 0.52, 0.48], [0.61, 0.64, 0.63]
    wanted = scipy_stats.ttest_rel(one, other)
    found = stats.paired(dict(enumerate([*one, 0.5])), dict(enumerate(other)))
    assert found.p == pytest.approx(wanted.pvalue)
    assert found.mean == pytest.approx(statistics.fmean(a - b for a, b in zip(one, other, strict=True)))
    assert (found.low, found.high) == pytest.approx(wanted.confidence_interval(0.95))
    assert difference.lines == ("\N{MINUS SIGN}12.7",) and p.lines == adjusted.lines == (f"{found.p:.3f}",)
    assert said.lines == ("significant",) and interval.lines[0].startswith("\N{MINUS SIGN}17.8 ")


def test_too_few_seeds_are_said_plainly(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path, "algorithm=fedavg", f"seed={seed}", *EVERY, rows=curve(0.1, 0.2, 0.3, 0.4))
        write_run(tmp_path, "algorithm=fedbuff", f"seed={seed}", *EVERY, rows=curve(0.1, 0.2, 0.3, 0.5))
    text = written(tmp_path)["report.md"]
    assert "No difference is tested: no method shares 3 finished seeds with the best, FedBuff." in text


def test_holm_is_what_the_books_say() -> None:
    assert stats.holm([0.01, 0.04, math.nan, 0.03]) == pytest.approx([0.03, 0.06, math.nan, 0.06], nan_ok=True)
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0]
    assert stats.holm([0.01, 0.04, math.nan, 0.03], 6) == pytest.approx([0.06, 0.16, math.nan, 0.15], nan_ok=True)


def test_equal_seeds_have_no_p() -> None:
    same = stats.paired({0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.5, 1: 1.5, 2: 2.5})
    assert same.mean == 0.5 and math.isnan(same.p) and (same.low, same.high) == (0.5, 0.5)
    rounded = stats.paired({0: 0.81, 1: 0.82, 2: 0.83}, {0: 0.80, 1: 0.81, 2: 0.82})
    assert rounded.low < rounded.high and math.isnan(rounded.p), "the differences are equal but for rounding"
    small = stats.paired({0: 0.81, 1: 0.82, 2: 0.83}, {0: 0.80, 1: 0.81, 2: 0.82 + 1e-9})
    assert small.p < 0.001


def test_a_loss_is_better_when_it_is_smaller(tmp_path: Path) -> None:
    wanted = (*EVERY, "evaluation.metric=test/loss", "evaluation.summary=last", "seed=0")
    for name, loss in (("fedavg", 0.5), ("fedbuff", 0.75)):
        write_run(tmp_path, f"algorithm={name}", *wanted, rows=[{"test/loss": value} for value in (3, 2, 1, loss)])
    assert column(written(tmp_path)["report.md"], "FedAvg")[0] == "**0.5**"
    assert stats.reached(find([tmp_path]).runs[0], 1.0) == 2


@pytest.mark.parametrize(
    ("metric", "winner"), [("test/loss", "FedAvg"), ("server/own_std", "FedAvg"), ("mine/score", "FedBuff")]
)
def test_every_metric_is_better_in_its_own_direction(metric: str, winner: str, tmp_path: Path) -> None:
    """FedAvg's values are the smaller ones: what is bold, what others are held against, who is first to a target."""
    wanted = (*EVERY, f"evaluation.metric={metric}", "evaluation.summary=last")
    for name, shift in (("fedavg", 0.0), ("fedbuff", 1.0)):
        for seed in range(3):
            values = (9, 2 + shift, 1 + shift + seed / 10, 1.5 + shift + seed / 10)
            rows = [{metric: value / 10} for value in values]  # a share has no larger target than 1
            write_run(tmp_path, f"algorithm={name}", *wanted, f"seed={seed}", rows=rows)
    groups = {each.name: each for each in group(find([tmp_path]).runs)}
    (other,) = groups.keys() - {winner}
    assert tables.best(groups.values()) is groups[winner]
    text = written(tmp_path, targets=[0.2])["report.md"]
    assert column(text, winner)[0].startswith("**") and not column(text, other)[0].startswith("**")
    verdict, _ = significance.significance(list(groups.values()))
    assert verdict is not None and [each.lines[0] for each in verdict.rows[0][1:3]] == [other, winner]
    rounds = {name: [stats.reached(run, 0.2) for run in each.runs] for name, each in groups.items()}
    assert rounds == {"FedAvg": [1, 1, 1], "FedBuff": [1, 1, 1] if winner == "FedBuff" else [2, None, None]}


def test_a_percentage_is_no_target_of_a_share(outputs: Path) -> None:
    with pytest.raises(UserError, match=r"^--target must be <= 1 for test/accuracy, a share, got 80: 0\.8 is 80 %$"):
        written(outputs, targets=[0.5, 80.0])


def test_only_evaluations_of_the_schedule_reach_a_target(tmp_path: Path) -> None:
    """An extended run was evaluated where it ended first."""
    rows: list[dict[str, float]] = [{"test/accuracy": 0.1}, {}, {"test/accuracy": 0.4}, {"test/accuracy": 0.9}]
    rows += [{"test/accuracy": 0.5}, {}, {"test/accuracy": 0.7}]
    write_run(tmp_path, "algorithm=fedavg", "evaluation.every=2", "rounds=6", rows=rows)
    (run,) = find([tmp_path]).runs
    assert [stats.reached(run, goal) for goal in (0.45, 0.65, 0.8)] == [4, 6, None]


def test_a_result_that_is_not_finite_is_told(tmp_path: Path) -> None:
    for seed, last in enumerate((0.5, 0.6, math.nan)):
        write_run(tmp_path, "algorithm=fedavg", f"seed={seed}", *EVERY, rows=curve(0.1, last, last, last))
    write_run(tmp_path, "algorithm=fedprox", "seed=0", *EVERY, rows=curve(0.1, *[math.nan] * 3))
    files = written(tmp_path)
    assert column(files["report.md"], "FedAvg")[1:] == ["1 not finite"]
    assert column(files["report.md"], "FedProx") == ["not finite", "1 not finite"]
    assert "\nWithout a result: 2 not finite.\n" in files["report.md"]
    assert [row["seeds finished"] for row in records(files["settings.csv"])] == ["2", "0"]


def test_equal_means_are_all_the_best(tmp_path: Path) -> None:
    """In the table, in LaTeX, in the headline and over conditions."""
    for clients, other in ((4, 0.4), (8, 0.3)):
        for name, last in (("fedavg", 0.4), ("fedprox", other), ("fedbuff", 0.2)):
            own = (f"algorithm={name}", f"num_clients={clients}", "participation.cohort_size=2")
            write_run(tmp_path, *own, *EVERY, rows=curve(0.1, 0.1, 0.1, last))
    files = written(tmp_path, for_latex=True)
    text = files["report.md"]
    assert cells(text, "FedAvg") == ["**40.0**", "**40.0**"] and cells(text, "FedProx") == ["**40.0**", "30.0"]
    assert files["tables.tex"].count("\\textbf{40.0}") == 3
    assert "FedAvg is best in 2 of 2 conditions; it has the best interquartile mean" in text
    over_all = text.split("## Over all conditions")[1]
    firsts = [re.search(rf"\| {name} \|.* (\d) of 2 \|", over_all) for name in ("FedAvg", "FedProx", "FedBuff")]
    assert [found and found[1] for found in firsts] == ["2", "1", "0"]


def test_what_a_run_warns_of_stands_beside_its_number(tmp_path: Path) -> None:
    """Unless it has gone on since."""
    rows = curve(0.1, 0.2, 0.3, 0.4)
    folders = [write_run(tmp_path, "algorithm=fedavg", f"seed={seed}", *EVERY, rows=rows) for seed in range(3)]
    warning = "the server never stepped: <10 updates> came"
    for folder, rounds in ((folders[0], 3), (folders[1], 2)):
        (folder / "summary.json").write_text(json.dumps({"rounds": rounds, "warnings": [warning]}))
    (folders[2] / "summary.json").write_text(json.dumps({"rounds": 3}))
    runs = sorted(find([tmp_path]).runs, key=lambda run: int(run.seed))
    assert [list(run.warnings) for run in runs] == [[warning], [], []]
    files = written(tmp_path)
    shown = "the server never stepped: &lt;10 updates&gt; came"
    assert "1 run ended with a warning" in files["report.md"]
    assert column(files["report.md"], "FedAvg")[1:] == [f"seed 0: {shown}"]
    assert files["report.md"].count(shown) == 2 and files["index.html"].count(f"<small>{shown}</small>") == 1
    assert [row["warnings"] for row in records(files["runs.csv"])].count(warning) == 1


# Names.


def test_settings_are_named_by_what_tells_them_apart(tmp_path: Path) -> None:
    rows = curve(0.1, 0.2, 0.3, 0.4)
    for delay in ("5", "20"):
        write_run(tmp_path, "algorithm=fedavg", f"delay.std={delay}", *EVERY, rows=rows)
        for size in ("2", "3"):
            choice = ("algorithm=fedbuff", f"algorithm.buffer_size={size}", "local.lr=0.5")
            write_run(tmp_path, *choice, f"delay.std={delay}", *EVERY, rows=rows)
    groups = group(find([tmp_path]).runs)
    names = ["fedavg", "fedbuff algorithm.buffer_size=2", "fedbuff algorithm.buffer_size=3"]
    assert [(each.condition, each.method) for each in groups] == [
        (f"delay.std={delay}", name) for delay in ("5", "20") for name in names
    ]
    assert "Algorithms differ in local.lr: fedavg 0.05; fedbuff 0.5." in written(tmp_path)["report.md"]


def test_an_interpolation_is_no_condition(tmp_path: Path) -> None:
    """A run that was refused has its config as composed: its other values tell its setting."""
    shown = ["seed=1"], ["seed=2"], ["seed=1", "participation.cohort_size=5"]
    for overrides in shown:
        folder = write_run(tmp_path, "algorithm=fedavg", *EVERY, *overrides, rows=curve(0.1, 0.2, 0.3, 0.4))
        if overrides == shown[0]:
            continue
        told = untrusted.read_yaml(folder / "config.yaml")
        told["partition"]["alpha"] = "${where:dataset,Digits,1,10}"
        (folder / ".hydra" / "config.yaml").write_text(json.dumps(told))
        for name in ("config.yaml", "metrics.jsonl"):
            (folder / name).unlink()
        write_failed_job(tmp_path, folder, "not enough memory")
    found = {each.condition: len(each.runs) for each in group(find([tmp_path]).runs)}
    assert found == {"participation.cohort_size=3": 2, "participation.cohort_size=5": 1}


def test_a_run_in_little_that_was_refused_has_the_setting_of_the_others(tmp_path: Path) -> None:
    """Its config as composed has the bounds of +debug=tiny beside the experiment's own numbers."""
    write_run(tmp_path, "algorithm=fedavg", *EVERY, "participation.cohort_size=2", rows=curve(0.1, 0.2, 0.3, 0.4))
    folder = write_run(tmp_path, "algorithm=fedavg", *EVERY, "seed=1", rows=[])
    told = {**untrusted.read_yaml(folder / "config.yaml"), "debug": {"participation": {"cohort_size": 2}}}
    (folder / ".hydra" / "config.yaml").write_text(json.dumps(told))
    for name in ("config.yaml", "metrics.jsonl"):
        (folder / name).unlink(missing_ok=True)
    write_failed_job(tmp_path, folder, "not enough memory")
    (found,) = group(find([tmp_path]).runs)
    assert len(found.runs) == 2


def test_the_longest_run_of_a_seed_counts_wherever_it_lies(tmp_path: Path) -> None:
    short = write_run(tmp_path / "a", "algorithm=fedavg", *EVERY, rows=curve(0.1, 0.2))
    shutil.copytree(short, tmp_path / "b" / short.name)
    with (short / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "test/accuracy": 0.5}\n{"round": 3, "test/accuracy": 0.4}\n')
    (run,) = find([tmp_path / "b", tmp_path / "a"]).runs
    assert run.finished and run.objective == 0.5


def test_different_runs_in_folders_of_one_name_all_count(tmp_path: Path) -> None:
    """Only folders of one name and one config are copies; of these the undamaged one counts, wherever it lies."""
    rows = curve(0.1, 0.2, 0.3, 0.4)
    for place, algorithm in (("x/fedavg", "fedavg"), ("x/scaffold", "scaffold"), ("y/fedavg", "fedprox")):
        write_run(tmp_path / place, f"algorithm={algorithm}", *EVERY, rows=rows).rename(tmp_path / place / "seed0")
    shutil.copytree(tmp_path / "x" / "scaffold", tmp_path / "a" / "copy")
    with (tmp_path / "a" / "copy" / "seed0" / "metrics.jsonl").open("a") as file:
        file.write("damaged\n")
    runs = {run.name: run for run in find([tmp_path, tmp_path]).runs}
    assert set(runs) == {"x/fedavg/seed0", "x/scaffold/seed0", "y/fedavg/seed0"}
    assert all(run.finished and str(run.folder).endswith(name) for name, run in runs.items())
    files = written(tmp_path)
    assert {row["run"] for row in records(files["runs.csv"])} == set(runs)
    bundle.write(tmp_path / "b.zip", [tmp_path])
    rows_of = records(contents(tmp_path / "b.zip")["tables/runs.csv"].decode())
    assert {row["run"] for row in rows_of} == {name.replace("/", "-") for name in runs}
    write_run(tmp_path / "z", "algorithm=ditto", *EVERY, rows=rows).rename(tmp_path / "z" / "x-fedavg-seed0")
    with pytest.raises(UserError, match=r" would both be x-fedavg-seed0 in the bundle: rename one"):
        bundle.write(tmp_path / "b.zip", [tmp_path])


def test_a_run_whose_setting_and_seed_another_run_has_is_named(tmp_path: Path) -> None:
    """Such as one with `device=cuda hydra.run.dir=outputs/gpu`. The longest counts; a run without a round has no number
    to leave out.
    """
    for name, rows in (("cpu", curve(0.1, 0.2)), ("gpu", curve(0.1, 0.2, 0.3, 0.4)), ("new", ())):
        write_run(tmp_path, "experiment=feddle/table7", *EVERY, rows=rows).rename(tmp_path / name)
    for experiment in (None, "feddle/table7"):
        page, subtitle = cli.write([tmp_path], experiment=experiment)
        assert subtitle == "1 run: 1 finished; 1 left out"
        why = "Left out, because another run has the same setting and seed: cpu (gpu counts)."
        assert f"\n{why}\n" in page.with_name("report.md").read_text()


def test_a_folder_may_be_given_by_any_of_its_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = tmp_path / "outputs"
    run = write_run(outputs, "algorithm=fedavg", *EVERY, rows=curve(0.1, 0.2))
    sweep = write_failed_job(outputs, run, "it diverged")
    for place in (outputs, sweep, run):
        (place / "deeper").mkdir()
        for here, given in ((place, "."), (place / "deeper", "..")):
            monkeypatch.chdir(here)
            bundle.write(tmp_path / "b.zip", [Path(given)])
            files = contents(tmp_path / "b.zip")
            assert json.loads(files["bundle.json"])["runs"] == [run.name]
            assert (f"outputs/sweeps/a-sweep/jobs/{run.name}.json" in files) == (place is not run)


# Beside a paper.


@pytest.fixture(scope="module")
def table7(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table7") / "outputs"
    column = ("experiment=feddle/table7", "dataset=fashion_mnist", "rounds=1", "evaluation.every=1")
    for seed in (0, 1):
        for name, accuracy in (("feddle", 0.85), ("fedavg", 0.6), ("hfcl", 0.9)):
            choice = (*column, f"algorithm={name}", f"seed={seed}")
            write_run(folder, *choice, rows=curve(0.1, accuracy + seed / 100), small=False)
    choice = (*column, "algorithm=feddle", "seed=0", "local.epochs=2")
    write_run(folder, *choice, rows=curve(0.1, 0.7), small=False)
    write_run(folder, *column, "algorithm=feddle", "server_data=tiny_imagenet", rows=curve(0.1, 0.5), small=False)
    return folder


def test_ours_stand_beside_the_papers_with_the_difference(table7: Path) -> None:
    text = written(table7, experiment="feddle/table7")["report.md"]
    std = 100 * statistics.stdev([0.85, 0.86])
    name = "dataset=fashion_mnist partition.alpha=0.1 delay.std=20"
    assert f"| method | {name} ours, % | {name} paper, % | {name} difference, % |" in text
    assert cells(text, "Feddle-ID local.epochs=5") == [
        f"85.5 ± {std:.1f}<br>2 seeds",
        "86.5 ± 0.2",
        "\N{MINUS SIGN}1.0",
    ]
    assert cells(text, "Feddle-ID local.epochs=2") == ["70.0<br>1 seed", "86.5 ± 0.2", "\N{MINUS SIGN}16.5"]
    assert column(text, "HFCL")[0] == "**90.5 ± 0.7**"
    assert cells(text, "FedAsync") == ["not run", "78.4 ± 2.2", "\N{EN DASH}"]
    assert cells(text, "Feddle-OOD")[1] == "81.4 ± 2.4"
    assert "Not run, and left out of the table: dataset=cifar10 partition.alpha=0.1 delay.std=20;" in text
    assert "## Comparison" not in text  # all of them have a cell


def test_settings_beside_a_paper_share_no_cell_and_what_looks_equal_is_bold(tmp_path: Path) -> None:
    """Two sets of images on the server, of which the paper's row names neither; values that differ when shown."""
    column = ("experiment=feddle/table7", "dataset=fashion_mnist", "rounds=1", "evaluation.every=1")
    made = {
        ("algorithm=feddle", "server_data=tiny_imagenet"): (0.50, 0.52),
        ("algorithm=feddle", "server_data=image_folder", "server_data.root=x"): (0.30, 0.34),
        ("algorithm=fedavg",): (0.8531, 0.8537),
        ("algorithm=hfcl",): (0.8524, 0.8528),
        ("algorithm=fedbuff",): (0.85308, 0.85368),
    }
    for choice, values in made.items():
        for seed, value in enumerate(values):
            write_run(tmp_path, *column, *choice, f"seed={seed}", rows=curve(0.1, value), small=False)
    text = written(tmp_path)["report.md"]
    assert cells(text, "Feddle-OOD server_data=tiny_imagenet")[0] == "51.0 ± 1.4<br>2 seeds"
    assert cells(text, "Feddle-OOD server_data=image_folder")[0] == "32.0 ± 2.8<br>2 seeds"
    shown = [cells(text, name)[0].partition("<br>")[0] for name in ("FedAvg", "HFCL", "FedBuff")]
    assert shown == ["**85.34 ± 0.04**", "85.260 ± 0.028", "**85.34 ± 0.04**"]


def test_what_differs_between_columns_of_a_published_table_alone_makes_no_second_line(tmp_path: Path) -> None:
    """CelebA's server has 200 examples, FEMNIST's has 1,000; two learning rates on CelebA are two lines."""
    for dataset in ("table2", "table2_celeba"):
        choice = (f"experiment=feddle/{dataset}", "algorithm=feddle", "rounds=1", "evaluation.every=1", "seed=0")
        write_run(tmp_path, *choice, rows=curve(0.1, 0.5), small=False)
    text = written(tmp_path)["report.md"]
    assert len(cells(text, "Feddle-ID")) == 6 and "not run" not in cells(text, "Feddle-ID")
    assert "the runs of a row also differ in evaluation.held_out and server_data.size." in text
    write_run(tmp_path, *choice, "local.lr=0.001", rows=curve(0.1, 0.6), small=False)
    text = written(tmp_path)["report.md"]
    assert [cells(text, f"Feddle-ID local.lr={lr}")[::3] for lr in ("0.0001", "0.001")] == [
        ["**50.0**<br>1 seed", "50.0<br>1 seed"],
        ["not run", "**60.0**<br>1 seed"],
    ]


def test_runs_with_noisy_labels_have_no_cell_where_the_paper_has_none(tmp_path: Path) -> None:
    for choice in (["experiment=feddle/table1"], ["experiment=feddle/table4", "label_noise=0.1"]):
        choice += ["algorithm=hfcl", "rounds=1", "evaluation.every=1"]
        write_run(tmp_path, *choice, rows=curve(0.1, 0.5), small=False)
    text = written(tmp_path, experiment="feddle/table1")["report.md"]
    lines = text.partition("## Beside the paper: feddle/table1")[2].partition("\n## ")[0].splitlines()
    assert [line.split(" | ")[0] for line in lines if "HFCL" in line] == ["| HFCL"]


def test_architectures_and_the_loss_on_clients_examples_have_curves(tmp_path: Path) -> None:
    """DFML, Figure 5; FedWalk, Figure 2."""
    more = {"test/accuracy_model/0": 0.4, "test/accuracy_model/1": 0.3, "server/train_weighted_loss": 2.0}
    write_run(tmp_path, "rounds=2", rows=[row | more for row in curve(0.1, 0.2, 0.3)])
    page = written(tmp_path)["index.html"]
    for words in ("Architectures", "Loss on the clients", *more):
        assert words in page


def test_decimals_may_be_given(table7: Path, outputs: Path) -> None:
    """In the headline, in all tables of results, beside a paper and in LaTeX; costs keep theirs."""
    few, more = (written(outputs, digits=digits, for_latex=True) for digits in (0, 2))
    for files, mean, deviation, least in ((few, "63", "2", "13"), (more, "62.67", "1.53", "12.67")):
        text = files["report.md"]
        assert f"Best is FedBuff with {mean}\xa0% " in text
        assert column(text, "FedBuff")[0] == f"**{mean} ± {deviation}**"
        assert f"| \N{MINUS SIGN}{least} |" in text.split("## Are the differences real?")[1]
        assert f"\\textbf{{{mean}}} & \\textbf{{{deviation}}}" in files["tables.tex"]
    costs = [files["report.md"].split("## What it cost")[1].partition("##")[0] for files in (few, more)]
    assert costs[0] == costs[1]
    text = written(table7, experiment="feddle/table7", digits=3)["report.md"]
    assert cells(text, "Feddle-ID local.epochs=5")[::2] == ["85.500 ± 0.707<br>2 seeds", "\N{MINUS SIGN}1.000"]


def test_the_best_beside_a_paper_has_enough_seeds(tmp_path: Path) -> None:
    column = ("experiment=feddle/table7", "dataset=fashion_mnist", "rounds=1", "evaluation.every=1")
    for name, seeds, value in (("fedavg", 3, 0.6), ("hfcl", 1, 0.9)):
        for seed in range(seeds):
            write_run(tmp_path, *column, f"algorithm={name}", f"seed={seed}", rows=curve(0.1, value), small=False)
    files = written(tmp_path, for_latex=True)
    assert "bold, among those with at least 3 seeds where there are any." in files["report.md"]
    assert cells(files["report.md"], "FedAvg")[0].startswith("**60.0")
    assert cells(files["report.md"], "HFCL")[0] == "90.0<br>1 seed"
    assert [line.partition("~")[0] for line in files["tables.tex"].splitlines() if "textbf" in line] == ["FedAvg"]
    assert "Ours are over 3 seeds, or over the number in brackets; " in files["tables.tex"]


@pytest.mark.parametrize(("unstable", "bold"), [(0.5049, "FedAvg"), (0.4951, "HFCL")])
def test_bold_beside_a_paper_is_the_best_mean_however_cells_are_rounded(
    unstable: float, bold: str, tmp_path: Path
) -> None:
    """50 ± 5 beside 50.00 ± 0.10."""
    column = ("experiment=feddle/table7", "dataset=fashion_mnist", "rounds=1", "evaluation.every=1")
    for name, middle, apart in (("fedavg", unstable, 0.05), ("hfcl", 0.5, 0.001)):
        for seed, value in enumerate((middle - apart, middle, middle + apart)):
            write_run(tmp_path, *column, f"algorithm={name}", f"seed={seed}", rows=curve(0.1, value), small=False)
    text = written(tmp_path)["report.md"]
    assert [name for name in ("FedAvg", "HFCL") if cells(text, name)[0].startswith("**")] == [bold]


def test_the_papers_numbers_in_the_csv_are_those_of_its_file(table7: Path) -> None:
    rows = records(written(table7)["paper.csv"])
    table = published.load("feddle/table7")
    assert table is not None and len(rows) == 11 * 12 + 1
    (fedavg,) = [row for row in rows if row["row"] == "FedAvg" and row["seeds"] != "0"]
    assert fedavg["column"] == "dataset=fashion_mnist model=cnn_feddle partition.alpha=0.1 delay.std=20"
    assert float(fedavg["mean"]) == pytest.approx(60.5) and float(fedavg["paper mean"]) == 60.8
    assert float(fedavg["difference"]) == pytest.approx(-0.3)
    (missing,) = [row for row in rows if row["row"] == "CA2FL" and row["column"] == fedavg["column"]]
    assert missing["mean"] == missing["difference"] == "" and float(missing["paper mean"]) == 78.9


def test_a_part_of_a_table_knows_its_table_and_an_experiment_of_others_is_refused(table7: Path) -> None:
    part, whole = published.load("feddle/table7_ood"), published.load("feddle/table7")
    assert part == whole is not None and published.load("late_clients") is None
    heart = published.load("published/fed_heart_adam")
    assert heart is not None and heart.name == "published/fed_heart" and published.load("published/fed") is None
    with pytest.raises(
        UserError, match=r"^no run belongs to experiment=feddle/fig5: the runs there have feddle/table7$"
    ):
        build.select(find([table7]).runs, "feddle/fig5")


def test_runs_of_another_setting_have_no_empty_table_beside_the_paper(tmp_path: Path) -> None:
    own = ("experiment=feddle/table7", "model=cnn_small", "rounds=1", "evaluation.every=1")
    write_run(tmp_path, *own, rows=curve(0.1, 0.5), small=False)
    text = written(tmp_path)["report.md"]
    assert "No run has the setting of a cell of the published table: dataset=cifar10 partition.alpha=0.1" in text
    assert "| HFCL |" not in text and "the best of ours" not in text


def test_costs_stand_beside_the_papers_in_its_unit(tmp_path: Path) -> None:
    costs = {"cost/server_gflops": 700000.0, "cost/server_cache_mb": 3.0}
    fed = ("experiment=feddle/table8", "algorithm=fedft", "rounds=2", "evaluation.every=1", "dataset=cifar10")
    write_run(tmp_path, *fed, rows=curve(0.1, 0.2, 0.3, **costs), small=False)
    text = written(tmp_path)["report.md"]
    found = cells(text, "Fed+FT")
    assert found[:3] == ["**700,000**<br>1 seed", "710,000", "\N{MINUS SIGN}10,000"]
    assert found[3:6] == ["**3**<br>1 seed", "340", "\N{MINUS SIGN}337"]


def test_rounds_to_a_target_stand_beside_the_papers(tmp_path: Path) -> None:
    """Of a seed that does not get there no number is made; a run on its way has none yet."""
    fed = ("experiment=published/mcmahan", "rounds=3", "participation.cohort_size=10", "local.epochs=1")
    for seed, last in enumerate((0.98, 0.97)):
        write_run(tmp_path, *fed, "partition=iid", f"seed={seed}", rows=curve(0.1, 0.3, last, 0.96), small=False)
    for seed, last in enumerate((0.5, 0.98)):
        write_run(tmp_path, *fed, "partition=shards", f"seed={seed}", rows=curve(0.1, 0.3, 0.4, last), small=False)
    write_run(tmp_path, *fed, "partition=iid", "local.epochs=5", rows=curve(0.1, 0.3, 0.98), small=False)
    text = written(tmp_path)["report.md"]
    row = "McMahan et al., E = 1, C = 0.1"
    found = cells(text, row)
    assert found[:3] == ["**2 ± 0**<br>2 seeds", "87", "\N{MINUS SIGN}85"]
    assert found[3] == "never reached<br>1 of 2 seeds" and found[5] == "\N{EN DASH}"
    assert "\\textit{never reached}" in written(tmp_path, for_latex=True)["tables.tex"]
    assert cells(text, "FedLab, E = 5, C = 0.1")[1] == "43" and "2 so far" not in text


@pytest.mark.parametrize("last", ["dfml/table4", "dfml/table9"])
def test_a_run_of_two_experiments_stands_in_the_tables_of_both(last: str, tmp_path: Path) -> None:
    """Whichever asked for it last. Rows of Table 9 are chosen by their experiments."""
    setting = ("algorithm=dfml", "dataset=cifar100", "partition=iid", "rounds=1", "evaluation.every=1")
    folder = write_run(tmp_path, f"experiment={last}", "model=dfml/h1_cnn", *setting, rows=curve(0.1, 0.4), small=False)
    (folder / EXPERIMENTS).write_text("dfml/table9\ndfml/table4\n")
    rows = {(row["table"], row["row"]) for row in records(written(tmp_path)["paper.csv"]) if row["seeds"] == "1"}
    assert rows == {("dfml/table4", "DFML"), ("dfml/table9", "WSM, cyclic alpha")}


def test_the_target_of_a_row_is_what_another_algorithm_has_in_a_round(tmp_path: Path) -> None:
    """The mean over its seeds, in the same column; no number is made without such a run, or where two settings fit."""
    fed = ("experiment=dfml/table8", "dataset=cifar10", "partition=iid", "rounds=500", "evaluation.every=1")
    write_run(tmp_path, *fed, "algorithm=dfml", rows=curve(*(i / 500 for i in range(501))), small=False)
    found = "as decentralised FedAvg in round 100", "as decentralised FedAvg in round 500"
    assert [cells(written(tmp_path)["report.md"], row)[0] for row in found] == ["\N{EN DASH}"] * 2
    for seed, (then, end) in enumerate(((0.03, 0.3), (0.05, 0.5))):
        rows = curve(*[0.01] * 100, then, *[0.1] * 399, end)
        others = "experiment=dfml/table6", *fed[1:], "algorithm=dec_fedavg", f"seed={seed}"
        write_run(tmp_path, *others, rows=rows, small=False)
    files = written(tmp_path, experiment="dfml/table8")
    assert [cells(files["report.md"], row)[:2] for row in found] == [
        ["**20**<br>1 seed", "30"],
        ["200<br>1 seed", "90"],
    ]
    rows = {row["row"]: row["mean"] for row in records(files["paper.csv"]) if row["seeds"] == "1"}
    assert {row: float(mean) for row, mean in rows.items()} == dict(zip(found, (20, 200), strict=True))
    write_run(tmp_path, *fed, "algorithm=dec_fedavg", "local.lr=0.5", rows=curve(*[0.7] * 501), small=False)
    files = written(tmp_path, experiment="dfml/table8")
    assert [cells(files["report.md"], row)[0] for row in found] == ["\N{EN DASH}"] * 2


def test_the_target_of_a_row_is_that_of_its_own_condition(tmp_path: Path) -> None:
    """A trial on fewer examples in the same folder leaves the table its numbers, and has its own."""
    fed = ("experiment=dfml/table8", "dataset=cifar10", "partition=iid", "rounds=500", "evaluation.every=1")
    for share, then in ((1.0, 0.05), (0.1, 0.5)):
        mine = *fed, f"train_fraction={share}"
        write_run(tmp_path, *mine, "algorithm=dfml", rows=curve(*(i / 1000 for i in range(501))), small=False)
        others = curve(*[0.01] * 100, then, *[0.6] * 400)
        write_run(tmp_path, *mine, "algorithm=dec_fedavg", rows=others, small=False)
    page = written(tmp_path, experiment="dfml/table8")["report.md"]
    row = "as decentralised FedAvg in round 100 train_fraction="
    assert [cells(page, f"{row}{share}")[0] for share in (1, 0.1)] == ["**50**<br>1 seed", "500<br>1 seed"]


def test_a_deviation_is_over_what_the_papers_is_over(tmp_path: Path) -> None:
    """FedCDA's over the last ten rounds of a run, Feddle's over seeds."""
    fed = ("experiment=fedcda/table2", "algorithm=fedavg", "partition.alpha=0.1", "rounds=12")
    ends = [[0.40 + (-1) ** i * wave for i in range(10)] for wave in (0.02, 0.06)]
    for seed, end in enumerate(ends):
        write_run(tmp_path, *fed, f"seed={seed}", rows=curve(0.1, 0.9, 0.1, *end), small=False)
    files = written(tmp_path)
    assert cells(files["report.md"], "FedAvg")[:2] == ["**40 ± 4**<br>2 seeds", "38.89 ± 0.85"]
    assert (
        "± is over the last 10 evaluations of a run (divided by n), ours the mean of it over seeds;"
        in files["report.md"]
    )
    assert "**± over the last 10 evaluations of a run" in files["report.md"]
    (row,) = [row for row in records(files["paper.csv"]) if row["row"] == "FedAvg" and row["seeds"] == "2"]
    assert float(row["std"]) == pytest.approx(4.0) and row["std over"] == "rounds"
    seeds = published.load("feddle/table7")
    assert seeds is not None and "over seeds" in published.meant(seeds)
    theirs = {"mean": [63.5, 63.57, 63.5], "std": [3.27, 3.2, None]}
    shown = [beside._theirs(seeds, theirs, i).lines[0] for i in range(3)]
    assert shown == ["63.50 ± 3.27", "63.57 ± 3.20", "63.5"]


def test_a_table_must_say_what_its_deviations_are_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "conf_dir", lambda: tmp_path)
    (tmp_path / "paper").mkdir()
    table = {"unit": "x", "columns": [{}], "rows": [{"name": "x", "choice": {}, "mean": [1]}]}
    spread = {"std": [2]}
    for rows, given, wanted in (
        (spread, {}, "seeds or rounds: what std is over; got None"),
        (spread, {"spread": "none"}, "seeds or rounds: what std is over; got none"),
        ({}, {}, "none, as no row has a std; got None"),
        ({}, {"spread": "seeds"}, "none, as no row has a std; got seeds"),
    ):
        content = {**table, **given, "rows": [{**table["rows"][0], **rows}]}  # type: ignore[dict-item]  # of texts
        (tmp_path / "paper" / "mine.yaml").write_text(json.dumps(content))
        with pytest.raises(UserError, match=f"mine.yaml: spread must be {wanted}$"):
            published.load("mine")


def test_metrics_of_the_best_round_stand_beside_the_papers(tmp_path: Path) -> None:
    fed = ("experiment=fedwalk/table2", "dataset=cifar10", "partition.alpha=0.1", "rounds=2", "evaluation.every=1")
    rows = [{"test/accuracy": t, "server/train_weighted": 2 * t} for t in (0.1, 0.4, 0.3)]
    for base in ("fedavg", "fedprox"):
        choice = ("algorithm=fedwalk", f"algorithm@algorithm.base={base}")
        write_run(tmp_path, *fed, *choice, rows=rows if base == "fedavg" else rows[:2], small=False)
    text = written(tmp_path)["report.md"]
    found = cells(text, "FedWalk")
    assert found[:3] == ["**80.0**<br>1 seed", "95.26", "\N{MINUS SIGN}15.3"]
    assert found[3] == "**40.0**<br>1 seed"
    assert column(text, "FedProx + FedWalk")[0] == "unfinished"


def test_cells_of_the_evaluation_matrix_have_a_table_and_the_clients_picture(tmp_path: Path) -> None:
    wanted = (*EVERY, "evaluation.summary=last")
    for seed, mean in enumerate((0.5, 0.7)):
        last = {"test/accuracy": 0.4, "server/own": mean, "server/own_worst_decile": 0.25, "client/own_loss": 2.0}
        last |= {"client/own": 0.5}
        folder = write_run(
            tmp_path, "algorithm=fedavg", *wanted, f"seed={seed}", rows=[{"test/accuracy": 0.1}] * 3 + [last]
        )
        accuracies = ("0,0,0.25,0.5", "1,0,0.75,0.5", "2,0,,", "3,0,0.5,1.0", "4,0,nan,0.5", "5,0,0.5,0.5")
        (folder / "clients.csv").write_text("\n".join(("client,held_out,server/own,client/own", *accuracies)))
    write_run(tmp_path, "algorithm=fedbuff", *wanted, "seed=0", rows=[{"test/accuracy": 0.1}] * 4)
    text = written(tmp_path)["report.md"].split("## Whose accuracy")[1].split("## ")[0]
    assert "| method | client/own, % | server/own, % |" in text
    assert "| FedAvg | 50.0 ± 0.0 | 60 ± 14<br>worst tenth 25.0 ± 0.0 |" in text
    assert "| FedBuff | \N{EN DASH} | \N{EN DASH} |" in text
    assert "| FedAvg | 50 ± 0 | 60 ± 14<br>worst tenth 25 ± 0 |" in written(tmp_path, digits=0)["report.md"]
    page_text = (tmp_path / "report" / "index.html").read_text()
    assert "The lowest accuracy of a client is 25.0 % with FedAvg" in page_text
    scatter = page_text.split('aria-label="client/own against server/own. ')[1].split("</svg></svg>")[0]
    assert "the client's own model is better than the server's for 50 % of the clients" in html.unescape(scatter)
    (marks,) = re.findall(r'class="mark" d="([^"]*)"', scatter)
    assert marks.count("M") == 4 and 'class="line"' not in scatter, "a marker for each client with both"
    for path in tmp_path.glob("*/clients.csv"):
        path.write_text("client,held_out,server/own,client/own\n0,0,0,0.5")
    panel = matrix_charts._against_server(group(find([tmp_path]).runs), "client/own")
    assert panel is not None and panel.x_range[0] < 0 and panel.y_range[1] > 100, "a marker at an end is drawn whole"


def test_the_partition_is_told_of_all_clients_and_classes_whatever_their_names(tmp_path: Path) -> None:
    """The picture has the first of them; a class may have the name of another column."""
    folder = write_run(tmp_path, "algorithm=fedavg", *EVERY, rows=curve(0.1, 0.2, 0.3, 0.4))
    uses: dict[str, list[int]] = {"train": [1] * 70, "validation": [0] * 70, "test": [0] * 70, "held_out": [0] * 70}
    labels = np.arange(7000) % 100  # client i has a hundred examples: of each class one, but 60 to 69 of one class
    split = [np.flatnonzero(labels == i) if i >= 60 else np.arange(100 * i, 100 * i + 100) for i in range(70)]
    names = ["train", "examples", *(f"class {c}" for c in range(98))]
    write_partition_table(folder, split, labels, names, uses)
    ((drawn,), left_out) = metric_sections.partitions(group(find([tmp_path]).runs))
    assert left_out == 0 and drawn.classes == names[:40] and drawn.counts == [[1.0] * 40] * 60
    assert "70 clients with 70 to 100 examples; on average 15 % of a client's examples" in drawn.caption
    assert drawn.caption.endswith("The picture shows the first 60 clients and the first 40 of 100 classes.")


# The page.


class Tags(HTMLParser):
    """Fails on a tag that is not closed, and collects where the page points."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.targets: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.targets += [known[key] or "" for key in ("src", "href") if key in known]
        self.ids += [known["id"] or ""] if "id" in known else []
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(outputs: Path) -> None:
    text = written(outputs)["index.html"]
    tags = Tags()
    tags.feed(text)
    assert tags.open == [] and text.count("<script") == 1
    assert tags.targets and all(target.startswith("#") for target in tags.targets)
    assert [target[1:] for target in tags.targets] == [each for each in tags.ids if each != "tip"]
    script = text.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text and "default-src 'none'" in text
    headings = [int(level) for level in re.findall(r"<h([1-6])", text)]
    assert headings[0] == 1 and headings.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(headings))
    assert text.count("<th ") == text.count('scope="')
    panels = re.findall(r'<svg viewBox[^>]*role="img"[^>]*>', text)
    assert panels and all(re.search(r'aria-label="[^"]{20,}"', each) for each in panels)
    assert "FedBuff ends at 62.7\xa0%, the best of 3" in text


def test_what_clients_compute_stands_beside_what_the_server_does(tmp_path: Path) -> None:
    """A seed of an older version, which did not count it, has no part in the table and in no curve over it."""
    server = {"cost/server_gflops": 0.25}
    write_run(tmp_path, "algorithm=fedavg", "seed=0", *EVERY, rows=curve(0.1, 0.2, 0.3, 0.4, **server))
    counted = server | {"cost/client_gflops": 1.5}
    write_run(tmp_path, "algorithm=fedavg", "seed=1", *EVERY, rows=curve(0.1, 0.2, 0.3, 0.4, **counted))
    write_run(tmp_path, "algorithm=fedbuff", "seed=0", *EVERY, rows=curve(0.1, 0.2, 0.3, 0.5, **counted))
    (table,) = [tables.costs(groups) for groups in tables.by_condition(group(find([tmp_path]).runs)).values()]
    assert [row[list(table.header).index("clients' work")].lines[0] for row in table.rows] == ["4.5", "4.5"]
    found = {each.method: curves.curve_of(each).costs for each in group(find([tmp_path]).runs)}
    assert set(found["fedavg"]) == {"cost/server_gflops"}
    assert found["fedbuff"]["cost/client_gflops"] == [0, 1.5, 3.0, 4.5]


def test_a_logarithmic_axis_has_no_zero() -> None:
    cost = curves.COSTS[0]
    for dear, first in ((9.0, 0.0), (100.0, 0.5)):
        some = [
            curves.Curve(name, 1, False, [0, 1, 2], [0.1, 0.2, 0.3], [0.0] * 3, {cost.key: [0.0, x / 2, x]})
            for name, x in (("cheap", 1.0), ("dear", dear))
        ]
        panel = curves._over_cost(some, some, "test/accuracy", cost, 100)
        assert panel.x_log == (first > 0) and panel.x_range == (first, dear)
        assert [each.x[0] for each in panel.series] == ([0.0, 0.0] if first == 0 else [0.5, dear / 2])


def test_jobs_without_a_run_are_counted_and_named(tmp_path: Path) -> None:
    """Some have not begun, the folders of two runs were deleted, a folder has another config, and one was moved."""
    sweep = tmp_path / "sweeps" / "a-sweep"
    (sweep / "jobs").mkdir(parents=True)
    for seed in range(6):
        folder = write_run(tmp_path, "algorithm=fedavg", f"seed={seed}", *EVERY, rows=curve(0.1, 0.2, 0.3, 0.4))
        status, error = ("failed", "it is of another config") if seed in (3, 4) else ("finished", None)
        job = Job(
            ["rounds=3", f"seed={seed}"], seed, status, 0.4, "" if seed == 3 else f"outputs/{folder.name}", error=error
        )
        (sweep / "jobs" / f"{seed}.json").write_text(checksummed_json.text(asdict(job)))
        if seed in (1, 2, 3, 4):
            shutil.rmtree(folder)
        if seed == 5:
            (tmp_path / "moved").mkdir()
            folder.rename(tmp_path / "moved" / folder.name)
    (sweep / "grid.json").write_text(json.dumps([["rounds=3", f"seed={seed}"] for seed in range(20)]))
    for paths in ([sweep, tmp_path / "moved"], [tmp_path]):
        page, subtitle = cli.write(paths, tmp_path / "report")
        text = (page.parent / "report.md").read_text()
        assert subtitle == "20 runs: 2 finished, 2 failed, 2 missing, 14 not begun"
        assert "Without a result: 2 failed, 2 missing, 14 not begun." in text
        assert "2 jobs of which the run's folder is gone: seed=1; seed=2." in text
        assert "2 jobs that failed without a run's folder: seed=3; seed=4." in text
        assert "| \N{EN DASH} | it is of another config | seed=3; seed=4 | 2 |" in text
        assert "14 jobs not begun: seed=6; seed=7; " in text and "seed=17; and 2 more." in text


def test_a_run_of_another_sweep_is_none_of_a_job(tmp_path: Path) -> None:
    """Two sweeps call folders by the number of the job, and a third has folders of one name."""

    def sweep(place: Path, algorithm: str, names: Sequence[str]) -> None:
        (place / "sweeps" / "id" / "jobs").mkdir(parents=True)
        for seed, name in enumerate(names):
            asked = [f"algorithm={algorithm}", f"seed={seed}"]
            folder = write_run(place, *asked, *EVERY, rows=curve(0.1, 0.2, 0.3, 0.4))
            (place / name).parent.mkdir(exist_ok=True)
            folder.rename(place / name)
            job = checksummed_json.text(asdict(Job(asked, seed, "finished", 0.1, f"outputs/{name}")))
            (place / "sweeps" / "id" / "jobs" / f"{seed}.json").write_text(job)

    def counts(*places: Path) -> str:
        return cli.write(places, tmp_path / "report")[1]

    a, b, c, copy = (tmp_path / "all" / name for name in ("a", "b", "c", "copy"))
    sweep(a, "fedavg", ("0", "1"))
    sweep(b, "fedprox", ("0", "1"))
    sweep(c, "scaffold", ("0/same", "1/same"))
    shutil.copytree(c, copy)
    shutil.rmtree(a / "0")
    shutil.rmtree(c / "1")
    assert counts(a) == counts(c) == "2 runs: 1 finished, 1 missing"
    assert counts(a, b) == counts(a, b / "1", b / "0") == "4 runs: 3 finished, 1 missing"
    assert counts(c, copy) == "2 runs: 2 finished", "the copy has the run"
    shutil.rmtree(copy / "1")
    assert counts(c, copy) == "2 runs: 1 finished, 1 missing"
    shutil.rmtree(c / "0")
    assert counts(b, c) == "4 runs: 2 finished, 2 missing"


def test_a_failure_is_that_of_the_run_beside_its_sweep(tmp_path: Path) -> None:
    """Two projects have a run of one name that has not begun."""
    for project in ("one", "other"):
        folder = write_run(tmp_path / project, "algorithm=fedavg", f"num_clients={len(project)}", rows=())
        folder = folder.rename(folder.with_name("mine"))
    write_failed_job(tmp_path / "other", folder, "the run diverged")
    assert {run.folder.parent.name: run.error for run in find([tmp_path]).runs} == {
        "one": None,
        "other": "the run diverged",
    }


def test_a_failure_in_a_sweep_ends_when_the_run_goes_on(tmp_path: Path) -> None:
    """The record of its sweep stays, and the start of the run has removed its note."""
    folder = write_run(tmp_path, "algorithm=fedavg", *EVERY, rows=curve(0.1, 0.2))
    write_failed_job(tmp_path, folder, "the run diverged")
    assert [run.status for run in find([tmp_path]).runs] == ["unfinished (round 1 of 3)"]
    write_note(folder, "again")
    assert [run.status for run in find([tmp_path]).runs] == ["failed: again (round 1 of 3)"]


def test_errors_that_differ_in_what_is_of_one_run_are_one(tmp_path: Path) -> None:
    """Clients, losses, rounds and folders are of one run; a reason in a parenthesis is not, nor if it has a number."""
    errors = [
        "the run diverged in round 3 (updates of clients 3, 2 not finite, training loss nan): go on with {}",
        "the run diverged in round 12 (update of client 1 not finite, training loss 3.4e+38): go on with {}",
        "the run diverged in round 4 (updates of clients 5, 4 and 2 more not finite, training loss 3): go on with {}",
        "{}/metrics.jsonl cannot be written (No space left on device)",
        "{}/metrics.jsonl cannot be written (Permission denied)",
        "cannot be read ([Errno 5] Input/output error)",
        "cannot be read ([Errno 13] Permission denied)",
    ]
    for seed, error in enumerate(errors):
        folder = write_run(tmp_path, "algorithm=fedavg", f"seed={seed}", *EVERY, rows=curve(0.1))
        folder = folder.rename(folder.with_name(f"run of seed {seed}"))
        write_note(folder, error.format(f"hydra.run.dir='outputs/{folder.name}' and without -m"))
    section = written(tmp_path)["report.md"].split("## What failed")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| FedAvg |")]
    assert sorted(row[-1] for row in rows) == ["1", "1", "1", "1", "3"]
    assert next(row[1] for row in rows if row[-1] == "3").startswith("the run diverged in round ")
    assert "Of errors that differ only in numbers" in section


def test_a_run_of_no_rounds_is_finished_and_has_no_result(tmp_path: Path) -> None:
    write_run(tmp_path, "algorithm=fedavg", "rounds=0", rows=curve(0.1))
    files = written(tmp_path, for_latex=True)
    text = files["report.md"]
    assert "1 run: 1 finished" in text and "finite" not in text + files["tables.tex"]
    assert "\nNo evaluation counts.\n" in text and column(text, "FedAvg") == ["no evaluation counts"]


def test_runs_of_a_sweep_may_lie_deeper(tmp_path: Path) -> None:
    """As with hydra.sweep.subdir='seed${seed}/${run_id:}'. A record leads nowhere else."""
    folder = write_run(tmp_path, "algorithm=fedavg", rows=())
    deeper = tmp_path / "seed0" / folder.name
    deeper.parent.mkdir()
    folder.rename(deeper)
    write_failed_job(tmp_path, deeper, "the run diverged")
    (sweep,) = (tmp_path / "sweeps").iterdir()
    (run,) = find([sweep]).runs
    assert run.folder == deeper and run.error == "the run diverged"
    (tmp_path / "below").mkdir()
    assert run_folder(tmp_path / "below" / "sweeps" / "id", f"../seed0/{folder.name}") is None
    assert run_folder(tmp_path / "below" / "sweeps" / "id", str(deeper)) is None


def test_of_many_given_runs_the_sweeps_beside_them_are_looked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep has a record of each of a thousand runs."""
    runs = [write_run(tmp_path, "algorithm=fedavg", f"seed={seed}", rows=curve(0.1)) for seed in range(3)]
    write_failed_job(tmp_path, runs[0], "the run diverged")
    walked, walk = list[Path](), folders._walk

    def noted(path: Path) -> Iterator[tuple[Path, set[str]]]:
        walked.append(path)
        return walk(path)

    monkeypatch.setattr(folders, "_walk", noted)
    assert not folders.without_run(runs, find(runs))
    assert walked.count(tmp_path / "sweeps") == 1


def test_a_damaged_run_is_said_and_its_number_does_not_count(tmp_path: Path) -> None:
    """A digit of one row; and one that is being made longer is not mistaken for damaged."""
    rows = curve(0.1, 0.5, 0.75)
    folder = write_run(tmp_path, "algorithm=fedavg", "rounds=2", rows=rows)
    content = (folder / "metrics.jsonl").read_bytes()
    summary = {"rounds": 2, "metrics_sha256": hashlib.sha256(content).hexdigest()}
    (folder / "summary.json").write_text(json.dumps(summary))
    (run,) = find([tmp_path]).runs
    assert run.finished and run.status == "finished"
    for damaged in (content.replace(b"0.75", b"0.95"), content.replace(b"0.5", b"0,5"), content[:-4]):
        (folder / "metrics.jsonl").write_bytes(damaged)
        (run,) = find([tmp_path]).runs
        assert not run.finished and run.objective is None
        assert run.status == "damaged: metrics.jsonl is not as the run left it; its command mends or refuses it"
        assert run.status in written(tmp_path)["report.md"]
    (folder / "metrics.jsonl").write_bytes(content.replace(b"0.75", b"0.7") + b'{"round": 3, "test/accuracy": 0.8}\n')
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("rounds: 2", "rounds: 4", 1))
    (run,) = find([tmp_path]).runs
    assert run.status == "unfinished (round 3 of 4)"
    for summary in ({"rounds": None}, {"rounds": 9, "metrics_sha256": 3}, {"rounds": 10**30, "metrics_sha256": "x"}):
        (folder / "summary.json").write_text(json.dumps(summary))
        assert find([tmp_path]).runs


@pytest.mark.parametrize(("asked", "is_told"), [((2,), True), ((2, 4), False), ((4,), False)])
def test_a_run_that_is_longer_than_its_sweeps_asked_for_is_said(
    asked: tuple[int, ...], is_told: bool, tmp_path: Path
) -> None:
    """Its number is that of a condition of its own, and a sweep's table has another one."""
    folder = write_run(tmp_path, "algorithm=fedavg", "rounds=4", rows=curve(0.1, 0.2, 0.3, 0.4, 0.5))
    for rounds in asked:
        (jobs := tmp_path / "sweeps" / f"of-{rounds}" / "jobs").mkdir(parents=True)
        job = {"folder": f"outputs/{folder.name}", "status": "finished", "summary": {"rounds": rounds}}
        (jobs / "a.json").write_text(checksummed_json.text(job))
    told = "its sweep asked for 2 rounds: it has been made longer, which is another condition"
    assert (told in written(tmp_path)["report.md"]) == is_told


def test_keys_of_a_method_are_told_in_small_print_and_long_errors_are_cut(tmp_path: Path) -> None:
    table = ReportTable(
        ["method", "x"], [[cell("fedavg local.lr=0.1 local.epochs=2"), cell("1")], [cell("delay.std=5"), cell("2")]]
    )
    text = page.page(Report("t", "s", [], [Section("One", tables=[table])]))
    assert '<span class="value">fedavg</span><small>local.lr=0.1 local.epochs=2</small>' in text
    assert '<span class="value">delay.std=5</span></th>' in text
    failed = write_run(tmp_path, "algorithm=fedavg", *EVERY, rows=curve(0.1))
    write_note(failed, "word " * 90)
    text = written(tmp_path)["report.md"]
    assert column(text, "FedAvg") == ["failed", "1 failed"]
    (line,) = [line for line in text.split("## What failed")[1].splitlines() if line.startswith("| FedAvg |")]
    assert "word word … | all | 1 |" in line and len(line) < 350


def test_equal_runs_make_equal_pages(outputs: Path, tmp_path: Path) -> None:
    first, _ = cli.write([outputs], tmp_path / "a")
    again, _ = cli.write([outputs], tmp_path / "b")
    assert first.read_bytes() == again.read_bytes()


def test_only_a_date_that_a_clock_gave_is_told(tmp_path: Path) -> None:
    """The files of an unpacked bundle have the local 1 January 1980."""
    folder = write_run(tmp_path, "algorithm=fedavg", *EVERY, rows=curve(0.1))
    new_year = 315_532_800.0  # in UTC
    for time, told in ((new_year - 50_000, False), (new_year + 50_000, False), (2e9, True)):
        os.utime(folder / "metrics.jsonl", (time, time))
        text = written(tmp_path)["report.md"]
        assert re.findall("Newest round: (.*)", text) == ["18 May 2033, 03:33 UTC."] * told


def test_pictures_of_the_markdown_are_there(outputs: Path) -> None:
    text = written(outputs)["report.md"]
    links = re.findall(r"!\[.*\]\((.*)\)", text)
    assert links and all((outputs / "report" / link).is_file() for link in links)


def test_each_chart_has_files_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks whose conditions have no name too."""
    monkeypatch.setattr(figures, "_drawn", lambda *_: b"")
    monkeypatch.setattr(figures, "_legend", lambda *_: b"")
    late = {"late/staleness_count/1": 1.0}
    for algorithm, metric in (("fedavg", "mine/a b"), ("fedprox", "mine/a_b"), ("fedbuff", "mine/A_b")):
        rows = [{metric: value, "test/accuracy": value, **late} for value in (0.1, 0.2, 0.3, 0.4)]
        write_run(tmp_path, f"algorithm={algorithm}", f"evaluation.metric='{metric}'", *EVERY, rows=rows)
    found = build.report(group(find([tmp_path]).runs), None, [])
    charts = [chart for section in found.sections for chart in section.charts]
    written(tmp_path)
    files = [path.name.lower() for path in (tmp_path / "report" / "plots").iterdir()]
    assert len(charts) == len(set(files)) == 6
    assert sorted(files) == sorted(f"{chart.name}.svg".lower() for chart in charts)
    panels = sum(len(chart.panels) for chart in charts if isinstance(chart, Chart))
    names = [name.lower() for name, _ in figures.files(found, "svg")]
    assert len(set(names)) == len(names) == 2 * panels + len(charts)


def test_words_of_users_cannot_break_the_page() -> None:
    table = ReportTable(["a|b", "x"], [[cell("<b>"), cell("1", "*2*")]], title="<t>")
    section = Section("One", ["a & <b>"], [table], code=["x < y"])
    text = page.page(Report("<t>", "<s>", ["<h>"], [section])).partition("<body>")[2]
    assert not re.search(r"<(b|t|s|h)>", text) and "&lt;b&gt;" in text and "&lt;h&gt;" in text
    assert "| a\\|b | x |" in markdown._section(section) and "1<br>\\*2\\*" in markdown._section(section)


# The command.


def test_a_sweep_of_real_runs_has_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One job fails before it begins; the numbers are those of summary.json; commands and commits are told."""
    small = ["model=logistic", "num_clients=4", "participation.cohort_size=2", "logger=none", "rounds=1", "device=cpu"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedlab", "-m", "algorithm=fedavg", "seed=0,1,-1", *small])
    with own_handlers():
        assert train.main() == 1
    capsys.readouterr()
    (sweep,) = (tmp_path / "outputs" / "sweeps").iterdir()
    assert cli.main([str(sweep)]) == 0
    page = sweep / "report" / "index.html"
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (f"3 runs: 2 finished, 1 failed\n{page.relative_to(tmp_path)}\n", "")
    assert cli.main([str(sweep), "--latex"]) == 0
    names = [str(page.parent.relative_to(tmp_path) / name) for name in ("index.html", "tables.tex", "references.bib")]
    assert capsys.readouterr().out.splitlines()[1:] == names
    rows = {row["seed"]: row for row in records((sweep / "report" / "runs.csv").read_text())}
    for seed in ("0", "1"):
        summary = json.loads((tmp_path / "outputs" / rows[seed]["run"] / "summary.json").read_text())
        assert float(rows[seed]["objective"]) == summary["objective"]
        assert {key: float(rows[seed][key]) for key in ("best", "last")} == {k: summary[k] for k in ("best", "last")}
        assert rows[seed]["command"] == f"fedlab algorithm=fedavg seed={seed} {' '.join(small)}"
        assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", rows[seed]["commit"])
    assert rows["-1"]["status"] == "failed: seed must be in [0, 281474976710656), got -1"
    assert "Examples of each client" in page.read_text()


def test_the_command_names_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, "algorithm=fedavg", *EVERY, rows=curve(0.1, 0.2, 0.3, 0.4))
    assert cli.main([str(tmp_path), "--latex", "--figures", "svg"]) == 0
    counts, *paths = capsys.readouterr().out.splitlines()
    assert counts == "1 run: 1 finished"
    assert [Path(each).name for each in paths] == ["index.html", "tables.tex", "references.bib", "figures"]
    assert all(Path(each).exists() for each in paths)


def test_what_cannot_be_reported_on_is_one_line(
    outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: object) -> str:
        assert cli.main([str(each) for each in arguments]) == 2
        shown = capsys.readouterr()
        assert shown.out == "" and shown.err.count("\n") == 1
        return shown.err

    assert "is not a folder: give folders of runs" in refused(tmp_path / "nothing")
    assert refused(tmp_path).startswith(f"error: no runs in {tmp_path}: a run's folder has a config.yaml")
    (tmp_path / "file").write_text("")
    assert "--out must be a folder" in refused(outputs, "--out", tmp_path / "file")
    assert "--interval needs --latex" in refused(outputs, "--interval")
    for number in ("nan", "inf"):
        assert f"--target must be a finite number, got {number}" in refused(outputs, "--target", number)
    assert "no run belongs to experiment=feddle/table7" in refused(outputs, "--experiment", "feddle/table7")


def test_a_folder_that_this_user_may_not_list_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another user's, made under umask 077: one run of two, and the given folder."""
    write_run(tmp_path, "algorithm=fedavg", "seed=0", *EVERY, rows=curve(0.1))
    closed = write_run(tmp_path, "algorithm=fedavg", "seed=1", *EVERY, rows=curve(0.1))

    def refusing(real: Any) -> Any:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            if closed in (Path(path), *Path(path).parents):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return real(path, *arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for module, name in ((os, "scandir"), (os, "open"), (Path, "stat")):
            patch.setattr(module, name, refusing(getattr(module, name)))
        assert find([tmp_path]).unreadable == {str(closed): "config.yaml cannot be read (Permission denied)"}
        with pytest.raises(UserError, match="cannot be read"):
            find([closed])
