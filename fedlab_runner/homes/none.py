"""Nothing stays at home."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NoHome:
    """Clients share their whole models."""
