"""`make gpu-check`: proves this package on a GPU, in ten minutes at most, with what the repository has.

    python -m benchmarks.gpu_check [--only REGEX] [--minutes 10] [--out outputs/gpu-check]
Each part is a process of its own and may fail, crash or hang; the others continue. What is found is in one JSON and one
Markdown file after each finding. Exit code 0: all that was claimed holds, or was not come to in time; 1: something does
not hold; 2: there is no GPU, or the command is wrong.
"""

import argparse
import datetime
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check.finding import Finding, Part, Setting, line
from benchmarks.gpu_check.table import counted, table
from benchmarks.gpu_check.watch import TO_BEGIN, TO_END, Ended, watch
from benchmarks.run import commit
from fedlab_runner.utils.files import write_text_atomically
from fedlab_runner.utils.system import processor, usable_cores

WORTH_BEGINNING = 20.0  # seconds that must be left for another part
PARTS = "benchmarks.gpu_check.parts"


class Check:
    """What is found, in two files as it comes."""

    def __init__(self, folder: Path, results: dict[str, Any], options: argparse.Namespace) -> None:
        self.results, self._folder, self._options, self._lock = results, folder, options, threading.Lock()
        self._until = time.monotonic() + 60 * options.minutes
        self._over = f"the {options.minutes:g} minutes were over"

    def save(self) -> None:
        """Whole at any time, whichever part asks for it."""
        with self._lock:
            write_text_atomically(self._folder / "gpu-check.json", json.dumps(self.results, indent=1) + "\n")
            write_text_atomically(self._folder / "gpu-check.md", table(self.results) + "\n")

    def carry_out_all(self, parts: Sequence[Part]) -> None:
        """Those that time nothing side by side, one for each core at most, and then the others one after another."""
        places = threading.BoundedSemaphore(usable_cores())

        def one(part: Part) -> None:
            with places:
                self.carry_out(part)

        for part in parts:
            self.results["parts"][part.name] = {"state": "waits", "seconds": 0.0, "findings": []}
        # An interrupted check does not wait for these threads, and their processes end with it.
        threads = [threading.Thread(target=one, args=[part], daemon=True) for part in parts if not part.alone]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for part in parts:
            if part.alone:
                self.carry_out(part)

    def carry_out(self, part: Part) -> None:
        """All cases of a part; where its process dies, those that are left are carried out in another."""
        record: dict[str, Any] = self.results["parts"][part.name]
        record["state"] = "running"
        began, done = time.monotonic(), list[str]()
        if self._until - began < WORTH_BEGINNING:
            record["state"] = f"skipped: {self._over}"
            self.save()
            return
        self.save()
        while True:
            before = len(done)
            running, ended = self._attempt(part, record, done, min(self._until, began + part.seconds))
            record["seconds"] = time.monotonic() - began
            if not ended.why:
                record["state"] = "done"
                break
            timed_out = time.monotonic() >= min(self._until, began + part.seconds)
            holds = False if ended.failed or (timed_out and time.monotonic() < self._until) else None
            record["findings"].append(line(running or "", Finding("", ended.why, holds, {"log": ended.log})))
            done += [running] if running else []
            if timed_out or len(done) == before:
                record["state"] = f"not done: {ended.why}"
                break
        self.save()

    def _attempt(self, part: Part, record: dict[str, Any], done: list[str], until: float) -> tuple[str | None, Ended]:
        """One process with the cases that are not done; the one that it was at when it ended."""
        running: str | None = None

        def hear(said: dict[str, Any]) -> float:
            nonlocal running
            if "begins" in said:
                running = said["begins"]
                return part.seconds_a_case
            if "ends" in said:
                done.append(said["ends"])
                running = None
                return TO_END + TO_BEGIN
            record["findings"].append(said)
            self.save()
            print(f"{part.name}: {said['case']}, {said['name']}: {said['words']}", file=sys.stderr, flush=True)
            return part.seconds_a_case

        o = self._options
        words = [
            sys.executable,
            "-m",
            "benchmarks.gpu_check.child",
            part.name,
            "--parts",
            o.parts,
            "--device",
            o.device,
        ]
        words += ["--only", o.only, "--without", json.dumps(done), "--parent", str(os.getpid()), *["--tiny"] * o.tiny]
        over = self._over if until == self._until else f"took longer than the part's {part.seconds:.0f} s"
        ended = watch([*words, "--report"], hear, until, over)
        return running, ended


def machine(device: str) -> dict[str, Any]:
    """What it is found on."""
    gpu = torch.cuda.get_device_properties(device) if device.startswith("cuda") else None
    return {
        "gpu": f"{gpu.name} ({gpu.total_memory / 2**30:.0f} GiB)" if gpu else "no GPU",
        "driver": _driver() if gpu else "none",
        "cuda": torch.version.cuda or "none",
        "torch": torch.__version__,
        "cores": usable_cores(),
        "processor": processor(),
    }


def _driver() -> str:
    if shutil.which("nvidia-smi") is None:
        return "unknown"
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return (subprocess.run(words, capture_output=True, text=True).stdout.split() or ["unknown"])[0]


def selected(part: Part, only: str, setting: Setting) -> bool:
    """Whether a case of the part has this regular expression, or the part does not say which cases it has."""
    try:
        return any(re.search(only, f"{part.name}: {case}") for case, _ in part.cases(setting))
    except Exception:
        return re.search(only, part.name) is not None


def main(words: Sequence[str] | None = None) -> int:
    """Carries out what is asked for; the table on stdout at the end."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_check", description="prove this package on a GPU")
    parser.add_argument("--only", default="", help="cases whose 'part: case' has this regular expression")
    parser.add_argument("--minutes", type=float, default=10.0, help="after which nothing begins or continues")
    parser.add_argument("--out", type=Path, default=Path("outputs/gpu-check"), help="the folder for JSON and Markdown")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, ...; cpu with --tiny: only to test the check")
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    parser.add_argument("--parts", default=PARTS, help=argparse.SUPPRESS)  # a module with other ones
    options = parser.parse_args(words)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("error: make gpu-check needs a CUDA GPU, and torch finds none", file=sys.stderr)
        return 2
    results: dict[str, Any] = {
        "machine": machine(options.device),
        "commit": commit() or "unknown",
        "command": shlex.join(["python", "-m", "benchmarks.gpu_check", *(sys.argv[1:] if words is None else words)]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "parts": {},
    }
    options.out.mkdir(parents=True, exist_ok=True)
    check, setting = Check(options.out, results, options), Setting(torch.device(options.device), options.tiny)
    parts: tuple[Part, ...] = importlib.import_module(options.parts).PARTS
    with tempfile.TemporaryDirectory(prefix="fedlab-gpu-check-") as cache:
        os.environ["XDG_CACHE_HOME"] = cache  # executor=auto measures now, and what it finds is not kept
        check.carry_out_all([part for part in parts if selected(part, options.only, setting)])
    print(table(results))
    print(counted(results), file=sys.stderr)
    found = results["parts"].values()  # a part that still runs has raised here
    return int(any(part["state"] == "running" or any(f["holds"] is False for f in part["findings"]) for part in found))
