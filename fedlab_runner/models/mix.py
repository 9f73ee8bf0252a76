"""Several architectures in one federation."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedlab_runner.models.base import Architecture


@dataclass(frozen=True)
class Mix:
    """Client i has the architecture `models[i % A]`, of A; all see the same inputs, as `channels` and `image_size` say.

    Those of the models themselves are null or the same. For algorithms that take models of different architectures.
    """

    channels: int | None
    image_size: int | None
    models: list[Architecture]

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("models must be a list of models, each with a _target_, got []")
        for name in ("channels", "image_size"):
            wanted: int | None = getattr(self, name)
            if wanted is not None and wanted < 1:
                raise ValueError(f"{name} must be null or >= 1, got {wanted}")
            for i, model in enumerate(self.models):
                if (of_model := getattr(model, name)) not in (None, wanted):
                    raise ValueError(f"{name} must be null in models[{i}] or {wanted} as for all, got {of_model}")

    def architectures(self) -> Sequence[Architecture]:
        """What the clients have."""
        return self.models
