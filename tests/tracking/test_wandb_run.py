"""W&B is a complete second copy of a run's numbers, and nothing that happens to it reaches the run."""

import json
import logging
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedlab_runner.tracking import wandb_run
from fedlab_runner.tracking import wandb_service as service
from fedlab_runner.tracking.label import Label
from fedlab_runner.tracking.logger import WandbLogger
from fedlab_runner.tracking.recorder import Recorder
from fedlab_runner.tracking.wandb_file import BLOCK_BYTES, records
from fedlab_runner.tracking.wandb_run import WandbTracker
from fedlab_runner.utils.errors import Pruned
from tests.helpers import wandb_files
from tests.helpers.paths import ROOT
from tests.helpers.wandb_server import Trouble, WandbServer

ID = "fedavg-0a1b2c3d"
KEY = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {"algorithm": {"_target_": "FedAvg", "server_lr": 0.1}, "seed": 3, "tags": ["a", "b"]}

# One session of a run in a process of its own: what it does is told as JSON.
SESSION = """
import json, logging, os, signal, sys
from pathlib import Path
from fedlab_runner.tracking import reachability, wandb_run
from fedlab_runner.tracking.label import Label
from fedlab_runner.tracking.logger import WandbLogger
from fedlab_runner.tracking.recorder import Recorder

told = json.loads(sys.argv[1])
reachability.RETRY_SECONDS, wandb_run.LAST_ANSWER_SECONDS = 0.3, told["patience"]
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
with Recorder(Path(told["folder"]), WandbLogger(**told["logger"]), run_id=told["id"], config={"seed": 3},
              rounds=told["rounds"], label=Label(method="train"), commit=None) as recorder:
    recorder.start(told["start"])
    for round in range(told["start"] + 1, told["rounds"] + 1):
        if round == told["pause"]:
            print("paused", flush=True)
            sys.stdin.readline()
        recorder.log(round, {"test/accuracy": round / 7, "train/loss": 1 / (round + 1)}, {"time/wall": 0.5})
        if round == told["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)
    recorder.finish({"objective": 0.5})
"""


def logger(folder: Path, mode: str = "offline", **changes: Any) -> WandbLogger:
    values: dict[str, Any] = {
        "mode": mode,
        "project": "fedlab_runner",
        "entity": None,
        "group": "a group",
        "tags": ["one", "two"],
        "dir": str(folder / "wandb"),
        "name": None,
        "init_timeout": 20.0,
        "finish_timeout": 20.0,
        "progress": False,
        "pictures": None,
        "save_model": False,
    }
    return WandbLogger(**(values | changes))


def recorder(folder: Path, logger: WandbLogger, run_id: str = ID, rounds: int = 6) -> Recorder:
    return Recorder(
        folder / run_id,
        logger,
        run_id=run_id,
        config=CONFIG,
        rounds=rounds,
        label=Label(method="train"),
        commit="c0ffee",
    )


def numbers(round: int) -> dict[str, float]:
    return {
        "train/loss": math.nan if round == 2 else 1 / (round + 1),
        "test/accuracy": round / 7,
        "late/in_flight": 3,
        f"late/staleness_count/{round}": 2,
    }


def record(folder: Path, logger: WandbLogger, start: int, rounds: int, run_id: str = ID) -> None:
    with recorder(folder, logger, run_id, rounds) as one:
        one.start(start)
        for round in range(start + 1, rounds + 1):
            one.log(round, numbers(round), {"time/wall": 0.25 * round})
        one.finish({"objective": 0.5, "final": {"test/accuracy": 0.5}})


def wandb_file(folder: Path, run_id: str = ID, kind: str = "offline-run") -> Path:
    """The one file of a run; fails if there are several."""
    [path] = [path for path in (folder / "wandb").glob(f"{kind}-*/run-{run_id}.wandb") if not path.parent.is_symlink()]
    return wandb_files.wait(path)


def expected(folder: Path, run_id: str = ID) -> list[dict[str, Any]]:
    """The history that the run's own files ask for, as W&B writes it."""
    metrics, timings = (
        (folder / run_id / name).read_text().splitlines() for name in ("metrics.jsonl", "timings.jsonl")
    )
    rows = [json.loads(one) | json.loads(other) for one, other in zip(metrics, timings, strict=True)]
    shown = [{key: row[key] for key in row if "staleness_count" not in key} for row in rows]
    return [{"_step": row["round"]} | row for row in shown]


