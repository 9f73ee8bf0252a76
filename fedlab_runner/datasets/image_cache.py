"""Decodes and resizes images once, in parallel, into memory or into a memory-mapped cache file.

A cache file is a .npy array [n, channels, height, width] uint8 with checksums behind its values. This module writes the
pixels with plain writes: with numpy's open_memmap a full disk would end the process instead of raising OSError.
"""

import fcntl
import hashlib
import io
import logging
import math
import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.files import TEMPORARY, NotPlainFile, open_own, open_to_read, sync_folder
from fedlab_runner.utils.system import usable_cores

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

_log = logging.getLogger(__name__)
MODES = {1: "L", 3: "RGB"}  # Pillow's modes by numbers of channels
SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp")  # of the image files in a folder
# The readers of Pillow that a run uses. Pillow chooses by content, and its reader of PostScript starts Ghostscript.
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF", "TIFF", "PPM")
IMAGES_AT_ONCE = 256  # images in memory while a cache file is written
BLOCK_BYTES = 2**24  # bytes of a cache file, with its header, for each CRC-32 (uint32, little-endian)

Refuse = Callable[[Path, str], UserError]


def decode(paths: Sequence[Path], size: tuple[int, int, int], refuse: Refuse) -> Tensor:
    """The images as uint8 [n, channels, height, width]; `size` is (channels, height, width) with 1 or 3 channels.

    Each image is resized as a whole, bilinear with antialiasing, to this aspect ratio. Raises `refuse(path, what)` for
    the first file, in the order of `paths`, that is missing or damaged.
    """
    return decode_each(
        len(paths), lambda index: open_to_read(paths[index]), size, lambda index, what: refuse(paths[index], what)
    )


def decode_each(
    count: int,
    open_image: Callable[[int], BinaryIO],
    size: tuple[int, int, int],
    refuse: Callable[[int, str], UserError],
) -> Tensor:
    """The images that `open_image` opens by number, in the form of `decode`. Raises `refuse(number, what)`."""
    images = np.empty((count, *size), np.uint8)

    def read(index: int) -> None:
        try:
            with open_image(index) as content:
                images[index] = _decode(content, size)
        except FileNotFoundError:
            raise refuse(index, "is missing") from None
        except NotPlainFile:
            raise refuse(index, "is no plain file") from None
        except Exception as error:  # a damaged or hostile file can raise anything in a decoder
            reason = " ".join(str(error).split()) or type(error).__name__
            raise refuse(index, f"is not an image that can be read ({reason})") from None

    pool = ThreadPoolExecutor(usable_cores())  # Pillow decodes and resizes without the interpreter's lock
    try:
        for _ in pool.map(read, range(count)):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
    return torch.from_numpy(images)


def decode_cached(
    paths: Sequence[Path], size: tuple[int, int, int], refuse: Refuse, cache: str | None, key: str
) -> Tensor:
    """The images of `decode`, in memory (`cache` None) or in a file in the folder `cache`, as `decode_mapped` makes it.

    Raises UserError, named `key`, if the folder cannot be written or is full.
    """
    if cache is None:
        return decode(paths, size, refuse)
    try:
        return decode_mapped(paths, size, refuse, Path(cache).expanduser())
    except OSError as error:
        room = f"{len(paths) * math.prod(size) / 1e9:.2g} GB"
        raise UserError(f"{key} must be a folder to write {room} into, got {cache} ({error.strerror})") from error


