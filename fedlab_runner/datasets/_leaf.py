"""LEAF's json files (Caldas et al., 2018), and the choice and split of their users. https://github.com/TalwalkarLab/leaf"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.datasets import _files
from fedlab_runner.utils.rounding import rounded_down
from fedlab_runner.utils.validate import at_least, within

TRAIN, TEST = 0, 1  # parts of a user's samples


class Samples(NamedTuple):
    """The n samples of all users, in the order of users."""

    inputs: np.ndarray  # [n, ...]
    labels: np.ndarray  # [n] int64
    users: np.ndarray  # [n] int64, index into the sorted names
    parts: np.ndarray | None  # [n] int64, TRAIN or TEST; None if the files name no parts

    def where(self, keep: np.ndarray) -> "Samples":
        """The samples that a mask [n] or indices choose."""
        parts = None if self.parts is None else self.parts[keep]
        return Samples(self.inputs[keep], self.labels[keep], self.users[keep], parts)


def read(folder: Path, decode: Callable[[Any], np.ndarray], num_classes: int, layout: str) -> Samples:
    """All samples of the json files in `folder`, or in its folder `data` as in LEAF's repository.

    The files in train/ and test/ decide the parts; without them this reads the files in all_data/. `decode` makes an
    array [n, ...] of a user's list "x". Labels must be below `num_classes`. Raises UserError for the first file that is
    missing or wrong.
    """
    if (base := base_of(folder)) is None:
        raise _files.need(folder / "train", "and all_data hold no .json file", layout)
    names = {"train": TRAIN, "test": TEST} if _jsons(base / "train") else {"all_data": TRAIN}
    found: list[tuple[str, int, np.ndarray, np.ndarray]] = []
    for name, part in names.items():
        if not (paths := _jsons(base / name)):
            raise _files.need(base / name, "holds no .json file", layout)
        seen: dict[str, Path] = {}
        for path in paths:
            for user, x, y in _users(path, decode, num_classes, layout):
                if (other := seen.setdefault(user, path)) != path:
                    raise _files.need(path, f"has the user {user}, whom {other.name} has too", layout)
                found.append((user, part, x, y))
    if not found:
        raise _files.need(base, "holds no samples", layout)
    numbers = {user: i for i, user in enumerate(sorted({user for user, *_ in found}))}
    found.sort(key=lambda each: (numbers[each[0]], each[1]))
    sizes = [len(y) for *_, y in found]
    return Samples(
        np.concatenate([x for *_, x, _ in found]),
        np.concatenate([y for *_, y in found]),
        np.repeat([numbers[user] for user, *_ in found], sizes),
        np.repeat([part for _, part, *_ in found], sizes) if "test" in names else None,
    )


def deal(
    samples: Samples, min_samples: int, num_users: int | None, test_fraction: float, unseen_users: bool, seed: int
) -> tuple[Samples, Samples]:
    """The training and the test samples of `num_users` users drawn from `seed` (None: of all), in the order of users.

    Only users with at least `min_samples` samples, and with a training sample, can be drawn. If the files name no
    parts, max(1, floor((1 - test_fraction) n)) samples of each user, drawn from `seed`, are for training.
    `unseen_users` adds users with test samples alone to the test set. Raises ValueError for too few users.
    """
    rng = generator(seed, Purpose.DATA)
    if samples.parts is None:
        samples = samples._replace(parts=_split(samples.users, test_fraction, rng))
    assert samples.parts is not None
    most = int(samples.users.max(initial=-1)) + 1
    sizes = np.bincount(samples.users, minlength=most)
    trains = np.bincount(samples.users[samples.parts == TRAIN], minlength=most)
    users = np.flatnonzero((sizes >= min_samples) & (trains > 0))
    if num_users is not None:
        if num_users > len(users):
            raise ValueError(
                f"num_users must be null or at most {len(users)}, the number of users with at least {min_samples} "
                f"samples, got {num_users}"
            )
        users = np.sort(rng.choice(users, num_users, replace=False))
    chosen, tested = np.zeros(most, bool), np.zeros(most, bool)
    chosen[users] = tested[users] = True
    if unseen_users:
        tested |= (sizes >= min_samples) & (trains == 0)
    is_test = samples.parts == TEST
    return samples.where(~is_test & chosen[samples.users]), samples.where(is_test & tested[samples.users])


def check(min_samples: int, num_users: int | None, test_fraction: float) -> None:
    """Raises ValueError, named after the field, for a field of a data set with users that is out of range."""
    at_least(1, min_samples=min_samples, num_users=num_users)
    within("(0, 1)", test_fraction=test_fraction)


def _split(users: np.ndarray, test_fraction: float, rng: np.random.Generator) -> np.ndarray:
    """TRAIN or TEST for each sample [n], drawn user by user."""
    parts = np.full(len(users), TEST)
    for members in np.split(np.arange(len(users)), np.flatnonzero(np.diff(users)) + 1):
        kept = max(1, rounded_down((1 - test_fraction) * len(members)))
        parts[rng.permutation(members)[:kept]] = TRAIN
    return parts


def base_of(folder: Path) -> Path | None:
    """The folder, or its folder `data`, that has files of training or of all samples."""
    return next(
        (each for each in (folder, folder / "data") if _jsons(each / "train") or _jsons(each / "all_data")), None
    )


def _jsons(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


def _users(
    path: Path, decode: Callable[[Any], np.ndarray], num_classes: int, layout: str
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    try:
        content = json.loads(path.read_bytes())
        users = [(name, data["x"], data["y"]) for name, data in content["user_data"].items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = (
            "no user_data with x and y" if not isinstance(error, OSError | ValueError | RecursionError) else str(error)
        )
        raise _files.need(path, f"is not a json file of LEAF ({reason})", layout) from None
    if (fault := _disagreement(content)) is not None:
        raise _files.need(path, fault, layout)
    for name, x, y in users:
        try:
            if not len(x) and not len(y):
                continue  # nothing to train or test on
            inputs, labels = decode(x), np.asarray(y)
        except (ValueError, TypeError, OverflowError) as error:
            raise _files.need(path, f"has a user {name} with x that {error}", layout) from None
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) != len(inputs):
            raise _files.need(path, f"has a user {name} with {len(labels)} labels for {len(inputs)} samples", layout)
        if labels.min() < 0 or labels.max() >= num_classes:
            raise _files.need(path, f"has a user {name} with labels outside 0..{num_classes - 1}", layout)
        yield name, inputs, labels.astype(np.int64)


def _disagreement(content: dict[str, Any]) -> str | None:
    """How a file's data differ from its lists `users` and `num_samples`, in words; None if they agree.

    LEAF writes both lists. A missing list is not checked.
    """
    data = content["user_data"]
    names, sizes = content.get("users", list(data)), content.get("num_samples")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return "has users that are not a list of names"
    if missing := [name for name in names if name not in data]:
        return f"lacks the data of {len(missing)} of its {len(names)} users, such as {missing[0]}"
    if len(names) != len(data):
        return f"has data of {len(data)} users, but lists {len(names)}"
    if sizes is not None:
        if not isinstance(sizes, list) or len(sizes) != len(names):
            return f"has no num_samples for each of its {len(names)} users"
        for name, size in zip(names, sizes, strict=True):
            if len(data[name]["y"]) != size:
                return f"has {len(data[name]['y'])} samples of the user {name}, but lists {size}"
    return None
