"""How many threads a run takes unasked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedlab_runner.executors import _run_notes, threads
from fedlab_runner.utils import checksummed_json, system

STAT = """cpu  900 0 0 {sum} 0 0 0 0 0 0
cpu0 100 0 50 {0} 3 0 0 0 0 0
cpu1 100 0 50 {1} 0 0 0 0 0 0
cpu2 100 0 50 {2} 0 0 0 0 0 0
cpu10 100 0 50 {3} 0 0 0 0 0 0
intr 1 2 3
ctxt 5
"""


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers that torch is told, on a machine whose environment says nothing."""
    found: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    monkeypatch.delenv(system.THREADS)
    return found


def usable(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda: cores)


def noted(folder: Path) -> int | None:
    return _run_notes.noted_count(folder, "threads")


def test_a_number_in_the_config_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[int]) -> None:
    monkeypatch.setenv(system.THREADS, "3")
    assert threads.set_threads(5, tmp_path) == 5 and taken == [5] and noted(tmp_path) == 5


@pytest.mark.parametrize(
    ("value", "expected"), [("3", 3), (" 2 ", 2), ("4,2", 4), ("0", 7), ("-1", 7), ("many", 7), ("", 7), ("²", 7)]
)
def test_what_the_environment_says_comes_before_the_cores(
    value: str, expected: int, monkeypatch: pytest.MonkeyPatch, taken: list[int]
) -> None:
    monkeypatch.setenv(system.THREADS, value)
    usable(monkeypatch, 7)
    assert threads.set_threads(None, None) == expected and taken == [expected]


def test_usable_cores_are_taken_up_to_eight(monkeypatch: pytest.MonkeyPatch, taken: list[int]) -> None:
    for cores in (1, 6, 64):
        usable(monkeypatch, cores)
        threads.set_threads(None, None)
    assert taken == [1, 6, 8]


def test_a_job_takes_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch, taken: list[int]) -> None:
    monkeypatch.setattr(system, "machine_cores", lambda: 7)
    monkeypatch.setenv(system.SHARED_BY, "3")
    assert threads.set_threads(None, None) == 2


def test_a_run_goes_on_with_its_number_on_the_same_type_of_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[int]
) -> None:
    monkeypatch.setenv(system.THREADS, "4")
    assert threads.set_threads(None, tmp_path) == 4
    _run_notes.note(tmp_path, executors={"kind": "loop"})  # as executor=auto does
    monkeypatch.delenv(system.THREADS)
    usable(monkeypatch, 1)
    assert threads.set_threads(None, tmp_path) == 4
    assert _run_notes.noted(tmp_path) == {"threads": 4, "executors": {"kind": "loop"}}
    with monkeypatch.context() as patch:
        patch.setattr(_run_notes, "machine_type", lambda: "another")
        assert threads.set_threads(None, tmp_path) == 1 and noted(tmp_path) == 1
    assert noted(tmp_path) == 4
    monkeypatch.setenv(system.THREADS, "2")
    assert threads.set_threads(None, tmp_path) == 2 and noted(tmp_path) == 2


def test_a_damaged_note_is_said_and_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    usable(monkeypatch, 2)
    path = tmp_path / _run_notes.NOTES_FILE
    path.write_text(checksummed_json.text({_run_notes.machine_type(): {"threads": "all"}}))
    assert threads.set_threads(None, tmp_path) == 2 and not caplog.records
    path.write_text(path.read_text().replace('"threads": 2', '"threads": 9'))
    usable(monkeypatch, 3)
    assert threads.set_threads(None, tmp_path) == 3
    assert [record.getMessage() for record in caplog.records] == [
        f"{path} is damaged: threads and executor=auto are chosen again, so that the last digits may differ"
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/stat")
@pytest.mark.parametrize(
    ("after", "mine", "expected"),
    [
        ([10, 10, 10, 10], {0, 1, 2, 10}, 0),
        ([10, 0, 9, 1], {0, 1, 2, 10}, 2),
        ([0, 0, 0, 0], {0, 1, 2, 10}, 4),
        ([10, 10, 10, 0], {0, 10}, 1),  # others' cores do not count
        ([10, 4, 10, 10], {0, 1, 10}, 0.6),
        ([11, 11, 10, 10], {0, 1}, 0),  # clocks are rounded
    ],
)
def test_busy_cores_are_those_at_work(
    after: list[int], mine: set[int], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a tenth of a second, ten ticks of the clock."""
    texts = iter([STAT.format(*[0] * 4, sum=0), STAT.format(*after, sum=sum(after))])
    monkeypatch.setattr(system.os, "sched_getaffinity", lambda _: mine)
    monkeypatch.setattr(system.os, "sysconf", lambda _: 100)
    monkeypatch.setattr(system.Path, "read_text", lambda _: next(texts))
    now = iter([0.0, 0.1])
    monkeypatch.setattr(system.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(system.time, "sleep", lambda _: None)
    assert system.busy_cores() == pytest.approx(expected)


@pytest.mark.parametrize("fault", [FileNotFoundError, PermissionError])
def test_where_nothing_is_known_no_core_is_busy(fault: type[OSError], monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(_: Path) -> str:
        raise fault

    monkeypatch.setattr(system.Path, "read_text", unreadable)
    assert system.busy_cores() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/stat")
def test_a_core_at_work_is_not_idle() -> None:
    """One core, on which this process itself does not rest."""
    program = """
import os, time
from fedlab_runner.utils import system
core = min(os.sched_getaffinity(0))
os.sched_setaffinity(0, {core})
end, before = time.perf_counter() + 0.5, system._idle_ticks()
while time.perf_counter() < end:
    pass
print(system._idle_ticks() - before)
"""
    ticks = int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
    assert ticks <= 0.2 * 0.5 * os.sysconf("SC_CLK_TCK")


# The environment without a user's own setting.
OTHERS = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}


@pytest.mark.parametrize(
    ("own", "expected"), [({}, "1000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")]
)
def test_threads_do_not_wait_at_full_speed_unless_a_user_says_so(own: dict[str, str], expected: str) -> None:
    code = "import fedlab_runner, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=OTHERS | own)
    assert found.stdout.strip() == expected


@pytest.mark.parametrize(
    ("first", "threads", "own", "said"),
    [
        ("torch", 2, {}, True),
        ("fedlab_runner", 2, {}, False),
        pytest.param("torch", 1, {}, False, marks=pytest.mark.slow),
        pytest.param("torch", 2, {"GOMP_SPINCOUNT": "1000"}, False, marks=pytest.mark.slow),
    ],
)
def test_who_imports_torch_first_learns_of_it(first: str, threads: int, own: dict[str, str], said: bool) -> None:
    """As one does in a notebook."""
    code = f"import {first}; from fedlab_runner.executors.threads import set_threads; set_threads({threads}, None)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=OTHERS | own)
    assert ("import fedlab_runner first, or set GOMP_SPINCOUNT=1000" in found.stderr) == said
