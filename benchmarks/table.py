"""What `make bench` has found, as a table in Markdown and as a picture of what a round's cost grows with.

python -m benchmarks.table FILE [PICTURE]
"""

import json
import sys
from pathlib import Path
from typing import Any

GROWTH = {"round by K": "clients in a round", "round by N": "clients", "round by D": "values of a model"}
LATE = {"round by staleness": "spread of the delays (rounds)"}


def table(results: dict[str, Any]) -> str:
    """All rows, a line for each contender."""
    lines = ["| row | contender | ms | of one | speed | of the limit |", "|---|---|---|---|---|---|"]
    for row, contenders in results["rows"].items():
        for name, found in contenders.items():
            piece = f"{found['ms_a_piece']:.3g} ms a {found['piece']}" if "piece" in found else ""
            limit = f"{found['limit']:.0%}" if "limit" in found else ""
            shown = f"{name} ({found['note']})" if "note" in found else name
            lines.append(
                f"| {row} | {shown} | {1e3 * found['seconds']:.4g} | {piece} | {found['speed']:.2f} | {limit} |"
            )
    here = results["machine"]
    lines += ["", f"{here['processor']}, {here['cores']} cores, load {here['load']:.1f};"]
    lines += [
        f"matrix products {here['matrix_gflops_a_second']:.0f} GFLOP/s; torch {here['torch']}; {here['commit'][:7]}"
    ]
    return "\n".join(lines)


def plot(path: Path, results: dict[str, Any]) -> None:
    """Milliseconds of a round against N, K, D and the spread of delays."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib.figure import Figure

    wanted = {row: label for row, label in (GROWTH | LATE).items() if row in results["rows"]}
    figure = Figure(figsize=(3 * len(wanted), 2.8), layout="constrained")
    for axes, (row, label) in zip(figure.subplots(1, len(wanted), squeeze=False)[0], wanted.items(), strict=True):
        found = results["rows"][row]
        x = [float(name.partition("=")[2]) for name in found]
        axes.plot(x, [1e3 * each["seconds"] for each in found.values()], "o-")
        if row in GROWTH:
            axes.set_xscale("log")
            axes.set_yscale("log")
        axes.set(xlabel=label, ylabel="ms a round", ylim=(0, None) if row in LATE else None)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    content = json.loads(Path(sys.argv[1]).read_text())
    print(table(content))
    if len(sys.argv) > 2:
        plot(Path(sys.argv[2]), content)
