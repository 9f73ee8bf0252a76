"""Rounds products of a share and a number down or up.

The product of two floats may miss the whole number that is meant: 0.29 * 100 is 28.999999999999996, and 1.1 * 50 is
55.00000000000001.
"""

import math

ROUNDING = 1e-9  # the largest distance by which a product may miss the whole number that is meant


def rounded_down(product: float) -> int:
    """floor(product), or the next whole number if the product misses that by the rounding of floats."""
    return math.floor(product + ROUNDING)


def rounded_up(product: float) -> int:
    """ceil(product), or the whole number before if the product exceeds that by the rounding of floats."""
    return math.ceil(product - ROUNDING)
