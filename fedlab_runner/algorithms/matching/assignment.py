"""The Hungarian method (Kuhn, 1955)."""

from typing import Any

import numpy as np
from torch import Tensor


def hungarian(gains: Tensor) -> np.ndarray:
    """The columns [n] int64, all different, that maximise the sum of `gains` [n, m >= n] over the n rows.

    Gains that are not finite count as 0 or as the largest finite value. The run itself detects models that diverge.
    """
    import scipy.optimize

    library: Any = scipy.optimize
    values = gains.cpu().numpy()
    finite = values if np.isfinite(values).all() else np.nan_to_num(values)
    if finite.size:
        best: np.ndarray = finite.argmax(1)
        if np.bincount(best).max() == 1:  # nobody competes for the row's best column, as where little has moved
            return best
    columns: np.ndarray = library.linear_sum_assignment(finite, maximize=True)[1]
    return columns
