"""Reads what W&B wrote to disk: a log of blocks in LevelDB's format that hold protocol buffers."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32 * 1024
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file, as the messages of wandb's own schema."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = path.read_bytes()
    assert data[:4] == b":W&B"[: len(data)]
    position, parts = 7, b""
    while position + 7 <= len(data):
        if (room := BLOCK - position % BLOCK) < 7:  # no header fits here: the block ends in zeros
            position += room
            continue
        _crc, length, kind = struct.unpack_from("<IHB", data, position)
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (FULL, LAST):
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def history(path: Path) -> list[dict[str, Any]]:
    """The logged rows in the order of the file: step under `_step`, the rest as it was logged, without W&B's clock."""
    rows = []
    for record in records(path):
        if record.HasField("history"):
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            row = {key: "NaN" if value != value else value for key, value in items.items() if not key.startswith("_")}
            rows.append({"_step": record.history.step.num} | row)
    return rows


def wait(path: Path, seconds: float = 5.0) -> Path:
    """The file once it is closed: wandb 0.30 says that a run is finished a moment before that."""
    deadline = time.monotonic() + seconds
    while not any(record.HasField("exit") for record in records(path)):
        assert time.monotonic() < deadline, f"{path} is not closed"
        time.sleep(0.01)
    return path


def exit_code(path: Path) -> int:
    return next(record.exit.exit_code for record in records(path) if record.HasField("exit"))


def run(path: Path) -> Any:
    return next(record.run for record in records(path) if record.HasField("run"))


def config(path: Path) -> dict[str, Any]:
    return {item.key: json.loads(item.value_json) for item in run(path).config.update}
