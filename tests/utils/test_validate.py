import math
from collections.abc import Callable
from typing import Any

import pytest

from fedlab_runner.utils.validate import above, at_least, each_at_least, one_of, within

CASES: list[tuple[Callable[..., None], Any, list[Any], list[Any], str]] = [
    (at_least, 1, [1, 7, 2**62], [0, -1, math.nan, -math.inf], "x must be >= 1, got"),
    (above, 0, [0.1, 1e-300], [0, -1, math.nan], "x must be > 0, got"),
    (at_least, 1, [1], [math.inf, 1e300], "x must be >= 1 and < 3e38, got"),
    (above, 0, [1e38], [math.inf, 4e38], "x must be > 0 and < 3e38, got"),
    (within, "[0, 1)", [0, 0.99], [1, -0.1, math.nan, math.inf], "x must be in [0, 1), got"),
    (within, "(0, 1]", [1, 0.01], [0, 1.1, math.nan], "x must be in (0, 1], got"),
    (one_of, ("a", "b"), ["a", "b"], ["c", ""], "x must be one of a, b, got"),
    (each_at_least, 1, [[1], [2, 3]], [[], [0], [1, math.nan]], "x must be a list of one or more numbers >= 1, got"),
]


@pytest.mark.parametrize("check,bound,right,wrong,words", CASES)
def test_a_fault_is_one_line_that_names_the_value(
    check: Callable[..., None], bound: Any, right: list[Any], wrong: list[Any], words: str
) -> None:
    for value in (*right, None):
        check(bound, first=right[0], x=value)
    for value in wrong:
        with pytest.raises(ValueError) as raised:
            check(bound, first=right[0], x=value)
        assert str(raised.value).startswith(words) and "\n" not in str(raised.value)
