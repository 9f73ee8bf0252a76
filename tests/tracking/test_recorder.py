"""A run's own files are whole, deterministic and cut back to where it continues from; the terminal follows."""

import hashlib
import io
import json
import logging
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rich
import rich.console
import torch
from omegaconf import OmegaConf

from fedlab_runner.tracking import logger
from fedlab_runner.tracking import terminal as terminal_view
from fedlab_runner.tracking.label import Label
from fedlab_runner.tracking.log_lines import LineHandler
from fedlab_runner.tracking.logger import WandbLogger
from fedlab_runner.tracking.recorder import Recorder
from fedlab_runner.tracking.summary import summarise
from fedlab_runner.utils.errors import UserError
from tests.helpers.paths import ROOT

FIELDS: dict[str, Any] = {
    "mode": "disabled",
    "project": "fedlab_runner",
    "entity": None,
    "group": None,
    "tags": [],
    "dir": "outputs/wandb",
    "name": None,
    "init_timeout": 1.0,
    "finish_timeout": 1.0,
    "save_model": False,
    "progress": None,
    "pictures": None,
}


def recorder(folder: Path, rounds: int = 9, progress: bool | None = None) -> Recorder:
    logger = WandbLogger(**(FIELDS | {"progress": progress}))
    return Recorder(
        folder, logger, run_id="fedavg-1", config={}, rounds=rounds, label=Label(method="train"), commit=None
    )


def numbers(round: int) -> dict[str, float]:
    found: dict[str, float] = {"train/loss": 0.1 + round, "late/in_flight": round}
    if round % 3 == 0:
        found["test/accuracy"] = round / 7
    return found


def record(folder: Path, start: int, rounds: int, told: int = 9) -> None:
    with recorder(folder, told) as one:
        one.start(start)
        for round in range(start + 1, rounds + 1):
            one.log(round, numbers(round), {"time/wall": 0.5 + start})


def lines(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.fixture
def screen() -> Iterator[io.StringIO]:
    """A terminal of 100 columns in place of rich's global console."""
    before = dict(rich.get_console().__dict__)
    text = io.StringIO()
    rich.reconfigure(file=text, force_terminal=True, width=100, color_system=None, _environ={"TERM": "xterm"})
    yield text
    rich.get_console().__dict__ = before


# metrics.jsonl and timings.jsonl


def test_one_line_a_round_that_is_there_at_once(tmp_path: Path) -> None:
    with recorder(tmp_path) as one:
        one.start(-1)
        one.log(0, {"b": 0.1, "a": 2}, {"time/wall": 1.5})
        assert (tmp_path / "metrics.jsonl").read_text() == '{"round": 0, "a": 2, "b": 0.1}\n'
        assert (tmp_path / "timings.jsonl").read_text() == '{"round": 0, "time/wall": 1.5}\n'
        assert one.rows() == [{"round": 0, "a": 2, "b": 0.1}]


def test_numbers_keep_every_bit_and_every_line_is_json(tmp_path: Path) -> None:
    values = {"a": 0.1 + 0.2, "b": 5e-324, "c": np.float32(0.1), "d": torch.tensor(2.5), "e": -0.0, "f": np.int64(3)}
    with recorder(tmp_path) as one:
        one.start(-1)
        one.log(0, values | {"x": math.nan, "y": math.inf}, {})
        [row] = one.rows()
    text = (tmp_path / "metrics.jsonl").read_text()

    def reject(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    back = json.loads(text, parse_constant=reject)
    assert {key: back[key] for key in values} == {key: float(value) for key, value in values.items()}
    assert math.copysign(1, back["e"]) == -1
    assert back["x"] is None and back["y"] is None
    assert math.isnan(row["x"]) and math.isnan(row["y"])


def test_rows_share_the_texts_of_their_keys(tmp_path: Path) -> None:
    """A long run keeps all of its rows, and texts of their own would be most of its growth."""
    record(tmp_path, -1, 3)
    with recorder(tmp_path) as one:
        one.start(1)  # two rows are read, and one is new
        one.log(2, numbers(2), {})
        texts = [key for row in one.rows() for key in row]
    assert len({id(key) for key in texts}) == len(set(texts)) < len(texts)


@pytest.mark.parametrize("kept", [-1, 0, 4, 6])
def test_a_resumed_run_has_the_bytes_of_an_uninterrupted_one(tmp_path: Path, kept: int) -> None:
    record(tmp_path / "whole", -1, 9)
    record(tmp_path / "resumed", -1, 6)
    record(tmp_path / "resumed", kept, 9)
    one, other = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "resumed"))
    assert one == other
    walls = [row["time/wall"] for row in lines(tmp_path / "resumed", "timings.jsonl")]
    assert walls == [-0.5] * (kept + 1) + [0.5 + kept] * (9 - kept)


