"""What the check has found, as a table in Markdown: python -m benchmarks.gpu_check.table FILE"""

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu_check import goals

SHOWN = 3  # last lines of what failed
VERDICTS = {True: "yes", False: "**no**", None: ""}


def table(results: dict[str, Any]) -> str:
    """All findings, a line each, below the machine and what is left of the time."""
    here = results["machine"]
    lines = [
        f"`{results['command']}`, {results['date']}, commit {results['commit']}",
        f"{here['gpu']}, driver {here['driver']}, CUDA {here['cuda']}, torch {here['torch']}, {here['cores']} cores "
        f"({here['processor']})",
        "",
        "| part | case | | found | holds |",
        "|---|---|---|---|---|",
    ]
    for name, part in results["parts"].items():
        for finding in part["findings"]:
            cells = name, finding["case"], finding["name"], _words(finding), VERDICTS[finding["holds"]]
            lines.append("| " + " | ".join(map(_cell, cells)) + " |")
        if part["state"] != "done":
            lines.append(f"| {_cell(name)} | | | {_cell(part['state'])} | |")
    lines += ["", "| row | goal | found | reached |", "|---|---|---|---|", *goals.rows(results)]
    return "\n".join([*lines, "", counted(results)])


def counted(results: dict[str, Any]) -> str:
    """How many findings hold, do not, or claim nothing, and the parts that are not done."""
    found = [finding["holds"] for part in results["parts"].values() for finding in part["findings"]]
    undone = [name for name, part in results["parts"].items() if part["state"] != "done"]
    words = f"{found.count(True)} hold, {found.count(False)} do not, {found.count(None)} claim nothing"
    return words + (f"; not done: {', '.join(undone)}" if undone else "")


def _words(finding: dict[str, Any]) -> str:
    log = finding["numbers"].get("log") or [] if finding["holds"] is False else []
    return "<br>".join([finding["words"], *(f"`{line.strip()}`" for line in log[-SHOWN:])])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text())))
