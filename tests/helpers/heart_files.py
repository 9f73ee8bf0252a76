"""Small files in the form of UCI's Heart Disease."""

from pathlib import Path

import numpy as np

from fedlab_runner.datasets.fed_heart import HOSPITALS

SIZES = (60, 41, 12, 30)  # patients of the hospitals, all without a missing value in the columns that are used


def write_heart(root: Path) -> None:
    """Writes the four files. The second hospital's cholesterol is constant, and the third's patients are all ill."""
    rng = np.random.default_rng(3)
    folder = root / "fed_heart"
    folder.mkdir(parents=True)
    for hospital, (name, n) in enumerate(zip(HOSPITALS, SIZES, strict=True)):
        columns = np.stack(
            [
                rng.integers(30 + 8 * hospital, 60 + 8 * hospital, n),  # age
                rng.integers(0, 2, n),  # sex
                1 + np.arange(n) % 4,  # cp
                rng.integers(90, 180, n),  # trestbps
                np.zeros(n, int) if hospital == 1 else rng.integers(150, 300, n),  # chol
                rng.integers(0, 2, n),  # fbs
                np.arange(n) % 3,  # restecg
                rng.integers(80, 190, n),  # thalach
                rng.integers(0, 2, n),  # exang
                rng.integers(0, 3, n),  # oldpeak
                np.full(n, 7),  # slope, dropped
                np.full(n, 7),  # ca, dropped
                np.full(n, 7),  # thal, dropped
                rng.integers(1, 5, n) if hospital == 2 else rng.integers(0, 5, n),
            ],
            1,
        )
        lines = [",".join([*(f"{value:.1f}" for value in row[:-1]), str(row[-1])]) for row in columns.tolist()]
        (folder / f"processed.{name}.data").write_text("\n".join(lines) + "\n")
