"""Reports on folders that a stranger has made: nothing there is run, followed or waited for, and others are shown."""

import csv
import json
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedlab_runner.report import cli, published
from fedlab_runner.report.folders import find
from fedlab_runner.sweep import records
from fedlab_runner.sweep.table import refresh, show
from fedlab_runner.utils import checksummed_json
from tests.helpers.report_files import curve, write_run

HARM = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</pre></details><svg onload=alert(1)>",
    "![x](http://x/y.png) [x](javascript:alert(1))",
    "`x` | y | **z**\n\n# heading\n```\n<b>",
    "=HYPERLINK(1)",
    "\x1b]0;title\x07\x1b[2J\x9b31m",
    "\u202egpj.exe\ud800\u2028\x00",
    "$\\frac{$ $x$ \\",
    "_hidden",
    "9" * 5000,
)
EVERY = ("evaluation.every=1", "rounds=3")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, of which copies are made."""
    return write_run(tmp_path_factory.mktemp("good"), "algorithm=fedavg", *EVERY, rows=curve(0.1, 0.3, 0.4, 0.5))


def spoilt(value: Any, harm: str, path: str = "") -> Any:
    """A config with such a text in place of each text, but for the one name that a run cannot be read without."""
    if isinstance(value, dict):
        return {key: spoilt(each, harm, f"{path}.{key}") for key, each in value.items()}
    if isinstance(value, list):
        return [spoilt(each, harm, path) for each in value]
    return (
        harm + path if isinstance(value, str) and path not in (".evaluation.summary", ".evaluation.metric") else value
    )


def spoil(folder: Path, harm: str, seed: int) -> None:
    """Puts a text into every text field of a run's folder."""
    plain = harm.replace("\ud800", "")  # YAML has no halves of characters
    config = spoilt(yaml.safe_load((folder / "config.yaml").read_text()), plain)
    metric = f"{plain}/accuracy"
    config["evaluation"]["metric"], config["seed"], config["partition"]["alpha"] = metric, seed, plain
    (folder / "config.yaml").write_text(json.dumps(config))
    rows = [
        {"round": i, metric: value, f"test/accuracy_class/{harm}": value, "comm/upload_mb": 1.0, harm: 1.0}
        for i, value in enumerate((0.1, 0.3, 0.4, 0.5 + seed / 100))
    ]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(content)
    choices = {key: plain for key in ("algorithm", "dataset", "server_data@probe_data", "experiment", plain[:200])}
    hydra = {"hydra": {"runtime": {"choices": choices}, "overrides": {"task": [plain]}}}
    (folder / ".hydra" / "hydra.yaml").write_text(json.dumps(hydra))
    start = {"command": f"fedlab {harm}", "commit": harm, "versions": {harm: harm}}
    (folder / "commands.jsonl").write_text(json.dumps(start) + "\n")
    (folder / "summary.json").write_text(json.dumps({"run_id": harm, "rounds": 3, "warnings": [harm], harm: harm}))


