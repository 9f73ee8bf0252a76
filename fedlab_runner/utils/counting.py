"""Numbers of things in words."""


def count_of(count: int, what: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")
