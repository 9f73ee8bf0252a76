"""How values of metrics are shown to people."""

import pytest

from fedlab_runner.core.metric_names import shown


@pytest.mark.parametrize(
    ("value", "key", "words"),
    [
        *((3.2e36, "test/loss", "3.2e36"), (87_654_321.0, "test/loss", "8.765e7"), (2.32071, "test/loss", "2.321")),
        *((1234567.0, "comm/upload_mb", "1,234,567 MB"), (1234.0, "comm/models", "1,234"), (None, "x", "-")),
        *((0.873, "test/accuracy", "87.30 %"), (-1e-7, "test/loss", "-1e-7")),
    ],
)
def test_a_value_has_its_unit_and_few_digits(value: float | None, key: str, words: str) -> None:
    assert shown(value, key) == words
