"""Reads back the file in which W&B keeps a run: blocks in LevelDB's format that hold protocol buffers."""

import importlib
import struct
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

BLOCK_BYTES = 32 * 1024  # no part of a record reaches from one block into the next
_HEADER_BYTES = 7  # of the file, and of each part of a record: a checksum, the length and the kind
_FULL, _FIRST, _LAST = 1, 2, 4  # kinds of parts: a whole record, the first part of one, the last part
CLOSE_SECONDS = 2.0  # W&B may close the file so long after it says that the run has finished


def records(path: Path) -> Iterator[Any]:
    """The records, as the messages of W&B's own schema, up to one that is cut."""
    # By name: the module takes its classes from one of several, which the type check does not see.
    schema: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    parts = b""
    with path.open("rb") as file:
        place = _HEADER_BYTES
        for block in iter(partial(file.read, BLOCK_BYTES), b""):
            while place + _HEADER_BYTES <= len(block):
                _, length, kind = struct.unpack_from("<IHB", block, place)
                begin, place = place + _HEADER_BYTES, place + _HEADER_BYTES + length
                if place > len(block):
                    return
                parts = block[begin:place] if kind in (_FULL, _FIRST) else parts + block[begin:place]
                if kind in (_FULL, _LAST):
                    yield schema.Record.FromString(parts)
            place = 0


def next_step(path: Path) -> int:
    """The step after the last row of the history, 0 if there is none."""
    return max((record.history.step.num + 1 for record in records(path) if record.HasField("history")), default=0)


def is_whole(path: Path, rows: int) -> bool:
    """Whether the file holds at least so many rows of the history, and the end of its run."""
    deadline = time.monotonic() + CLOSE_SECONDS
    while not (whole := _holds(path, rows)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return whole


def _holds(path: Path, rows: int) -> bool:
    from google.protobuf.message import DecodeError  # W&B needs it

    ended = False
    try:
        for record in records(path):
            rows -= record.HasField("history")
            ended |= record.HasField("exit")
    except DecodeError:
        return False
    return ended and rows <= 0