@pytest.mark.parametrize("tail", [b'{"round": 7, "train/lo', b'{"round": 7}', b"\x00" * 50, b'"round"\n', b"{}\n"])
def test_a_torn_end_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    record(tmp_path, -1, 6)
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    for name in ("metrics.jsonl", "timings.jsonl"):
        with (tmp_path / name).open("ab") as file:
            file.write(tail)
    with recorder(tmp_path) as one:
        one.start(6)
        assert [row["round"] for row in one.rows()] == list(range(7))
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole
    record(tmp_path, 6, 9)
    assert [row["round"] for row in lines(tmp_path)] == list(range(10))


def test_timings_may_lack_rounds_but_metrics_may_not(tmp_path: Path) -> None:
    record(tmp_path, -1, 6)
    (tmp_path / "timings.jsonl").unlink()
    record(tmp_path, 6, 7)
    assert [row["round"] for row in lines(tmp_path, "timings.jsonl")] == [7]
    text = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    for broken in (text[:4], text[:3] + text[4:], []):
        (tmp_path / "metrics.jsonl").write_text("".join(broken))
        with recorder(tmp_path) as one, pytest.raises(UserError, match=r"metrics\.jsonl does not hold each .* 0 to 6"):
            one.start(6)


def test_rounds_come_in_order(tmp_path: Path) -> None:
    with recorder(tmp_path) as one:
        one.start(-1)
        with pytest.raises(AssertionError):
            one.log(1, {}, {})


