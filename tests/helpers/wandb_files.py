"""What W&B wrote to disk."""

import json
import time
from pathlib import Path
from typing import Any

from fedlab_runner.tracking.wandb_file import records


def history(path: Path) -> list[dict[str, Any]]:
    """The logged rows in the order of the file: step under `_step`, the rest as it was logged, without W&B's clock."""
    rows = []
    for record in records(path):
        if record.HasField("history"):
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            row = {key: value for key, value in items.items() if not key.startswith("_")}
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


def summary(path: Path) -> dict[str, Any]:
    """The last value of each key in W&B's summary."""
    updates = [item for record in records(path) if record.HasField("summary") for item in record.summary.update]
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in updates}
