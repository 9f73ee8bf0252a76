"""Room for frames: calls ask the system for no memory, however deep they are."""

import resource
import sys

import pytest

from fedlab_runner.utils.frames import in_one_chunk

CALLS, DEPTHS = 50, 600


def _leaf(first: int, *others: int) -> int:
    """Its frame is larger than that of `_pages`, so that at some depth it begins a chunk."""
    a, b, c, d, e, f, g, h = others
    return first + (a + (b + (c + (d + (e + (f + (g + (h + (a + (b + (c + (d + (e + (f + g))))))))))))))


def _pages(depth: int) -> list[int]:
    """The pages of memory that a loop of calls took at each depth."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        _leaf(*range(9))
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return [taken, *(_pages(depth - 1) if depth else [])]


def test_a_loop_of_calls_takes_no_memory_at_any_depth() -> None:
    taken = in_one_chunk(_pages)(DEPTHS)
    assert len(taken) == DEPTHS + 1 and max(taken) < CALLS, "a page at each call"


def test_arguments_results_and_errors_pass() -> None:
    @in_one_chunk
    def divided(a: int, *, by: int) -> float:
        """Of two numbers."""
        return a / by

    assert divided(3, by=2) == 1.5 and divided.__doc__ == "Of two numbers." and divided.__name__ == "divided"
    with pytest.raises(ZeroDivisionError) as error:
        divided(1, by=0)
    assert error.traceback[-1].frame.f_locals == {"a": 1, "by": 0}


def test_recursion_is_bounded_as_ever() -> None:
    @in_one_chunk
    def deeper(n: int) -> int:
        return deeper(n + 1)

    with pytest.raises(RecursionError):
        deeper(0)
    assert sys.getrecursionlimit() >= 1000