def folders_in(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted, without hidden ones."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def images_in(folder: Path) -> list[Path]:
    """The image files in a folder, by name, without hidden ones."""
    files = (path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    return sorted(path for path in files if not path.name.startswith("."))


def decode_mapped(paths: Sequence[Path], size: tuple[int, int, int], refuse: Refuse, folder: Path) -> Tensor:
    """The images of `decode`, in a file in `folder` that is made once for these image files and this size.

    Path, length and time identify an image file. The tensor maps the cache file; nobody may write into it. Each call
    checks the whole file, and makes a damaged file, or a file of another format, again with a warning. Processes that
    want the same file wait for the process that makes it. A killed process leaves no file that looks whole. Raises
    OSError if the folder cannot be written or is full.
    """
    shape, file = (len(paths), *size), folder / f"{_digest(paths, size, refuse)}.npy"
    folder.mkdir(parents=True, exist_ok=True)
    if not paths:
        return torch.empty(shape, dtype=torch.uint8)
    with os.fdopen(open_own(file.with_suffix(".lock"), os.O_WRONLY | os.O_CREAT), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_whole = file.exists() and _is_whole(file, shape)
        if file.exists() and not is_whole:
            _log.warning("%s is damaged or of another format: it is made again", file)
        if not is_whole:
            _write(file, paths, size, refuse)
    return torch.from_numpy(np.lib.format.open_memmap(file, "r+"))  # torch warns of read-only memory


def _write(file: Path, paths: Sequence[Path], size: tuple[int, int, int], refuse: Refuse) -> None:
    temporary = file.with_suffix(TEMPORARY)  # one name, under the lock: it replaces a killed process's file
    try:
        with os.fdopen(open_own(temporary, os.O_RDWR | os.O_CREAT), "w+b") as out:
            out.truncate()
            out.write(_header((len(paths), *size)))
            for begin in range(0, len(paths), IMAGES_AT_ONCE):
                out.write(decode(paths[begin : begin + IMAGES_AT_ONCE], size, refuse).numpy().data)
            out.flush()
            out.write(_checksums(out.fileno(), out.tell()))
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)
        sync_folder(file.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _is_whole(file: Path, shape: tuple[int, ...]) -> bool:
    """Whether a file holds an array of this shape and its checksums. Reads the whole file."""
    header = _header(shape)
    size = len(header) + math.prod(shape)
    with file.open("rb") as content:
        if content.read(len(header)) != header or os.fstat(content.fileno()).st_size < size:
            return False
        content.seek(size)
        return content.read() == _checksums(content.fileno(), size)


def _header(shape: tuple[int, ...]) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return header.getvalue()


def _checksums(descriptor: int, size: int) -> bytes:
    """The CRC-32 of each block of the first `size` bytes."""
    begins = range(0, size, BLOCK_BYTES)
    with ThreadPoolExecutor(usable_cores()) as pool:  # neither reading nor summing needs the interpreter's lock
        sums = pool.map(lambda begin: zlib.crc32(os.pread(descriptor, min(BLOCK_BYTES, size - begin), begin)), begins)
        return np.fromiter(sums, "<u4").tobytes()


def _digest(paths: Sequence[Path], size: tuple[int, int, int], refuse: Refuse) -> str:
    """A name that changes with each of the image files and with the size."""
    digest = hashlib.sha256(repr(size).encode())
    for path in paths:
        try:
            facts = path.stat()
        except OSError:
            raise refuse(path, "is missing") from None
        digest.update(repr((str(path.absolute()), facts.st_size, facts.st_mtime_ns)).encode())
    return digest.hexdigest()[:16]


def _decode(content: BinaryIO, size: tuple[int, int, int]) -> np.ndarray:
    from PIL import Image

    channels, height, width = size
    with _opened(content) as file:
        file.draft(MODES[channels], (2 * width, 2 * height))  # decodes a JPEG no larger than needed
        image = _eight_bits(file).convert(MODES[channels])
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _opened(content: BinaryIO) -> "Picture":
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(content, formats=FORMATS)
    except UnidentifiedImageError:
        raise ValueError(f"its content is none of {', '.join(FORMATS)}") from None


def _eight_bits(image: "Picture") -> "Picture":
    """An image with the upper eight bits of grey values of sixteen, which Pillow would cut off at 255."""
    from PIL import Image

    if image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits, and at most 16 are read")
    if not image.mode.startswith("I;16"):
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
