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
    columns: np.ndarray = library.linear_sum_assignment(np.nan_to_num(gains.cpu().numpy()), maximize=True)[1]
    return columns
