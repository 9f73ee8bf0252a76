"""Your own table: a row for each example with numbers and categories, a class, and perhaps a user.

Licence: that of the table.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedlab_runner.datasets import _split, _tables
from fedlab_runner.datasets._columns import IMPUTE, Fault, Table, is_index, listed, shown
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import Data
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import one_of, within

TABLE = "a table in UTF-8 whose first line names the columns"  # the required file, for messages
DELIMITERS = {"tab": "\t"}  # words for characters that are hard to type on a command line

# Signs that may divide a line in the place of commas, with the override for a command line.
OTHER_DELIMITERS = {
    ";": "\"dataset.delimiter=';'\"",
    "\t": "dataset.delimiter=tab",
    "|": "\"dataset.delimiter='|'\"",
}


@dataclass(frozen=True)
class CSV(Dataset):
    """The rows of the file `path` as vectors of features. The values of the column `target` are the classes.

    A number becomes (value - mean) / standard deviation. A column of `categorical` becomes a feature, 0 or 1, for each
    of its values; a value that no training row has is 0 in all of them. Mean, deviation and values are those of the
    training rows of all clients together. A field of `missing` is a missing value. It is refused unless `impute`
    replaces it: a number by the training rows' mean or median, a category by their most frequent category.

    In categories, classes, users and `missing` `1.0` is `1`. A column without a name, such as pandas' index, is no
    feature.

    The column `user` names the natural client of a row. Test rows are the rows of `test_path`, which may lack that
    column. If it is null, they are round(test_fraction * size) rows of each class of `path`, drawn from the seed.
    """

    path: str
    target: str
    user: str | None
    categorical: list[str]
    ignore: list[str]
    missing: list[str]
    impute: str | None
    delimiter: str
    test_path: str | None
    test_fraction: float

    def __post_init__(self) -> None:
        within("(0, 1)", test_fraction=self.test_fraction)
        one_of(IMPUTE, impute=self.impute)
        if self.delimiter not in DELIMITERS and (len(self.delimiter) != 1 or self.delimiter in '"\r\n '):
            raise ValueError(f"delimiter must be one character or tab, got {self.delimiter!r}")
        if self.user == self.target:
            raise ValueError(f"user must not be the target, got {self.user}")
        for key, names in (("categorical", self.categorical), ("ignore", self.ignore)):
            if taken := {self.target, self.user} & {*names}:
                raise ValueError(f"{key} must not have the target or the user, got {', '.join(map(str, taken))}")
        if both := sorted({*self.ignore} & {*self.categorical}):
            raise ValueError(f"ignore must not have columns of categorical, got {', '.join(both)}")

    def load(self, seed: int) -> Data:
        path = Path(self.path).expanduser()
        table = self._read(path, "path")
        classes, size = table.classes(), len(table)
        if self.test_path is None:
            return table.data(classes, _split.drawn(table.labels(classes), len(classes), self.test_fraction, seed))
        self._read(Path(self.test_path).expanduser(), "test_path", table)
        return table.data(classes, np.arange(len(table)) >= size)

    def _read(self, path: Path, key: str, table: Table | None = None) -> Table:
        """The rows of a file that the field `key` names, added to those of the training file."""
        refuse = partial(_refuse, key)
        rows = _tables.rows(path, refuse, DELIMITERS.get(self.delimiter, self.delimiter))
        try:
            header = [name.strip() for name in next(rows, (0, []))[1]]
        except UserError as error:
            undivided = self.delimiter == "," and isinstance(error.__context__, csv.Error)  # as of "a";"b"
            raise UserError(f"{error}{_other_delimiter(_tables.first_line(path)) if undivided else ''}") from None
        if twice := [name for i, name in enumerate(header) if name in header[:i]]:
            raise refuse(path, f"names the column {shown(twice[0])} twice")
        known = None if table is None else {*table.classes()}
        table = self._table(header) if table is None else table
        if absent := [name for name in table.columns if name not in header]:
            raise refuse(path, f"has no column {listed(absent)}, which {self.path} has")
        before, missing = len(table), {*map(_shortened, self.missing)}
        for line, row in rows:
            if len(row) != len(header):
                raise refuse(path, f"has {len(row)} fields in line {line}, and {len(header)} columns")
            fields = map(str.strip, row)
            cells = {
                name: None if field in missing else field
                for name, field in zip(header, map(_shortened, fields), strict=True)
            }
            try:
                table.add(cells)
            except Fault as fault:
                raise UserError(f"{path} {fault.what} of line {line}; {fault.remedy} (dataset.{key})") from None
            if known is not None and (name := cells[self.target]) not in known:
                raise refuse(path, f"has the class {shown(str(name))} in line {line}, which no training row has")
        if len(table) == before:
            raise refuse(path, "has no rows")
        return table

    def _table(self, header: Sequence[str]) -> Table:
        """An empty table of these columns. Raises ValueError, named after the field that names another column."""
        for key, names in (
            ("target", [self.target]),
            ("user", [] if self.user is None else [self.user]),
            ("categorical", self.categorical),
            ("ignore", self.ignore),
        ):
            if absent := [name for name in names if name not in header]:
                named, other = listed(header), _other_delimiter(header[0]) if len(header) == 1 else ""
                raise ValueError(f"{key} must name columns of {self.path} ({named}), got {listed(absent)}{other}")
        others = (self.target, self.user, *self.ignore)
        features = [name for name in header if name not in others and not is_index(name)]
        if not features:
            raise ValueError(f"ignore must leave a column of {self.path} for the features, got {listed(self.ignore)}")
        return Table(features, self.target, self.user, self.categorical, self.impute, "by dataset.ignore")


def _other_delimiter(line: str) -> str:
    """The end of a message on a line that is not divided: a delimiter that it has; empty without one."""
    found = next((override for sign, override in OTHER_DELIMITERS.items() if sign in line), None)
    return "" if found is None else f", or set dataset.delimiter, such as {found}"


def _shortened(field: str) -> str:
    """A whole number without its `.0`, with which pandas writes a column of integers that has a gap."""
    whole = "0" if field == "-0.0" else field.removesuffix(".0")
    return whole if whole.removeprefix("-").isdecimal() else field


def _refuse(key: str, path: Path, what: str) -> UserError:
    return UserError(f"{path} {what}; set dataset.{key} to {TABLE}")
