"""A data set of the Hugging Face Hub, or files of its library `datasets`. https://huggingface.co/docs/datasets

Licence: that of the data set.
"""

import importlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedlab_runner.datasets import _arrow, _split, _statistics
from fedlab_runner.datasets._columns import IMPUTE, Fault, Table, is_index, listed, shown
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import MAX_SIZE, Data
from fedlab_runner.datasets.image_cache import MODES, decode_each
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import one_of, within

# Values of the field `path`, for messages.
PLACES = "a folder of save_to_disk or of .parquet or .arrow files, one such file, or <owner>/<name> on the Hub"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")  # owner and name; a name alone could mean one of the library's own readers


@dataclass(frozen=True)
class HuggingFace(Dataset):
    """The splits `train` and `test` of a local data set, or of a data set of the Hub in the library's cache.

    With `download` the library fetches a missing data set from the Hub.

    With `test` null each class gives round(test_fraction * its size) examples of `train`, drawn from the seed, to the
    test set. `inputs` is one column of images, or columns of values. Images are resized as a whole to `image_size`
    pixels square. Values are numbers, lists of numbers and, in the columns `categorical`, categories; they are encoded
    as by `dataset=csv`. Null `inputs` are all columns except `target`, the class, `user`, the natural client, and
    pandas' index. Null `mean` and `std` are those of the training images.
    """

    path: str
    name: str | None
    download: bool
    train: str
    test: str | None
    test_fraction: float
    inputs: list[str] | None
    target: str
    user: str | None
    categorical: list[str]
    impute: str | None
    image_size: int
    channels: int
    mean: list[float] | None
    std: list[float] | None

    def __post_init__(self) -> None:
        within("(0, 1)", test_fraction=self.test_fraction)
        one_of(IMPUTE, impute=self.impute)
        within(f"[1, {MAX_SIZE}]", image_size=self.image_size)
        one_of(MODES, channels=self.channels)
        _statistics.check_if_given(self.mean, self.std, self.channels)
        if self.inputs is not None and not self.inputs:
            raise ValueError("inputs must be null or a list of one or more columns, got []")
        if self.test == self.train:
            raise ValueError(f"test must be another split than train, or null, got {self.test}")
        if self.user == self.target:
            raise ValueError(f"user must not be the target, got {self.user}")
        for key, names in (("inputs", self.inputs or []), ("categorical", self.categorical)):
            if taken := [name for name in names if name in (self.target, self.user)]:
                raise ValueError(f"{key} must not have the target or the user, got {', '.join(taken)}")

    def load(self, seed: int) -> Data:
        parts = self._parts()
        try:
            tables = [_arrow.table_of(part) for part in parts]
        except Exception as error:  # a damaged file can raise anything
            raise self._refused(f"cannot be read ({_line(error)})") from None
        features, inputs = parts[0].features, self._inputs(parts)
        images = _arrow.kind(features[inputs[0]]) == _arrow.IMAGE
        places = [] if images else _arrow.places(inputs, features, tables[0])
        columns = [place.name for place in places]
        rows = Table(columns, self.target, self.user, self.categorical, self.impute, "of dataset.inputs")
        self._read(rows, tables[0], places, features, self.train)
        classes = list(_arrow.names_of(features[self.target]) or rows.classes())
        for table, part in zip(tables[1:], parts[1:], strict=True):
            self._read(rows, table, places, part.features, str(self.test), {*classes})
        if self.test is None:
            in_test = _split.drawn(rows.labels(classes), len(classes), self.test_fraction, seed)
        else:
            in_test = np.arange(len(rows)) >= tables[0].num_rows
        if not images:
            return rows.data(classes, in_test)
        pictures = [table.column(inputs[0]) for table in tables]
        data = rows.data(classes, in_test, lambda part: self._decoded(pictures, np.flatnonzero(part)))
        mean, std = _statistics.given_or_own(self.mean, self.std, data.train.inputs)
        return replace(data, mean=mean, std=std)

    def _parts(self) -> list[Any]:
        """The splits for training and, if one is named, for testing, as the library has them."""
        if not importlib.util.find_spec("datasets"):
            raise UserError('dataset=huggingface needs an extra: pip install "fedlab-runner[huggingface]"')
        path = Path(self.path).expanduser()
        if not path.exists() and not HUB_NAME.fullmatch(self.path):
            raise self._refused("is missing")
        wanted = {"train": self.train} | ({} if self.test is None else {"test": self.test})
        library: Any = importlib.import_module("datasets")
        try:
            with _arrow.quiet(library, self.download):
                if path.exists():
                    splits = _arrow.open_local(library, path, self.name, [*wanted.values()])
                else:
                    splits = library.load_dataset(self.path, self.name)
        except Exception as error:  # the library, the network or a damaged file can raise anything
            raise self._refused(f"cannot be read ({_line(error)})") from None
        for key, split in wanted.items():
            if split not in splits:
                null = ", or null for test_fraction" if key == "test" else ""
                raise ValueError(f"{key} must be a split of {self.path} ({listed(splits)}){null}, got {split}")
        return [splits[split] for split in wanted.values()]

    def _inputs(self, parts: Sequence[Any]) -> list[str]:
        """The columns of the inputs: one of images, or columns of values. Raises ValueError, named after the field."""
        there = dict(parts[0].features)
        user = [] if self.user is None else [self.user]
        asked = {"target": [self.target], "user": user, "inputs": self.inputs or [], "categorical": self.categorical}
        for key, names in asked.items():
            if absent := [name for name in names if name not in there]:
                raise ValueError(f"{key} must name columns of {self.path} ({listed(there)}), got {listed(absent)}")
        inputs = self.inputs or [name for name in there if name not in (self.target, self.user) and not is_index(name)]
        if not inputs:
            raise ValueError(f"inputs must be columns beside the target and the user, and {self.path} has none")
        for key, names, kinds in (
            ("target", [self.target], [_arrow.CELL]),
            ("user", user, [_arrow.CELL]),
            (
                "inputs",
                inputs,
                [_arrow.CELL, _arrow.LIST, _arrow.IMAGE] if len(inputs) == 1 else [_arrow.CELL, _arrow.LIST],
            ),
        ):
            if strange := [name for name in names if _arrow.kind(there[name]) not in kinds]:
                kind = f"{shown(strange[0])}, of the type {there[strange[0]]}"
                raise ValueError(
                    f"{key} must be columns of values{' or one of images' * (key == 'inputs')}, got {kind}"
                )
        if stray := [name for name in self.categorical if name not in inputs]:
            raise ValueError(f"categorical must be columns of the inputs ({listed(inputs)}), got {listed(stray)}")
        unused: dict[str, object]
        if _arrow.kind(there[inputs[0]]) == _arrow.IMAGE:
            of, unused = "images", {"categorical": self.categorical or None, "impute": self.impute}
        else:
            of, unused = "columns of values", {"mean": self.mean}
        if given := [f"{key} must not be given for {of}, got {value}" for key, value in unused.items() if value]:
            raise ValueError(given[0])
        for part in parts[1:]:
            for name in (*inputs, self.target):
                other = part.features.get(name)
                mine, theirs = ((_arrow.kind(each), _arrow.names_of(each)) for each in (there[name], other))
                if mine != theirs:
                    raise self._refused(f"has no column {shown(name)} of the same type in the split {self.test}")
            for name in user:
                if name in part.features and not _arrow.can_be_equal(there[name], part.features[name]):
                    raise self._refused(f"has users of two types in the column {shown(name)} of its splits")
        return inputs

    def _read(
        self,
        rows: Table,
        table: Any,
        places: Sequence[_arrow.Place],
        features: Mapping[str, Any],
        split: str,
        known: set[str] | None = None,
    ) -> None:
        """Adds the rows of a split. Their classes must be among `known` (None: any class)."""
        before = len(rows)
        try:
            for cells in _arrow.rows(table, places, self.target, self.user, features):
                name = str(cells[self.target])
                if known is not None and cells[self.target] is not None and name not in known:
                    what = f"has the class {shown(name)}, which no training row has, in the column {shown(self.target)}"
                    raise Fault(what, "leave the row out")
                rows.add(cells)
        except Fault as fault:
            place = f"of row {len(rows) - before + 1} of the split {split}"
            raise UserError(f"{self.path} {fault.what} {place}; {fault.remedy} (dataset.path)") from None
        if len(rows) == before:
            raise self._refused(f"has no rows in the split {split}")

    def _decoded(self, columns: Sequence[Any], chosen: np.ndarray) -> Tensor:
        """The images of these rows [n] of the splits, one after the other."""
        size = (self.channels, self.image_size, self.image_size)
        first = len(columns[0])

        def place(number: int) -> tuple[Any, int]:
            row = int(chosen[number])
            return (columns[0], row) if row < first else (columns[1], row - first)

        def refuse(number: int, what: str) -> UserError:
            column, row = place(number)
            split = self.train if column is columns[0] else self.test
            return self._refused(f"has an image in row {row + 1} of the split {split} that {what}")

        return decode_each(len(chosen), lambda number: _arrow.open_image(*place(number)), size, refuse)

    def _refused(self, what: str) -> UserError:
        way = "" if self.download or Path(self.path).expanduser().exists() else ", or set dataset.download=true"
        return UserError(f"{self.path} {what}; set dataset.path to {PLACES}{way}")


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
