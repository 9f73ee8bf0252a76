"""Opens data sets of the library `datasets`, and reads their arrow tables row by row."""

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from unittest import mock

from fedlab_runner.datasets._columns import Cell, Fault, listed, shown
from fedlab_runner.utils.files import open_to_read

IMAGE, LIST, CELL, OTHER = "image", "list", "cell", "other"  # kinds of columns
CELL_TYPES = re.compile(r"u?int\d+|float\d+|double|bool|(large_)?string|string_view")  # types of one value
READERS = {".arrow": "arrow", ".parquet": "parquet"}  # the library's readers of files
MARKS = ("dataset_dict.json", "state.json")  # files that only a folder of save_to_disk has
# Usual names of splits, by which a folder of several files is seen to have splits.
USUAL_SPLITS = ("train", "training", "test", "testing", "validation", "valid", "val", "dev", "eval", "evaluation")
ROWS_AT_ONCE = 1000  # rows that become Python objects at a time


@dataclass(frozen=True)
class Place:
    """The place of a feature: a column, and the index in its lists (None: the column has single values)."""

    column: str
    index: int | None

    @property
    def name(self) -> str:
        """The feature's name."""
        return self.column if self.index is None else f"{self.column}[{self.index}]"


def open_local(library: Any, path: Path, name: str | None, wanted: Sequence[str]) -> Mapping[str, Any]:
    """The splits in a folder or file, by name. A folder of save_to_disk gives all its splits.

    A data file belongs to the split in `wanted` whose name is in the file's path. If no path has one, nor a usual name
    of a split, all files belong to the first split, and so does a single file. This reads arrow and parquet files
    alone: some of the library's other readers are not safe for a stranger's file. Raises ValueError for other files,
    for a file with the names of two splits, and for files of other splits only, and whatever the library raises.
    """
    path = path if name is None else path / name
    inside = list(path.rglob("*")) if path.is_dir() else [path]
    if strange := [each for each in inside if not (each.is_file() or each.is_dir())]:
        raise ValueError(f"{strange[0]} is {'no plain file' if strange[0].exists() else 'missing'}")
    if any((path / mark).is_file() for mark in MARKS):
        found = library.load_from_disk(str(path.absolute()))
        return found if isinstance(found, dict) else {wanted[0]: found}
    files = sorted(each for each in inside if each.suffix in READERS)
    if not files:
        raise ValueError(f"it holds no file that ends in {' or '.join(READERS)}")
    parts = {}
    for split, of_split in _by_split(files, path if path.is_dir() else path.parent, wanted).items():
        if len(suffixes := {each.suffix for each in of_split}) > 1:
            raise ValueError(f"the files of the split {split} end in {' and '.join(sorted(suffixes))}")
        names = [str(each.absolute()) for each in of_split]
        parts[split] = library.load_dataset(READERS[suffixes.pop()], data_files={split: names}, split=split)
    return parts


def _by_split(files: Sequence[Path], base: Path, wanted: Sequence[str]) -> dict[str, list[Path]]:
    """The files below `base` of each split that has one, by the name of the split."""
    found: dict[str, list[Path]] = {}
    usual = []
    for file in files:
        name = str(file.relative_to(base))
        own = [split for split in wanted if _has(name, split)]
        own = [split for split in own if not any(_has(other, split) for other in own if other != split)]
        if len(own) > 1:
            raise ValueError(f"{name} has the names of the splits {' and '.join(own)}")
        if own:
            found.setdefault(own[0], []).append(file)
        elif any(_has(name, split) for split in USUAL_SPLITS):
            usual.append(name)
    if not found and usual and len(files) > 1:
        raise ValueError(f"no file is named after the split {' or '.join(wanted)}, but {listed(usual)} after others")
    return found or {wanted[0]: [*files]}


def _has(name: str, split: str) -> bool:
    """Whether a name has that of a split, as in data/train-00000-of-00002, set/test1 or Train_sft."""
    end = "A-Za-z0-9" if split[-1:].isdigit() else "A-Za-z"
    return re.search(f"(?<![A-Za-z]){re.escape(split)}(?![{end}])", name, re.IGNORECASE) is not None


