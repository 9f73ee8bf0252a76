"""Makes features of a table's columns: standardised numbers and one-hot categories, by the training rows alone."""

import logging
import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.datasets.examples import Data, Examples
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.system import memory_bytes

_log = logging.getLogger(__name__)
MAX_CATEGORIES = 1000  # different values of a categorical column; each becomes a feature
MAX_CLASSES = 10_000  # different values of a target
IMPUTE = ("mean", "median")  # replacements of a missing number
MAX_SHOWN = 5  # names or values that a message shows
MAX_SHOWN_CHARACTERS = 40  # of a value in a message

Cell = str | float | None  # of a table; None: no value


class Numbers:
    """A column of numbers, filled cell by cell."""

    def __init__(self) -> None:
        self._values = array("d")

    def add(self, cell: Cell) -> None:
        """Adds a cell, None for a missing value. Raises ValueError unless it is a finite number."""
        if cell.__class__ is str and "_" in cell:  # not `_plain`: a call for each cell takes as long as all else
            raise ValueError("not a number")
        value = math.nan if cell is None else float(cell)
        if cell is not None and not math.isfinite(value):
            raise ValueError("not a finite number")
        self._values.append(value)

    def features(self, training: np.ndarray, impute: str | None) -> np.ndarray:
        """The standardised values [n, 1]: (value - mean) / standard deviation, both of the training rows [n] bool.

        If all training rows have the same value, the deviation counts as 1. A missing value becomes the training rows'
        mean or median. Raises ValueError if the training rows have no value, or numbers too large to be standardised.
        """
        values = np.array(self._values)
        seen = values[training & ~np.isnan(values)]
        if not len(seen):
            raise ValueError("has no value in any training row")
        with np.errstate(over="ignore", invalid="ignore"):
            mean, std = seen.mean(), seen.std() if seen.min() < seen.max() else 1.0
            values[np.isnan(values)] = np.median(seen) if impute == "median" else mean
            features = ((values - mean) / std).astype(np.float32)
        if not (np.isfinite(features).all() and np.isfinite([mean, std]).all()):
            raise ValueError("has numbers too large to be standardised")
        column: np.ndarray = features[:, None]
        return column


class Categories:
    """A column of texts, filled cell by cell."""

    def __init__(self) -> None:
        self._codes, self._values = array("q"), dict[str, int]()

    def __len__(self) -> int:
        return len(self._codes)

    def add(self, cell: Cell) -> None:
        """Adds a cell, None for a missing value."""
        self._codes.append(-1 if cell is None else self._values.setdefault(str(cell), len(self._values)))

    def indices(self) -> tuple[np.ndarray, list[str]]:
        """The rows as indices [n] int64 into the sorted values (-1: missing), and these values.

        Whole numbers are sorted by value, other values as texts.
        """
        names = _sorted(self._values)
        order = np.full(len(names) + 1, -1)  # the last entry is for a missing value
        order[[self._values[name] for name in names]] = np.arange(len(names))
        return order[np.array(self._codes)], names

    def features(self, training: np.ndarray, impute: str | None) -> np.ndarray:
        """A feature [n, k], 0 or 1, for each of the k values that the training rows [n] bool have.

        A value that no training row has becomes all zeros. A missing value becomes the training rows' most frequent
        value (the first of several). Raises ValueError if they have no value, or too many values.
        """
        codes, names = self.indices()
        counts = np.bincount(codes[training & (codes >= 0)], minlength=len(names))
        if not counts.any():
            raise ValueError("has no value in any training row")
        known = np.flatnonzero(counts)
        if len(known) > MAX_CATEGORIES:
            raise ValueError(f"has {len(known):,} different values, more than {MAX_CATEGORIES:,}")
        if impute is not None:
            codes = np.where(codes < 0, counts.argmax(), codes)
        one_hot: np.ndarray = (codes[:, None] == known).astype(np.float32)
        return one_hot