def test_sync_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr("os.fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    with recorder(tmp_path) as one:
        one.start(-1)
        assert set(synced) == {str(tmp_path)}, "the names of the new files"
        one.sync()
    assert set(synced[2:]) == {str(tmp_path / name) for name in ("metrics.jsonl", "timings.jsonl")}


# summary.json


def test_the_summary_is_whole_json_in_its_order(
    tmp_path: Path, screen: io.StringIO, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with recorder(tmp_path, progress=False) as one:
        one.start(-1)
        for round in range(10):
            one.log(round, numbers(round) | {"test/accuracy/7": 0.123}, {})
        summary = summarise(one.rows(), "test/accuracy", "best_of_last", 2, 3, 9)
        one.finish(summary | {"broken": math.nan})
    text = (tmp_path / "summary.json").read_text()
    digest = hashlib.sha256((tmp_path / "metrics.jsonl").read_bytes()).hexdigest()
    assert json.loads(text) == summary | {"broken": None, "metrics_sha256": digest}
    assert list(json.loads(text)) == [*summary, "broken", "metrics_sha256"] and text.endswith("}\n")
    shown = screen.getvalue()
    lines = shown.splitlines()
    first, *rest = lines[next(i for i, line in enumerate(lines) if " has finished " in line) :]
    assert first == "the run has finished 9 rounds: 128.57 % (test/accuracy, best of the last evaluations)"
    assert rest[0] == "the last round:" and rest[1].split() == ["test/accuracy", "128.57", "%"]
    assert "train/loss" in shown and len(rest) < 15
    logged = [each.getMessage() for each in caplog.records if hasattr(each, "file_only")]
    assert logged == [first, *rest], "the log file has the lines too"
    assert "test/accuracy/7" not in shown, "one line a class would bury the rest"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "summary.json", "timings.jsonl"]


def test_a_failed_write_leaves_the_old_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorder(tmp_path) as one:
        one.start(-1)
        one.finish({"objective": 1.0})

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("fedlab_runner.utils.files.os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            one.finish({"objective": 2.0})
    assert json.loads((tmp_path / "summary.json").read_text())["objective"] == 1.0
    assert not list(tmp_path.glob("*.tmp"))


# The terminal


def test_a_live_bar_on_a_terminal(tmp_path: Path, screen: io.StringIO, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with recorder(tmp_path) as one:
        one.start(-1)
        for round in range(10):
            one.log(round, numbers(round), {})
        one.finish({"objective": 0.5})
    shown = screen.getvalue()
    assert "round 9/9" in shown and "accuracy 128.57%" in shown and "loss 9.1" in shown and "in flight 9" in shown
    assert max(len(line) for line in shown.replace("\r", "\n").splitlines() if "/9" in line) < 130
    longest = max(
        len(re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", line)) for line in re.split("[\r\n]", shown) if "/9" in line
    )
    assert longest <= terminal_view.get_console().width - 3, "^C, which the terminal adds, stays on the line of the bar"
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1, "the cursor comes back"
    assert not [one for one in caplog.messages if one.startswith("round")]


def test_the_terminal_is_given_back_when_a_run_fails(tmp_path: Path, screen: io.StringIO) -> None:
    with pytest.raises(KeyboardInterrupt), recorder(tmp_path) as one:
        one.start(-1)
        raise KeyboardInterrupt
    shown = screen.getvalue()
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1


@pytest.mark.parametrize(
    ("progress", "terminal", "kind"),
    [(False, True, "xterm"), (True, False, "xterm"), (True, True, "dumb"), (None, True, "dumb")],
)
def test_plain_lines_now_and_then_elsewhere(
    tmp_path: Path,
    screen: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    progress: bool | None,
    terminal: bool,
    kind: str,
) -> None:
    """Where no bar is asked for, and where none can be drawn: in a file and on a terminal that moves no cursor."""
    rich.reconfigure(file=screen, force_terminal=terminal, _environ={"TERM": kind})
    caplog.set_level(logging.INFO)
    now = [0.0]
    monkeypatch.setattr("fedlab_runner.tracking.terminal.time.monotonic", lambda: now[0])
    with recorder(tmp_path, rounds=30, progress=progress) as one:
        one.start(-1)
        for round in range(31):
            now[0] += 1.0
            one.log(round, numbers(round), {})
    said = [int(one.split()[1].split("/")[0]) for one in caplog.messages if one.startswith("round")]
    assert said == [0, 6, 12, 18, 24, 30], "evaluations only, and none within five seconds of another"
    assert caplog.messages[-1] == "round 30/30: accuracy 428.57%, in flight 30, loss 30.1, 1.0 rounds/s"
    assert terminal_view.LOG_SECONDS == 5


def test_a_line_has_the_time_left_and_what_came_late_and_in_a_sweep_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    now = [0.0]
    monkeypatch.setattr("fedlab_runner.tracking.terminal.time.monotonic", lambda: now[0])
    monkeypatch.setenv("FEDLAB_SWEEP_JOB", "job 7/18")
    with recorder(tmp_path, rounds=100, progress=False) as one:
        one.start(-1)
        now[0] = 70.0
        one.log(0, {"test/accuracy": 0.25}, {})
        now[0] += 20.0
        late = {"late/in_flight": 7, "late/arrived": 5, "late/staleness_count/0": 2, "late/staleness_count/4": 3}
        one.log(1, {"test/accuracy": 0.5, **late}, {})
        for round in range(2, 5):
            now[0] += 20.0
            one.log(round, {"test/accuracy": 0.5, **late}, {})
    assert caplog.messages[-2:] == [
        "job 7/18 round 0/100: accuracy 25.00%",
        "job 7/18 round 3/100: accuracy 50.00%, in flight 7, late 3, 20.0 s/round, 32 min left",
    ], "at most one a minute"


def test_the_time_left_is_that_of_the_last_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the first round, which warms up, nor a slow start of the run counts for ever."""
    caplog.set_level(logging.INFO)
    now = [0.0]
    monkeypatch.setattr("fedlab_runner.tracking.terminal.time.monotonic", lambda: now[0])
    with recorder(tmp_path, rounds=1000, progress=False) as one:
        one.start(-1)
        for round in range(61):
            now[0] += 500.0 if round == 1 else 50.0 if round < 30 else 10.0
            one.log(round, {"test/accuracy": 0.5}, {})
    shown = {int(line.split()[1].split("/")[0]): line.split(", ", 1)[-1] for line in caplog.messages if "round" in line}
    assert shown[1] == "500.0 s/round, 138.8 h left" and shown[2].startswith("50.0 s/round, ")
    assert shown[60].startswith("10.0 s/round, ")


def test_the_bar_keeps_its_parts_apart_in_a_narrow_terminal(
    tmp_path: Path, screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    rich.get_console().width = 80
    now = [0.0]
    monkeypatch.setattr("fedlab_runner.tracking.terminal.time.monotonic", lambda: now[0])
    with recorder(tmp_path, rounds=100) as one:
        one.start(-1)
        for round in range(60):
            now[0] += 0.27
            one.log(round, {"test/accuracy": 0.9, "late/in_flight": 26}, {})
        one._console._bar.refresh()
    assert "in flight 26  3.7 rounds/s  11 s left" in screen.getvalue()


def test_log_lines_are_in_one_piece_however_narrow_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (True, False):
        shown = io.StringIO()
        narrow = rich.console.Console(file=shown, force_terminal=terminal, width=40, color_system=None)
        monkeypatch.setattr("fedlab_runner.tracking.log_lines.get_console", lambda narrow=narrow: narrow)
        words = "`wandb sync outputs/wandb/offline-run` uploads [this] one, and more words than a line has"
        log = logging.Logger("a log")
        log.addHandler(LineHandler())
        log.info("%s", words)
        log.warning("%s", words)
        log.info("\x1b[2J%s\nnext", "a stranger's \x07")
        first, second, *others = shown.getvalue().splitlines()
        assert [others[0][9:], *others[1:]] == ["\\x1b[2Ja stranger's \\x07", "next"]
        assert re.fullmatch(r"\d\d:\d\d:\d\d " + re.escape(words), first)
        assert re.fullmatch(r"\d\d:\d\d:\d\d warning: " + re.escape(words), second)


def test_the_terminal_shows_warnings_of_libraries_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of matplotlib, say, which tells at its first import of every font that it cannot read."""
    shown = io.StringIO()
    monkeypatch.setattr("fedlab_runner.tracking.log_lines.get_console", lambda: rich.console.Console(file=shown))
    handler, library = LineHandler(), "/usr/lib/python3/site-packages/a_library/fonts.py"
    for name, path in (("a_library", library), ("hydra.core", library), ("fedlab_runner", library), ("mine", __file__)):
        for level in (logging.INFO, logging.WARNING):
            handler.emit(logging.LogRecord(name, level, path, 1, f"{name} speaks", None, None))
    words = [line.split(maxsplit=1)[1] for line in shown.getvalue().splitlines()]
    told = [f"{start}{name} speaks" for name in ("hydra.core", "fedlab_runner", "mine") for start in ("", "warning: ")]
    assert words == ["warning: a_library speaks", *told]


def test_a_tab_of_a_launcher_is_no_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    """As submitit's before the overrides of a job."""
    shown = io.StringIO()
    monkeypatch.setattr("fedlab_runner.tracking.log_lines.get_console", lambda: rich.console.Console(file=shown))
    LineHandler().emit(logging.LogRecord("hydra_plugins.x", logging.INFO, __file__, 1, "\t#0 : seed=0", None, None))
    assert shown.getvalue()[9:] == "        #0 : seed=0\n"


def test_a_resumed_run_says_so_and_knows_the_last_values(
    tmp_path: Path, screen: io.StringIO, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    record(tmp_path, -1, 4)
    screen.truncate(0)
    with recorder(tmp_path) as one:
        one.start(4)
        one.log(5, {"train/loss": 7e27}, {})
    assert "fedavg-1 continues after round 4 of 9" in caplog.messages
    assert "accuracy 42.86%  in flight 4  loss 7e+27" in screen.getvalue() and "round 5/9" in screen.getvalue()


def test_a_run_that_continues_after_its_last_round_knows_its_time(tmp_path: Path, screen: io.StringIO) -> None:
    with recorder(tmp_path, 0) as one:
        one.start(-1)
        one.log(0, numbers(0), {"time/wall": 62.0})
    with recorder(tmp_path, 0) as one:
        one.start(0)
        one.finish({"rounds": 1})
    assert "the run has finished 1 round in 62 s" in screen.getvalue()


# conf/logger


@pytest.mark.parametrize("name", ["wandb", "none", "trackio", "tensorboard"])
def test_the_config_files_fit_the_classes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    path = ROOT / "conf" / "logger" / f"{name}.yaml"
    node = {str(key): value for key, value in OmegaConf.to_container(OmegaConf.load(path), resolve=True).items()}
    made = getattr(logger, node.pop("_target_").removeprefix("fedlab_runner.tracking.logger."))(**node)
    assert isinstance(made, logger.Logger) and made.progress is None
    assert getattr(made, "group", None) is None and getattr(made, "dir", f"outputs/{name}") == f"outputs/{name}"
    if name == "wandb":
        monkeypatch.setenv("WANDB_MODE", "online")
        again = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
        assert (made.mode, again["mode"]) == ("offline", "online")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "dryrun"}, "mode must be one of online, offline, disabled, got dryrun"),
        ({"project": ""}, "project must be a name, got ''"),
        ({"dir": ""}, "dir must be a folder, got ''"),
        ({"init_timeout": 0.0}, "init_timeout must be > 0, got 0.0"),
        ({"finish_timeout": -1.0}, "finish_timeout must be > 0, got -1.0"),
    ],
)
def test_ranges(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        WandbLogger(**(FIELDS | changes))


@pytest.mark.parametrize("mode", ["dryrun", ""])
def test_a_mode_of_the_environment_is_called_so(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", mode)
    with pytest.raises(ValueError, match=f"disabled, got WANDB_MODE='{mode}' of the environment$"):
        WandbLogger(**(FIELDS | {"mode": mode}))
