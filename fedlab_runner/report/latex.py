"""Tables for a paper: LaTeX with booktabs, and the references of the methods in them.

`fedlab-report --latex` writes them into `tables.tex` and `references.bib`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fedlab_runner.methods.registry import Method, bibliography
from fedlab_runner.report import beside, published, tables
from fedlab_runner.report.content import Cell
from fedlab_runner.report.formatting import NONE, PLUS_MINUS, scale, spread, unit, value, without_result
from fedlab_runner.report.grouping import SeedGroup, blocks
from fedlab_runner.report.significance import against_best
from fedlab_runner.report.stats import MIN_SEEDS, SIGNIFICANCE_LEVEL
from fedlab_runner.report.stats import interval as interval_of
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.escaping import latex

MAX_COLUMNS = 5  # conditions of a table
MAX_PAPER_COLUMNS = 3  # columns of a table with our value and the published value under each
MAX_SEEDS_NAMED = 10  # seeds that a caption names
MARK = "$^{*}$"  # of a method that differs significantly from the best
MISSING = "--"  # a cell without a result
# The comment at the top of tables.tex.
HEAD = """% Tables of fedlab-report. In the preamble: \\usepackage{booktabs}
% References of the methods: \\bibliography{references}
"""


def document(groups: Sequence[SeedGroup], papers: Sequence[published.Paper], interval: bool) -> str:
    """The tables of all blocks and of all published tables. `interval`: 95 % intervals instead of deviations."""
    found = [_beside(paper, groups, interval) for paper in papers]
    others = [each for each in groups if not any(paper.has(each) for paper in papers)]
    for title, members in blocks(others) if others else []:
        columns = tables.by_condition(members)
        names = [condition for condition, those in columns.items() if tables.finished(those)]
        for i in range(0, len(names), MAX_COLUMNS):
            some = {name: columns[name] for name in names[i : i + MAX_COLUMNS]}
            found.append([_comparison(title, some, interval)])
    every = [table for those in found for table in those]
    return HEAD + "".join(f"\n{_table(table, number)}" for number, table in enumerate(every, 1))


def references(groups: Iterable[SeedGroup]) -> str:
    """BibTeX of the methods used."""
    return bibliography(key for each in groups for key in each.style.cite)


class _Table(NamedTuple):
    kinds: str  # of the columns
    head: Sequence[str]  # lines
    rows: Sequence[str]
    caption: str


def _table(table: _Table, number: int) -> str:
    lines = [
        "\\begin{table}[t]",
        "\\centering",
        "\\small",
        f"\\caption{{{table.caption}}}",
        f"\\label{{tab:results-{number}}}",
        f"\\begin{{tabular}}{{{table.kinds}}}",
        "\\toprule",
        *table.head,
        "\\midrule",
        *table.rows,
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _comparison(title: str, columns: Mapping[str, Sequence[SeedGroup]], interval: bool) -> _Table:
    groups = [group for members in columns.values() for group in members]
    usual = tables.usual_seeds(groups)
    marks = {}
    tested = False
    for condition, members in columns.items():
        top, others = against_best(members)
        for group, compared in others:
            marks[group.name, condition] = compared.significant
            tested |= compared.difference.seeds >= MIN_SEEDS
        if top is not None:
            marks[top.name, condition] = False
    tops = {condition: tables.winners(members) for condition, members in columns.items()}
    rounding = {condition: tables.decimals_of(members) for condition, members in columns.items()}
    styles: dict[str, Method] = {group.name: group.style for group in groups}
    cells = {(group.name, condition): group for condition, members in columns.items() for group in members}
    rows = []
    for name, style in styles.items():
        row = [_name(name, style)]
        for condition in columns:
            found = cells.get((name, condition))
            bold = any(found is each for each in tops[condition])
            mark = MARK if marks.get((name, condition)) else ""
            row.append(_value(found, rounding[condition], interval, bold, mark, usual))
        rows.append(" & ".join(row) + " \\\\")
    metric = groups[0].runs[0].metric
    names = [_stacked(condition or metric) for condition in columns]
    head = ["Method & " + " & ".join(_wide(name, interval) for name in names) + " \\\\"]
    kinds = "l" + "".join(_kind(interval) for _ in columns)
    return _Table(kinds, head, rows, _caption(title, groups, usual, interval, tested))


def _caption(title: str, groups: Sequence[SeedGroup], usual: int, interval: bool, tested: bool) -> str:
    run = groups[0].runs[0]
    said = latex(run.metric) + (f" in {_unit(run.metric)}" if unit(run.metric) else "")
    if title:
        said += f" ({latex(title)})"
    around = "with its 95\\,\\% confidence interval" if interval else "$\\pm$ standard deviation ($n - 1$)"
    seeds = _common_seeds(groups)
    said += f": mean {around} over {count_of(usual, 'seed')}{f' ({seeds})' if seeds else ''}"
    if not tables.seeds_agree(groups, usual):
        said += ", or over the number in brackets"
    said += f"; best in bold{tables.eligible_words(groups)}"
    if tested:
        level = f"{SIGNIFICANCE_LEVEL:g}"
        test = "two-sided paired $t$-test over seeds, Holm for all pairs"
        said += f"; {MARK}: differs from the best with $p < {level}$ ({test})"
    return f"{said}."


def _common_seeds(groups: Sequence[SeedGroup]) -> str:
    """The seeds with a result if they are the same for every method with one, and few; else empty."""
    results = [[str(seed) for seed, value in group.finished.items() if math.isfinite(value)] for group in groups]
    found = set(map(tuple, filter(None, results)))
    seeds = found.pop() if len(found) == 1 else ()
    return latex(", ".join(seeds)) if len(seeds) <= MAX_SEEDS_NAMED else ""


def _value(group: SeedGroup | None, digits: int | None, interval: bool, bold: bool, mark: str, usual: int) -> str:
    """A cell. Unless it is an interval, it takes two columns, left and right of the plus-minus."""
    if group is None:
        return _wide(MISSING, interval)
    values, metric = tables.finished([group]), group.runs[0].metric
    if not values:
        return _wide(f"\\textit{{{latex(without_result([group]))}}}", interval)
    return _result(values, metric, interval, usual, digits=digits, bold=bold, mark=mark)


def _result(
    values: Sequence[float],
    metric: str,
    interval: bool,
    usual: int,
    deviation: float | None = None,
    digits: int | None = None,
    bold: bool = False,
    mark: str = "",
) -> str:
    """The mean of some seeds with its interval or deviation, and their number unless it is `usual`."""
    few = "" if len(values) == usual else f" {{\\tiny ({len(values)})}}"
    middle, sign, deviated = spread(values, metric, deviation, digits).partition(f" {PLUS_MINUS} ")
    middle = _bold(_plain(middle), bold)
    if interval:
        low, high = interval_of(values, metric)
        ends = "" if math.isnan(low) else f" [{_number(low, metric, digits)}, {_number(high, metric, digits)}]"
        return f"{middle}{ends}{mark}{few}"
    if not sign:
        return _wide(f"{middle}{mark}{few}", interval)
    return f"{middle} & {_bold(_plain(deviated), bold)}{mark}{few}"


def _beside(paper: published.Paper, groups: Sequence[SeedGroup], interval: bool) -> list[_Table]:
    """Our value and the published value under each column with a run."""
    names = [published.names_of(paper.columns)[i] for i in published.with_runs(paper, groups)]
    lines = beside.rows(paper, groups)
    counts = [len(each.values) for _, cells in lines for each in cells if not each.ours.muted]
    usual = tables.usual_count(counts)
    caption = _caption_beside(paper, [group for group in groups if paper.has(group)], interval, counts)
    found = []
    width = 3 if interval else 4  # columns under a name: ours takes one or two, the published value two
    for start in range(0, len(names), MAX_PAPER_COLUMNS):
        some = names[start : start + MAX_PAPER_COLUMNS]
        over = " & ".join(f"\\multicolumn{{{width}}}{{c}}{{{_stacked(name)}}}" for name in some)
        rules = " ".join(f"\\cmidrule(lr){{{2 + width * i}-{1 + width * (i + 1)}}}" for i in range(len(some)))
        under = " & ".join(f"{_wide('ours', interval)} & {_wide('published', False)}" for _ in some)
        rows = []
        for name, cells in lines:
            style = next((group.style for each in cells for group in each.groups), None)
            row = [_name(name, style) if style else latex(name)]
            for each in cells[start : start + MAX_PAPER_COLUMNS]:
                row += [_ours(each, interval, usual), _published(each.paper)]
            rows.append(" & ".join(row) + " \\\\")
        head = [f" & {over} \\\\", rules, f"Method & {under} \\\\"]
        found.append(_Table("l" + len(some) * (_kind(interval) + _kind(False)), head, rows, caption))
    return found


def _caption_beside(paper: published.Paper, mine: Sequence[SeedGroup], interval: bool, counts: Sequence[int]) -> str:
    """The caption of a published table. `mine`: our settings in it; `counts`: the seeds of each cell."""
    usual, seeds = tables.usual_count(counts), _common_seeds(mine)
    told = "means with 95\\,\\% confidence intervals " if interval else ""
    told += f"over {count_of(usual, 'seed')}{f' ({seeds})' if seeds else ''}"
    if set(counts) - {usual}:
        told += ", or over the number in brackets"
    meant = published.meant_by_paper(paper) if interval else published.meant(paper)
    deviations = f"; $\\pm$: {latex(meant)}" if meant else ""
    best = f"best of ours in bold{tables.eligible_words(mine)}"
    return f"Beside {latex(paper.name)}: {latex(paper.unit)}. Ours are {told}{deviations}; {best}."


def _ours(each: beside.PublishedCell, interval: bool, usual: int) -> str:
    """Our cell of a published table: a number, or the word for a missing one."""
    words = each.ours.lines[0]
    if each.ours.muted:
        return _wide(MISSING if words == NONE else f"\\textit{{{latex(words)}}}", interval)
    return _result(each.values, each.metric, interval, usual, each.deviation, each.digits, each.ours.bold)


def _published(theirs: Cell) -> str:
    """A mean and its deviation, as a report shows them, in two columns."""
    if theirs.muted:
        return _wide(MISSING, False)
    middle, sign, deviation = theirs.lines[0].partition(f" {PLUS_MINUS} ")
    return f"{_plain(middle)} & {_plain(deviation)}" if sign else _wide(_plain(middle), False)


def _plain(number: str) -> str:
    mantissa, _, exponent = number.replace("\N{MINUS SIGN}", "-").partition("e")
    power = f"$\\times10^{{{exponent}}}$" if exponent else ""
    return latex(mantissa).replace("-", "$-$") + power


def _number(number: float, metric: str, digits: int | None) -> str:
    return _plain(value(number, metric, digits))


def _name(name: str, style: Method) -> str:
    return latex(name) + (f"~\\cite{{{','.join(style.cite)}}}" if style.cite else "")


def _stacked(condition: str) -> str:
    """The overrides of a condition below each other."""
    parts = condition.split(" ") if "=" in condition else [condition]
    stacked = "\\\\".join(map(latex, parts))
    return stacked if len(parts) == 1 else f"\\shortstack{{{stacked}}}"


def _kind(interval: bool) -> str:
    return "c" if interval else "r@{\\,$\\pm$\\,}l"


def _wide(words: str, interval: bool) -> str:
    return words if interval else f"\\multicolumn{{2}}{{c}}{{{words}}}"


def _bold(words: str, bold: bool) -> str:
    return f"\\textbf{{{words}}}" if bold else words


def _unit(metric: str) -> str:
    return "\\%" if scale(metric) == 100 else latex(unit(metric))
