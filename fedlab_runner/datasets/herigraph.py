"""HeriGraph (Bai et al., 2022): posts about heritage sites as features of text and image. https://github.com/zzbn12345/Heri_Graphs

Licence: MIT, by the file LICENSE of that repository, which has code and arrays. Posts and photographs belong to their
Flickr users and are not in the repository.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fedlab_runner.datasets import _files, _split, _tables
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import Data, Examples
from fedlab_runner.utils.validate import within

# Files of a city, by content.
TABLES = {"text": "Textual_Features.csv", "image": "Visual_Features.csv", "label": "Attribute_Labels.csv"}
# The feature blocks: table, prefix of the columns, number of columns.
BLOCKS = (("text", "BERT_", 768), ("image", "Vis_Feat_", 512), ("image", "SCE_", 365), ("image", "ATT_", 102))
NUM_CLASSES = 9
TRUE, FALSE = ("true", "1", "1.0"), ("false", "0", "0.0", "")
LAYOUT = (  # the place of the files, for messages
    f"herigraph/<city>/{{{','.join(TABLES.values())}}}, from https://github.com/zzbn12345/Heri_Graphs"
)


@dataclass(frozen=True)
class HeriGraph(Dataset):
    """Posts of `cities`, which are folders in root/herigraph, as vectors of four feature blocks: the text's BERT
    features (768), the image's hidden features (512), scene categories (365) and scene attributes (102). There are nine
    classes.

    The text block of a post without text is zero, and clients that hold the block do not train on the post. Each
    feature is standardised over the training posts that have it. With `labelled` only posts with a certain class count.
    Each class gives round(test_fraction * its size) posts, drawn from the seed, to the test set.
    """

    root: str
    cities: list[str]
    labelled: bool
    test_fraction: float

    def __post_init__(self) -> None:
        if not self.cities:
            raise ValueError("cities must be a list of one or more folders, got []")
        within("(0, 1)", test_fraction=self.test_fraction)

    def load(self, seed: int) -> Data:
        parts = [self._read(_files.folder(self.root, "herigraph", city)) for city in self.cities]
        inputs, present, labels = (np.concatenate(each) for each in zip(*(part[:3] for part in parts), strict=True))
        names = parts[0][3]
        in_test = _split.drawn(labels, NUM_CLASSES, self.test_fraction, seed)
        _standardise(inputs, present, ~in_test)

        def examples(part: np.ndarray) -> Examples:
            targets = torch.from_numpy(labels[part])
            there = torch.from_numpy(present[part])
            return Examples(torch.from_numpy(inputs[part]), targets, targets, None, there)

        return Data(examples(~in_test), examples(in_test), names, None, None)

    def _read(self, folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[str, ...]]:
        """Features [n, 1747], the blocks that each post has [n, 4] bool, classes [n] and the names of the classes."""
        header, rows = _table(folder / TABLES["label"], "ID")
        names = tuple(header[1 : 1 + NUM_CLASSES])
        sure = self._column(header, "labelled", folder / TABLES["label"]) if self.labelled else None
        posts, labels = [], []
        for key, row in rows.items():
            if sure is None or _true(row[sure], folder / TABLES["label"], key):
                posts.append(key)
                labels.append(int(np.argmax(_floats(row[1 : 1 + NUM_CLASSES], folder / TABLES["label"], key))))
        tables = {
            "text": _table(folder / TABLES["text"], "index"),
            "image": _table(folder / TABLES["image"], "ID"),
        }
        has_text = self._column(tables["text"][0], "text_bool", folder / TABLES["text"])
        blocks, present = [], []
        for kind, prefix, size in BLOCKS:
            path, (columns, of_posts) = folder / TABLES[kind], tables[kind]
            chosen = [i for i, name in enumerate(columns) if name.startswith(prefix)]
            if len(chosen) != size:
                raise _files.need(path, f"has {len(chosen)} columns {prefix}*, not {size}", LAYOUT)
            block, there = np.zeros((len(posts), size), np.float32), np.zeros(len(posts), bool)
            for number, key in enumerate(posts):
                values = of_posts.get(key)
                if values is not None and (kind == "image" or _true(values[has_text], path, key)):
                    block[number] = _floats([values[i] for i in chosen], path, key)
                    there[number] = True
            blocks.append(block)
            present.append(there)
        return np.concatenate(blocks, 1), np.stack(present, 1), np.array(labels, np.int64), names

    def _column(self, header: list[str], name: str, path: Path) -> int:
        if name not in header:
            raise _files.need(path, f"has no column {name}", LAYOUT)
        return header.index(name)


def _table(path: Path, key: str) -> tuple[list[str], dict[str, list[str]]]:
    """The names of the columns, and the rows by the first column, which is `key`."""
    rows = [row for _, row in _tables.rows(path, partial(_files.need, layout=LAYOUT))]
    if not rows or rows[0][0] != key or any(len(row) != len(rows[0]) for row in rows):
        raise _files.need(path, f"is not a table whose first column is {key}", LAYOUT)
    found = {row[0]: row for row in rows[1:]}
    if len(found) < len(rows) - 1:
        raise _files.need(path, f"has two rows with the same {key}", LAYOUT)
    return rows[0], found


def _floats(values: list[str], path: Path, key: str) -> np.ndarray:
    try:
        numbers = np.array(values, np.float64)
    except ValueError:
        numbers = np.array([np.nan])
    if not np.isfinite(numbers).all():
        raise _files.need(path, f"has a value that is no number in the row of {key}", LAYOUT)
    return numbers


def _true(value: str, path: Path, key: str) -> bool:
    word = value.strip().lower()
    if word not in TRUE + FALSE:
        raise _files.need(path, f"has neither true nor false but {value!r} in the row of {key}", LAYOUT)
    return word in TRUE


def _standardise(inputs: np.ndarray, present: np.ndarray, training: np.ndarray) -> None:
    """Standardises each feature, in place, over the training posts that have it; missing features stay zero."""
    begin = 0
    for block, (*_, size) in enumerate(BLOCKS):
        columns, there = slice(begin, begin + size), present[:, block]
        seen = inputs[there & training, columns]
        if len(seen):
            values = (inputs[there, columns] - seen.mean(0)) / np.maximum(seen.std(0), 1e-6)
            inputs[there, columns] = values
        begin += size
