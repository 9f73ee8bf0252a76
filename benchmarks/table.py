"""What `make bench` has found, as a table in Markdown and as a picture of what a round's cost grows with.

python -m benchmarks.table FILE [PICTURE]
"""

import json
import sys
from pathlib import Path
from typing import Any

# What a round's cost is drawn against, and whether that axis and the milliseconds are logarithmic.
GROWTH = {
    "round by K": ("clients in a round", True, True),
    "round by D": ("values of a model", True, True),
    "round by N": ("clients", True, False),
    "round by staleness": ("spread of the delays (rounds)", False, False),
}


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
    busy = f" and {here['neighbours']} busy neighbours" if here.get("neighbours") else ""
    lines += ["", f"{here['processor']}, {here['cores']} cores, load {here['load']:.1f}{busy};"]
    lines += [
        f"matrix products {here['matrix_gflops_a_second']:.0f} GFLOP/s; torch {here['torch']}; {here['commit'][:7]}"
    ]
    return "\n".join(lines)


def plot(path: Path, results: dict[str, Any]) -> None:
    """Milliseconds of a round against N, K, D and the spread of delays, of each contender."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib.figure import Figure

    points = {what: _points(results["rows"], what) for what in GROWTH}
    wanted = {what: found for what, found in points.items() if found}
    figure = Figure(figsize=(3 * len(wanted), 2.8), layout="constrained")
    panels = figure.subplots(1, len(wanted), squeeze=False)[0]
    for axes, (what, curves) in zip(panels, wanted.items(), strict=True):
        label, wide, steep = GROWTH[what]
        for name, curve in curves.items():
            axes.plot(*zip(*curve, strict=True), "o-", label=name)
        axes.set(xlabel=label, xscale="log" if wide else "linear", yscale="log" if steep else "linear")
        if not steep:
            axes.set_ylim(0, 1.25 * max(y for curve in curves.values() for _, y in curve))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("ms a round")
    panels[0].legend()
    figure.savefig(path, dpi=120)


def _points(rows: dict[str, Any], what: str) -> dict[str, list[tuple[float, float]]]:
    """Of each contender, milliseconds by the value of `what` that stands in the rows' names."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for row, contenders in rows.items():
        prefix, _, value = row.partition("=")
        if prefix == what:
            for name, found in contenders.items():
                curves.setdefault(name, []).append((float(value), 1e3 * found["seconds"]))
    return curves


if __name__ == "__main__":
    content = json.loads(Path(sys.argv[1]).read_text())
    print(table(content))
    if len(sys.argv) > 2:
        plot(Path(sys.argv[2]), content)
