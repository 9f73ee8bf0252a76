"""A checkpoint is whole or passed over, belongs to its config, and one process at a time works in a run folder."""

import logging
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from fedlab_runner.checkpoints import store as checkpoint_store
from fedlab_runner.checkpoints.store import Checkpointing, CheckpointStore
from fedlab_runner.experiment.lock import RunLock
from fedlab_runner.utils import signals
from fedlab_runner.utils.digest import digest
from fedlab_runner.utils.errors import Interrupted, UserError
from tests.helpers.paths import ROOT

CONFIG = {"algorithm": {"name": "fedavg", "mu": 0.1, "betas": (0.9, 0.99)}, "seed": 0}
PAYLOAD = {
    "params": torch.tensor([0.1, -0.0, float("nan"), 1e-45]),
    "flying": {3: [(torch.arange(4, dtype=torch.int64), 7)], 5: []},
    "flags": (True, None, "text", 2**70, 0.1, b"\x00"),
}


def assert_equal(one: Any, other: Any) -> None:
    """Equal types and bits, all the way down."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()
        assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right)
    else:
        assert one == other


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def loaded(store: CheckpointStore, config: dict[str, Any] = CONFIG) -> tuple[int, Any]:
    found = store.load(config)
    assert found is not None
    return found


def test_what_is_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    assert store.load(CONFIG) is None
    path = store.save(12, CONFIG, PAYLOAD)
    assert path == tmp_path / "checkpoints" / "round_000012.pt"
    round, payload = loaded(store)
    assert round == 12
    assert_equal(payload, PAYLOAD)


def test_strides_and_shared_memory_survive_but_hidden_memory_does_not(tmp_path: Path) -> None:
    table = torch.arange(1_000_000.0).reshape(1000, 1000)
    shared = torch.zeros(6)[:3]
    payload = {"row": table[5], "transposed": torch.arange(6).reshape(2, 3).T, "one": shared, "same": shared}
    store = CheckpointStore(tmp_path, keep=2)
    path = store.save(0, CONFIG, payload)
    assert path.stat().st_size < 50_000, "a row of a table brings the table along"
    back = loaded(store)[1]
    assert_equal(back, payload)
    assert back["one"].data_ptr() == back["same"].data_ptr()


def test_a_payload_that_could_not_be_read_again_is_refused_at_once(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for bad in ({"x": Path("x")}, [{1.5: 0}], {"x": torch.nn.Linear(1, 1)}):
        with pytest.raises(AssertionError):
            store.save(1, CONFIG, bad)
    assert store.load(CONFIG) is None


def test_the_newest_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for round in (5, 10, 999_999, 1_000_000):
        store.save(round, CONFIG, {"round": round})
    assert names(tmp_path) == ["round_1000000.pt", "round_999999.pt"]
    assert loaded(store) == (1_000_000, {"round": 1_000_000})


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def _cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0, 1, exclude_max=True), cut=st.booleans())
def test_any_damage_is_noticed_and_the_one_before_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, where: float, cut: bool
) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    store.save(1, CONFIG, {"x": torch.ones(8)})
    newest = store.save(2, CONFIG, {"x": torch.zeros(8)})
    (_cut if cut else _flip)(newest, int(where * newest.stat().st_size))
    caplog.clear()
    round, payload = loaded(store)
    assert round == 1 and payload["x"].sum() == 8
    [warning] = caplog.records
    assert warning.levelno == logging.WARNING and "round_000002.pt is damaged" in warning.getMessage()


def test_after_damage_the_run_goes_on_without_the_damaged_file(tmp_path: Path) -> None:
    """A damaged file of a later round must not count as one of the newest, least of all with keep=1."""
    store = CheckpointStore(tmp_path, keep=2)
    store.save(1, CONFIG, {"round": 1})
    _cut(store.save(9, CONFIG, {"round": 9}), 100)
    assert loaded(store)[0] == 1
    CheckpointStore(tmp_path, keep=1).save(3, CONFIG, {"round": 3})
    assert names(tmp_path) == ["round_000003.pt"]
    assert loaded(store) == (3, {"round": 3})


def test_when_all_are_damaged_the_error_names_the_remedy(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for round in (1, 2):
        _cut(store.save(round, CONFIG, {"round": round}), 0)
    with pytest.raises(UserError, match=rf"no other checkpoint: delete {tmp_path}.*hydra\.run\.dir"):
        store.load(CONFIG)


def test_leftovers_of_a_kill_are_ignored_and_removed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    store.save(1, CONFIG, {"round": 1})
    half = tmp_path / "checkpoints" / "round_000002.pt.123.tmp"
    half.write_bytes(b"half a checkpoint")
    assert loaded(store)[0] == 1
    store.save(2, CONFIG, {"round": 2})
    assert names(tmp_path) == ["round_000001.pt", "round_000002.pt"]


def test_a_failed_save_leaves_the_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    store.save(1, CONFIG, {"round": 1})

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space"):
        store.save(2, CONFIG, {"round": 2})
    assert names(tmp_path) == ["round_000001.pt"] and loaded(store)[0] == 1


def test_a_signal_waits_for_the_checkpoint_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.save would end with an error of its own about the half-written archive, and the run with that."""
    store = CheckpointStore(tmp_path, keep=1)
    write = checkpoint_store._Hashing.write

    def interrupted(self: checkpoint_store._Hashing, data: bytes) -> int:
        if not sent:
            sent.append(len(data))
            os.kill(os.getpid(), signal.SIGTERM)
        return write(self, data)

    sent: list[int] = []
    monkeypatch.setattr(checkpoint_store._Hashing, "write", interrupted)
    with pytest.raises(Interrupted), signals.raised():
        store.save(3, CONFIG, {"x": torch.arange(5000)})
    assert sent and loaded(store)[0] == 3


