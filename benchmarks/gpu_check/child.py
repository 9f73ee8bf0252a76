"""The process of one part: carries out its cases, one after another, and says what it finds as it goes.

    python -m benchmarks.gpu_check.child PART --report FD ...
Each line of the report is JSON: {"begins": case}, a finding, or {"ends": case}. A case that raises is a finding that
does not hold; the next continues here, unless the GPU has failed with it, which no process survives.
"""

import argparse
import gc
import importlib
import json
import os
import re
import traceback
from typing import Any

import torch

from benchmarks.gpu_check.finding import Case, Finding, Part, Setting, line
from fedlab_runner.tracking.jsonl import clean
from fedlab_runner.utils.system import die_with_parent

LOGGED = 12  # lines of a traceback


def carry_out(name: str, case: Case, say: Any, setting: Setting) -> None:
    """Says what the case finds; a GPU without room for it is no failure."""
    try:
        for finding in case():
            say(line(name, finding))
    except torch.OutOfMemoryError:
        say(line(name, Finding("", "does not fit into the GPU's memory", None)))
    except Exception as error:
        traceback.print_exc()
        why = (str(error).strip().splitlines() or ["nothing is said"])[0]
        log = traceback.format_exc().splitlines()[-LOGGED:]
        say(line(name, Finding("", f"{type(error).__name__}: {why}", False, {"log": log})))
    gc.collect()
    if setting.on_gpu:
        torch.cuda.synchronize()  # raises where the GPU has failed for this process
        torch.cuda.empty_cache()


def main() -> int:
    """The cases of one part, without those that are done."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_check.child")
    parser.add_argument("part")
    parser.add_argument("--parts", default="benchmarks.gpu_check.parts", help="the module that has it")
    parser.add_argument("--report", type=int, required=True, help="the descriptor that lines go to")
    parser.add_argument("--device", required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", default="", help="cases whose 'part: case' has this regular expression")
    parser.add_argument("--without", default="[]", help="JSON: cases that are done")
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    die_with_parent(options.parent)
    torch.set_num_threads(1)
    setting = Setting(torch.device(options.device), options.tiny)
    parts: tuple[Part, ...] = importlib.import_module(options.parts).PARTS
    part = next(part for part in parts if part.name == options.part)
    without = set(json.loads(options.without))
    with os.fdopen(options.report, "w", buffering=1) as report:

        def say(line: dict[str, Any]) -> None:
            report.write(json.dumps(clean(line)) + "\n")

        for name, case in part.cases(setting):
            if name not in without and re.search(options.only, f"{part.name}: {name}"):
                say({"begins": name})
                carry_out(name, case, say, setting)
                say({"ends": name})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
