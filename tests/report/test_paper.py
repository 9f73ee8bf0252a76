"""Summaries over conditions, tables and figures for a paper, and the parts of charts, of runs made in memory."""

import json
import math
import re
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy import stats as scipy_stats

from fedlab_runner.methods import registry
from fedlab_runner.report import (
    beside,
    build,
    curves,
    figures,
    formatting,
    grouping,
    headline,
    latex,
    metric_sections,
    page,
    published,
    scales,
    significance,
    stats,
    summaries,
    svg,
    tables,
    targets,
)
from fedlab_runner.report.content import Chart, Dots, Entry, Panel, Report, Section, Series
from fedlab_runner.report.runs import Run
from fedlab_runner.utils import escaping

ROUNDS = 10


def run(algorithm: str, delay: str, seed: int, top: float, **more: object) -> Run:
    """A run that climbs to an accuracy."""
    config = {"seed": seed, "rounds": ROUNDS, "dataset": {"_target_": "x.digits.Digits"}, "delay": delay, **more}
    config |= {"algorithm": {"_target_": f"fedlab_runner.algorithms.{algorithm}.A"}}
    config |= {"evaluation": {"metric": "test/accuracy", "summary": "last", "every": 1}}
    rows = [
        {"round": r, "test/accuracy": 0.1 + (top - 0.1) * r / ROUNDS}
        | ({"comm/upload_mb": 2.0, "cost/server_gflops": 500.0 if algorithm == "feddle" else 1.0} if r else {})
        for r in range(ROUNDS + 1)
    ]
    choices = {"algorithm": algorithm, "server_data": "in_domain", "dataset": "digits"}
    return Run(Path(f"{algorithm}-{delay}-{seed}"), config, choices, rows, [], [], [])


PAPER = published.Paper(
    "x/table1",
    "accuracy in percent",
    published.SEEDS,
    [{"delay": "none"}],
    [
        {"name": name, "choice": {"algorithm": algorithm}, "mean": [60.0], "std": [1.5]}
        for name, algorithm in (("FedAvg", "fedavg"), ("HFCL", "hfcl"), ("DFML", "dfml"))
    ],
)
TOPS = {"fedavg": 0.5, "fedbuff": 0.6, "feddle": 0.7}


@pytest.fixture(scope="module")
def groups() -> list[grouping.SeedGroup]:
    """Three methods under two conditions on three seeds."""
    made = [
        run(name, delay, seed, top - shift + seed * step)
        for (name, top), step in zip(TOPS.items(), (0.01, 0.02, 0.015), strict=True)
        for delay, shift in (("none", 0.0), ("late", 0.1))
        for seed in range(3)
    ]
    return grouping.group(made)


@pytest.fixture(scope="module")
def whole(groups: list[grouping.SeedGroup]) -> Report:
    return build.report(groups, None, [])


# Over conditions.


def test_the_interquartile_mean_and_its_stratified_interval(groups: list[grouping.SeedGroup]) -> None:
    scores, left_out = summaries.scores_of(groups)
    assert list(scores) == ["FedAvg", "FedBuff", "Feddle"] and left_out == []
    values = np.concatenate(scores["FedBuff"])
    assert summaries.iqm(scores["FedBuff"]) == pytest.approx(np.sort(values)[1:-1].mean())
    low, high = summaries.interval(scores["FedBuff"])
    assert (low, high) == summaries.interval(scores["FedBuff"]), "drawn again alike"
    # Drawn within conditions: the means of the worst and of the best seed of each bound it.
    assert min(values) <= low < summaries.iqm(scores["FedBuff"]) < high <= max(values)
    mixed = [np.array([0.0, 0.01, 0.02]), np.array([1.0, 1.01, 1.02])]
    low, high = summaries.interval(mixed)
    assert high - low < 0.1, "a bootstrap that mixed the conditions would spread from 0 to 1"
    assert all(map(math.isnan, summaries.interval([np.array([0.5]), np.array([0.5, 0.6])])))


def test_conditions_weigh_alike_in_the_interquartile_mean() -> None:
    """With one seed or three; with equal numbers it is the trimmed mean, and its interval that of rliable."""
    rng = np.random.default_rng(0)
    for seeds in range(1, 7):
        equal = [rng.random(seeds) for _ in range(3)]
        assert summaries.iqm(equal) == pytest.approx(scipy_stats.trim_mean(np.concatenate(equal), 0.25))
    easy, hard = np.array([0.9]), np.array([0.3])
    one = summaries.iqm([np.repeat(easy, 3), hard])
    other = summaries.iqm([easy + 0.01, np.repeat(hard + 0.01, 3)])
    assert (one, other) == (pytest.approx(0.6), pytest.approx(0.61)), "better under both conditions, and so in all"
    low, high = summaries.interval([np.repeat(easy, 6), np.repeat(hard, 2)])
    assert (low, high) == (pytest.approx(0.6), pytest.approx(0.6))


def test_ranks_share_ties_and_follow_the_metric() -> None:
    scores = {"a": [np.array([1.0]), np.array([3.0])], "b": [np.array([1.0]), np.array([2.0])]}
    assert summaries.ranks_of(scores, less_is_better=False) == {"a": [1.5, 1.0], "b": [1.5, 2.0]}
    assert summaries.ranks_of(scores, less_is_better=True) == {"a": [1.5, 2.0], "b": [1.5, 1.0]}


def test_conditions_weigh_alike_in_a_profile(groups: list[grouping.SeedGroup]) -> None:
    scores = {"FedAvg": [np.full(3, 0.1), np.array([0.9])]}
    chart = summaries._profiles(scores, curves.lines_of(groups), "test/accuracy", False, {"FedAvg": 0.5})
    (series,) = chart.panels[0].series
    assert {y for x, y in zip(series.x, series.y, strict=True) if 20 < x < 80} == {50.0}


def test_a_profile_is_the_share_of_runs_that_are_as_good(groups: list[grouping.SeedGroup]) -> None:
    section = summaries.section(groups, curves.lines_of(groups), 2)
    assert section is not None
    (chart,) = section.charts
    assert isinstance(chart, Chart)
    (series,) = [each for each in chart.panels[0].series if chart.legend[each.entry].name == "FedBuff"]
    values = [100 * v for g in groups if g.name == "FedBuff" for v in g.finished.values()]
    for x, y in zip(series.x, series.y, strict=True):
        assert y == pytest.approx(100 * statistics.fmean(v >= x for v in values))
    assert "Feddle has the best interquartile mean" in chart.caption


def test_a_method_that_lacks_a_condition_is_left_out_and_named(groups: list[grouping.SeedGroup]) -> None:
    some = [each for each in groups if (each.name, each.condition) != ("FedAvg", "delay=none")]
    section = summaries.section(some, curves.lines_of(some), 2)
    assert section is not None and "left out: FedAvg." in section.notes[1]
    assert [row[0].lines[0] for row in section.tables[0].rows] == ["FedBuff", "Feddle"]