def test_a_killed_writer_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """A process that saves as fast as it can is killed at an arbitrary moment."""
    code = (
        "import sys, torch; from pathlib import Path; from fedlab_runner.checkpoints.store import CheckpointStore\n"
        "store = CheckpointStore(Path(sys.argv[1]), keep=2)\n"
        "for round in range(1, 10**6):\n"
        "    store.save(round, {'seed': 0}, {'x': torch.full((200_000,), float(round))})\n"
        "    print(round, flush=True)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 7:
            break
    process.send_signal(signal.SIGKILL)
    rest = process.communicate()[0].split()
    said = int(rest[-1]) if rest else 7
    round, payload = loaded(CheckpointStore(tmp_path, keep=2), {"seed": 0})
    assert round in (said, said + 1) and bool((payload["x"] == round).all())


def test_another_config_is_named_key_by_key(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    store.save(1, CONFIG, {})
    other = {"algorithm": {"name": "fedavg", "mu": 0.2, "betas": [0.9, 0.99]}, "rounds": 3}
    with pytest.raises(UserError) as caught:
        store.load(other)
    message = str(caught.value)
    assert "algorithm.mu (0.1 there, 0.2 here), seed (0 there, absent here), rounds (absent there, 3 here)" in message
    assert "round_000001.pt" in message and "hydra.run.dir" in message and "\n" not in message
    assert "betas (" not in message and "name (" not in message


def test_configs_of_one_run_id_are_one_config(tmp_path: Path) -> None:
    """A component may take any value, such as a library's keywords: 0 and 0.0 are one there, 1 and true are two."""
    store, config = CheckpointStore(tmp_path, keep=2), {"rate": 0, "pair": [1, 2.5], "flag": True}
    store.save(1, config, {})
    same, other = {"rate": 0.0, "pair": (1.0, 2.5), "flag": True}, {**config, "flag": 1}
    assert digest(config) == digest(same) != digest(other)
    assert store.load(same) == (1, {})
    with pytest.raises(UserError, match=r"of another config: flag \(True there, 1 here\): "):
        store.check(other)


def test_an_unknown_format_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    with monkeypatch.context() as patch:
        patch.setattr("fedlab_runner.checkpoints.store.VERSION", 99)
        store.save(1, CONFIG, {})
    with pytest.raises(UserError, match=r"has format 99"):
        store.load(CONFIG)


@pytest.mark.parametrize("theirs", [["a"], "a", None, {"a": {"b": [1]}}])
def test_a_header_of_anything_is_one_line(theirs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its digest fits."""
    store = CheckpointStore(tmp_path, keep=2)
    store.save(1, theirs, {})
    with pytest.raises(UserError, match=r"its header holds no config|is of another config: a"):
        store.load(CONFIG)


def test_a_checkpoint_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its digests fit: only what is in a payload is ever made from a file."""

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "broken_into"),)

    store = CheckpointStore(tmp_path, keep=2)
    with monkeypatch.context() as patch:
        patch.setattr("fedlab_runner.checkpoints.store._portable", lambda payload: payload)
        store.save(1, CONFIG, {"x": Evil()})
    with pytest.raises(Exception, match="cannot be read: UnpicklingError"):
        store.load(CONFIG)
    assert not (tmp_path / "broken_into").exists()


# When

BOTH = Checkpointing(seconds=30.0, rounds=10, share=0.05, keep=2, same_data=True, same_code=True)


def test_due() -> None:
    assert BOTH.due(3, 0, 30.0, 0.1) and BOTH.due(10, 0, 1.0, 0.1) and not BOTH.due(9, 0, 29.9, 0.1)
    assert not BOTH.due(10, 7, 1.0, 0.1) and BOTH.due(17, 7, 1.0, 0.1), "counted from the last one"
    never = replace(BOTH, seconds=None, rounds=None, share=1.0, keep=1)
    assert not never.due(10**6, 0, 1e9, 0.1)


def test_slow_checkpoints_wait_until_they_take_their_share() -> None:
    slow = replace(BOTH, rounds=None)
    assert not slow.due(3, 0, 75.0, 4.0) and slow.due(3, 0, 77.0, 4.0)  # 4 of 81 seconds are 5 %
    assert replace(slow, share=1.0).due(3, 0, 30.0, 4.0) and replace(slow, rounds=2).due(2, 0, 1.0, 4.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seconds": -1.0}, "seconds must be >= 0, got -1.0"),
        ({"rounds": 0}, "rounds must be >= 1, got 0"),
        ({"keep": 0}, "keep must be >= 1, got 0"),
        ({"share": 0.0}, r"share must be in \(0, 1\], got 0\.0"),
        ({"share": 1.1}, r"share must be in \(0, 1\], got 1\.1"),
    ],
)
def test_ranges(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        replace(BOTH, **changes)


def test_the_config_file_fits_the_class() -> None:
    node = OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / "checkpoint" / "default.yaml"))
    assert isinstance(node, dict)
    assert node.pop("_target_") == f"{Checkpointing.__module__}.{Checkpointing.__qualname__}"
    assert Checkpointing(**{str(key): value for key, value in node.items()}) == Checkpointing(
        30, None, 0.05, 2, True, True
    )


