"""Files out of an archive that is not trusted: those asked for and no others, as plain files in one folder."""

import shutil
import tarfile
from collections.abc import Collection
from pathlib import Path, PurePosixPath

MOST_BYTES = 2**30  # that an archive may unpack to; CIFAR's have less than 200 MB
MOST_MEMBERS = 100_000


def take(archive: Path, names: Collection[str], folder: Path) -> None:
    """Writes the members of a tar archive, compressed or not, that have these names into a folder, each under the last
    part of its name.

    A path in the archive decides nothing about where a file goes, and a link is not followed. Raises tarfile.TarError
    for an archive that lacks one of the names, has something else than a file under it or would unpack to more than
    MOST_BYTES.
    """
    left, size = set(names), 0
    with tarfile.open(archive, "r:*") as tar:
        for number, member in enumerate(tar):
            size += member.size  # what has to be unpacked to get past it
            if size > MOST_BYTES or number >= MOST_MEMBERS:
                raise tarfile.TarError(f"unpacks to more than {MOST_BYTES} bytes or {MOST_MEMBERS} files")
            if member.name not in left:
                continue
            if not member.isreg():
                raise tarfile.TarError(f"has something else than a file under {member.name}")
            content = tar.extractfile(member)
            assert content is not None
            with content, (folder / PurePosixPath(member.name).name).open("xb") as file:
                shutil.copyfileobj(content, file)
            left.discard(member.name)
            if not left:
                return
    raise tarfile.TarError(f"has no {', '.join(sorted(left))}")
