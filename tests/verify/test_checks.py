"""How a fault of a table is shown, and which numbers are none."""

import pytest

from fedlab_runner.verify.checks import _same, _table_faults


@pytest.mark.parametrize(
    ("there", "here", "shown"),
    [
        ("a", "b", "a there, b follows"),
        ("", "b", "nothing there, b follows"),
        ("y" * 200 + "1", "y" * 200 + "2", f"…{'y' * 20}1 there, …{'y' * 20}2 follows"),
        ("1" + "y" * 200, "z", f"1{'y' * 79}… there, z follows"),
    ],
)
def test_a_cell_is_shown_where_it_differs_and_what_is_left_out_is_marked(there: str, here: str, shown: str) -> None:
    assert list(_table_faults(f"name\r\n{there},x\r\n", f"name\r\n{here},x\r\n")) == [f", line 2, name: {shown}"]


@pytest.mark.parametrize(("ours", "same"), [(0.5, True), (0.5 * (1 + 1e-10), True), (0.5 * (1 + 1e-8), False)])
def test_numbers_follow_up_to_their_last_digits(ours: float, same: bool) -> None:
    assert _same({"mean": 0.5}, {"mean": ours}) == same
    assert (not list(_table_faults("mean\r\n0.5\r\n", f"mean\r\n{ours}\r\n"))) == same