# The lock

HOLD = (
    "import sys; from pathlib import Path; from fedlab_runner.experiment.lock import RunLock\n"
    "with RunLock(Path(sys.argv[1])):\n"
    "    print('held', flush=True); sys.stdin.readline()\n"
)


def hold(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_told_who_is_first_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    process = hold(tmp_path)
    with pytest.raises(UserError, match=rf"{tmp_path} is in use by process {process.pid} on "), RunLock(tmp_path):
        pass
    process.kill()
    process.communicate()
    with RunLock(tmp_path):
        assert f"process {os.getpid()} on" in (tmp_path / ".lock").read_text()
    with RunLock(tmp_path / "new" / "folder"):
        pass


def test_one_process_cannot_enter_twice(tmp_path: Path) -> None:
    with RunLock(tmp_path), pytest.raises(UserError, match="in use"), RunLock(tmp_path):
        pass
    with RunLock(tmp_path):
        pass


def test_a_file_system_without_locks_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unknown(descriptor: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fedlab_runner.experiment.lock.fcntl.flock", unknown)
    with RunLock(tmp_path):
        pass
    assert "cannot be locked" in caplog.text and "No locks available" in caplog.text


FORKING = """
import os, sys, time
from pathlib import Path
from fedlab_runner.experiment.lock import RunLock
with RunLock(Path(sys.argv[1])):
    if os.fork() == 0:
        print(os.getpid(), flush=True)  # the worker says so itself: what a fork sets off in it is done by then
    time.sleep(60)
"""


def test_a_forked_worker_does_not_keep_the_lock_of_a_killed_process(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", FORKING, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
    )
    assert process.stdout is not None and process.stdin is not None
    worker = int(process.stdout.readline())
    try:
        process.kill()
        process.wait()
        os.kill(worker, 0)  # it lives
        with RunLock(tmp_path):
            pass
    finally:
        os.kill(worker, signal.SIGKILL)
        process.stdout.close()
        process.stdin.close()
