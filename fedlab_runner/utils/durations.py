"""How numbers are said to people."""


def duration(seconds: float) -> str:
    """In the unit that a reader wants."""
    if seconds < 1:
        return "less than 1 s"
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes} min" if minutes < 120 else f"{seconds / 3600:.1f} h"
