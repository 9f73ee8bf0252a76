"""The Hungarian method (Kuhn, 1955)."""

from typing import Any

import numpy as np
from torch import Tensor


def hungarian(gains: Tensor) -> np.ndarray:
    """The columns [n] int64 that n rows are assigned to, all different, so that the sum of `gains` [n, m >= n] is the
    largest.

    What is not finite counts as nothing: models that have diverged are noticed by the run, not here.
    """
    import scipy.optimize

    library: Any = scipy.optimize
    values = gains.cpu().numpy()
    finite = values if np.isfinite(values).all() else np.nan_to_num(values)
    columns: np.ndarray = library.linear_sum_assignment(finite, maximize=True)[1]
    return columns
