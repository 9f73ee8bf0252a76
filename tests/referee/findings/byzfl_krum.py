"""Krum adds up one distance too many.

Paper: Blanchard et al., section 4: a score is the sum over the n - f - 2 nearest other vectors. `Krum` and `MultiKrum`
sort the distances, the one to the vector itself first, and take those from 1 to n - f (aggregators/aggregators.py:531
and 648), which are n - f - 1. The theorems need the smaller number: a vector must not be judged by a Byzantine one.
"""

import numpy as np
from byzfl import Krum

vectors = np.array([[0.0], [4.0], [6.0], [12.0], [13.0]])
print("with f = 1 Krum takes", float(Krum(f=1)(vectors)[0]), "; right: 4.0, at distances 2 and 4 from its nearest two")
