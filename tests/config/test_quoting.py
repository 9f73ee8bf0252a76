"""A text that Hydra cannot read is quoted so that it reads just this text."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from fedlab_runner.config.quoting import quoted


@pytest.mark.parametrize("text", [";", "|", "bmi>30", "a#b", "it's", 'a"b', "rate(%)", "a=b", "x)", "data/Übung", " a"])
def test_a_quoted_text_is_read_as_it_is(text: str) -> None:
    for key, given, value in (("k.a", text, text), ("+k", f"[ null, {text} ,a]", [None, text.strip(), "a"])):
        found = quoted(f"{key}={given}")
        assert found is not None
        override = OverridesParser.create().parse_override(found)
        assert found.startswith(f"{key}=") and override.value() == value


@pytest.mark.parametrize(
    "override",
    [
        "k",
        "=;",
        "k y=;",
        "k='a",
        "k='a' b",
        "k=[1",
        "k={a:;}",
        "k=[a,[;]]",
        'k=["a,b",;]',
        "k=[,;]",
        "k=range(0,5",
        "k=choice(1;2)",
    ],
)
def test_what_is_no_text_or_quoted_badly_is_left_alone(override: str) -> None:
    with pytest.raises(HydraException):
        OverridesParser.create().parse_overrides([override])
    assert quoted(override) is None
