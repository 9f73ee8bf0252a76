"""A ValueError of a component is a line that names the key or the class at fault."""

from dataclasses import dataclass

import pytest

from fedlab_runner.config.component_faults import faults
from fedlab_runner.utils.errors import UserError


@dataclass(frozen=True)
class Reader:
    """An own data set, whose parser raises what the file or a library makes of it."""

    path: str

    def load(self, fault: Exception) -> None:
        self._parse(fault)

    def _parse(self, fault: Exception) -> None:
        raise fault


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (ValueError("path must be a table, got x"), "dataset.path must be a table, got x"),
        (ValueError("num_clients must be at most 3, got 5"), "num_clients must be at most 3, got 5"),
        (ValueError("something odd in line 3"), "Reader.load: something odd in line 3"),
        (UserError("there is no file x"), "there is no file x"),
    ],
)
def test_a_fault_has_a_place(fault: Exception, line: str) -> None:
    """Also where a function of the run, which has the component as its first argument too, calls the method."""
    reader = Reader("x")

    def loaded(dataset: Reader) -> None:
        dataset.load(fault)

    with pytest.raises(UserError) as raised, faults("dataset", reader):
        loaded(reader)
    assert str(raised.value) == line
