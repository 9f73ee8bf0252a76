"""Threads that do the parts of a step at the same time, and leave nothing behind."""

import os
import threading
from collections.abc import Iterator

import pytest
import torch

from fedlab_runner.executors.team import team


@pytest.fixture(autouse=True)
def _three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_the_parts_meet_and_each_has_one_of_torchs_threads() -> None:
    meeting, began = threading.Barrier(3, timeout=20), threading.active_count()

    def part(number: int) -> tuple[int, int]:
        meeting.wait()  # else BrokenBarrierError: the parts do not run at the same time
        return number, torch.get_num_threads()

    with team() as its:
        assert its.size == 3
        for _ in range(5):
            assert its.each(part, 3) == [(0, 1), (1, 1), (2, 1)]
    assert torch.get_num_threads() == 3 and threading.active_count() == began


def test_what_is_not_shared_keeps_all_of_torchs_threads() -> None:
    began = threading.active_count()
    with team() as its:
        assert its.each(lambda part: (part, torch.get_num_threads()), 1) == [(0, 3)]
        assert threading.active_count() == began


def test_small_steps_have_one_of_torchs_threads_until_the_team_ends() -> None:
    with team() as its:
        its.alone()
        assert its.each(lambda part: torch.get_num_threads(), 1) == [1]
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("bad", [0, 2])
def test_an_error_is_the_callers_when_all_parts_have_ended(bad: int) -> None:
    ended = set[int]()

    def part(number: int) -> None:
        if number == bad:
            raise ArithmeticError(f"in part {number}")
        ended.add(number)

    with pytest.raises(ArithmeticError, match=f"in part {bad}"), team() as its:
        try:
            its.each(part, 3)
        finally:
            assert ended == {0, 1, 2} - {bad}
    assert torch.get_num_threads() == 3


def test_a_process_is_forked_after_a_team_and_its_child_computes_gradients() -> None:
    x = torch.ones(1000, requires_grad=True)

    def part(number: int) -> float:
        (g,) = torch.autograd.grad((x * number).sum(), x)
        return float(g.sum())

    with team() as its:
        assert its.each(part, 3) == [0.0, 1000.0, 2000.0]
    torch.set_num_threads(1)
    if not (pid := os.fork()):
        os._exit(0 if part(2) == 2000.0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