# The headline and the blocks.


def test_the_headline_names_the_best_with_its_interval(groups: list[grouping.SeedGroup]) -> None:
    late = [each for each in groups if each.condition == "delay=late"]
    values = list(late[-1].finished.values())
    wanted = scipy_stats.t.interval(0.95, 2, statistics.fmean(values), scipy_stats.sem(values))
    said = headline.best_of("", late)
    assert said.startswith("best is Feddle with 61.5\xa0% (mean of 3 seeds, 95 % interval ")
    assert f"{100 * wanted[0]:.1f} to {100 * wanted[1]:.1f}; 3 methods compared" in said
    assert headline.best_of("", groups).startswith("Feddle is best in 2 of 2 conditions; it has the best interquartile")


def test_the_headline_compares_nothing_with_itself_and_names_what_has_no_result() -> None:
    two = [run("fedavg", "none", seed, top) for seed, top in enumerate((0.6, 0.9))]
    assert headline.best_of("", grouping.group(two)).endswith("95 % interval 0 to 100).")
    assert "{75} [0, 100]" in latex.document(grouping.group(two), [], interval=True)
    assert headline.best_of("", grouping.group(two[:1])) == "FedAvg has 60.0\xa0% (1 seed)."
    cut = run("dfml", "none", 0, 0.5, num_clients=50)
    blocks = grouping.blocks(grouping.group([*two, replace(cut, rows=cut.rows[:3])]))
    said = headline.headline(blocks, [*two], [])
    assert any(each.endswith(": no run is finished.") for each in said) and "No run is finished." not in said


@pytest.mark.parametrize("delays", [["none"], ["none", "late"]])
def test_a_setting_tried_on_one_seed_is_not_the_best_of_those_with_more(delays: list[str]) -> None:
    """A learning rate is chosen on seed 0, and then runs on five seeds: in all tables, in tests and in the headline."""
    made = [
        run(name, delay, seed, top + seed % 3 * top / 60, local={"lr": lr})
        for delay in delays
        for name, lr, top, seeds in (("fedavg", 1, 0.6, 5), ("fedbuff", 1, 0.5, 5), ("fedbuff", 2, 0.7, 1))
        for seed in range(seeds)
    ]
    groups = grouping.group(made)
    said = headline.best_of("", groups)
    if len(delays) == 1:
        assert said.startswith("best is FedAvg with 60.8\xa0% (mean of 5 seeds, 95 % interval ")
        assert said.endswith(
            "; 3 methods compared, 2 with at least 3 seeds); FedBuff local.lr=2 has 70.0\xa0% with 1 seed."
        )
    else:
        assert said.startswith("FedAvg is best in 2 of 2 conditions; it has the best interquartile mean, 60.7\xa0%")
        assert said.endswith("; in 2 conditions a method with fewer than 3 seeds has a better mean.")
        over_all = summaries.section(groups, curves.lines_of(groups), 2)
        assert over_all is not None
        firsts = {row[0].lines[0]: row[-1].lines[0] for row in over_all.tables[0].rows}
        assert firsts == {"FedAvg": "2 of 2", "FedBuff local.lr=1": "0 of 2"}
        assert over_all.notes[1].endswith("left out: FedBuff local.lr=2.")
    tests, untested = significance.significance(groups)
    assert tests is not None and untested == []
    against = {(row[1].lines[0], row[2].lines[0], row[-1].lines[0]) for row in tests.rows}
    few = ("FedBuff local.lr=2", "FedAvg", "too few seeds")
    assert against == {("FedBuff local.lr=1", "FedAvg", "significant"), few}
    table = tables.comparison(groups)
    assert {row[0].lines[0] for row in table.rows if any(each.bold for each in row)} == {"FedAvg"}
    text = latex.document(groups, [], interval=False)
    assert [line.partition("~")[0] for line in text.splitlines() if "textbf" in line] == ["FedAvg"]
    for caption in (table.title, text):
        assert "in bold, among those with at least 3 seeds where there are any" in caption
    (real,) = [each for each in build.report(groups, None, []).sections if each.title == "Are the differences real?"]
    assert "the best under the same condition, among those with at least 3 seeds where" in real.notes[0]
    _, untested = significance.significance([each for each in groups if each.name != "FedBuff local.lr=1"])
    assert "no method shares 3 finished seeds with the best, FedAvg." in untested[0]


def test_p_is_adjusted_for_all_pairs_of_methods_as_the_numbers_chose_the_best() -> None:
    """Adjusted for the eleven shown, one of twelve equal methods differs from the best in 12 to 14 % of reports."""
    rng = np.random.default_rng(0)
    made = [run(f"m{m}", "none", seed, rng.normal(0.5, 0.05)) for m in range(12) for seed in range(5)]
    _, others = significance.against_best(grouping.group(made))
    least, second = sorted(others, key=lambda each: each[1].difference.p)[:2]
    assert len(others) == 11 and least[1].adjusted == pytest.approx(66 * least[1].difference.p)
    assert second[1].adjusted == pytest.approx(min(1.0, 65 * second[1].difference.p))


def test_a_method_on_two_seeds_is_no_test_and_makes_no_other_one_stricter() -> None:
    made = [run(name, "none", i, top * (1 + i % 3 / 60)) for name, top in TOPS.items() for i in range(5)]
    found = grouping.group([each for each in made if each.choices["algorithm"] != "fedavg" or each.seed < 2])
    _, others = significance.against_best(found)
    adjusted = {group.name: (each.difference.p, each.adjusted) for group, each in others}
    assert adjusted["FedBuff"][0] == adjusted["FedBuff"][1] < 0.05 and math.isnan(adjusted["FedAvg"][1])
    table, untested = significance.significance(found)
    assert table is not None and len(table.rows) == 2 and untested == []
    few = [each for each in found if each.name != "FedBuff"]
    assert "differs from the best" not in latex.document(few, [], interval=False)
    values = {0: 1.0, 1: 2.0, 2: math.nan, 3: 3.0}, {0: 0.5, 1: 1.0, 2: 1.0, 3: math.inf}
    assert stats.paired(*values).seeds == 2 and stats.paired(*values).mean == 0.75, "finite ones alone"


def test_the_headline_names_a_smaller_loss_on_fewer_seeds() -> None:
    for few, ahead in ((0.4, True), (0.6, False)):
        one, other = _of([0.5, 0.5, 0.5]), replace(_of([few]), name="Other")
        assert ("; Other has " in headline.best_of("", [one, other])) == ahead