@pytest.fixture(scope="module")
def hostile(good: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For each text three runs, one that has failed, and one that cannot be read; and a sweep of them."""
    outputs = tmp_path_factory.mktemp("hostile") / "outputs"
    jobs = outputs / "sweeps" / "theirs" / "jobs"
    jobs.mkdir(parents=True)
    for i, harm in enumerate(HARM):
        name = re.sub(r"[/\x00\ud800]", "", harm)[:60] + os.fsdecode(b"\xff")
        for seed in range(4):
            folder = outputs / f"{i}-{seed}-{name}"
            shutil.copytree(good, folder)
            spoil(folder, harm, seed)
            job = {"overrides": [f"x={harm}", f"seed={seed}"], "seed": seed, "status": "finished", "objective": 0.5}
            job |= {"folder": f"outputs/{folder.name}", "summary": {"metric": harm, "rule": harm, harm: 1.0}}
            if seed == 3:
                (folder / "metrics.jsonl").write_text("")
                job |= {"status": "failed", "error": harm}
            (jobs / f"{i}-{seed}.json").write_text(checksummed_json.text(job))
        shutil.copytree(good, outputs / f"{i}-bad-{name}")
        (outputs / f"{i}-bad-{name}" / "config.yaml").write_text("x:\n" + "- " * 100 + "a")
    (jobs.parent / "grid.json").write_text(json.dumps([[harm] for harm in HARM]))
    return outputs


class Tags(HTMLParser):
    """Fails on a tag or an attribute that is none of the page's own, and on one that is not closed."""

    KNOWN = (
        *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "nav", "a", "div", "table", "thead"),
        *("tbody", "tr", "th", "td", "span", "small", "figure", "figcaption", "details", "summary", "pre", "button"),
        *("header", "main", "section", "ul", "li", "script", "svg", "g", "path", "text", "line", "rect", "circle"),
        "wbr",
    )
    ATTRIBUTES = (
        *(
            "lang",
            "charset",
            "name",
            "content",
            "http-equiv",
            "class",
            "href",
            "id",
            "role",
            "aria-label",
            "aria-hidden",
        ),
        *("aria-pressed", "tabindex", "scope", "colspan", "type", "hidden", "data-sort", "data-s", "data-lo-x"),
        *(
            "data-lo-x",
            "data-hi-x",
            "data-lo-y",
            "data-hi-y",
            "data-log",
            "data-whole",
            "viewbox",
            "x",
            "y",
            "x1",
            "y1",
            "x2",
            "y2",
        ),
        *("width", "height", "d", "cx", "cy", "r", "fill", "fill-opacity", "stroke", "stroke-width", "stroke-linejoin"),
        *("stroke-opacity", "stroke-dasharray", "font-size", "font-weight", "text-anchor", "pointer-events"),
        *("style", "overflow"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.KNOWN and {key for key, _ in attrs} <= set(self.ATTRIBUTES), (tag, attrs)
        for key, value in attrs:
            assert key != "href" or re.match(r"#s[0-9]+$", value or ""), value
            assert key != "style" or re.fullmatch(r"--columns: [0-9]+", value or ""), value
            assert key != "class" or re.fullmatch(r"[A-Za-z0-9 ]*", value or ""), value
        if tag not in ("meta", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


@pytest.fixture(scope="module")
def report(hostile: Path) -> Path:
    return cli.write([hostile])[0].parent


def test_no_text_of_a_run_is_html_on_the_page(report: Path) -> None:
    page = (report / "index.html").read_text()
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert all(each.isprintable() or each in "\n\xa0" for each in page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page, "it is shown"


def test_no_text_of_a_run_is_html_a_link_or_a_picture_in_markdown(report: Path) -> None:
    text = (report / "report.md").read_text()
    assert all(each.isprintable() or each in "\n\xa0" for each in text)
    body, fence, code = text.partition("\n````bash\n")  # longer than any in a command
    assert (
        fence
        and code.count("\n````\n") == 1
        and all(
            each.startswith("# ") or each.startswith("fedlab ") for each in code.partition("\n````\n")[0].splitlines()
        )
    )
    body = re.sub(r"^!\[.*\]\(plots/[A-Za-z0-9_.=-]+\.(svg|png)\)$", "", body, flags=re.M).replace("<br>", "")
    assert "<" not in body and not re.search(r"(?<!\\)(\\\\)*[\[\]`]", body)
    sections = [line for line in body.splitlines() if line.startswith("#")]
    assert all(line.startswith(("# Report", "## ", "### ")) for line in sections)
    widths = [len(re.findall(r"(?<!\\)\|", re.sub(r"\\\\", "", line))) for line in body.splitlines() if "---" in line]
    assert widths and all(width >= 3 for width in widths)


def test_no_text_of_a_run_is_a_formula_in_a_spreadsheet(report: Path) -> None:
    found = 0
    for path in report.glob("*.csv"):
        for row in csv.reader(path.read_text().splitlines()):
            for cell in row:
                found += cell.startswith("'=HYPERLINK")
                assert not re.match(r"\s*[=+@-]", cell) or re.fullmatch(r"-?[\d.e+-]+", cell), cell
    assert found


def test_pictures_are_pictures(report: Path) -> None:
    files = list((report / "plots").iterdir())
    assert files and all(len(path.name) < 120 for path in files)
    for path in files:
        for element in ElementTree.fromstring(path.read_bytes()).iter():
            assert element.tag.rpartition("}")[2] not in ("script", "foreignObject", "a", "image")
            assert not any(key.startswith("on") for key in element.attrib)


def test_nothing_of_a_run_reaches_the_terminal_as_a_control(
    hostile: Path, report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([str(hostile), "--out", str(report)]) == 0
    assert cli.main([str(hostile), "--experiment", "\x1b[2J"]) == 2
    (theirs,) = (hostile / "sweeps").iterdir()
    records._warn_once.cache_clear()
    refresh(theirs)
    show(theirs)
    shown = capsys.readouterr()
    assert all(each.isprintable() or each in "\n\xa0" for each in shown.out + shown.err)
    assert "that cannot be read" in shown.out
    for text in ((theirs / "table.md").read_text(), (theirs / "table.csv").read_text()):
        assert all(each.isprintable() or each == "\n" for each in text)
    assert not re.search("<(?!br>)", (theirs / "table.md").read_text())


def test_each_folder_that_cannot_be_read_is_a_line(hostile: Path, report: Path) -> None:
    found = find([hostile])
    assert len(found.unreadable) == len(HARM) and len(found.runs) == 4 * len(HARM)
    assert set(found.unreadable.values()) == {"config.yaml is nested deeper than 50 levels"}
    assert "Folders that cannot be read" in (report / "report.md").read_text()


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b", "a" * 300, "a\0b/c", "a" * 300 + "/c"])
def test_a_record_may_name_a_folder_that_cannot_be(name: str, good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / good.name)
    sweep = tmp_path / "sweeps" / "theirs"
    (sweep / "jobs").mkdir(parents=True)
    for seed, folder in enumerate((good.name, name, f"{name}c")):
        status = "failed" if seed == 2 else "finished"
        job = records.Job(["x=1", f"seed={seed}"], seed, status, 0.5, f"outputs/{folder}", {"rounds": 3})
        (sweep / "jobs" / f"{seed}.json").write_text(checksummed_json.text(asdict(job)))
    (sweep / "jobs" / "0.json").rename(sweep / "jobs" / "last.json")  # the picture's method is that of the first run
    counts = [cli.write([given], tmp_path / "report")[1] for given in (tmp_path, sweep)]
    assert counts[0] == "3 runs: 1 finished, 1 failed, 1 missing"
    assert counts[1] in (counts[0], "1 run: 1 finished; 2 folders that cannot be read"), "the latter of a long name"
    show(sweep)


# What stands in place of a file.


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


KINDS: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path.name),
    "terabyte": sparse,
    "deep": lambda path: path.write_bytes(b"[" * 100_000 + b"\n{}\n"),
    "not text": lambda path: path.write_bytes(b"\xff\xfe\x00\n\xff\n"),
    "digits": lambda path: path.write_bytes(b'{"round": ' + b"9" * 5000 + b"}\n{}\n"),
    "list": lambda path: path.write_bytes(b"[1]\n[2]\n"),
    "surrogate": lambda path: path.write_bytes(b'{"\\ud800": "\\udfff"}\n'),
    "not finite": lambda path: path.write_bytes(b'{"round": 0, "x": NaN, "y": -Infinity, "z": 1e999}\n'),
    "twice": lambda path: path.write_bytes(b'{"round": 0, "round": 0, "test/accuracy": 1, "test/accuracy": 0.5}\n'),
    "empty": Path.touch,
    "nothing": lambda path: None,
}
FILES = (
    *("config.yaml", ".hydra/hydra.yaml", "metrics.jsonl", "summary.json", "timings.jsonl", "commands.jsonl"),
    *(".hydra/experiments.txt", "pruned.json", "failed.json", "partition.csv", "plots/partition.png"),
)


def test_whatever_stands_in_the_place_of_a_file_the_other_runs_are_shown(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "good")
    names = {}
    for file in FILES:
        for kind, make in KINDS.items():
            folder = tmp_path / f"{file.replace('/', '-')}-{kind}".replace(" ", "-")
            shutil.copytree(good, folder)
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).unlink(missing_ok=True)
            make(folder / file)
            names[folder.name] = (file, kind)
    page, subtitle = cli.write([tmp_path])
    found = find([tmp_path])
    runs = {run.name: run for run in found.runs}
    unreadable = {Path(folder).name for folder in found.unreadable}
    assert runs["good"].finished and runs["good"].objective == 0.5
    assert f"{len(unreadable)} folders that cannot be read" in subtitle
    text = (page.parent / "report.md").read_text()
    for name, (file, kind) in names.items():
        if kind in ("fifo", "folder", "device", "loop", "terabyte") and file in FILES[:6]:
            assert name in unreadable, name
            assert name.replace("_", "\\_") in text or name in text
        assert (
            name in runs or name in unreadable or (file, kind) in {("config.yaml", "empty"), ("config.yaml", "nothing")}
        )
    assert all(fault.startswith(FILES) for fault in found.unreadable.values())
    for kind in ("deep", "not text", "digits", "list"):
        assert runs[f"metrics.jsonl-{kind}".replace(" ", "-")].status.startswith("damaged")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("last: 5", "last: 0"),
        ("summary: ", "summary: no_such_rule #"),
        ("every: 1", "every: text"),
        ("target: ", "target: text #"),
        ("evaluation:", "evaluation: [1]\nx:"),
        ("seed: 0", "seed: {a: [1]}"),
        ("rounds: 3", "rounds: [3]"),
        ("rounds: 3", "rounds: 1e999"),
        ("local:", "local: 5\nx:"),
        ("algorithm:", "algorithm: [1]\nx:"),
        ("dataset:", "dataset: text\nx:"),
        ("  _target_: ", "  _target_: x #"),
    ],
)
def test_configs_that_are_none(good: Path, tmp_path: Path, old: str, new: str) -> None:
    shutil.copytree(good, tmp_path / "good")
    shutil.copytree(good, tmp_path / "bad")
    config = (tmp_path / "bad" / "config.yaml").read_text()
    assert f"\n{old}" in config or old in config
    (tmp_path / "bad" / "config.yaml").write_text(re.sub(rf"(?m)^(\s*){re.escape(old)}", rf"\1{new}", config))
    page, _ = cli.write([tmp_path])
    assert "**50.0" in (page.parent / "report.md").read_text()