@pytest.fixture(autouse=True)
def private_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A W&B of the test's own, which reads the environment again and leaves nothing in the home folder."""
    import wandb

    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("CACHE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "home" / name.lower()))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    wandb.teardown()
    yield
    wandb.teardown()


# Offline


def test_the_file_holds_what_metrics_jsonl_holds(tmp_path: Path) -> None:
    record(tmp_path, logger(tmp_path), -1, 40)
    path = wandb_file(tmp_path)
    assert wandb_files.history(path) == expected(tmp_path)
    assert len(expected(tmp_path)) == 41 and expected(tmp_path)[2]["train/loss"] is None
    assert wandb_files.summary(path)["train/loss"] == {"last": 1 / 41, "min": 1 / 41}, "a NaN spoils no best value"
    assert wandb_files.exit_code(path) == 0
    run = wandb_files.run(path)
    assert (run.run_id, run.display_name, run.run_group, run.job_type) == (ID, ID, "a group", "train")
    assert list(run.tags) == ["one", "two"] and run.git.commit == "c0ffee"
    assert {key: value for key, value in wandb_files.config(path).items() if key != "_wandb"} == CONFIG
    axes = {(one.name or one.glob_name): one.step_metric for one in (r.metric for r in records(path)) if one}
    assert axes["*"] == "round"
    assert ID in path.parent.name, "`wandb leet` lists runs by the name of this folder"


def test_a_run_has_a_name_tags_a_group_and_its_choices(tmp_path: Path) -> None:
    label = Label("FedAvg seed=3", "FedAvg", ("dataset=digits",), "FedAvg 1a2b", {"choices": {"algorithm": "fedavg"}})
    how: dict[str, Any] = {"run_id": ID, "config": CONFIG, "rounds": 1, "commit": None}
    with Recorder(tmp_path / ID, logger(tmp_path, group=None), label=label, **how) as one:
        one.start(-1)
        one.image("curves", picture(tmp_path))
        for round in range(2):
            one.log(round, {"test/accuracy": 0.5, "train/loss": 1.0, "comm/upload_mb": 1.0}, {})
        one.finish({"objective": 0.5})
    run = wandb_files.run(wandb_file(tmp_path))
    assert (run.display_name, run.run_group, run.job_type) == ("FedAvg seed=3", "FedAvg 1a2b", "FedAvg")
    assert list(run.tags) == ["one", "two", "dataset=digits"]
    assert wandb_files.config(wandb_file(tmp_path))["choices"] == {"algorithm": "fedavg"}
    metrics = [each.metric for each in records(wandb_file(tmp_path)) if each.metric.ListFields()]
    rules = {each.name: each.summary for each in metrics if each.summary.ListFields()}
    assert rules["test/accuracy"].max and rules["test/accuracy"].last and not rules["test/accuracy"].min
    assert rules["train/loss"].min and "comm/upload_mb" not in rules, "what has no best value keeps its last one"
    assert [each.options.hidden for each in metrics if each.glob_name == "curves.*"] == [True], "no chart of its size"


@pytest.mark.parametrize(("name", "value"), [("WANDB_SILENT", ""), ("WANDB_HTTP_TIMEOUT", "soon")])
def test_a_variable_that_wandb_cannot_use_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    record(tmp_path, logger(tmp_path), -1, 2)
    message = caplog.messages[0]
    assert f"({name}={value!r} in the environment cannot be used" in message and message.count("\n") == 0
    assert f"unset {name})" in message and len(expected(tmp_path)) == 3


def test_a_setting_that_wandb_refuses_blames_no_variable(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record(tmp_path, logger(tmp_path, tags=["x" * 100]), -1, 2)
    assert caplog.messages[0].startswith("W&B could not be started (run_tags: Tag ")
    assert "WANDB_" not in caplog.messages[0]


def test_a_process_of_wandb_that_does_not_start_is_a_warning(tmp_path: Path) -> None:
    """As where it takes too long, or the machine has no more processes."""
    told = {"folder": str(tmp_path / ID), "logger": vars(logger(tmp_path)), "id": ID, "start": -1, "rounds": 2}
    told |= {"pause": None, "kill": None, "patience": 1.0}
    broken = "from wandb.sdk.lib.service import service_process as p; p.get_core_path = lambda: '/bin/false'"
    command = [sys.executable, "-c", f"{broken}\n{SESSION}", json.dumps(told)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert "WARNING W&B could not be started (" in found.stderr and "Traceback" not in found.stderr
    assert len(expected(tmp_path)) == 3


def test_a_variable_that_wandb_refuses_in_its_own_way_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_API_KEY", " blank ")  # refused with an error that is not pydantic's
    monkeypatch.setenv("WANDB_SILENT", "maybe")
    with pytest.raises(ValueError, match="boolean") as refused:
        wandb.Settings(silent="maybe")
    assert service.line(refused.value).startswith("WANDB_SILENT='maybe' in the environment cannot be used: ")


def test_a_pruned_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(Pruned), recorder(tmp_path, logger(tmp_path)) as one:
        one.start(-1)
        one.log(0, {"x": 1.0}, {})
        raise Pruned(0, 0.5, "worse than the median")
    path = wandb_file(tmp_path)
    assert wandb_files.summary(path)["summary"] == {"pruned": "pruned after round 0: worse than the median"}
    assert wandb_files.exit_code(path) == 0


def test_wandbs_own_reader_agrees(tmp_path: Path) -> None:
    record(tmp_path, logger(tmp_path), -1, 8)
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(wandb_file(tmp_path))]
    if "--json" not in subprocess.run([*command[:5], "--help"], check=True, capture_output=True, text=True).stdout:
        pytest.skip("`wandb leet inspect --json` is younger than this wandb")
    lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()
    items = [entry["history"]["item"] for entry in map(json.loads, lines) if entry["type"] == "history"]
    assert without_clock(items) == expected(tmp_path)


def test_many_numbers_in_several_blocks(tmp_path: Path) -> None:
    with recorder(tmp_path, logger(tmp_path), rounds=99) as one:
        one.start(-1)
        for round in range(100):
            one.log(round, {f"test/accuracy/{number}": (round + number) / 7 for number in range(40)}, {})
    path = wandb_file(tmp_path)
    assert path.stat().st_size > 3 * BLOCK_BYTES
    assert wandb_files.history(path) == expected(tmp_path)


def test_a_resumed_run_has_one_file_with_every_round_once(tmp_path: Path) -> None:
    one = recorder(tmp_path, logger(tmp_path))
    with pytest.raises(KeyboardInterrupt), one:
        one.start(-1)
        for round in range(6):
            one.log(round, numbers(round), {"time/wall": 0.25})
        raise KeyboardInterrupt
    assert wandb_files.exit_code(wandb_file(tmp_path)) == 1
    record(tmp_path, logger(tmp_path), 3, 9)
    assert [row["_step"] for row in wandb_files.history(wandb_file(tmp_path))] == list(range(10))
    assert wandb_files.history(wandb_file(tmp_path)) == expected(tmp_path)
    assert wandb_files.exit_code(wandb_file(tmp_path)) == 0


def test_a_killed_session_leaves_nothing_behind(tmp_path: Path) -> None:
    killed = session(tmp_path, logger(tmp_path), rounds=9, kill=5)
    assert killed.wait(30) == -signal.SIGKILL
    killed.communicate()
    record(tmp_path, logger(tmp_path), 4, 9)
    assert wandb_files.history(wandb_file(tmp_path)) == expected(tmp_path)
    assert len(expected(tmp_path)) == 10


def test_only_own_files_that_were_not_uploaded_are_replaced(tmp_path: Path) -> None:
    """Not those of another run, though its name begins alike, and not what is marked as uploaded."""
    record(tmp_path, logger(tmp_path), -1, 3, f"{ID}-1")
    uploaded = tmp_path / "wandb" / f"offline-run-20200101_000000-{ID}" / f"run-{ID}.wandb"
    online = tmp_path / "wandb" / f"run-20200101_000000-{ID}" / f"run-{ID}.wandb"
    old = tmp_path / "wandb" / f"offline-run-20200101_000001-{ID}-1" / f"run-{ID}.wandb"
    for path in (uploaded, online, old):
        path.parent.mkdir()
        path.write_bytes(b"")
    uploaded.with_name(f"{uploaded.name}.synced").write_bytes(b"")
    uploaded.write_bytes(wandb_file(tmp_path, f"{ID}-1").read_bytes())
    record(tmp_path, logger(tmp_path), -1, 3)
    (new,) = set((tmp_path / "wandb").glob(f"offline-run-*-{ID}/run-{ID}.wandb")) - {uploaded}
    assert wandb_files.history(new) == expected(tmp_path), "a run that begins anew sends all rounds"
    assert uploaded.exists() and online.exists() and not old.parent.exists()
    assert wandb_files.history(wandb_file(tmp_path, f"{ID}-1")) == expected(tmp_path, f"{ID}-1")


@pytest.mark.parametrize("share", [0.5, 0.98], ids=["rounds are missing", "its end is missing"])
def test_a_file_that_a_full_disk_cuts_replaces_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, share: float
) -> None:
    import wandb

    def finish(run: Any, exit_code: int) -> None:
        finished(run, exit_code=exit_code)
        path = wandb_files.wait(Path(run.settings.sync_dir) / f"run-{ID}.wandb")
        os.truncate(path, int(share * path.stat().st_size))

    record(tmp_path, logger(tmp_path), -1, 3)
    whole, finished = wandb_file(tmp_path), wandb.Run.finish
    monkeypatch.setattr("fedlab_runner.tracking.wandb_file.CLOSE_SECONDS", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(wandb.Run, "finish", finish)
        record(tmp_path, logger(tmp_path), 3, 40)
    assert [row["round"] for row in wandb_files.history(whole)] == [0, 1, 2, 3]
    (warning,) = (one.getMessage() for one in caplog.records if one.levelname == "WARNING")
    assert "ends early, as on a full disk; older copies stay): the run's own files have it" in warning
    assert "wandb sync" not in warning
    record(tmp_path, logger(tmp_path), 40, 41)
    assert wandb_files.history(wandb_file(tmp_path)) == expected(tmp_path), "a whole file replaces both"


def test_runs_of_one_process_do_not_mix(tmp_path: Path) -> None:
    with recorder(tmp_path, logger(tmp_path), "one") as one, recorder(tmp_path, logger(tmp_path), "two") as two:
        one.start(-1)
        two.start(-1)
        for round in range(5):
            one.log(round, {"x": round}, {})
            two.log(round, {"x": -round}, {})
    assert [row["x"] for row in wandb_files.history(wandb_file(tmp_path, "one"))] == [0, 1, 2, 3, 4]
    assert [row["x"] for row in wandb_files.history(wandb_file(tmp_path, "two"))] == [0, -1, -2, -3, -4]


def picture(folder: Path) -> Path:
    from PIL import Image

    Image.new("RGB", (4, 4)).save(folder / "picture.png")
    return folder / "picture.png"


def test_tables_and_images_join_a_round(tmp_path: Path) -> None:
    picture(tmp_path)
    with recorder(tmp_path, logger(tmp_path)) as one:
        one.start(-1)
        one.table("partition", ["client", "0", "note"], [[0, 5, "a"], [1, None, 2.5]])
        one.log(0, {"x": 1.0}, {})
        one.log(1, {"x": 2.0}, {})
        one.image("curves", tmp_path / "picture.png")
    first, last = wandb_files.history(wandb_file(tmp_path))
    assert any(key.startswith("partition") for key in first) and any(key.startswith("curves") for key in last)
    assert (last["_step"], last["x"]) == (1, 2.0)
    media = wandb_file(tmp_path).parent / "files" / "media"
    assert list(media.rglob("*.png")) and list(media.rglob("*.table.json"))


def test_a_table_that_is_not_taken_leaves_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import wandb

    def log(run: Any, values: dict[str, Any], step: int) -> None:
        if "partition" in values:
            raise OSError("read-only file system")
        taken(run, values, step=step)

    taken = wandb.Run.log
    with monkeypatch.context() as patch, recorder(tmp_path, logger(tmp_path)) as one:
        patch.setattr(wandb.Run, "log", log)
        one.start(-1)
        one.table("partition", ["client"], [[0]])
        for round in range(3):
            one.log(round, {"x": 1.0 + round}, {})
    assert [row["x"] for row in wandb_files.history(wandb_file(tmp_path))] == [1.0, 2.0, 3.0]
    (warning,) = (one.getMessage() for one in caplog.records if one.levelname == "WARNING")
    assert warning.startswith("W&B did not take partition of round 0 (")


def test_the_model_is_an_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    files = [tmp_path / "model.safetensors", tmp_path / "config.json"]
    for path in files:
        path.write_bytes(b"weights")
    logged = []
    monkeypatch.setattr(wandb.Run, "log_artifact", lambda _, artifact: logged.append(artifact))
    with recorder(tmp_path, logger(tmp_path)) as one:
        one.start(-1)
        one.log(0, {"x": 1.0}, {})
        one.log(1, {"x": 1.0}, {})
        one.model(files)
    (artifact,) = logged
    assert (artifact.name.partition(":")[0], artifact.type, artifact.metadata) == (f"model-{ID}", "model", {"round": 1})
    assert sorted(artifact.manifest.entries) == ["config.json", "model.safetensors"]


def test_packages_are_listed_once_for_all_runs_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wandb import util

    calls: list[int] = []
    listed = util.InstalledDistribution("one", "1.0"), util.InstalledDistribution("two", "2.0")
    monkeypatch.setattr(util, "working_set", lambda: (calls.append(1), iter(listed))[1])
    service.list_packages_once.cache_clear()
    for run_id in ("first", "second"):
        record(tmp_path, logger(tmp_path), -1, 1, run_id)
        folder = wandb_file(tmp_path, run_id).parent
        assert (folder / "files" / "requirements.txt").read_text().split() == ["one==1.0", "two==2.0"]
    assert calls == [1]
    service.list_packages_once.cache_clear()


def test_an_artifact_of_an_offline_run_waits_in_its_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    with recorder(tmp_path, logger(tmp_path)) as one:
        one.start(-1)
        one.log(0, {"x": 1.0}, {})
        one.model([tmp_path / "model.safetensors"])
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert f"model-{ID}".encode() in wandb_file(tmp_path).read_bytes()


def test_disabled_means_untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    def forbidden(*args: object, **kwargs: object) -> None:
        pytest.fail("W&B was used")

    monkeypatch.setattr(wandb, "init", forbidden)
    monkeypatch.setattr(wandb, "setup", forbidden)
    record(tmp_path, logger(tmp_path, "disabled"), -1, 3)
    assert not (tmp_path / "wandb").exists() and len(expected(tmp_path)) == 4


# Whatever goes wrong in W&B


def _break_init(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setattr(wandb, "init", _raise)


def _break_log(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "log", _raise)


def _break_everything(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("log", "define_metric", "finish"):
        monkeypatch.setattr(run, name, _raise)


def _raise(*args: object, **kwargs: object) -> None:
    raise BrokenPipeError("the service is gone")


@pytest.mark.parametrize("damage", [_break_init, _break_log, _break_everything])
def test_an_error_of_wandb_is_a_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Any, pytest.MonkeyPatch], None],
) -> None:
    import wandb

    with monkeypatch.context() as patch:
        damage(wandb.Run, patch)
        record(tmp_path, logger(tmp_path), -1, 5)
    warnings = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert 1 <= len(warnings) <= 2 and all("the service is gone" in one for one in warnings)
    assert [row["round"] for row in expected(tmp_path)] == list(range(6))
    assert (tmp_path / ID / "summary.json").exists()


def test_an_error_of_wandb_does_not_hide_the_runs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    with monkeypatch.context() as patch:
        _break_everything(wandb.Run, patch)
        with pytest.raises(ZeroDivisionError), recorder(tmp_path, logger(tmp_path)) as one:
            one.start(-1)
            one.log(0, {"x": 1 / 0}, {})


# Online, in processes of their own, against the stand-in


def session(
    folder: Path,
    logger: WandbLogger,
    url: str = "http://127.0.0.1:9",
    *,
    start: int = -1,
    rounds: int = 6,
    key: str | None = None,
    pause: int | None = None,
    kill: int | None = None,
    patience: float = wandb_run.LAST_ANSWER_SECONDS,
) -> subprocess.Popen[str]:
    """Starts one; `patience`: the seconds that it waits at its end for a server that has not answered."""
    folder.mkdir(exist_ok=True)
    told = {"folder": str(folder / ID), "id": ID, "start": start, "rounds": rounds, "pause": pause, "kill": kill}
    told["patience"] = patience
    told["logger"] = {name: getattr(logger, name) for name in logger.__dataclass_fields__}
    root, others = str(ROOT), os.environ.get("PYTHONPATH", "")
    environment = os.environ | {"WANDB_BASE_URL": url, "PYTHONPATH": f"{root}{os.pathsep}{others}"}
    if key:
        environment["WANDB_API_KEY"] = key
    return subprocess.Popen(
        [sys.executable, "-c", SESSION, json.dumps(told)],
        env=environment,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ends(process: subprocess.Popen[str], seconds: float = 60) -> str:
    """What a session said; it must end well, and in time."""
    try:
        output, _ = process.communicate(timeout=seconds)
    finally:
        process.kill()
    assert process.returncode == 0, output
    return output


def all_end(sessions: dict[str, subprocess.Popen[str]]) -> dict[str, str]:
    """What sessions said that run side by side; a closed pipe wakes those that wait."""
    for process in sessions.values():
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    try:
        return {name: ends(process, 90) for name, process in sessions.items()}
    finally:
        for process in sessions.values():
            process.kill()


def assert_no_key(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files and not [path for path in files if KEY.encode() in path.read_bytes()]


def without_clock(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the server has them, less the two keys that no two runs share."""
    return [{key: value for key, value in row.items() if key not in ("_timestamp", "_runtime")} for row in rows]


def test_online_sends_every_round_once_over_two_sessions(tmp_path: Path) -> None:
    with WandbServer() as server:
        assert server.url in ends(session(tmp_path, logger(tmp_path, "online"), server.url, key=KEY))
        # The checkpoint is older than what the server has: rounds 4 to 6 are done again.
        again = ends(session(tmp_path, logger(tmp_path, "online"), server.url, key=KEY, start=3, rounds=9))
        assert "lacks" not in again
        run = server.runs[ID]
    assert without_clock(run.rows()) == expected(tmp_path)
    assert len(run.rows()) == 10
    assert (run.exit_code, run.group, run.tags) == (0, "a group", ["one", "two"])
    assert run.config["seed"]["value"] == 3 and run.summary["summary"]["objective"] == 0.5
    record(tmp_path, logger(tmp_path), 9, 11)
    assert [row["_step"] for row in wandb_files.history(wandb_file(tmp_path))] == [10, 11], "what `wandb sync` adds"
    assert_no_key(tmp_path)


def test_an_offline_run_is_uploaded_as_the_log_line_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "fedlab_runner")
    monkeypatch.chdir(tmp_path)
    record(tmp_path, logger(tmp_path), -1, 5)
    wandb_file(tmp_path)
    [line] = [one for one in caplog.messages if "wandb sync" in one]
    words = line.split("`")[3].split()
    assert line.split("`")[1] == "wandb leet wandb" and words[:2] == ["wandb", "sync"]
    with WandbServer() as server:
        environment = os.environ | {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY}
        command = [sys.executable, "-m", *words]
        subprocess.run(command, check=True, capture_output=True, env=environment, timeout=60)
        assert without_clock(server.runs[ID].rows()) == expected(tmp_path)
        # The copy is on the server: a continued run keeps it, and its next copy has the rounds that are new.
        [uploaded] = (tmp_path / "wandb").glob("offline-run-*/*.synced")
        record(tmp_path, logger(tmp_path), 5, 7)
        record(tmp_path, logger(tmp_path), 7, 8)
        assert uploaded.exists() and len(list((tmp_path / "wandb").glob("offline-run-*"))) == 2
        [line] = [one for one in caplog.messages if "wandb sync" in one][-1:]
        command = [sys.executable, "-m", *line.split("`")[3].split()]
        subprocess.run(command, check=True, capture_output=True, env=environment, timeout=60)
        assert without_clock(server.runs[ID].rows()) == expected(tmp_path)
        assert len(server.runs[ID].rows()) == 9
    assert_no_key(tmp_path)


def test_online_catches_up_with_what_was_done_offline(tmp_path: Path) -> None:
    record(tmp_path, logger(tmp_path, "disabled"), -1, 4)
    with WandbServer() as server:
        ends(session(tmp_path, logger(tmp_path, "online"), server.url, key=KEY, start=4, rounds=6))
        assert [row["round"] for row in server.runs[ID].rows()] == list(range(7))


QUOTA = "storage quota exceeded: you have used 100.0 GB of your 100.0 GB"
SOON = (("Retry-After", "1"),)
TROUBLES = {
    "server_error": Trouble(500),
    "too_many_requests": Trouble(429, "rate limit exceeded", headers=SOON),
    "wrong_key": Trouble(401, "user is not logged in"),
    "quota": Trouble(403, QUOTA),
}


# Two of them at each time in a plain run of the tests, the other two in one of the slow tests.
START = (
    "troubles",
    [("server_error", "wrong_key"), pytest.param(("too_many_requests", "quota"), marks=pytest.mark.slow)],
)
ON_THE_WAY = (
    "troubles",
    [("too_many_requests", "quota"), pytest.param(("server_error", "wrong_key"), marks=pytest.mark.slow)],
)


def troubled(stack: ExitStack, kind: str) -> WandbServer:
    """A server that refuses everything from now on."""
    server = stack.enter_context(WandbServer())
    server.trouble = TROUBLES[kind]
    return server


@pytest.mark.parametrize(*START)
def test_without_a_server_that_takes_it_the_run_is_offline(tmp_path: Path, troubles: tuple[str, str]) -> None:
    """No key, nobody who listens, nobody who answers, or refused: all at once, as they spend their time waiting."""
    began = time.monotonic()
    with ExitStack() as stack:
        refusing, silent = (stack.enter_context(socket.socket()) for _ in range(2))
        for each in (refusing, silent):
            each.bind(("127.0.0.1", 0))
        silent.listen()
        urls = {"refuses": refusing, "hangs": silent}
        sessions = {}
        for name, each in urls.items():
            url = f"http://127.0.0.1:{each.getsockname()[1]}"
            own = logger(tmp_path / name, "online", init_timeout=1.0)
            sessions[name] = session(tmp_path / name, own, url, key=KEY, patience=1.5)
        servers = {kind: troubled(stack, kind) for kind in troubles}
        for kind, server in servers.items():
            own = logger(tmp_path / kind, "online", init_timeout=1.0)
            sessions[kind] = session(tmp_path / kind, own, server.url, key=KEY)
        willing = stack.enter_context(WandbServer())
        own = logger(tmp_path / "no_key", "online", init_timeout=1.0)
        sessions["no_key"] = session(tmp_path / "no_key", own, willing.url)
        said = all_end(sessions)
    assert time.monotonic() - began < 90
    assert all(server.refused and not server.runs for server in servers.values()) and not willing.runs
    assert "wandb login" in said["no_key"]
    for name, output in said.items():
        folder = tmp_path / name
        assert output.count("WARNING") == 1 and "logger.mode=offline" in output, (name, output)
        assert wandb_files.history(wandb_file(folder)) == expected(folder), name
        assert not list((folder / "wandb").glob("run-*")), "the attempt left an empty run"
        assert_no_key(folder)
    assert_can_be_synced(tmp_path / "hangs", wandb_file(tmp_path / "hangs"))


def resume(process: subprocess.Popen[str]) -> str:
    """Lets a session that waits continue; what it says from there on."""
    output, _ = process.communicate("\n", timeout=90)
    assert process.returncode == 0, output
    return output


def test_a_run_begins_before_its_server_answers_and_is_online_when_it_does(tmp_path: Path) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    process = session(tmp_path, logger(tmp_path, "online"), url, key=KEY, pause=3)
    await_pause(process)
    assert not (tmp_path / "wandb").exists(), "three rounds, and W&B has not been started"
    with WandbServer(port) as server:
        time.sleep(1.0)  # a session asks again after 0.3 s
        output = resume(process)
        assert without_clock(server.runs[ID].rows()) == expected(tmp_path)
    assert len(expected(tmp_path)) == 7 and "WARNING" not in output


def test_nobody_waits_for_a_server_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither at the start nor in the rounds; at the end no longer than its patience."""
    monkeypatch.setattr(wandb_run, "FIRST_ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(wandb_run, "LAST_ANSWER_SECONDS", 1.0)
    opened: list[str] = []
    monkeypatch.setattr(WandbTracker, "_init", lambda self, mode: opened.append(mode))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr("fedlab_runner.tracking.wandb_service.server", lambda: url)
        tracker = WandbTracker(
            logger(tmp_path, "online"), run_id=ID, config={}, label=Label(method="train"), commit=None
        )
        began = time.monotonic()
        tracker.start([])
        for round in range(100):
            tracker.log({"round": round})
        assert time.monotonic() - began < 0.9 and not opened
        tracker.finish(0)
        assert time.monotonic() - began < 3 and opened == ["offline"]
    assert "W&B cannot be reached (it does not answer): the run continues with logger.mode=offline" in caplog.messages


def test_a_killed_service_is_two_lines(tmp_path: Path) -> None:
    process = session(tmp_path, logger(tmp_path), pause=3)
    await_pause(process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    cores = [pid for pid in children if "wandb-core" in Path(f"/proc/{pid}/cmdline").read_text()]
    for pid in cores:
        os.kill(int(pid), signal.SIGKILL)
    output = resume(process)
    assert cores and 1 <= output.count("WARNING") <= 2 and "Traceback" not in output, output
    assert "Exception ignored" not in output and len(expected(tmp_path)) == 7
    assert "wandb sync" not in output, "W&B's file ends where its process did"


def test_a_removed_folder_is_said(tmp_path: Path) -> None:
    modes = ("offline", "online")
    with WandbServer() as server:
        loggers = {mode: logger(tmp_path / mode, mode) for mode in modes}
        sessions = {mode: session(tmp_path / mode, loggers[mode], server.url, key=KEY, pause=3) for mode in modes}
        for mode in modes:
            await_pause(sessions[mode])
            shutil.rmtree(tmp_path / mode / "wandb")
        said = all_end(sessions)
    for mode, output in said.items():
        assert output.count("WARNING") >= 1 and "was removed; the run's own files are not affected" in output, output
        assert len(expected(tmp_path / mode)) == 7


@pytest.mark.parametrize(*ON_THE_WAY)
def test_a_server_that_is_lost_or_refuses_on_the_way_costs_nothing(tmp_path: Path, troubles: tuple[str, str]) -> None:
    """It dies, falls silent (takes what is sent and does not answer) or begins to refuse.

    The run says once that not all has arrived, ends as it would, and a later `wandb sync` brings the rest.
    """
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(WandbServer()) for kind in ("dies", "falls_silent", *troubles)}
        sessions = {}
        for kind, server in servers.items():
            own = logger(tmp_path / kind, "online", finish_timeout=2.0)
            sessions[kind] = session(tmp_path / kind, own, server.url, key=KEY, pause=3)
        for process in sessions.values():
            await_pause(process)
        servers["dies"].stop()
        servers["falls_silent"].seconds = 1000.0
        for kind in troubles:
            servers[kind].trouble = TROUBLES[kind]
        began = time.monotonic()
        said = all_end(sessions)
        assert time.monotonic() - began < 90
        assert all(servers[kind].refused for kind in troubles)
    for kind, output in said.items():
        folder = tmp_path / kind
        assert output.count("WARNING") == 1 and "`wandb sync --include-online wandb/run-" in output, (kind, output)
        # The local copy of the online run is whole, for `wandb sync`.
        assert wandb_files.history(wandb_file(folder, kind="run")) == expected(folder), kind
        assert len(expected(folder)) == 7
        assert_no_key(folder)
    assert_can_be_synced(tmp_path / "dies", wandb_file(tmp_path / "dies", kind="run"))


@pytest.mark.slow  # it waits for most of its time
def test_a_server_that_is_slow_or_in_trouble_for_a_while_gets_everything(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = {
            kind: stack.enter_context(WandbServer()) for kind in ("slow_start", "slow_rounds", "file_stream", "graphql")
        }
        servers["slow_start"].seconds = 1.0
        sessions = {}
        for kind, server in servers.items():
            own = logger(tmp_path / kind, "online", finish_timeout=60.0)
            sessions[kind] = session(tmp_path / kind, own, server.url, key=KEY, pause=3)
        for process in sessions.values():
            await_pause(process)
        servers["slow_start"].seconds, servers["slow_rounds"].seconds = 0.0, 1.0
        for kind in ("file_stream", "graphql"):
            servers[kind].trouble = Trouble(503, path=kind)
        timer = threading.Timer(2.0, lambda: [setattr(server, "trouble", None) for server in servers.values()])
        timer.start()
        said = all_end(sessions)
        timer.join()
    for kind, server in servers.items():
        assert without_clock(server.runs[ID].rows()) == expected(tmp_path / kind), kind
        assert "WARNING" not in said[kind], said[kind]


def await_pause(process: subprocess.Popen[str]) -> None:
    """Until a session waits; it continues when it is asked for its end."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "paused":
            return
    pytest.fail("the session ended before its pause")


def assert_can_be_synced(folder: Path, path: Path) -> None:
    with WandbServer() as server:
        environment = os.environ | {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY}
        # As the warning says it.
        command = [sys.executable, "-m", "wandb", "sync", "--include-online", str(path.parent)]
        subprocess.run(command, check=True, capture_output=True, env=environment, timeout=60, cwd=folder)
        assert without_clock(server.runs[ID].rows()) == expected(folder)
