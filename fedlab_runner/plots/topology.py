"""Picture of a topology: which clients can reach each other."""

from pathlib import Path

import numpy as np

from fedlab_runner.plots.style import BLUE, GREY, STYLE, new_figure, save
from fedlab_runner.topologies.graphs import describe

MAX_POINTS = 200  # clients drawn as points with links; more clients are drawn as a matrix
MAX_NUMBERED_POINTS = 40  # above which points have no numbers
LAYOUT_STEPS = 150  # iterations of the layout
CAPTION = "Clients, and which of them can send each other models:"  # of the picture; the numbers of the graph follow


def plot_topology(path: Path, linked: np.ndarray, title: str) -> None:
    """Draws an adjacency [N, N] into an image file: clients as points, with linked clients near each other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection
    from matplotlib.style import context

    with context(STYLE):
        figure = new_figure(6, 6, title, f"{CAPTION} {describe(linked)}.")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        axes.grid(False)
        if len(linked) > MAX_POINTS:
            # Sampled before colours are given: those of all links are 32 bytes for each pair of clients.
            axes.imshow(linked, cmap="Blues", interpolation="nearest", interpolation_stage="data", vmin=0, vmax=1)
            axes.set_xlabel("client")
            axes.set_ylabel("client")
        else:
            places, ends = layout(linked), np.argwhere(np.triu(linked))
            numbered = len(linked) <= MAX_NUMBERED_POINTS
            strength = min(1.0, max(0.25, 60 / max(len(ends), 1)))
            axes.add_collection(LineCollection(list(places[ends]), colors=GREY, linewidths=0.8, alpha=strength))
            axes.scatter(
                places[:, 0], places[:, 1], s=200 if len(linked) <= MAX_NUMBERED_POINTS else 25, color=BLUE, zorder=2
            )
            if numbered:
                for client, (x, y) in enumerate(places):
                    axes.text(x, y, str(client), ha="center", va="center", fontsize=7, color="w", zorder=3)
            middle = (places.max(0) + places.min(0)) / 2
            half = 0.55 * (float(np.ptp(places, axis=0).max()) or 2.0)  # a square, although two clients are on a line
            axes.set(xlim=middle[0] + np.array([-half, half]), ylim=middle[1] + np.array([-half, half]), aspect="equal")
            axes.set_axis_off()
        save(figure, path)


def layout(linked: np.ndarray) -> np.ndarray:
    """Places [N, 2] of clients, which repel each other while their links hold them together.

    The layout starts from a circle and follows the forces of Fruchterman and Reingold (Software: Practice and
    Experience, 1991).
    """
    n = len(linked)
    angles = np.pi / 2 - 2 * np.pi * np.arange(n) / max(n, 1)
    places = np.stack([np.cos(angles), np.sin(angles)], 1)
    spacing = 2 / np.sqrt(max(n, 1))
    for step in range(LAYOUT_STEPS if n > 2 else 0):
        between = places[:, None] - places
        distance = np.maximum(np.linalg.norm(between, axis=-1), 1e-6)
        pull = spacing**2 / distance**2 - np.where(linked, distance / spacing, 0)
        force = (between * pull[..., None]).sum(1)
        length = np.maximum(np.linalg.norm(force, axis=1, keepdims=True), 1e-9)
        places = places + force / length * np.minimum(length, 0.2 * (1 - step / LAYOUT_STEPS))
    return places
