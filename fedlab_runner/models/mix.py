"""Several architectures in one federation."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedlab_runner.models.base import Architecture
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class Mix:
    """Client i has the architecture `models[i % A]` of A, for algorithms that allow several architectures.

    All models read inputs of `channels` and `image_size`; their own fields of these names are null or the same.
    """

    channels: int | None
    image_size: int | None
    models: list[Architecture]

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("models must be a list of models, each with a _target_, got []")
        at_least(1, channels=self.channels, image_size=self.image_size)
        for name in ("channels", "image_size"):
            wanted: int | None = getattr(self, name)
            for i, model in enumerate(self.models):
                if (of_model := getattr(model, name)) not in (None, wanted):
                    same = "null" if wanted is None else f"null or {wanted}"
                    raise ValueError(
                        f"{name} must be {same} in models[{i}] as for all, got {of_model}: set model.{name} for all"
                    )

    def architectures(self) -> Sequence[Architecture]:
        return self.models
