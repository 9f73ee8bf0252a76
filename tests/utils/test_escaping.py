"""Texts that nobody can turn into something else than themselves."""

import csv
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlab_runner.utils import escaping

texts = st.text(st.characters(codec=None), max_size=40)


@given(texts)
@settings(deadline=None)
def test_what_is_visible_is_one_line_that_can_be_written(text: str) -> None:
    shown = escaping.visible(text)
    assert all(each.isprintable() or each == "\xa0" for each in shown)
    shown.encode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m\x1b]0;title\x07", "\\x1b[31m\\x1b]0;title\\x07"),
        ("a\nb\r\tc\x9b\x7f", "a\\nb\\r\\tc\\x9b\\x7f"),
        ("\u202eevil\u2066\u2028\ud800\ufeff", "\\u202eevil\\u2066\\u2028\\ud800\\ufeff"),
        ("50\xa0% ± 1, ümlaut, 日本", "50\xa0% ± 1, ümlaut, 日本"),
    ],
)
def test_control_characters_are_shown(text: str, shown: str) -> None:
    assert escaping.visible(text) == shown


MARKED = ("<script>", "![x](http://x)", "[x](javascript:x)", "`x`", "a|b", "*x*", "_x_", "~~x~~", "$x$", "&lt;", "\\")
STARTS = ("# x", "- x", "+ x", "* x", "1. x", "2) x", "> x", "===", "---", "    x", "```", "| x |", ":--")


@pytest.mark.parametrize("text", MARKED + STARTS)
def test_markdown_has_no_marks_of_its_own(text: str) -> None:
    shown = escaping.markdown(text)
    assert not re.search(r"[<>]|&(?!amp;|lt;|gt;)", shown)
    assert not re.search(r"(?<!\\)(\\\\)*[\[\]`*|~$]", shown)
    assert not re.match(r"[#+=:-]|\d+[.)]|\s|_", shown)


def test_markdown_of_a_setting_is_the_setting() -> None:
    for text in ("fedbuff algorithm.buffer_size=2", "50.0 ± 1.2", "a-b (n - 1): 3. and 4", "3.5"):
        assert escaping.markdown(text) == text


def test_a_fence_holds() -> None:
    lines = ["fedlab a=1", "```", "````x", "a\n```\n<b>"]
    assert escaping.fenced(lines, "bash").splitlines() == ["`````bash", *lines[:3], "a\\n```\\n<b>", "`````"]


@given(st.lists(texts, min_size=1, max_size=4))
@settings(deadline=None)
def test_no_cell_begins_a_formula(cells: list[str]) -> None:
    text = escaping.csv_text([cells])
    (row,) = csv.reader(text.splitlines())
    for cell in row:
        assert not re.match(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20\t\r]", cell) or re.fullmatch(r"[+-][\d.eE+-]+", cell)
    assert len(row) == len(cells) and text.startswith('"'), "quoted, so that no other separator divides it"


def test_numbers_stay_numbers() -> None:
    rows = [["a", "-1", 1, -2.5, None], ["=1+1", "+a=b", "-x", "@x", " =x", "\t=x", "a;=1", "\uff1d1"]]
    assert escaping.csv_text(rows).splitlines() == [
        '"a","-1",1,-2.5,""',
        '"\'=1+1","\'+a=b","\'-x","\'@x","\' =x","\\t=x","a;=1","\'\uff1d1"',
    ]


def test_names_of_files_are_short_and_stable() -> None:
    assert escaping.file_name("curves-delay.std=5 a_b=x") == "curves-delay.std=5_a_b=x"
    long = [escaping.file_name("a=" + "x" * 10_000 + end) for end in "12"]
    assert len(set(long)) == 2 and all(len(name) <= 100 for name in long)
    assert long[0] == escaping.file_name("a=" + "x" * 10_000 + "1")
    parts = ("a/b", "a:b", "../../a", "a\x00b", "\ud800", "ü", "a b", "a,b", "a  b", "a, b")
    names = [escaping.file_name(text) for text in (*(f"p-{part}" for part in parts), "", "..", "_", "/", "-ü")]
    assert len(set(names)) == 15 and all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.=-]*", name) for name in names)


def test_short_texts_of_long_ones_differ() -> None:
    one, other = (escaping.short("x" * 1000 + end, 50) for end in "12")
    assert len(one) == len(other) == 50 and one != other and escaping.short("x" * 50, 50) == "x" * 50


def test_file_names_are_never_equal() -> None:
    """Names that differ only in case or in what a file name cannot have, and names that look numbered."""
    names = escaping.file_names(["x", "a b", "a_b", "A_b", "a_b-2", "a_b"])
    assert names[:2] == ["x", "a_b"] and len({name.lower() for name in names}) == 6
