"""Unpacks a bundle that a stranger may have made: only files with a bundle's names, within limits. Runs nothing."""

import stat
import struct
import unicodedata
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from fedlab_runner.report import bundle
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.escaping import visible
from fedlab_runner.utils.files import NotPlainFile, open_to_read
from fedlab_runner.utils.untrusted import MAX_FILE_BYTES, MAX_LINES_BYTES

MAX_DIRECTORY_BYTES = 2**24  # of the list of files, which is read whole: about 100,000 files
_END = struct.Struct("<4s4H2LH")  # the record at the end of a zip file
_END_MARK = b"PK\x05\x06"  # the first bytes of the record at the end of a zip file
_ZIP64_MARK, _ZIP64_BYTES = b"PK\x06\x07", 20  # of a record before it, in a file that has larger numbers
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # ways of packing that a bundle uses
# Files at the top of a bundle.
_SINGLE = {bundle.ABOUT, bundle.MANIFEST, bundle.CRATE, bundle.README, bundle.REQUIREMENTS}
# All that Python's reader raises for a damaged or forged file.
_FAULTS = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, ValueError),
    OverflowError,
)


def unpack(path: Path, folder: Path) -> None:
    """Unpacks a bundle into an empty folder. Raises UserError, one line, if the file is not a bundle of this program.

    No name leads out of the folder, and no file becomes a link. The function ignores the sizes that the archive claims:
    it stops as soon as the files hold more than the limits.
    """
    shown = visible(str(path))
    try:
        with open_to_read(path) as file:
            _check_end(file, shown)
            with zipfile.ZipFile(file) as archive:
                _unpack(archive, folder, shown)
    except NotPlainFile:
        raise UserError(f"{shown} is no plain file: give a bundle of fedlab-report") from None
    except OSError as error:
        raise UserError(f"{visible(str(error.filename or path))}: {error.strerror or 'cannot be read'}") from error
    except UserError:
        raise
    except _FAULTS:
        raise UserError(f"{shown} is damaged, or is no zip file") from None


def _check_end(file: BinaryIO, shown: str) -> None:
    """Raises UserError unless the list of files is small, because Python's reader reads it whole."""
    size = file.seek(0, 2)
    if size > bundle.MAX_BYTES:
        raise UserError(f"{shown} is larger than {bundle.MAX_BYTES // 2**20} MiB")
    file.seek(max(0, size - _END.size - _ZIP64_BYTES))
    tail = file.read()
    before, end = tail[: -_END.size], tail[-_END.size :]
    if len(end) < _END.size or not end.startswith(_END_MARK):
        raise UserError(f"{shown} is no zip file, or carries a comment: give a bundle of fedlab-report")
    if before[-_ZIP64_BYTES:].startswith(_ZIP64_MARK) or _END.unpack(end)[5] > MAX_DIRECTORY_BYTES:
        raise UserError(f"{shown} lists more files than a bundle has")
    file.seek(0)


def _unpack(archive: zipfile.ZipFile, folder: Path, shown: str) -> None:
    left, seen = bundle.MAX_BYTES, set[str]()
    for entry in archive.infolist():
        name = entry.orig_filename
        if name.endswith("/") and not entry.file_size:  # a folder, which other programs list
            continue
        words = f"{shown} holds {visible(name)[:200]!r}"
        if not _belongs(name) or entry.filename != name:
            raise UserError(f"{words}, which is no file of a bundle")
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFREG) or entry.flag_bits & 1 or entry.compress_type not in _METHODS:
            raise UserError(f"{words} as a link, encrypted or packed in a way that bundles do not use")
        one = unicodedata.normalize("NFC", name).casefold()  # some file systems treat such names as one
        if one in seen:
            raise UserError(f"{words} twice")
        seen.add(one)
        limit = MAX_LINES_BYTES if name.endswith(".jsonl") else MAX_FILE_BYTES
        size = _write(archive, entry, folder / name, min(limit, left))
        if size > min(limit, left):
            raise UserError(f"{words}, which is larger than a bundle's files are")
        left -= size
    if missing := sorted({bundle.ABOUT, bundle.MANIFEST} - seen):
        raise UserError(f"{shown} is no bundle of fedlab-report: it has no {missing[0]}")


def _write(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path, limit: int) -> int:
    """Writes a file of the archive and returns its number of bytes; stops as soon as it exceeds the limit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with archive.open(entry) as source, path.open("xb") as target:
        while size <= limit and (part := source.read(2**20)):
            size += len(part)
            target.write(part)
    return size


def _belongs(name: str) -> bool:
    """Whether a bundle has files with this name."""
    match name.split("/"):
        case [single]:
            return single in _SINGLE
        case [bundle.TABLES, table]:
            return table.removesuffix(".csv").isidentifier() and table.endswith(".csv")
        case [bundle.OUTPUTS, bundle.SWEEPS, sweep, "jobs", job]:
            return bundle.is_run_name(sweep) and bundle.is_run_name(job) and job.endswith(".json")
        case [bundle.OUTPUTS, run, *inside]:
            return bundle.is_run_name(run) and "/".join(inside) in bundle.RUN_FILES
    return False
