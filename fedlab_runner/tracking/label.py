"""What a tracker shows besides a run's numbers: a name for people, tags, a group and entries in the config."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Label:
    """How a tracker shows a run.

    name: for people, e.g. `Feddle-ID delay.std=20 seed=1`; empty: the run's id. method: its name in papers. tags: its
    choices. group: the setting, which is the same for all seeds. config: what the tracker's config has beside the
    run's own: the choices, the setting and the sweeps that the run belongs to.
    """

    name: str = ""
    method: str = ""
    tags: tuple[str, ...] = ()
    group: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
