"""Oxford-IIIT Pets (Parkhi et al., CVPR 2012): 3,680 + 3,669 photographs of 37 breeds. https://www.robots.ox.ac.uk/~vgg/data/pets/

Licence: CC BY-SA 4.0, by copies of the set that name the authors' page as their source
(https://huggingface.co/datasets/pcuenq/oxford-pets). The photographs belong to their owners.
"""

from dataclasses import dataclass
from pathlib import Path

from fedlab_runner.datasets import _files, _photographs
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import Data

LAYOUT = (  # the place of the files, for messages
    "oxford-iiit-pet/images/ and oxford-iiit-pet/annotations/ (images.tar.gz and annotations.tar.gz, from "
    "https://www.robots.ox.ac.uk/~vgg/data/pets/)"
)


@dataclass(frozen=True)
class OxfordPets(Dataset):
    """The set in root/oxford-iiit-pet with its own division into trainval and test, resized to `image_size` pixels
    square as it is read.
    """

    root: str
    image_size: int
    mean: list[float]
    std: list[float]

    def __post_init__(self) -> None:
        _photographs.check(self.image_size, self.mean, self.std)

    def load(self, seed: int) -> Data:
        folder = _files.folder(self.root, "oxford-iiit-pet")
        parts = [_read_list(folder / "annotations" / f"{part}.txt") for part in ("trainval", "test")]
        listed = [entry for part in parts for entry in part]
        breeds = {(name.rpartition("_")[0], label) for name, label in listed}
        names = {label: breed for breed, label in breeds}
        if len({breed for breed, _ in breeds}) < len(breeds) or len(names) < len(breeds):
            raise _files.need(folder / "annotations", "has a breed in two classes, or two in one", LAYOUT)
        if len(dict(listed)) < len(listed):
            raise _files.need(folder / "annotations", "has a photograph twice", LAYOUT)
        if missing := set(range(1, max(names) + 1)) - set(names):
            raise _files.need(folder / "annotations", f"has no photograph of class {min(missing)}", LAYOUT)
        train, test = (
            _photographs.read(
                [folder / "images" / f"{name}.jpg" for name, _ in part],
                [label - 1 for _, label in part],
                self.image_size,
                LAYOUT,
            )
            for part in parts
        )
        return Data(train, test, tuple(names[label] for label in sorted(names)), tuple(self.mean), tuple(self.std))


def _read_list(path: Path) -> list[tuple[str, int]]:
    """Image names and classes (from 1) of lines `<breed>_<number> <class> <species> <breed of species>`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise _files.need(path, "is missing", LAYOUT) from None
    except (OSError, UnicodeDecodeError) as error:
        raise _files.need(path, f"cannot be read ({error})", LAYOUT) from None
    found = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if len(words) != 4 or not words[1].isdecimal() or int(words[1]) < 1 or Path(words[0]).name != words[0]:
            raise _files.need(path, f"has a line {number} that is not a name and three numbers", LAYOUT)
        found.append((words[0], int(words[1])))
    if not found:
        raise _files.need(path, "lists no images", LAYOUT)
    return found
