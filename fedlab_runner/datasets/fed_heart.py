"""Fed-Heart-Disease (FLamby, NeurIPS 2022): patients of four hospitals. https://arxiv.org/abs/2210.04620

The files are UCI's Heart Disease (Janosi et al., 1988).

Licence: CC BY 4.0, by UCI's page.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fedlab_runner.datasets import _files, _tables
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import Data, Examples

# Names of the files' hospitals, in the order of the clients.
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
LAYOUT = (  # the place of the files, for messages
    f"fed_heart/processed.{{{','.join(HOSPITALS)}}}.data, from https://archive.ics.uci.edu/dataset/45/heart+disease"
)
COLUMNS = 14  # of a file: 13 features and, at the end, the state of the disease (0 healthy, 1 to 4 ill)
KEPT = (0, 1, 3, 4, 5, 7, 8, 9)  # columns used as numbers; 10 to 12 are mostly missing and dropped, as in FLamby
CATEGORIES = {2: (2.0, 3.0, 4.0), 6: (1.0, 2.0)}  # values of the one-hot columns, without the first value
FIRST = {2: 1.0, 6: 0.0}  # the first values of these columns, which have all zeros as features
TRAIN_SHARE, SPLIT_SEED = 0.66, 43  # FLamby's share of a hospital's patients, and its seed, the same in all runs
FEWEST = 3  # patients of each class that a split by class needs, as in FLamby; Switzerland has fewer healthy patients
TINY = 1e-9  # added to a standard deviation, so that a feature that is constant in a hospital becomes zero


@dataclass(frozen=True)
class FedHeart(Dataset):
    """740 patients as vectors of 13 features, healthy or ill.

    With `partition=natural num_clients=4 participation.cohort_size=4` each hospital is a client, and all train.

    As in FLamby, patients with a missing value do not count, and 66 % of each hospital's patients are for training.
    They are drawn class by class, except in Switzerland, where too few are healthy. Training examples are standardised
    by the mean and the deviation (n - 1) of their own hospital, test examples by those of all hospitals.
    """

    root: str

    def load(self, seed: int) -> Data:
        hospitals = []
        for name in HOSPITALS:
            path = _files.folder(self.root, "fed_heart", f"processed.{name}.data")
            features, ill = _read(path)
            train, test = _split(path, ill)
            hospitals.append((features[train], ill[train], features[test], ill[test]))
        pooled = np.concatenate([features for features, *_ in hospitals])
        train_inputs = [_standardised(features, features) for features, *_ in hospitals]
        test_inputs = [_standardised(features, pooled) for *_, features, _ in hospitals]
        return Data(
            _examples(train_inputs, [ill for _, ill, *_ in hospitals]),
            _examples(test_inputs, [ill for *_, ill in hospitals]),
            ("healthy", "ill"),
            None,
            None,
        )


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The features [n, 13] float64 and the classes [n] int64 of the patients without a missing value."""
    features, classes = [], []
    used = (*KEPT, *CATEGORIES, COLUMNS - 1)
    for number, row in _tables.rows(path, partial(_files.need, layout=LAYOUT)):
        try:
            values = {column: None if row[column] == "?" else float(row[column]) for column in used}
        except (ValueError, IndexError):
            raise _files.need(path, f"has a line {number} that is not {COLUMNS} numbers or ?", LAYOUT) from None
        if len(row) != COLUMNS or not all(value is None or np.isfinite(value) for value in values.values()):
            raise _files.need(path, f"has a line {number} that is not {COLUMNS} numbers or ?", LAYOUT)
        if None in values.values():
            continue
        for column, others in CATEGORIES.items():
            if values[column] not in (FIRST[column], *others):
                raise _files.need(path, f"has {row[column]} in column {column + 1} of line {number}", LAYOUT)
        if values[COLUMNS - 1] not in range(5):
            raise _files.need(path, f"has no state 0 to 4 at the end of line {number}", LAYOUT)
        one_hot = [float(values[column] == value) for column, others in CATEGORIES.items() for value in others]
        features.append([*(values[column] for column in KEPT), *one_hot])
        classes.append(int(values[COLUMNS - 1] != 0))
    return np.array(features, np.float64).reshape(-1, len(KEPT) + 5), np.array(classes, np.int64)


def _split(path: Path, ill: np.ndarray) -> list[np.ndarray]:
    """The rows for training and for testing, in the order of the file."""
    from sklearn.model_selection import train_test_split

    if len(ill) < FEWEST:
        raise _files.need(path, f"has fewer than {FEWEST} patients without a missing value", LAYOUT)
    by_class = np.bincount(ill, minlength=2).min() >= FEWEST
    parts = train_test_split(
        np.arange(len(ill)),
        train_size=TRAIN_SHARE,
        test_size=1 - TRAIN_SHARE,
        random_state=SPLIT_SEED,
        stratify=ill if by_class else None,
    )
    return [np.sort(part) for part in parts]


def _standardised(features: np.ndarray, of: np.ndarray) -> np.ndarray:
    """The features [n, 13], standardised by the mean and deviation of the examples `of` [m, 13]."""
    standardised: np.ndarray = (features - of.mean(0)) / (of.std(0, ddof=1) + TINY)
    return standardised


def _examples(inputs: list[np.ndarray], classes: list[np.ndarray]) -> Examples:
    """The examples of the hospitals, one after the other; the hospitals are the users."""
    targets = torch.from_numpy(np.concatenate(classes))
    users = torch.repeat_interleave(torch.arange(len(classes)), torch.tensor([len(each) for each in classes]))
    return Examples(torch.from_numpy(np.concatenate(inputs)).float(), targets, targets, users)