def test_values_that_no_sum_can_hold_are_as_if_they_were_not_finite(good: Path, tmp_path: Path) -> None:
    for i, value in enumerate(("1e308", "-1e308", "1e999", "-Infinity", "9" * 39, "null")):
        folder = tmp_path / str(i)
        shutil.copytree(good, folder)
        rows = [f'{{"round": {r}, "test/accuracy": {value}, "comm/upload_mb": {value}}}\n' for r in range(4)]
        (folder / "metrics.jsonl").write_text("".join(rows))
    for run in find([tmp_path]).runs:
        assert run.finished and (run.name == "4" or run.objective != run.objective)
    shutil.copytree(good, tmp_path / "good")
    cli.write([tmp_path])


def test_a_cost_that_ends_in_no_number_is_drawn_as_far_as_it_is_known(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "a")
    rows = [{"round": r, "test/accuracy": 0.5, "comm/upload_mb": None if r == 3 else 1.0} for r in range(4)]
    (tmp_path / "a" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cli.write([tmp_path])[0].is_file()


def test_a_staleness_is_a_number_of_rounds(good: Path, tmp_path: Path) -> None:
    for i, age in enumerate(("x", "9" * 50, "-1", "\N{SUPERSCRIPT TWO}", "")):
        shutil.copytree(good, tmp_path / str(i))
        row = {"round": 0, "test/accuracy": 0.5, f"late/staleness_count/{age}": 3}
        (tmp_path / str(i) / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    cli.write([tmp_path])
    assert {run.done for run in find([tmp_path]).runs} == {-1}


def test_a_picture_is_a_picture(good: Path, tmp_path: Path) -> None:
    """A link in place of one may lead to a file that should not be passed on with the page."""
    shutil.copytree(good, tmp_path / "a")
    (tmp_path / "secret").write_text("the key")
    (tmp_path / "a" / "plots").mkdir()
    (tmp_path / "a" / "partition.csv").write_text("")
    (tmp_path / "a" / "plots" / "partition.png").symlink_to(tmp_path / "secret")
    page, _ = cli.write([tmp_path / "a"])
    assert not list(page.parent.glob("plots/partition*"))


def test_an_experiment_of_a_run_is_no_path(tmp_path: Path) -> None:
    table = {"unit": "x", "spread": "none", "columns": [{}], "rows": [{"name": "x", "choice": {}, "mean": [1]}]}
    (tmp_path / "table.yaml").write_text(json.dumps(table))
    outside = os.path.relpath(tmp_path / "table", published.conf_dir() / "paper")
    for name in (outside, str(tmp_path / "table"), "a\x00b", "", "feddle/../feddle/table7"):
        assert published.load(name) is None


def test_folders_of_any_depth_are_looked_through(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "good")
    before = os.getcwd()
    try:
        os.chdir(tmp_path)
        for _ in range(1200):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(before)
    (tmp_path / "round").symlink_to(tmp_path)
    assert [run.name for run in find([tmp_path]).runs] == ["good"]
    subprocess.run(["rm", "-r", tmp_path / "d"], check=True)  # Python's own ways are recursive


def test_an_argument_of_any_length_is_one_line(capsys: pytest.CaptureFixture[str], good: Path, tmp_path: Path) -> None:
    for arguments in (["x" * 5000], ["a\x00b"], [str(good), "--out", "x" * 5000]):
        assert cli.main(arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1
    shutil.copytree(good, tmp_path / "bad")
    (tmp_path / "bad" / "config.yaml").write_text("- " * 100)
    assert cli.main([str(tmp_path)]) == 2
    assert "bad cannot be read: config.yaml is nested deeper than 50 levels" in capsys.readouterr().err


def test_names_of_a_mixed_folder_fit_a_file_system(tmp_path: Path) -> None:
    """Runs that share little: each condition is told by all the keys in which any two differ."""
    mixed = (
        ("dataset=digits", "partition=dirichlet", "partition.alpha=0.1", "delay=half_normal", "delay.std=5"),
        ("dataset=fashion_mnist", "partition=shards", "num_clients=7", "participation.cohort_size=3", "delay=none"),
        ("dataset=cifar10", "partition=iid", "train_fraction=0.5", "label_noise=0.1", "precision=bfloat16"),
        ("dataset=herigraph", "partition=assigned_blocks", "model=mlp", "drop_empty=false", "evaluation.last=3"),
    )
    for choice in mixed:
        write_run(tmp_path, "algorithm=fedavg", *EVERY, *choice, rows=curve(0.1, 0.3, 0.4, 0.5), small=False)
    page, _ = cli.write([tmp_path])
    names = [path.name for path in (page.parent / "plots").iterdir()]
    assert len(names) == len(mixed) and all(len(name) <= 104 for name in names)
    again = cli.write([tmp_path], tmp_path / "again")[0]
    assert sorted(path.name for path in (again.parent / "plots").iterdir()) == sorted(names)