@contextmanager
def quiet(library: Any, online: bool) -> Iterator[None]:
    """A context in which the library shows no progress and, unless `online`, does not contact the Hub."""
    from huggingface_hub import constants

    shown = not library.are_progress_bars_disabled()
    library.disable_progress_bars()
    try:
        if online:
            yield
        else:
            with (
                mock.patch.object(constants, "HF_HUB_OFFLINE", True),
                mock.patch.object(library.config, "HF_HUB_OFFLINE", True),
            ):
                yield
    finally:
        if shown:
            library.enable_progress_bars()


def table_of(part: Any) -> Any:
    """The arrow table of a data set, checked by arrow. Without the check a damaged file could end the process."""
    part.data.validate(full=True)
    return part.with_format("arrow")[:]


def kind(feature: Any) -> str:
    """The kind of a column of this type."""
    name = type(feature).__name__
    if name == "Image":
        return IMAGE
    if name in ("List", "LargeList"):
        inner = getattr(feature.feature, "dtype", "")
        return LIST if kind(feature.feature) == CELL and "string" not in inner else OTHER
    dtype = str(getattr(feature, "dtype", ""))
    return CELL if name == "ClassLabel" or (name == "Value" and CELL_TYPES.fullmatch(dtype)) else OTHER


def names_of(feature: Any) -> Sequence[str] | None:
    """The names of the numbers in a column of this type (None: they have none)."""
    names: Sequence[str] | None = getattr(feature, "names", None)
    return names


def can_be_equal(one: Any, other: Any) -> bool:
    """Whether columns of these types can have values in common: a name equals a text or another name, but no number."""
    named = [names_of(each) is not None for each in (one, other)]
    texts = ["string" in str(getattr(each, "dtype", "")) for each in (one, other)]
    numbers = any(not (name or text) for name, text in zip(named, texts, strict=True))
    return kind(one) == kind(other) == CELL and not (any(named) and numbers)


def places(columns: Sequence[str], features: Mapping[str, Any], table: Any) -> list[Place]:
    """The features: one for a column of values; for a column of lists, one for each number in its first row."""
    found = []
    for name in columns:
        if kind(features[name]) == LIST:
            first = table.column(name)[0].as_py() if table.num_rows else None
            found += [Place(name, i) for i in range(len(first or []))]
        else:
            found.append(Place(name, None))
    return found


def rows(
    table: Any, inputs: Sequence[Place], target: str, user: str | None, features: Mapping[str, Any]
) -> Iterator[dict[str, Cell]]:
    """The cells of each row, by the names of features, target and user.

    `features` are the types of the table's columns. Numbers of target and user become the names that these types give
    them. Raises Fault for a list of another length and for a number without a name.
    """
    names = {name: names_of(features[name]) for name in (target, user) if name and name in features}
    widths = {place.column: place.index + 1 for place in inputs if place.index is not None}
    columns = {place.column for place in inputs} | {*names}
    for batch in table.select(sorted(columns)).to_batches(max_chunksize=ROWS_AT_ONCE):
        for row in batch.to_pylist():
            for name, width in widths.items():
                if row[name] is None or len(row[name]) != width:
                    size = "no list" if row[name] is None else f"a list of {len(row[name])} numbers, not {width},"
                    raise Fault(
                        f"has {size} in the column {shown(name)}", "make all lists equally long, or leave the row out"
                    )
            cells = {p.name: _cell(row[p.column] if p.index is None else row[p.column][p.index]) for p in inputs}
            for name, known in names.items():
                cells[name] = _cell(row[name]) if known is None else _named(row[name], known, name)
            yield cells


def open_image(column: Any, row: int) -> BinaryIO:
    """Opens the image file of a row in a column of undecoded images. Raises FileNotFoundError for an empty cell."""
    value = column[row].as_py() or {}
    if value.get("bytes") is not None:
        return io.BytesIO(value["bytes"])
    if not value.get("path"):
        raise FileNotFoundError
    return open_to_read(Path(value["path"]))


def _cell(value: Any) -> Cell:
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, float) and value.is_integer():  # pandas writes a column of integers with a gap as floats
        return int(value)
    return value  # type: ignore[no-any-return]  # arrow has no types


def _named(label: int | None, names: Sequence[str], column: str) -> str | None:
    if label is None or label == -1:  # the library's mark of an example without a label
        return None
    if not 0 <= label < len(names):
        raise Fault(f"has the label {label} of {len(names)} names in the column {shown(column)}", "mend the label")
    return names[label]
