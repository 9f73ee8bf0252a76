"""A number in few characters."""


def short_number(number: float, digits: int = 3) -> str:
    """The number with at most so many digits, and an exponent if it is large or tiny: `0.0123`, `1.5e-5`, `3e36`."""
    mantissa, mark, exponent = f"{number:.{digits}g}".partition("e")
    return f"{mantissa}{mark}{int(exponent)}" if mark else mantissa
