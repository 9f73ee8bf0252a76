"""Builds the report of some runs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType

from fedlab_runner.core.metric_names import is_share
from fedlab_runner.experiment.provenance import short_commit
from fedlab_runner.methods.registry import Line
from fedlab_runner.report import beside, grouping, metric_sections, published, significance, summaries, tables, targets
from fedlab_runner.report.content import Report, ReportTable, Section, cell
from fedlab_runner.report.curves import convergence, lines_of, per_line
from fedlab_runner.report.folders import NoRun
from fedlab_runner.report.formatting import judged, listed, not_counted, several, unit, value
from fedlab_runner.report.grouping import Differences, SeedGroup, group
from fedlab_runner.report.headline import block_title, failures, headline
from fedlab_runner.report.matrix_charts import matrix_charts
from fedlab_runner.report.metric_sections import partitions, staleness
from fedlab_runner.report.runs import Run
from fedlab_runner.report.stats import MIN_SEEDS, SIGNIFICANCE_LEVEL
from fedlab_runner.sweep import states
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.escaping import file_names

# Keys that the overview shows if all runs agree on them. The others are in the runs' config.yaml.
SHARED_KEYS = (
    *("algorithm", "dataset", "model", "server_data", "partition", "partition.alpha", "delay", "delay.std"),
    *("train_fraction", "label_noise", "num_clients", "participation.cohort_size", "rounds"),
    *("local", "local.lr", "local.epochs", "local.batch_size"),
)

# What the overview says of the jobs without a run, by their state.
NO_RUN = {
    states.FAILED: "that failed without a run's folder",
    states.MISSING: "of which the run's folder is gone",
    states.NOT_BEGUN: "not begun",
}
MIN_TIME = 315_705_600  # in seconds since 1970: 3 January 1980. An unpacked bundle's files have the date of 1 January.
MAX_TIME = 2**35  # in seconds since 1970; a file's date counts between the two


def select(runs: Iterable[Run], experiment: str | None) -> list[SeedGroup]:
    """The runs by setting; with an experiment, only runs that it started or that fit a cell of its published table.

    Raises UserError if the experiment has no run.
    """
    groups = group(runs)
    if experiment is None:
        return groups
    paper = published.load(experiment)
    mine = [
        each
        for each in groups
        if any(experiment in run.experiments for run in each.runs) or (paper and _is_read(paper, each))
    ]
    if not mine:
        names = sorted({name for each in groups for run in each.runs for name in run.experiments or ["none"]})
        raise UserError(f"no run belongs to experiment={experiment}: the runs there have {', '.join(names)}")
    # They are named again, because fewer keys distinguish them.
    return group(run for each in mine for run in (*each.runs, *each.left_out))


def _is_read(paper: published.Paper, group: SeedGroup) -> bool:
    """Whether a cell of a paper's table fits a setting, or takes its target from it."""
    others = [{"algorithm": row["target"]["algorithm"]} for row in paper.rows if "target" in row]
    wanted = ({**column, **each} for each in others for column in paper.columns)
    return paper.has(group) or any(published.fits(group, each) for each in wanted)


def report(
    groups: Sequence[SeedGroup],
    experiment: str | None,
    wanted: Sequence[float],
    others: Sequence[NoRun] = (),
    unreadable: Mapping[str, str] = MappingProxyType({}),
    name: str = "",
) -> Report:
    """The whole report.

    `wanted`: target values of the metric (empty: each condition has its own). `others`: jobs of sweeps that have no
    run. `unreadable`: the faults of folders that cannot be read. `name`: the title of a report on no experiment.
    """
    runs = [run for each in groups for run in each.runs]
    known = papers_of(runs, experiment)
    blocks = grouping.blocks(groups)
    level = 2 if len(blocks) == 1 else 3
    names_of = {run.name: each.name for each in groups for run in each.runs}  # with the keys that blocks differ in
    sections: list[Section | None] = [_overview(groups, runs, others), *(_published(paper, groups) for paper in known)]
    most = per_line(groups)
    for title, members in blocks:
        found = _block(members, known, wanted, most, level)
        if len(blocks) > 1:
            names = ", ".join(dict.fromkeys(names_of[run.name] for each in members for run in each.runs))
            heading = block_title(title, members)
            more = title if title != heading else ""
            sections.append(Section(heading, [f"{count_of(_count(members), 'run')}: {names}.", more]))
            found = [_named(section, [f"{heading} {chart.name}" for chart in section.charts]) for section in found]
        sections += found
    sections += [failures(groups, others), _runs(groups), _unreadable(unreadable)]
    done = sum(run.finished for run in runs)
    missing = ", ".join(states.counted([*(run.state for run in runs), *(job.state for job in others)]))
    return Report(
        experiment or name or "Report",
        f"{count_of(len(runs) + len(others), 'run')}: {done} finished"
        + (f", {missing}" if missing else "")
        + (f"; {left_out} left out" if (left_out := sum(len(each.left_out) for each in groups)) else "")
        + (f"; {count_of(len(unreadable), 'folder')} that cannot be read" if unreadable else ""),
        [*_date(runs), *headline(blocks, runs, others)],
        _with_file_names([section for section in sections if section is not None]),
    )


