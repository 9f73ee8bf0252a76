"""Files of data sets: checks, errors of one line, and downloads that appear whole or not at all."""

import os
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError

import numpy as np

from fedlab_runner.utils.errors import UserError


def folder(root: str, *parts: str) -> Path:
    """The folder of a data set under `dataset.root`."""
    return Path(root).expanduser().joinpath(*parts)


def fault(path: Path, md5: str | None) -> str | None:
    """What is wrong with a file, in a few words; None if it is right. `md5`: the file's md5 (None: any content)."""
    from torchvision.datasets.utils import check_integrity

    try:
        if not path.is_file():
            return "is missing"
        return None if check_integrity(str(path), md5) else "is damaged (its md5 is not the published one)"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def refuse(path: Path, what: str, layout: str) -> UserError:
    """The error for a missing or unusable file of a data set with a download. `layout` describes the place of its
    files.
    """
    return UserError(
        f"{path} {what}; set dataset.download=true, or dataset.root (environment FEDLAB_DATA) to a folder with {layout}"
    )


def need(path: Path, what: str, layout: str) -> UserError:
    """The error for a missing or unusable file of a set without a download. `layout` describes the place of its
    files.
    """
    return UserError(f"{path} {what}; set dataset.root (environment FEDLAB_DATA) to a folder with {layout}")


def arrays(content: BinaryIO, names: Iterable[str]) -> dict[str, np.ndarray]:
    """The arrays of an open .npz file with these names. Raises ValueError for a member that is no array, and whatever
    numpy raises.
    """
    with np.load(content, allow_pickle=False) as file:
        found = {name: file[name] for name in names}
    if strange := [name for name, array in found.items() if not isinstance(array, np.ndarray)]:
        raise ValueError(f"{strange[0]} is no array of numpy")  # numpy gives the bytes of such a member
    return found


def download(target: Path, names: Sequence[str], urls: Sequence[str], fetch: Callable[[str, str], None]) -> None:
    """Lets `fetch(url, folder)` write into a temporary folder in `target`, then moves the files `names` to `target`.

    It tries the addresses in turn. A download that fails or is interrupted leaves nothing behind. Runs that download at
    the same time do not disturb each other. Raises UserError if no address works.
    """
    made = [each for each in (target, *target.parents) if not os.path.exists(each)]
    try:
        _download(target, names, urls, fetch)
    finally:
        with suppress(OSError):  # a folder with files stays
            for each in made:
                each.rmdir()


def _download(target: Path, names: Sequence[str], urls: Sequence[str], fetch: Callable[[str, str], None]) -> None:
    reasons = []
    for url in urls:
        try:
            target.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target, prefix=".download-") as temporary:
                fetch(url, temporary)
                for name in names:
                    os.replace(Path(temporary, name), target / Path(name).name)
            return
        except (OSError, RuntimeError, EOFError, HTTPException, tarfile.TarError) as error:
            if isinstance(error, HTTPError):
                error.close()  # closes the server's response, which an HTTPError holds
            reasons.append(f"{url}: {type(error).__name__} {' '.join(str(error).split())}")
    raise UserError(f"dataset.download failed for {target} ({'; '.join(reasons)}); put the files there by hand")
