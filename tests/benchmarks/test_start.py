"""The measurement of commands' CPU time."""

from pathlib import Path

import pytest

from benchmarks import start


def test_the_time_of_a_command_counts_where_it_ends_as_it_should(tmp_path: Path) -> None:
    assert 0 < start.cpu_seconds(["--version"], tmp_path) < 60
    with pytest.raises(RuntimeError, match="ended with 2: error: no_key is not a key"):
        start.cpu_seconds(["no_key=1"], tmp_path)


def test_a_turn_has_a_time_of_each_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A job of a sweep costs what a longer sweep takes more than one of one job."""
    taken: list[list[str]] = []

    def seconds(arguments: list[str], folder: Path, code: int = 0) -> float:
        taken.append(arguments)
        return 3.0 + " ".join(arguments).count(",") if arguments[0] == "-m" else 1.0

    monkeypatch.setattr(start, "cpu_seconds", seconds)
    times = start.turn(tmp_path)
    further = [seconds for name, seconds in times.items() if name.startswith("each further job")]
    assert further == [1.0, 1.0] and len(times) == 8
    assert taken[0] == taken[1] and len({str(each) for each in taken}) == len(taken) - 1
