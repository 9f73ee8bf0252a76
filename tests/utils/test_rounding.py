"""Shares of numbers, as decimals that floats do not have."""

from fractions import Fraction
from math import ceil, floor

from fedlab_runner.utils.rounding import rounded_down, rounded_up


def test_products_of_decimals_are_rounded_as_if_they_were_exact() -> None:
    numbers = [*range(301), 10**6]
    for hundredths in range(301):
        factor, exact = hundredths / 100, Fraction(hundredths, 100)
        for n in numbers:
            assert (rounded_down(factor * n), rounded_up(factor * n)) == (floor(exact * n), ceil(exact * n))


def test_what_is_no_rounding_of_floats_counts() -> None:
    assert rounded_down(2.9999999) == 2 and rounded_up(3.0000001) == 4