def _with_file_names(sections: Sequence[Section]) -> list[Section]:
    """The sections with chart names that can be file names, of which no two are equal."""
    names = iter(file_names(chart.name for section in sections for chart in section.charts))
    return [_named(section, [next(names) for _ in section.charts]) for section in sections]


def _named(section: Section, names: Sequence[str]) -> Section:
    """The section with a name for each of its charts."""
    return replace(section, charts=[replace(chart, name=n) for chart, n in zip(section.charts, names, strict=True)])


def papers_of(runs: Sequence[Run], experiment: str | None) -> list[published.Paper]:
    """The published tables to which the report compares the runs."""
    found = [published.load(experiment)] if experiment else published.papers(runs)
    return [paper for paper in found if paper is not None]


def _block(
    groups: Sequence[SeedGroup], known: Sequence[published.Paper], wanted: Sequence[float], most: int, level: int
) -> list[Section]:
    """The sections of a block of conditions."""
    lines = lines_of(groups)
    others = [each for each in groups if not any(paper.has(each) for paper in known)]
    found: list[Section | None] = [_compared(others, also=bool(known))] if others else []
    found += [summaries.section(groups, lines, level), _curves(groups, lines, most), _significance(groups)]
    found += [_matrix(groups, lines, most), _targets(groups, wanted), _costs(groups)]
    found += metric_sections.sections(groups, lines, most, level)
    found += [_staleness(groups, lines), _partitions(groups)]
    return [replace(section, level=level) for section in found if section is not None]


def _count(groups: Sequence[SeedGroup]) -> int:
    return sum(len(each.runs) for each in groups)


def _date(runs: Sequence[Run]) -> list[str]:
    """The time of the newest round, instead of the present time, so that equal runs make equal pages."""
    newest = max((run.changed for run in runs), default=0.0)
    if not MIN_TIME < newest < MAX_TIME:
        return []
    return [f"Newest round: {datetime.fromtimestamp(newest, UTC):%d %B %Y, %H:%M} UTC."]


def _overview(groups: Sequence[SeedGroup], runs: Sequence[Run], others: Sequence[NoRun]) -> Section:
    settings = [each.setting for each in groups]
    first = settings[0]
    shared = [key for key in SHARED_KEYS if key in first and all(each.get(key) == first[key] for each in settings)]
    notes = [f"What all runs share: {', '.join(f'{key}={first[key]}' for key in shared)}."] if shared else []
    for key, values in Differences(settings).between_algorithms().items():
        told = "; ".join(f"{algorithm} {value}" for algorithm, value in values.items())
        notes.append(f"Algorithms differ in {key}: {told}.")
    rules = dict.fromkeys(judged(run) for run in runs)
    notes.append(f"A run's number is the {'; or the '.join(rules)}. Seeds that are not finished do not count.")
    if left_out := [words for each in groups for words in not_counted(each)]:
        notes.append(f"Left out, because another run has the same setting and seed: {several(left_out)}.")
    for state, why in NO_RUN.items():
        if jobs := [job.words for job in others if job.state == state]:
            notes.append(f"The sweep has {count_of(len(jobs), 'job')} {why}: {several(jobs)}.")
    return Section("Overview", notes)


def _published(paper: published.Paper, groups: Sequence[SeedGroup]) -> Section:
    title, missing = f"Beside the paper: {paper.name}", published.not_run(paper, groups)
    if not published.with_runs(paper, groups):
        return Section(title, [f"No run has the setting of a cell of the published table: {'; '.join(missing)}."])
    notes = [
        f"The published table gives {paper.unit}. A difference is ours minus the paper's; ± is "
        f"{published.meant(paper)}; the best of ours in each column is in bold"
        f"{tables.eligible_words([each for each in groups if paper.has(each)])}."
    ]
    if missing:
        notes.append(f"Not run, and left out of the table: {'; '.join(missing)}.")
    if keys := beside.between_columns(paper, groups):
        notes.append(f"Between columns the runs of a row also differ in {listed(keys)}.")
    return Section(title, notes, [beside.table(paper, groups)])


def _compared(groups: Sequence[SeedGroup], also: bool) -> Section:
    notes = ["These runs have no cell in a published table."] if also else []
    return Section("Comparison", notes, [tables.comparison(groups)])


def _curves(groups: Sequence[SeedGroup], lines: Mapping[str, Line], most: int) -> Section | None:
    drawn = convergence(groups, lines, most)
    note = (
        "Lines are means over the finished seeds, bands one standard deviation. A thin line shows unfinished runs. "
        "A cost axis is logarithmic if totals differ more than tenfold."
    )
    return Section("Convergence and cost", [note], charts=drawn) if drawn else None