def test_no_target_is_one_that_every_run_reaches() -> None:
    assert targets.targets(grouping.group([run("fedavg", "none", 0, 0.011)]), []) == [0.01]
    spread = {"metric": "server/own_std", "summary": "last"}
    one = replace(run("fedavg", "none", 0, 0.5), rows=[{"round": 0}, {"round": ROUNDS, "server/own_std": 0.5}])
    of_spread = grouping.group([replace(one, config={**one.config, "evaluation": spread})])
    assert of_spread[0].finished == {0: 0.5} and targets.targets(of_spread, []) == [], "a share that shall be small"


def test_a_run_that_is_longer_than_its_config_has_the_result_of_the_configs_rounds() -> None:
    long = run("fedavg", "none", 0, 0.5)
    short = replace(long, config={**long.config, "rounds": 5})
    assert short.finished and short.objective == long.rows[5]["test/accuracy"]
    assert curves.curve_of(*grouping.group([short])).rounds == [*range(6)]


def test_the_staleness_of_updates_is_a_share_and_a_mean() -> None:
    counts = {"late/staleness_count/0": 2.0, "late/staleness_count/3": 1.0}
    made = [run("fedavg", "none", seed, 0.5) for seed in range(2)]
    found = grouping.group(replace(each, rows=[{**row, **counts} for row in each.rows]) for each in made)
    (chart,) = metric_sections.staleness(found, curves.lines_of(found))
    (series,) = chart.panels[0].series
    assert series.x == [0, 0, 0, 3, 3] and series.y == pytest.approx([0, 0, 200 / 3, 200 / 3, 100])
    assert "The mean staleness is 1.00 rounds." in chart.caption


def test_the_legend_of_staleness_names_the_methods_with_a_line() -> None:
    """FedAvg has no late update."""
    made = [run(name, "none", 0, 0.5) for name in ("fedavg", "fedbuff")]
    for each in made:
        each.rows[1]["late/staleness_count/0"] = 1.0
    made[1].rows[1]["late/staleness_count/2"] = 1.0
    found = grouping.group(made)
    (chart,) = metric_sections.staleness(found, curves.lines_of(found))
    assert [entry.name for entry in chart.legend] == ["FedBuff"]
    assert [series.entry for series in chart.panels[0].series] == [0]


def test_costs_of_curves_and_seconds_are_means_over_seeds_and_rounds() -> None:
    made = [run("fedavg", "none", seed, 0.5) for seed in range(2)]
    dear = [{**row, "comm/upload_mb": 3 * row.get("comm/upload_mb", 0)} for row in made[1].rows]
    timings = [{"round": 1, "time/round": 1.0}, {"round": 2, "time/round": 3.0}, {"round": 9}]
    found = grouping.group([made[0], replace(made[1], rows=dear, timings=timings)])
    assert curves.curve_of(found[0]).costs["comm/upload_mb"] == [4.0 * r for r in range(ROUNDS + 1)]
    table = tables.costs(found)
    assert table.rows[0][list(table.header).index("a round")].lines == ("2",)
    assert curves._until({1: 2.0, 3: 5.0}, (0, 2, 9)) == [0.0, 2.0, 5.0]


