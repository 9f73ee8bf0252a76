"""Image files, decoded and resized in parallel, once: into memory, or into a file that is mapped instead of read."""

import fcntl
import hashlib
import logging
import math
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.files import TEMPORARY, open_own, sync_folder

_log = logging.getLogger(__name__)
MODES = {1: "L", 3: "RGB"}  # by channels
_AT_ONCE = 256  # images in memory while a file is made
# Behind the pixels of a file: the CRC-32 of each block of them (uint32, little-endian), then magic, version, length of
# a block, and the CRC-32 of all this. Every format version to come ends like this.
_END, _MAGIC, _VERSION, _BLOCK = struct.Struct("<8sIII"), b"FEDLABIM", 1, 2**24

Refuse = Callable[[Path, str], UserError]


def decode(paths: Sequence[Path], size: tuple[int, int, int], refuse: Refuse) -> Tensor:
    """The images as uint8 [n, channels, height, width], `size` being (channels, height, width) of 1 or 3 channels.

    Each is resized as a whole, bilinear with antialiasing, the aspect ratio not kept. Raises `refuse(path, what)` for
    the first file, in their order, that is missing or damaged.
    """
    images = np.empty((len(paths), *size), np.uint8)

    def read(index: int) -> None:
        images[index] = _decode(paths[index], size, refuse)

    pool = ThreadPoolExecutor(os.cpu_count())  # Pillow decodes and resizes without the interpreter's lock
    try:
        for _ in pool.map(read, range(len(paths))):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
    return torch.from_numpy(images)


def decode_mapped(paths: Sequence[Path], size: tuple[int, int, int], refuse: Refuse, folder: Path) -> Tensor:
    """The same in a file in `folder`, which is made once for these image files (by path, length and time) and size.

    The tensor is a view of the file: the system reads what is asked for and drops it when memory is short. It must not
    be written into. The whole file is checked each time; one that is damaged, or of another format, is made anew with a
    warning. Processes that want the same file wait for the one that makes it; a killed one leaves nothing that
    is taken for whole. Raises OSError where the folder cannot be written or is full.
    """
    shape, file = (len(paths), *size), folder / f"{_digest(paths, size, refuse)}.uint8"
    folder.mkdir(parents=True, exist_ok=True)
    if not paths:
        return torch.empty(shape, dtype=torch.uint8)
    with os.fdopen(open_own(file.with_suffix(".lock"), os.O_WRONLY | os.O_CREAT), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fault = _fault(file, math.prod(shape)) if file.exists() else ""
        if fault:
            _log.warning("%s %s: it is made anew", file, fault)
        if fault is not None:
            _write(file, paths, size, refuse)
    return torch.from_numpy(np.memmap(file, np.uint8, "r+", shape=shape))  # torch wants memory that may be written


def _write(file: Path, paths: Sequence[Path], size: tuple[int, int, int], refuse: Refuse) -> None:
    temporary = file.with_suffix(TEMPORARY)  # one name, under the lock: what a killed process left is written over
    try:
        with os.fdopen(open_own(temporary, os.O_RDWR | os.O_CREAT), "w+b") as out:
            out.truncate()
            for begin in range(0, len(paths), _AT_ONCE):
                out.write(decode(paths[begin : begin + _AT_ONCE], size, refuse).numpy().data)
            out.flush()
            out.write(_end(_sums(out.fileno(), out.tell())))
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)
        sync_folder(file.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _fault(file: Path, size: int) -> str | None:
    """What is wrong with a file of `size` bytes of pixels, None if nothing is; the whole of it is read."""
    with file.open("rb") as content:
        there = os.fstat(content.fileno()).st_size
        if there == size:
            return "has the format of an older version"
        content.seek(max(0, there - _END.size))
        end = content.read()
        if len(end) == _END.size and end[:8] == _MAGIC and (version := _END.unpack(end)[1]) != _VERSION:
            return f"has format {version}, this version reads {_VERSION}"
        if there < size:
            return "is damaged (cut off)"
        content.seek(size)
        end = content.read()
        return None if end == _end(_sums(content.fileno(), size)) else "is damaged (its checksums do not fit)"


def _end(sums: np.ndarray) -> bytes:
    head = sums.astype("<u4").tobytes()
    return head + _END.pack(_MAGIC, _VERSION, _BLOCK, zlib.crc32(head + _END.pack(_MAGIC, _VERSION, _BLOCK, 0)))


def _sums(descriptor: int, size: int) -> np.ndarray:
    """The CRC-32 of each block of the first `size` bytes."""
    begins = range(0, size, _BLOCK)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # neither reading nor summing needs the interpreter's lock
        sums = pool.map(lambda begin: zlib.crc32(os.pread(descriptor, min(_BLOCK, size - begin), begin)), begins)
        return np.fromiter(sums, np.uint32)


def _digest(paths: Sequence[Path], size: tuple[int, int, int], refuse: Refuse) -> str:
    """Changes with any of the files and with the size."""
    digest = hashlib.sha256(repr(size).encode())
    for path in paths:
        try:
            facts = path.stat()
        except OSError:
            raise refuse(path, "is missing") from None
        digest.update(repr((str(path.absolute()), facts.st_size, facts.st_mtime_ns)).encode())
    return digest.hexdigest()[:16]


def _decode(path: Path, size: tuple[int, int, int], refuse: Refuse) -> np.ndarray:
    from PIL import Image

    channels, height, width = size
    try:
        with Image.open(path) as file:
            file.draft(MODES[channels], (2 * width, 2 * height))  # a JPEG is decoded no larger than it needs to be
            image = file.convert(MODES[channels])
        pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    except FileNotFoundError:
        raise refuse(path, "is missing") from None
    except Exception as error:  # hostile or cut off, it can raise anything in a decoder
        reason = " ".join(str(error).split()) or type(error).__name__
        raise refuse(path, f"is not an image that can be read ({reason})") from None
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