class Fault(Exception):
    """A row that cannot be used: what is wrong, in words that precede a place such as "of line 7", and the remedy."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what, remedy)
        self.what, self.remedy = what, remedy


class Table:
    """Rows with features, a class and perhaps a user, added one by one.

    `way_out` says in messages how to do without a column, in words that follow "leave it out".
    """

    def __init__(
        self,
        features: Sequence[str],
        target: str,
        user: str | None,
        categorical: Sequence[str],
        impute: str | None,
        way_out: str,
    ) -> None:
        self._features = {name: Categories() if name in categorical else Numbers() for name in features}
        self._targets, self._users = Categories(), Categories()
        self._target, self._user, self._impute, self._way_out = target, user, impute, way_out

    @property
    def columns(self) -> list[str]:
        """The names of the columns that each row has."""
        return [self._target, *self._features]

    def __len__(self) -> int:
        return len(self._targets)

    def add(self, cells: Mapping[str, Cell]) -> None:
        """Adds a row. The column of the user may be absent. Raises Fault."""
        strict = (*self._features,) if self._impute is None else ()
        for name in (self._target, self._user, *strict):
            if name is not None and cells.get(name, "") is None:
                way = "set dataset.impute to mean or median" if name in self._features else "leave the row out"
                raise Fault(f"has no value in the column {shown(name)}", f"{way}, or fill the value in")
        try:
            for name, column in self._features.items():
                column.add(cells[name])
        except ValueError:
            raise self._no_numbers(cells) from None
        self._targets.add(cells[self._target])
        self._users.add(None if self._user is None else cells.get(self._user))

    def _no_numbers(self, cells: Mapping[str, Cell]) -> Fault:
        """The fault of a row with texts in place of numbers."""
        texts = {}
        for name, column in self._features.items():
            try:
                Numbers().add(cells[name] if isinstance(column, Numbers) else None)
            except ValueError:
                texts[name] = cells[name]
        name = next(iter(texts))
        what = f"has {shown(str(texts[name]))} and no number in the column {shown(name)}"
        names, them = (listed(texts), "them") if len(texts) > 1 else ("it", "it")
        return Fault(what, f"name {names} in dataset.categorical, leave {them} out {self._way_out}, or mend the value")

    def classes(self) -> list[str]:
        """The classes of the rows so far, whole numbers by value. Raises ValueError, named `target`, for wrong
        classes.
        """
        _, names = self._targets.indices()
        if (fault := _not_classes(names)) is not None:
            raise ValueError(f"target must be a column of classes, got {shown(self._target)}, which {fault}")
        return names

    def labels(self, classes: Sequence[str]) -> np.ndarray:
        """The rows as indices [n] int64 into `classes`, -1 for any other class."""
        codes, names = self._targets.indices()
        number = {name: i for i, name in enumerate(classes)}
        of_names = np.array([number.get(name, -1) for name in names], np.int64)
        labels: np.ndarray = of_names[codes]
        return labels

    def data(
        self, classes: Sequence[str], in_test: np.ndarray, read: Callable[[np.ndarray], Tensor] | None = None
    ) -> Data:
        """The data set, without mean and std, whose test rows are `in_test` [n] bool.

        The inputs are the features, encoded by the training rows, or the result of `read` for rows [n] bool. Raises
        UserError, which names the column, if a column cannot be encoded or the features do not fit into memory.
        """
        if read is None:
            features = self._encoded(~in_test)
            read = lambda part: torch.from_numpy(features[part])  # noqa: E731
        labels, users = self.labels(classes), self._users.indices()[0]

        def examples(part: np.ndarray) -> Examples:
            targets = torch.from_numpy(labels[part])
            own = None if (users[part] < 0).any() else torch.from_numpy(users[part])
            return Examples(read(part), targets, targets, own)

        return Data(examples(~in_test), examples(in_test), tuple(classes), None, None)

    def _encoded(self, training: np.ndarray) -> np.ndarray:
        """The features [n, d] float32 of all columns, in their order."""
        blocks: list[np.ndarray] = []
        for name, column in self._features.items():
            try:
                blocks.append(column.features(training, self._impute))
            except ValueError as error:
                raise UserError(f"the column {shown(name)} {error}: leave it out {self._way_out}") from None
            if isinstance(column, Categories) and not training.all() and not blocks[-1][~training].any():
                _log.warning("no test row has a category of the training rows in the column %s", shown(name))
            needed, free = 2 * 4 * len(training) * sum(block.shape[1] for block in blocks), memory_bytes()
            if free is not None and needed > free:
                raise UserError(
                    f"the features up to the column {shown(name)} need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB "
                    f"are free: leave columns of many values out {self._way_out}"
                )
        return np.concatenate(blocks, axis=1)


def _not_classes(names: Sequence[str]) -> str | None:
    """Why the values of a target cannot be classes (None: they can), in words that follow the target's name."""
    if len(names) < 2:
        return f"has {len(names)} different values, and two classes are needed"
    if len(names) > MAX_CLASSES:
        return f"has {len(names):,} different values, and at most {MAX_CLASSES:,} classes are possible"
    if broken := next((name for name in names if _is_broken(name)), None):
        return f"has numbers that are not whole, such as {shown(broken)}, and classes are needed"
    return None


def is_index(name: str) -> bool:
    """Whether pandas wrote the row's number or label into this column, which is no feature."""
    return not name or name.startswith("__index_level_")


def shown(value: str) -> str:
    """A name or value for a message: in quotes, without control characters, not too long."""
    return repr(value if len(value) <= MAX_SHOWN_CHARACTERS else f"{value[:MAX_SHOWN_CHARACTERS]}...")


def listed(names: Iterable[str]) -> str:
    """Some names for a message."""
    names = list(names)
    return ", ".join([*map(shown, names[:MAX_SHOWN]), *(["..."] if len(names) > MAX_SHOWN else [])])


def _sorted(names: Iterable[str]) -> list[str]:
    names = list(names)
    try:
        return sorted(names, key=lambda name: (int(_plain(name)), name))
    except ValueError:
        return sorted(names)


def _plain(text: str) -> str:
    """The text. Raises ValueError if it has a _, as 1_10, which Python takes for a number."""
    if "_" in text:
        raise ValueError("not a number")
    return text


def _is_broken(name: str) -> bool:
    try:
        return not float(_plain(name)).is_integer()
    except ValueError:
        return False
