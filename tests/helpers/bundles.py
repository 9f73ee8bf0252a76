"""Bundles of small runs, and changed copies of them."""

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

from fedlab_runner.report import bundle


def contents(path: Path) -> dict[str, bytes]:
    """The files of a zip file by name."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, files: Mapping[str, bytes | None], *, listed: bool = True) -> Path:
    """A zip file with these files (None: left out); `listed`: with a manifest that fits them."""
    kept = {name: content for name, content in files.items() if content is not None}
    if listed:
        named = sorted(kept.keys() - {bundle.MANIFEST, bundle.CRATE})
        lines = [f"{hashlib.sha256(kept[name]).hexdigest()}  {name}\n" for name in named]
        kept[bundle.MANIFEST] = "".join(lines).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in kept.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return path