def test_a_curve_reads_the_sums_of_its_costs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for the rounds without a row, of which timings may have thousands."""
    reads = list[str]()

    class Sums(dict[int, float]):
        def __iter__(self) -> Iterator[int]:
            reads.append("rounds")
            return super().__iter__()

        def items(self) -> Any:
            reads.append("items")
            return super().items()

    monkeypatch.setattr(curves, "cumulative", lambda rows, key: Sums(stats.cumulative(rows, key)))
    timings = [{"round": ROUNDS, "time/round": 1.0}]
    (found,) = grouping.group([replace(run("fedavg", "none", 0, 0.5), timings=timings)])
    costs = curves.curve_of(found).costs
    assert costs["time/round"] == [0.0] * ROUNDS + [1.0]
    assert len(reads) == len(costs) == 3


def test_methods_that_tie_are_all_named() -> None:
    """Under one condition, and over several."""
    for delays in (["none"], ["none", "late"]):
        made = [run(name, delay, 0, 0.5) for name in ("fedavg", "fedbuff", "fedprox") for delay in delays]
        worse = [run("feddle", delay, 0, 0.4) for delay in delays]
        said = headline.best_of("", grouping.group([*made, *worse]))
        if len(delays) == 1:
            wanted = "best are FedAvg, FedBuff and FedProx with 50.0\xa0% each (1 seed; 4 methods compared)."
        else:
            wanted = (
                "FedAvg, FedBuff and FedProx are each best in 2 of 2 conditions; FedAvg, FedBuff and FedProx share the "
                "best interquartile mean, 50.0\xa0%."
            )
        assert said == wanted
    assert formatting.together(list("abcde")) == "a, b, c and 2 more"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (["a none", "a late"], "FedAvg is the only method with a result."),
        (["a none", "b none", "a 0"], "delay=none: best is FedBuff with 60.0\xa0% (1 seed; 2 methods compared)."),
        (["a none", "b late"], "No two methods have a result under one condition."),
        (["a none", "b none", "a late"], "FedBuff is best in 1 of 1 condition with two methods or more."),
    ],
)
def test_a_method_is_not_the_best_of_a_condition_that_no_other_has(made: list[str], said: str) -> None:
    tops = {"a": ("fedavg", 0.5), "b": ("fedbuff", 0.6)}
    runs = [run(tops[method][0], delay, 0, tops[method][1]) for method, delay in map(str.split, made)]
    runs = [replace(each, rows=[]) if each.config["delay"] == "0" else each for each in runs]
    assert headline.best_of("", grouping.group(runs)) == said


def test_intervals_of_methods_that_tie_have_their_names() -> None:
    """Under one condition, and over several."""
    tops = {"fedavg": (0.4, 0.5, 0.6), "fedbuff": (0.45, 0.5, 0.55)}
    for delays, interval in ((["none"], "mean of 3 seeds, 95 % interval"), (["none", "late"], "95 % interval")):
        made = [run(name, delay, i, top) for name in tops for delay in delays for i, top in enumerate(tops[name])]
        said = headline.best_of("", grouping.group(made))
        ends = re.search(rf"\(FedAvg: {interval} (\S+ to \S+); FedBuff: {interval} (\S+ to [\d.]+)", said)
        assert ends is not None and ends[1] != ends[2], said


@pytest.mark.parametrize(("other", "told"), [(0.0271867904137801, "0.02719"), (0.27186790413785, None)])
def test_numbers_of_a_search_have_few_digits_unless_these_tell_settings_apart(other: float, told: str | None) -> None:
    """The second learning rate differs from the first in the twelfth digit."""
    made = [run("fedavg", "none", 0, 0.5, local={"lr": lr}) for lr in (0.27186790413781, other)]
    names = [each.name for each in grouping.group(made)]
    shown = ("0.2719", told) if told else (f"{other}", "0.27186790413781")
    assert sorted(names) == sorted(f"FedAvg local.lr={each}" for each in shown)
    rows = [{**PAPER.rows[0], "choice": {"algorithm": "fedavg"}}]
    lines = beside.rows(replace(PAPER, rows=rows), grouping.group(made))
    assert sorted(name for name, _ in lines) == sorted(names)


def test_given_decimals_hold_over_conditions(groups: list[grouping.SeedGroup]) -> None:
    exact = [replace(each, runs=[replace(run, digits=3) for run in each.runs]) for each in groups]
    section = summaries.section(exact, curves.lines_of(exact), 2)
    assert section is not None
    shown = [each.lines[0] for each in section.tables[0].rows[-1][1:4]]
    assert re.fullmatch(r"(\d\d\.\d{3}[ to]*){4}", " ".join(shown)), shown
    assert f"interquartile mean, {shown[0]}\xa0% (95 % interval {shown[1]})." in headline.best_of("", exact)


def test_unrelated_conditions_have_blocks_of_their_own(groups: list[grouping.SeedGroup]) -> None:
    runs = [each for group in groups for each in group.runs]
    other = [run("dfml", "none", seed, 0.4, num_clients=50) for seed in range(2)]
    found = grouping.blocks(grouping.group([*runs, *other]))
    assert [[len(each.runs) for each in members] for _, members in found] == [[3] * 6, [2]]
    assert [each.condition for each in found[0][1]] == ["delay=late"] * 3 + ["delay=none"] * 3
    assert "num_clients=50" in found[1][0] and grouping.blocks(groups)[0][0] == ""
    sections = build.report(grouping.group([*runs, *other]), None, []).sections
    titles = [(each.title, each.level) for each in sections]
    assert titles.count(("Comparison", 3)) == 2 and ("Runs, commits and commands", 2) in titles


def test_the_methods_of_a_block_are_named_by_what_differs_between_blocks() -> None:
    """Each block has one method, which needs no key there."""
    runs = [run("fedavg", delay, 0, 0.4, local={"lr": lr}) for delay, lr in (("none", 1), ("late", 2))]
    sections = build.report(grouping.group(runs), None, []).sections
    named = {each.title: each.notes[0] for each in sections if each.title.startswith("delay=")}
    assert named == {"delay=late": "1 run: FedAvg local.lr=2.", "delay=none": "1 run: FedAvg local.lr=1."}


def test_a_cell_of_the_matrix_says_how_many_seeds_have_it() -> None:
    made = [run("fedavg", "none", seed, 0.5) for seed in range(3)]
    for each, accuracy in zip(made, (0.5, 0.7, math.nan), strict=True):
        each.rows[-1]["client/own"] = accuracy
    table = tables.matrix(grouping.group(made))
    assert table is not None and table.rows[0][1].lines == ("60 \N{PLUS-MINUS SIGN} 14", "2 seeds")


def test_many_conditions_are_rows_with_numbers_of_four_digits() -> None:
    made = [
        run(name, "none", 0, top, train_fraction=0.1234567 + i / 100)
        for i in range(tables.MAX_COLUMNS + 1)
        for name, top in (("fedavg", 0.5), ("fedbuff", 0.6))
    ]
    for runs in (made, made[2:]):
        table = tables.comparison(grouping.group(runs))
        names = ["train_fraction=0.1235", "train_fraction=0.1335", "train_fraction=0.1435"]
        if runs == made:
            assert table.header == ["condition", "FedAvg", "FedBuff"] and table.units == ["", "%", "%"]
            assert [row[0].lines[0] for row in table.rows[:3]] == names and len(table.rows) == tables.MAX_COLUMNS + 1
            assert [(each.lines[0], each.bold) for each in table.rows[0][1:]] == [("50.0", False), ("60.0", True)]
            assert table.title.endswith("the best of each row in bold")
        else:
            assert table.header[:3] == ["method", *names[1:]] and table.title.endswith("of each column in bold")


def test_a_block_without_a_result_comes_last() -> None:
    made = [run("fedavg", "late", 0, math.nan), run("fedprox", "none", 0, 0.4, num_clients=50)]
    found = [members[0].name for _, members in grouping.blocks(grouping.group(made))]
    assert found == ["FedProx", "FedAvg"]


def test_conditions_that_share_half_of_their_methods_and_the_rule_are_one_block() -> None:
    two = [run(name, "none", 0, 0.5) for name in ("fedavg", "fedbuff")]
    late = run("fedavg", "late", 0, 0.4)
    assert len(grouping.blocks(grouping.group([*two, late]))) == 1
    best = replace(late, config={**late.config, "evaluation": {**late.evaluation, "summary": "best"}})
    assert len(grouping.blocks(grouping.group([*two, best]))) == 2
    assert len(grouping.blocks(grouping.group([*two, run("feddle", "none", 0, 0.4), late]))) == 2


def test_no_two_blocks_have_one_title() -> None:
    """Two that differ in the last of four keys too: a title has three."""
    keys = ("num_clients", "rounds", "train_fraction", "label_noise")
    values = [(50, 5, 0.5, 0.1), (50, 5, 0.5, 0.2), (60, 5, 0.5, 0.1), (50, 6, 0.5, 0.1), (50, 5, 0.6, 0.1)]
    values += [(70, 7, 0.7, 0.7), (80, 8, 0.8, 0.8)]
    names = ("fedavg", "fedprox", "scaffold", "fednova", "feddyn", "dfml", "fml")
    configs = [dict(zip(keys, each, strict=True)) for each in values]
    runs = [run(name, "none", 0, 0.4, **config) for name, config in zip(names, configs, strict=True)]
    blocks = grouping.blocks(grouping.group(runs))
    titles = [headline.block_title(title, members) for title, members in blocks]
    assert len({*titles}) == len(titles) == len(runs), titles
    assert "1 more block of conditions is below." in headline.headline(blocks, runs, [])


@pytest.mark.parametrize("clients", [(10, 20, 20), (10, 10, 20)])
def test_a_title_begins_with_a_list_only_where_other_keys_tell_less(clients: tuple[int, ...]) -> None:
    """The first block has a mean of its own. So is its number of clients, or it is that of the second block."""
    means = ([0.5], [0.25], [0.25])
    runs = [
        run(name, "none", 0, 0.4, num_clients=count, dataset={"_target_": "x.digits.Digits", "mean": mean})
        for name, count, mean in zip(("fedavg", "scaffold", "dfml"), clients, means, strict=True)
    ]
    titles = [title.split() for title, _ in grouping.blocks(grouping.group(runs))]
    first = next(title for title in titles if "dataset.mean=[0.5]" in title)
    assert first.index("dataset.mean=[0.5]") == (len(first) - 1 if clients[1] == 20 else 0)


# Numbers and axes.


@pytest.mark.parametrize(
    ("deviations", "metric", "digits"),
    [
        *(([0.141], "test/accuracy", 0), ([0.0153], "test/accuracy", 1), ([0.0004], "test/accuracy", 2)),
        *(([0.00025], "test/accuracy", 3), ([5.0], "x", 0), ([0.0], "x", None), ([math.nan], "x", None)),
        *(([0.01, 0.02, 0.9], "x", 3), ([1e-12], "x", 4), ([0.01, 0.02, 1.1], "x", None)),
    ],
)
def test_decimals_are_those_of_the_deviation(deviations: list[float], metric: str, digits: int | None) -> None:
    assert formatting.decimals(deviations, metric) == digits


@pytest.mark.parametrize(
    ("unit", "values", "found"),
    [
        *(("MB", [0.4, 12.0], ("MB", 1)), ("MB", [150_000.0, 3.0], ("GB", 1e-3)), ("MB", [math.nan], ("MB", 1))),
        *(
            ("GFLOPs", [0.0002, 0.0], ("MFLOPs", 1e3)),
            ("GFLOPs", [110_257.0], ("TFLOPs", 1e-3)),
            ("s", [1e-9], ("s", 1)),
        ),
    ],
)
def test_costs_have_a_unit_that_is_read_well(unit: str, values: list[float], found: tuple[str, float]) -> None:
    assert formatting.readable(unit, values) == found


@pytest.mark.parametrize(
    ("number", "digits", "shown"),
    [
        (-0.178, 0, "\N{MINUS SIGN}18"),
        (-0.0029, 0, "\N{MINUS SIGN}0.3"),
        (0.0029, 0, "+0.3"),
        (0.000029, None, "+0.003"),
        (1e-7, 0, "+1e-5"),
        (1e-15, 0, "0"),
        (0.0, 0, "0"),
        (math.nan, 0, "\N{EN DASH}"),
    ],
)
def test_a_difference_does_not_look_like_zero(number: float, digits: int | None, shown: str) -> None:
    assert formatting.difference(number, "test/accuracy", digits) == shown


@pytest.mark.parametrize(
    ("values", "digits", "shown"),
    [
        ([3e-5, 3.03e-5, 3.06e-5], 4, "3.03e-5 ± 3e-7"),
        ([1e90, 1.01e90, 1.02e90], 2, "1.01e90 ± 1e88"),
        ([0.5, 0.500001], 4, "0.5000 ± 7.1e-7"),
        ([-0.1001, 0.0999], 2, "0.00 ± 0.14"),
        ([-1.2, -1.4], 2, "\N{MINUS SIGN}1.30 ± 0.14"),
        ([-0.0001], 2, "\N{MINUS SIGN}0.0001"),
        ([0.0, 0.0], 1, "0.0 ± 0.0"),
    ],
)
def test_large_and_tiny_numbers_are_short_and_none_looks_like_zero(
    values: list[float], digits: int, shown: str
) -> None:
    assert formatting.spread(values, "test/loss", digits=digits) == shown
    row = latex._value(_of(values), digits, False, False, "", len(values))
    words = shown.replace("\N{MINUS SIGN}", "$-$").replace(" ± ", " & ")
    assert re.sub(r"\$\\times10\^{(.*?)}\$", r"e\1", row) == (
        words if "&" in words else f"\\multicolumn{{2}}{{c}}{{{words}}}"
    )


def test_an_interval_of_tiny_differences_has_two_ends() -> None:
    assert formatting.differences(5.6e-6, 6.4e-6, "test/loss", 4) == "+5.6e-6 to +6.4e-6"
    assert formatting.differences(-0.178, 0.0029, "test/accuracy", 0) == "\N{MINUS SIGN}18 to +0.3"


@pytest.mark.parametrize("power", range(-9, 10, 3))
def test_a_column_of_any_sizes_has_digits_that_mean_something(power: int) -> None:
    """No cost that is not zero looks like zero, and no deviation has more than four digits."""
    made = [
        replace(each, rows=[{"round": 0}, *({**row, "cost/client_gflops": cost} for row in each.rows[1:])])
        for name, size in (("fedavg", 1e-9), ("fedbuff", 10.0**power), ("feddle", 1e9))
        for seed in range(3)
        for each, cost in [(run(name, "none", seed, 0.5), size * (1 + 0.012345 * seed))]
    ]
    table = tables.costs(grouping.group(made))
    for row in table.rows:
        middle, deviation = row[table.header.index("clients' work")].lines[0].split(" ± ")
        assert float(middle.replace(",", "")) > 0
        digits = deviation.partition("e")[0].replace(",", "").replace(".", "").strip("0")
        assert 1 <= len(digits) <= 4, row
    losses = [_of([5900.0 + 100 * seed for seed in range(3)]), _of([0.5 + 0.001 * seed for seed in range(3)])]
    assert tables.decimals_of(losses) is None
    assert [tables.result([each]).lines[0] for each in losses] == ["6,000 ± 100", "0.5010 ± 0.0010"]


def _of(values: list[float]) -> grouping.SeedGroup:
    """A setting with these losses."""
    made = [run("fedavg", "none", seed, 0.5) for seed in range(len(values))]
    evaluation = {"metric": "test/loss", "summary": "last"}
    rows = [[{"round": 0}, {"round": ROUNDS, "test/loss": value}] for value in values]
    (group,) = grouping.group(
        replace(each, config={**each.config, "evaluation": evaluation}, rows=some)
        for each, some in zip(made, rows, strict=True)
    )
    return group


def test_tick_labels_are_different_and_right() -> None:
    for labels in ("1e-4 1.5e-4 2e-4", "1e-5 1.5e-5 2e-5", "1e12 1.5e12", "-2e-5 0 2e-5", "-2 0 2.5"):
        values = [float(each) for each in labels.split()]
        found = scales.tick_labels(values)
        assert [float(each.replace("\N{MINUS SIGN}", "-")) for each in found] == values
        assert max(map(len, found)) <= 7


def test_rounding_makes_no_axis() -> None:
    low, high = scales.padded(0.2, 0.2 + 1e-16)
    assert (low, high) == pytest.approx((0.19, 0.21))


def test_a_band_holds_only_what_the_metric_can_be(groups: list[grouping.SeedGroup]) -> None:
    def of(means: list[float], state: str = "finished") -> curves.Curve:
        return curves.Curve("a", 2, state, [0, 1, 2], means, [0.3] * 3, {})

    share = curves.over_rounds([of([0.1, 0.5, 0.9])], "test/accuracy", "x", 9).series[0]
    assert min(share.low) == 0 and max(share.high) == 100
    seconds = curves.over_rounds([of([0.1, 0.5, 2.0])], "time/round", "time/round", 9)
    assert min(seconds.series[0].low) == 0 and max(seconds.series[0].high) == 2.3 and seconds.y_label == "s"
    assert min(curves.over_rounds([of([0.1, -0.5, 2.0])], "x", "x", 9).series[0].low) == -0.8


def test_seconds_of_evaluations_are_those_of_rounds_that_have_one() -> None:
    one = run("fedavg", "none", 0, 0.5)
    rows = [row if row["round"] % 5 == 0 else {"round": row["round"]} for row in one.rows]
    timings = [{"round": r, "time/evaluation": 0.5 if r % 5 == 0 else 1e-6} for r in range(1, ROUNDS + 1)]
    (group,) = grouping.group([replace(one, rows=rows, timings=timings)])
    curve = curves.curve_of(group, "time/evaluation", timed=True)
    assert (curve.rounds, curve.means) == ([5, 10], [0.5, 0.5])


def test_a_run_that_failed_early_bends_no_axis_and_the_legend_says_failed() -> None:
    whole = [run(name, "none", 0, 0.5) for name in ("fedavg", "fedbuff")]
    cut = run("feddle", "none", 0, 0.5)
    timings = [{"round": r, "time/round": 1.0} for r in range(1, ROUNDS + 1)]
    failed = replace(cut, rows=cut.rows[:2], timings=timings[:1], error="it diverged")
    made = [
        *(replace(each, timings=[{**row, "time/round": 1.5 + i} for row in timings]) for i, each in enumerate(whole)),
        failed,
    ]
    found = grouping.group(made)
    (chart,) = curves.convergence(found, curves.lines_of(found), 99)
    (panel,) = [each for each in chart.panels if each.title == "By seconds"]
    assert not panel.x_log and [each.name for each in chart.legend][-1].endswith("(1 seed, failed)")


def test_a_seed_that_ends_in_no_number_is_named_in_the_legend() -> None:
    made = [run("fedavg", "none", seed, 0.5) for seed in range(3)]
    rows = [row if row["round"] <= 5 else {**row, "test/accuracy": math.nan} for row in made[2].rows]
    found = grouping.group([*made[:2], replace(made[2], rows=rows)])
    (chart,) = curves.convergence(found, curves.lines_of(found), 99)
    assert [each.name for each in chart.legend] == ["FedAvg (3 seeds, 1 not finite)"]


def test_each_tick_of_a_logarithmic_axis_has_its_own_unit() -> None:
    line = registry.method_style("fedavg", {}).line
    for high, labels in ((20_000.0, "10 100 1000 10k"), (3e6, "10 100 1000 10k 100k 1M"), (3e9, "10 1000 100k 10M 1G")):
        panel = Panel("a", "b", "c", [Series(0, [3.0, high], [0.0, 1.0])], (3.0, high), (0.0, 1.0), x_log=True)
        texts = [each.text for each in svg.panel(panel, [Entry("x", line)]).findall(".//g[@class='axes']/text")]
        assert texts[: len(labels.split())] == labels.split()


def test_ticks_of_seven_characters_begin_within_the_panel() -> None:
    panel = Panel("a", "b", "c", [], (0.0, 1.0), (0.00082, 0.00097))
    texts = [
        each for each in svg.panel(panel, []).findall(".//g[@class='axes']/text") if each.get("text-anchor") == "end"
    ]
    assert max(len(each.text or "") for each in texts) == 7
    for each in texts:
        assert float(each.get("x", "")) > 7 * len(each.text or ""), "the widest digit in 11 pixels"


def test_ticks_are_round_and_few() -> None:
    assert scales.ticks(0.13, 0.87) == [0.2, 0.4, 0.6, 0.8]
    assert scales.ticks(0, 3, whole=True) == [0, 1, 2, 3] and scales.ticks(1, 1) == [1]
    assert scales.log_ticks(0.5, 300) == [1, 10, 100] or len(scales.log_ticks(0.5, 300)) <= 7
    assert scales.tick_labels([0, 20000, 40000]) == ["0", "20k", "40k"]
    for low, high in ((1e-9, 1e9), (0.02, 0.021), (-5, 1e12), (0, 3e-12), (99.99999, 100), (123456.1, 123456.9)):
        found = scales.ticks(low, high)
        assert 1 <= len(found) <= 7 and len({*scales.tick_labels(found)}) == len(found)
    assert scales.ticks(-3e-14, 5e-14) == [-2e-14, 0, 2e-14, 4e-14]


def test_a_cost_that_follows_the_rounds_has_no_panel_and_a_dear_one_a_logarithmic_axis(whole: Report) -> None:
    (section,) = [each for each in whole.sections if each.title == "Convergence and cost"]
    for chart in section.charts:
        assert isinstance(chart, Chart)
        titles = [panel.title for panel in chart.panels]
        assert "By upload" not in titles and "over MB uploaded the picture is nearly that over rounds" in chart.caption
        (dear,) = [panel for panel in chart.panels if panel.title == "By the server's work"]
        assert dear.x_log and dear.x_range == (1.0, 5000.0)
        assert "Feddle ends at" in dear.finding and "the worst" in dear.finding


def test_close_curves_have_a_second_panel() -> None:
    def of(name: str, top: float) -> curves.Curve:
        means = [0.1 + (top - 0.1) * min(1.0, r / 5) for r in range(21)]
        return curves.Curve(name, 1, "finished", list(range(21)), means, [0.0] * 21, {})

    far, _ = curves._panels([of("a", 0.2), of("b", 0.9)], "test/accuracy", 100)
    near, _ = curves._panels([of("a", 0.88), of("b", 0.9)], "test/accuracy", 100)
    assert [len(far), len(near)] == [1, 2]
    assert near[1].x_range == (10.0, 20.0) and 87 < near[1].y_range[0] < 88 and near[1].y_range[1] < 91


def test_of_losses_the_smallest_end_is_the_best_and_seen_nearer() -> None:
    def of(name: str, end: float) -> curves.Curve:
        means = [3 + (end - 3) * min(1.0, r / 5) for r in range(21)]
        return curves.Curve(name, 1, "finished", list(range(21)), means, [0.0] * 21, {})

    whole, near = curves._panels([of("a", 1.0), of("b", 1.01), of("c", 2.0), of("d", 2.5)], "test/loss", 100)[0]
    assert whole.finding == "a ends at 1, the best of 4; d at 2.5, the worst." and near.y_range[1] < 1.1


def test_a_panel_has_the_best_methods_in_their_order() -> None:
    found = grouping.group(run("fedavg", "none", 0, 0.2 + i / 20, local={"lr": i}) for i in range(1, 13))
    assert [each.name for each in curves.most_interesting(found)] == [each.name for each in found[2:]]


def test_a_chart_has_every_round_and_value_of_its_line() -> None:
    """As the script reads them, of long runs, and far beyond the axes, where a line is drawn nearer."""
    rounds = [0, 1, 50_001, 99_999, 100_000]
    means = [1.0, 2.0, 12_345.678, 1e90, 0.5]
    curve = curves.Curve("FedAvg", 1, "finished", rounds, means, [0.0] * len(rounds), {})
    panel = replace(curves.over_rounds([curve], "test/loss", "x", 100), y_range=(0.0, 4.0))
    line = svg.panel(panel, [Entry("FedAvg", registry.method_style("fedavg", {}).line)]).find(".//path[@class='line']")
    assert line is not None
    places = [each.split() for each in re.findall(r"[ML]([\d.]+ [-\d.]+)", line.get("d", ""))]
    far = json.loads(line.get("data-far", "{}"))
    assert [round(float(x) / svg.ACROSS * 100_000) for x, _ in places] == rounds
    read = [far.get(str(i), 4 * (1 - float(y) / svg.DOWN)) for i, (_, y) in enumerate(places)]
    assert read == pytest.approx(means, rel=1e-3)
    assert all(abs(float(y)) <= svg.BEYOND * svg.DOWN for _, y in places)


def test_a_sentence_is_no_name_and_markers_and_dots_are_drawn_whole(whole: Report) -> None:
    assert page._parted("FedAvg local.lr=1 mu=2") == ["FedAvg", "local.lr=1 mu=2"]
    for words in ("it diverged: local.lr=1 may be too large", "delay.std=5 rounds=3", "FedAvg"):
        assert page._parted(words) == [words]
    (chart, *_) = [each for section in whole.sections for each in section.charts if isinstance(each, Chart)]
    (plot,) = svg.panel(chart.panels[0], chart.legend).findall("svg")
    left, _, width, _ = map(float, plot.get("viewBox", "").split())
    assert left < 0 and width == svg.ACROSS - 2 * left, "beyond the axes there is room for half a marker"
    drawn = svg.dots(Dots("x", "x", ["0"], ["a"], [[1.0]], "x"))
    assert (drawn.get("width"), drawn.get("height")) == ("120", "64"), "few clients are not blown up"


def test_bands_end_at_the_axes_and_many_are_as_strong_together_as_few() -> None:
    line, found = Entry("x", registry.method_style("fedavg", {}).line), {}
    for count in (1, 5, 10):
        series = [Series(0, [0.0, 9.0], [1.0, 1.0], [0.5, 0.5], [1.5, 1.5])] * count
        drawn = svg.panel(Panel("a", "b", "c", series, (5.0, 9.0), (0.0, 2.0)), [line])
        (clipped,) = drawn.findall("svg/svg")
        assert (clipped.get("width"), clipped.get("height")) == (str(svg.ACROSS), str(svg.DOWN))
        bands = clipped.findall("g/path[@class='band']")
        assert len(bands) == count == len(drawn.findall(".//path[@class='band']"))
        found[count] = sum(float(each.get("fill-opacity", 1)) for each in bands)
    assert found == pytest.approx({1: 0.13, 5: 0.65, 10: 0.65})
    alone = svg.panel(Panel("a", "b", "c", [Series(0, [0.0, 9.0], [1.0, 1.0], [], [])], (5.0, 9.0), (0.0, 2.0)), [line])
    assert not alone.findall("svg/svg"), "no part without content"


def test_a_broad_table_prints_whole_and_no_cell_breaks_within_a_word(groups: list[grouping.SeedGroup]) -> None:
    columns = [{"delay": name} for name in ("none", "late")] * 3
    rows = [{**row, "mean": [60.0] * 6, "std": [1.5] * 6} for row in PAPER.rows]
    table = beside.table(replace(PAPER, columns=columns, rows=rows), groups)
    report = Report("x", "x", [], [Section("x", tables=[table, tables.comparison(groups)])])
    text = page.page(report)
    assert text.count('<table class="wide broad" style="--columns: 19">') == text.count("<table ") == 1
    style = page._source("style.css")
    assert "@page broad { size: landscape;" in style and "section:has(.broad) { page: broad; }" in style
    assert re.findall(r"([^{}\n]+) \{[^}]*overflow-wrap: anywhere", style) == ["body"]
    broken = "<span>partition.<wbr>alpha=<wbr>0.1</span><span>delay=<wbr>20</span>"
    assert page._broken("partition.alpha=0.1 delay=20") == broken


def test_a_page_of_many_runs_is_small_and_says_what_is_dark(groups: list[grouping.SeedGroup]) -> None:
    runs = [each for group in groups for each in group.runs]
    many = [replace(each, config={**each.config, "num_clients": n}) for each in runs for n in range(14)]
    found = grouping.group(many)
    text = page.page(build.report(found, None, []))
    assert sum(len(each.runs) for each in found) == 252 and len(text.encode()) < 2_000_000
    assert "prefers-color-scheme: dark" in text and "@media print" in text


# Files for a paper.


def test_a_table_has_bold_marks_seeds_and_references(groups: list[grouping.SeedGroup]) -> None:
    text = latex.document(groups, [], interval=False)
    assert text.count("\\toprule") == text.count("\\bottomrule") == text.count("\\begin{tabular}") == 1
    (row,) = [line for line in text.splitlines() if line.startswith("Feddle")]
    assert "~\\cite{" in row and row.count("\\textbf{") == 4
    (row,) = [line for line in text.splitlines() if line.startswith("FedAvg")]
    assert row.endswith("& 41.0 & 1.0$^{*}$ & 51.0 & 1.0$^{*}$ \\\\")
    assert "over 3 seeds (0, 1, 2); best in bold; $^{*}$: differs from the best with $p < 0.05$" in text
    columns = text.partition("\\begin{tabular}{")[2].partition("}\n")[0]
    assert columns.count("$\\pm$") == 2
    assert "@inproceedings{mcmahan2017fedavg," in latex.references(groups)
    interval = latex.document(groups, [], interval=True)
    assert "51.0 [48.5, 53.5]$^{*}$" in interval and "95\\,\\% confidence interval" in interval


def test_a_caption_names_seeds_only_if_all_methods_have_them() -> None:
    more, fewer = ([run(name, "none", seed, 0.5) for seed in range(n)] for name, n in (("fedavg", 5), ("fedbuff", 4)))
    begun = replace(run("feddle", "none", 7, 0.5), rows=[])
    assert "over 5 seeds (0, 1, 2, 3, 4); best" in latex.document(grouping.group([*more, begun]), [], interval=False)
    text = latex.document(grouping.group([*more, *fewer]), [], interval=False)
    assert "over 5 seeds, or over the number in brackets; best" in text


def test_a_seed_that_is_not_finite_is_no_seed_of_a_caption_and_no_finished_cell() -> None:
    made = [run("fedavg", "none", seed, math.nan if seed == 2 else 0.5) for seed in range(3)]
    made += [run("fedprox", "none", seed, math.nan) for seed in range(3)]
    text = latex.document(grouping.group(made), [], interval=False)
    assert "over 2 seeds (0, 1); best" in text
    assert "\\textit{not finite}" in text and "finished" not in text
    assert headline.best_of("", grouping.group(made[3:])) == "No run has a finite result."


def test_a_published_table_has_seeds_references_and_intervals() -> None:
    """As the other tables: also where a seed is not finite."""
    made = [run("fedavg", "none", seed, 0.5 + seed / 100) for seed in range(3)]
    made += [run("hfcl", "none", seed, math.nan if seed == 2 else 0.4 + seed / 100) for seed in range(3)]
    found = grouping.group(made)
    text = latex.document(found, [PAPER], interval=False)
    assert "FedAvg~\\cite{mcmahan2017fedavg} & \\textbf{51.0} & \\textbf{1.0} & 60.0 & 1.5 \\\\" in text
    assert "& 40.5 & 0.7 {\\tiny (2)} & 60.0 & 1.5 \\\\" in text and "over 3 seeds, or over the number in br" in text
    assert "DFML & \\multicolumn{2}{c}{\\textit{not run}} & 60.0 & 1.5 \\\\" in text
    text = latex.document(found, [PAPER], interval=True)
    assert (
        "& \\textbf{51.0} [48.5, 53.5] & 60.0 & 1.5 \\\\" in text and "with 95\\,\\% confidence intervals over" in text
    )
    assert "{tabular}{lcr@{\\,$\\pm$\\,}l}" in text and "& \\textit{not run} & 60.0" in text


def test_the_best_beside_a_paper_has_a_value_and_the_smallest_cost() -> None:
    unfinished = replace(run("fedavg", "none", 0, 0.5), rows=[])
    found = grouping.group([unfinished, run("hfcl", "none", 0, 0.4)])
    assert [cells[0].ours.bold for _, cells in beside.rows(PAPER, found)] == [False, True, False]
    made = [run("fedavg", "none", 0, 0.5), run("feddle", "none", 0, 0.6)]
    rows = [{**row, "choice": {"algorithm": name}} for row, name in zip(PAPER.rows, ("feddle", "fedavg"), strict=False)]
    costs = replace(PAPER, columns=[{"delay": "none", "metric": "cost/server_gflops"}], rows=rows)
    assert [cells[0].ours.bold for _, cells in beside.rows(costs, grouping.group(made))] == [False, True]


def test_a_round_without_a_cost_counts_in_its_mean_over_rounds() -> None:
    made = run("fedavg", "none", 0, 0.5)
    rows = [{k: v for k, v in row.items() if k != "comm/upload_mb" or row["round"] == 4} for row in made.rows]
    found = grouping.group([replace(made, rows=rows)])
    assert published.ours_of(found, {"metric": "comm/upload_mb"}) == [2.0 / ROUNDS]
    assert published.ours_of(found, {"metric": "comm/download_mb"}) == []


def test_texts_are_escaped_for_latex() -> None:
    assert escaping.latex("a_b & 5 % of $x^2$ {~} \\ #1") == (
        "a\\_b \\& 5 \\% of \\$x\\textasciicircum{}2\\$ \\{\\textasciitilde{}\\} \\textbackslash{} \\#1"
    )
    assert escaping.latex("[a]* `b`") == "{[}a]{*} \\textasciigrave{}b\\textasciigrave{}"
    assert escaping.latex("\u202e\u4e2d é") == "\\textbackslash{}u202e\\textbackslash{}u4e2d é"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_tables_compile(groups: list[grouping.SeedGroup], tmp_path: Path) -> None:
    texts = [latex.document(groups, papers, interval) for papers in ([], [PAPER]) for interval in (False, True)]
    (tmp_path / "tables.tex").write_text("\n".join(texts))
    main = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\\input{tables}\\end{document}"
    (tmp_path / "main.tex").write_text(main)
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "main.tex"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "main.pdf").stat().st_size > 0


def test_long_names_in_a_legend_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the picture of report.md, and in several lines in the legend for a paper."""
    found = grouping.group(
        run("fedavg", "none", 0, 0.5, local={key: f"{'word' * 5}{i}" for key in ("lr", "momentum", "decay")})
        for i in range(2)
    )
    (chart,) = curves.convergence(found, curves.lines_of(found), 100)
    names = [entry.name for entry in chart.legend]
    picture = ElementTree.fromstring(svg.file(chart))
    texts = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert min(map(len, names)) > svg.MAX_LABEL_CHARACTERS and set(names) <= set(texts)
    assert float(picture.get("viewBox", "").split()[2]) > 7 * max(map(len, names))
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "_saved", lambda figure, kind: drawn.append(figure))
    figures._legend(chart, "svg")
    drawn[0].draw_without_rendering()
    (legend,) = drawn[0].legends
    box = legend.get_window_extent()
    assert box.width <= drawn[0].bbox.width and box.height <= drawn[0].bbox.height + 2