def _matrix(groups: Sequence[SeedGroup], lines: Mapping[str, Line], most: int) -> Section | None:
    found = [table for each in tables.by_condition(groups).values() if (table := tables.matrix(each))]
    if not found:
        return None
    notes = [
        "A row says whose model is tested, a column on whose examples, in the last round: accuracies in percent, "
        "means over clients that count alike, with the standard deviation over seeds. The worst tenth is the mean "
        "over the tenth of the clients with the lowest accuracies. Curves of clients show the smallest seed.",
    ]
    return Section("Whose accuracy", notes, found, matrix_charts(groups, lines, most))


def _targets(groups: Sequence[SeedGroup], wanted: Sequence[float]) -> Section | None:
    found = [table for each in tables.by_condition(groups).values() if (table := targets.to_target(each, wanted))]
    if not found:
        return None
    note = (
        "The first evaluation that reaches the target: a mean over the seeds that reach it, in steps of "
        "evaluation.every. In bold: the fewest rounds among methods of which all seeds reach it"
        f"{tables.eligible_words(groups)}."
    )
    chosen = "Targets are 80 % and 95 % of the best mean of each condition; fedlab-report --target 0.8 sets others."
    return Section("Rounds and bytes to a target", [note] if wanted else [note, chosen], found)


def _costs(groups: Sequence[SeedGroup]) -> Section:
    note = (
        "Sums over the rounds, means over the finished seeds; if no seed is finished, over the recorded rounds. 1 MB "
        "is a million bytes; a multiplication and an addition are two operations. Clients: matrix products, "
        "convolutions and attention in local training. Server: also the sums over the arriving updates."
    )
    return Section("What it cost", [note], [tables.costs(each) for each in tables.by_condition(groups).values()])


def _significance(groups: Sequence[SeedGroup]) -> Section | None:
    table, notes = significance.significance(groups)
    if table is None and not notes:
        return None
    if table is not None:
        notes = [
            "Each method against the best under the same condition"
            f"{tables.eligible_words(groups)}, paired over the seeds that both have finished. "
            "A seed decides partition, cohorts, delays and first model, so that these cancel out. "
            "The test is a two-sided paired t-test, with p adjusted (Holm) for all pairs of a condition's methods, as "
            f"the same numbers chose the best; a difference is significant below {SIGNIFICANCE_LEVEL}. A few seeds (at "
            f"least {MIN_SEEDS} are needed) show only large differences. The best method looks a little better than it "
            "is.",
            *notes,
        ]
    return Section("Are the differences real?", notes, [table] if table else [])


def _staleness(groups: Sequence[SeedGroup], lines: Mapping[str, Line]) -> Section | None:
    drawn = staleness(groups, lines)
    note = (
        "The rounds from the start of a client to the arrival of its update, over all recorded updates of undamaged "
        "runs."
    )
    return Section("Lateness of updates", [note], charts=drawn) if drawn else None


def _partitions(groups: Sequence[SeedGroup]) -> Section | None:
    drawn, left_out = partitions(groups)
    notes = ["The area of a dot is a number of examples: clients across, classes down."]
    if left_out:
        notes.append(f"{left_out} more are not shown: each run has its partition in partition.csv.")
    return Section("Examples of each client", notes, charts=drawn) if drawn else None


def _runs(groups: Sequence[SeedGroup]) -> Section:
    """The runs behind the numbers, with commits and commands."""
    rows, code = [], []
    for each in groups:
        usual = 2 if is_share(each.runs[0].metric) else None
        for run in each.runs:
            digits = usual if run.digits is None else run.digits
            number = value(math.nan if run.objective is None else run.objective, run.metric, digits)
            commit = ", ".join(map(short_commit, run.commits))
            words = [cell(run.name), cell(each.condition or "all"), cell(each.name), cell(run.status, *run.warnings)]
            rows.append([*words, cell(commit or "not recorded"), cell(str(run.seed)), cell(number, sort=run.objective)])
            code += [f"# {run.name}", *(run.commands or ["# started by a program, see its config.yaml"])]
    header = ["run", "condition", "method", "status", "commit", "seed", "result"]
    measures = {unit(each.runs[0].metric) for each in groups}
    units = [""] * 6 + [measures.pop() if len(measures) == 1 else ""]
    return Section("Runs, commits and commands", tables=[ReportTable(header, rows, names=5, units=units)], code=code)


def _unreadable(folders: Mapping[str, str]) -> Section | None:
    if not folders:
        return None
    note = "The tables cover all folders except these."
    rows = [[cell(folder), cell(fault)] for folder, fault in folders.items()]
    return Section("Folders that cannot be read", [note], [ReportTable(["folder", "why"], rows, names=2)])
