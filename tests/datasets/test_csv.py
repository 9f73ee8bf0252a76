"""Your own table: encoded by its training rows alone, and refused by row and column."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedlab_runner.datasets import _columns, _split, _tables
from fedlab_runner.datasets.csv import CSV
from fedlab_runner.datasets.examples import Data
from fedlab_runner.utils.errors import UserError
from tests.datasets.test_contract import dataset
from tests.helpers.own_files import HEADER, ROWS
from tests.helpers.own_files import write_table as write

FIELDS = {"target": "kind", "categorical": ["job"]}


def table(path: str | Path, **changes: Any) -> CSV:
    made = dataset("csv", path=str(path), **{**FIELDS, "ignore": ["who"], **changes})
    assert isinstance(made, CSV)
    return made


def refusal(path: str | Path, **changes: Any) -> str:
    with pytest.raises((UserError, ValueError)) as caught:
        table(path, **changes).load(0)
    message = str(caught.value)
    assert "\n" not in message and ("dataset." in message or isinstance(caught.value, ValueError))
    return message


def by_file(tmp_path: Path, train: list[str], test: list[str], **changes: Any) -> Data:
    paths = [write(tmp_path / f"{name}.csv", *rows) for name, rows in (("train", train), ("test", test))]
    return table(paths[0], test_path=paths[1], **changes).load(0)


def test_numbers_and_categories_are_encoded_by_the_training_rows(tmp_path: Path) -> None:
    data = by_file(tmp_path, ROWS, ["dan,100,baker,7,b", "ann,33,smith,2,a"])
    ages, sizes = np.array([[float(row.split(",")[i]) for row in ROWS] for i in (1, 3)])
    jobs = [row.split(",")[2] for row in ROWS]
    assert data.train.inputs.dtype == torch.float32 and data.train.inputs.shape == (8, 5)
    np.testing.assert_allclose(data.train.inputs[:, 0], (ages - ages.mean()) / ages.std(), rtol=1e-6)
    np.testing.assert_allclose(data.train.inputs[:, 4], (sizes - sizes.mean()) / sizes.std(), rtol=1e-6)
    one_hot = [[float(job == name) for name in ("cook", "nurse", "smith")] for job in jobs]
    assert data.train.inputs[:, 1:4].tolist() == one_hot
    np.testing.assert_allclose(data.test.inputs[:, 0], (np.array([100, 33]) - ages.mean()) / ages.std(), rtol=1e-6)
    assert data.test.inputs[:, 1:4].tolist() == [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]  # no training row is a baker
    assert data.class_names == ("a", "b") and data.train.targets.tolist() == [1, 0, 0, 1, 0, 1, 0, 1]
    assert data.test.targets.tolist() == [1, 0] and data.mean is data.std is data.train.users is None


def test_a_test_fraction_is_drawn_by_class_and_leaves_no_trace_in_the_encoding(tmp_path: Path) -> None:
    """Whatever the test rows hold, the training rows are encoded alike."""
    rows = [f"ann,{age},cook,{age % 7},{'ab'[age % 2]}" for age in range(20, 60)]
    path = write(tmp_path / "t.csv", *rows)
    first = table(path, test_fraction=0.25).load(3)
    assert first.test.targets.bincount().tolist() == [5, 5] and len(first.train.targets) == 30
    assert not torch.equal(first.train.inputs, table(path, test_fraction=0.25).load(4).train.inputs)
    labels = np.arange(20, 60) % 2
    in_test = _split.drawn(labels, 2, 0.25, 3)
    changed = [f"ann,9999,other,-5,{'ab'[labels[i]]}" if in_test[i] else row for i, row in enumerate(rows)]
    other = table(write(tmp_path / "t.csv", *changed), test_fraction=0.25).load(3)
    assert torch.equal(first.train.inputs, other.train.inputs) and torch.equal(first.train.targets, other.train.targets)
    assert (other.test.inputs[:, 0] > 100).all() and not other.test.inputs[:, 1].any()


def test_the_index_of_pandas_is_no_feature(tmp_path: Path) -> None:
    """Neither of rows that are sorted by class, whose numbers tell it."""
    numbered = write(tmp_path / "n.csv", *(f"{i},{row}" for i, row in enumerate(sorted(ROWS))), header=f",{HEADER}")
    plain = write(tmp_path / "p.csv", *sorted(ROWS))
    found, wanted = (table(path, test_fraction=0.25).load(0) for path in (numbered, plain))
    assert torch.equal(found.train.inputs, wanted.train.inputs) and torch.equal(found.test.inputs, wanted.test.inputs)


def test_users_are_natural_clients(tmp_path: Path) -> None:
    data = by_file(tmp_path, ROWS, ["dan,1,cook,7,b", "ann,3,cook,2,a"], user="who", ignore=[])
    assert data.train.users is not None and data.train.users.tolist() == [0, 1, 0, 2, 1, 2, 0, 1]
    assert data.test.users is not None and data.test.users.tolist() == [3, 0]
    path = write(tmp_path / "test.csv", "a,2,cook,3", header="kind,size,job,age")  # in another order, without users
    data = table(tmp_path / "train.csv", user="who", ignore=[], test_path=path).load(0)
    assert data.test.users is None and data.train.users is not None and data.test.inputs.shape == (1, 5)
    age = data.test.inputs[0, 0]
    assert age == by_file(tmp_path, ROWS, ["x,3,cook,2,a"]).test.inputs[0, 0]


def test_a_gap_in_a_column_of_integers_makes_no_other_categories_classes_and_users(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """pandas writes such a column as floats."""
    rows = [f"{i % 3},{i},{i % 4},0.5,{i % 2}" for i in range(12)]
    floats = [f"{i % 3}.0,{i}.0,{i % 4}.0,0.5,{i % 2}.0" for i in range(12)]
    data = by_file(tmp_path, rows, floats, categorical=["job", "size"], user="who", ignore=[])
    for one, other in zip(data.train, data.test, strict=True):
        assert one is other is None or torch.equal(one, other)
    assert data.class_names == ("0", "1") and not caplog.records
    other = [row.replace(",0.5,", ",0.50,") for row in rows]
    by_file(tmp_path, rows, other, categorical=["job", "size"])
    assert "no test row has a category of the training rows in the column 'size'" in caplog.text


@pytest.mark.parametrize(("impute", "age"), [("mean", 36.25), ("median", 32.5)])
def test_missing_values_are_imputed_by_the_training_rows(impute: str, age: float, tmp_path: Path) -> None:
    gaps = ["a,,cook,.7,a", "b,?,,.7,b", "c,20,nurse,.7,a", "d,40,cook,.7,b", "e,60,nurse,.7,b", "f,25,NA,.7,a"]
    tested = ["x,NaN,null,.7,a", f"y,{age},cook,.7,a", *["z,1,nurse,.7,a"] * 9]
    data = by_file(tmp_path, gaps, tested, impute=impute)
    assert data.test.inputs[0].tolist() == data.test.inputs[1].tolist()  # cook, of two values as frequent the first
    assert data.train.inputs[1].tolist() == data.test.inputs[0].tolist()
    assert data.train.inputs[:, -1].abs().max() < 1e-9  # a constant column, whose deviation is one of rounding


def test_missing_values_are_refused_by_row_and_column(tmp_path: Path) -> None:
    for row, column in (("x,,cook,1,a", "age"), ("x,1,?,1,a", "job"), ("x,1,cook,NaN,a", "size")):
        path = write(tmp_path / "t.csv", *ROWS, row)
        assert refusal(path) == (
            f"{path} has no value in the column '{column}' of line 10; set dataset.impute to mean or median, or fill "
            "the value in (dataset.path)"
        )
        assert len(table(path, impute="mean").load(0).class_names) == 2
        assert "line 3;" in refusal(
            write(tmp_path / "train.csv", *ROWS), test_path=write(tmp_path / "u.csv", ROWS[0], row)
        )
    for row, column, key in (("x,1,cook,1,", "kind", "target"), (",1,cook,1,a", "who", "user")):
        path = write(tmp_path / "t.csv", *ROWS, row)
        said = refusal(path, impute="mean", user="who", ignore=[])
        assert f"has no value in the column '{column}' of line 10; leave the row out" in said, key
    assert len(table(path, missing=["?"], categorical=["job"], user="who", ignore=[]).load(0).class_names) == 2


@pytest.mark.parametrize("code", ["-999", "-999.0"])
@pytest.mark.parametrize("field", ["-999", "-999.0"])
def test_a_code_of_a_missing_number_may_have_a_point(code: str, field: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", *ROWS, f"x,{field},cook,1,a")
    assert "has no value in the column 'age' of line 10" in refusal(path, missing=[code])


def test_texts_among_numbers_are_refused_with_all_their_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", *ROWS)
    assert refusal(path, categorical=[], ignore=[]) == (
        f"{path} has 'ann' and no number in the column 'who' of line 2; name 'who', 'job' in dataset.categorical, "
        "leave them out by dataset.ignore, or mend the value (dataset.path)"
    )
    path = write(tmp_path / "t.csv", *ROWS, "ann,2o,cook,1,a")
    assert "has '2o' and no number in the column 'age' of line 10; name it in dataset.categorical" in refusal(path)
    for text in ("inf", "-Infinity", "1e999", "1_10"):
        assert f"has '{text}' and no number" in refusal(write(tmp_path / "t.csv", *ROWS, f"ann,{text},cook,1,a"))


def test_classes_are_in_order(tmp_path: Path) -> None:
    rows = [f"a,{i},cook,{i % 3},{kind}" for i, kind in enumerate([10, 9, 2, 2, 9, 10, 2])]
    data = table(write(tmp_path / "t.csv", *rows), test_fraction=0.4).load(0)
    assert data.class_names == ("2", "9", "10")
    for last in ("10_1", "10_1.5"):  # texts, though Python reads numbers in them
        kinds = ["1_10", "2_3", last] * 3
        texts = [f"{row.rpartition(',')[0]},{kind}" for row, kind in zip(rows, kinds, strict=False)]
        data = table(write(tmp_path / "t.csv", *texts), test_fraction=0.4).load(0)
        assert data.class_names == (last, "1_10", "2_3")
    for kinds, why in (
        (["a"] * 4, "has 1 different values"),
        (["1.5", "2.5", "3"], "has numbers that are not whole, such as '1.5'"),
    ):
        path = write(tmp_path / "t.csv", *(f"a,{i},cook,1,{kind}" for i, kind in enumerate(kinds)))
        assert refusal(path).startswith(f"target must be a column of classes, got 'kind', which {why}")
    path = write(tmp_path / "t.csv", *ROWS)
    said = refusal(path, test_path=write(tmp_path / "u.csv", ROWS[0], "ann,1,cook,1,c"))
    assert "u.csv has the class 'c' in line 3, which no training row has; set dataset.test_path" in said


FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("", {}, r"target must name columns of .*t\.csv \(\), got 'kind'"),
    (f"{HEADER}\n", {}, "has no rows; set dataset.path to a table"),
    (f"{HEADER},age\n", {}, "names the column 'age' twice"),
    (f"{HEADER}\nann,1,cook,1\n", {}, "has 4 fields in line 2, and 5 columns"),
    (f'{HEADER}\nann,1,"cook,1,a\n', {}, r"cannot be read \(unexpected end of data\)"),
    (f'{HEADER}\nann,1,"co"ok,1,a\n', {}, r"cannot be read \("),
    ("who;kind\nann;a\n", {}, r"got 'kind', or set dataset\.delimiter, such as \"dataset\.delimiter=';'\"$"),
    ("who\tkind\nann\ta\n", {}, r"got 'kind', or set dataset\.delimiter, such as dataset\.delimiter=tab$"),
    ('"who","age\n"a",1\n', {}, r"cannot be read .* names the columns$"),
    ("who|kind\nann|a\n", {}, r"got 'kind', or set dataset\.delimiter, such as \"dataset\.delimiter='\|'\"$"),
    ("who|kind,a\nann|a,1\n", {}, r"got 'kind'$"),
    (
        '"who";"kind"\n"ann";"a"\n',
        {},
        r"cannot be read .*, or set .*, such as \"dataset.delimiter=';'\"$",
    ),
    ('"who","kind\n', {"delimiter": ";"}, "cannot be read .* names the columns$"),
    ("\xff\xfe", {}, r"cannot be read \(|target must name"),
    (f"{HEADER}\nann,1,cook,1,a\n", {"target": "kin"}, r"target must name columns of .* \('who', 'age',"),
    (f"{HEADER}\nann,1,cook,1,a\n", {"user": "whom"}, "user must name columns"),
    (f"{HEADER}\nann,1,cook,1,a\n", {"categorical": ["x"]}, "categorical must name columns .*, got 'x'"),
    (f"{HEADER}\nann,1,cook,1,a\n", {"ignore": ["x"]}, "ignore must name columns .*, got 'x'"),
    ("a,kind\n1,a\n", {"ignore": ["a"], "categorical": []}, "ignore must leave a column"),
    (f"{HEADER}\nann,1,cook,1,a\nann,1,cook,1,b\n", {}, "test_fraction must leave examples"),
    ("a,kind\n" + "1e300,a\n-1e300,b\n" * 5, {"ignore": [], "categorical": []}, "column 'a' has numbers too large"),
]


@pytest.mark.parametrize(("content", "changes", "reason"), FAULTS)
def test_other_faults(content: str, changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(content.encode("latin-1"))
    assert re.search(reason, refusal(tmp_path / "t.csv", **changes))


def test_fields_that_disagree_are_refused() -> None:
    for changes, message in (
        ({"delimiter": ""}, "delimiter must be one character or tab, got ''"),
        ({"delimiter": ",,"}, "delimiter must be one character or tab, got ',,'"),
        ({"user": "kind"}, "user must not be the target, got kind"),
        ({"ignore": ["kind"]}, "ignore must not have the target or the user, got kind"),
        ({"categorical": ["kind"]}, "categorical must not have the target or the user, got kind"),
        ({"ignore": ["job"]}, "ignore must not have columns of categorical, got job"),
        ({"impute": "zero"}, "impute must be one of mean, median, got zero"),
        ({"test_fraction": 1.0}, "test_fraction must be in (0, 1), got 1.0"),
    ):
        with pytest.raises(ValueError, match=r"^\w+ must") as caught:
            table("x", **changes)
        assert str(caught.value) == message


@pytest.mark.parametrize(("delimiter", "sign"), [(";", ";"), ("tab", "\t"), ("|", "|")])
def test_other_delimiters_quotes_and_marks(delimiter: str, sign: str, tmp_path: Path) -> None:
    """A byte order mark, lines as Windows ends them, quotes with line breaks in them, blank lines, spaces."""
    text = "\ufeff" + "\r\n".join([HEADER, "", *(row.replace("cook", '"a\r\n cook"') for row in ROWS), ""])
    (tmp_path / "t.csv").write_text(text.replace(",", sign), newline="", encoding="utf-8")
    data = table(tmp_path / "t.csv", delimiter=delimiter).load(0)
    plain = table(write(tmp_path / "u.csv", *ROWS)).load(0)
    assert torch.equal(data.train.inputs, plain.train.inputs) and data.class_names == plain.class_names


def test_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"ann,1,job {i},1,{'ab'[i % 2]}" for i in range(1300)]
    path = write(tmp_path / "t.csv", *rows)
    assert "the column 'job' has 1,040 different values, more than 1,000: leave it out by dataset.ignore" in refusal(
        path
    )
    monkeypatch.setattr(_columns, "memory_bytes", lambda: 500)
    path = write(tmp_path / "t.csv", *ROWS * 3)
    assert "need 0.0 GB, and 0.0 GB are free" in refusal(path)
    monkeypatch.setattr(_tables, "MAX_FILE_BYTES", 100)
    assert "is larger than 0 GiB; set dataset.path" in refusal(path)
    monkeypatch.undo()
    monkeypatch.setattr(_tables, "MAX_LINE_CHARACTERS", 30)
    assert "cannot be read (a line is longer than 30 characters)" in refusal(write(tmp_path / "t.csv", "x" * 40))


def test_names_in_messages_are_harmless(tmp_path: Path) -> None:
    header = HEADER.replace("age", "a\x1b[2J" + "x" * 100)
    said = refusal(write(tmp_path / "t.csv", "ann,\x1b[31m,cook,1,a", header=header))
    assert "\x1b" not in said and len(said) < 400 + len(str(tmp_path))