def test_figures_are_single_panels_with_real_text_and_a_legend(whole: Report) -> None:
    (section,) = [each for each in whole.sections if each.title == "Convergence and cost"]
    chart = section.charts[0]
    assert isinstance(chart, Chart)
    one = replace(whole, sections=[replace(section, charts=[replace(chart, panels=chart.panels[:1])])])
    found = dict(figures.files(one, "svg"))
    stem = "curves-delay=late"
    assert set(found) == {f"{stem}-over_rounds-column.svg", f"{stem}-over_rounds-text.svg", f"{stem}-legend.svg"}
    for width, name in ((3.3, "column"), (6.75, "text")):
        text = found[f"{stem}-over_rounds-{name}.svg"].decode()
        assert f'width="{72 * width:g}pt"' in text and "test/accuracy, %" in text
        assert set(re.findall(r"font-size: ([\d.]+)px", text)) == {"8"}, "points, in the unit of the file"
    assert "Feddle" in found[f"{stem}-legend.svg"].decode()
    assert dict(figures.files(one, "svg")) == found


def test_no_name_of_a_figure_is_cut_off(whole: Report) -> None:
    chart = next(each for section in whole.sections for each in section.charts if isinstance(each, Chart))
    names = [f"SCAFFOLD local.lr={i}e-5 (2 seeds)" for i in range(5)]
    legend = [chart.legend[0]._replace(name=name) for name in names]
    axis = "seconds of rounds so far, on the machine of each run"
    panel = replace(chart.panels[0], series=[], x_label=axis)
    one = Report("", "", [], [Section("", [], charts=[replace(chart, legend=legend, panels=[panel])])])
    column, wide, drawn = (text.decode() for text in dict(figures.files(one, "svg")).values())
    assert axis in wide and "seconds of rounds so far, on the machine<" in column, "two lines"
    places = [float(x) for x in re.findall(r'<text [^>]*x="([\d.-]+)"', drawn)]
    assert len(places) == 5 and min(places) > 30 and max(places) < 72 * 6.75 - 4 * len(names[0]), "points"
