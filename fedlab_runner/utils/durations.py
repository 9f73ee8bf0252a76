"""Durations in words."""


def duration(seconds: float) -> str:
    """Seconds in the unit that reads best: `less than 1 s`, `80 s`, `25 min`, `3.1 h`."""
    if seconds < 1:
        return "less than 1 s"
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes} min" if minutes < 120 else f"{seconds / 3600:.1f} h"
