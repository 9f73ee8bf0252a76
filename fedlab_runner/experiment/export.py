"""The final models of a run as a safetensors file, which other programs read."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.utils.files import write_atomically

MODEL_FILE = "model.safetensors"


def save_models(path: Path, models: Sequence[tuple[ModelFamily, Tensor]], round: int) -> None:
    """Writes models [D], each with its family, frozen parameters included; the metadata has the `round`.

    A tensor is named as in PyTorch; with several models its name is `<i>.<name>`.
    """
    from safetensors.torch import save

    named = [family.state_dict(w) for family, w in models]
    tensors = {
        name if len(named) == 1 else f"{i}.{name}": value.cpu().contiguous()
        for i, values in enumerate(named)
        for name, value in values.items()
    }
    content = save(tensors, metadata={"round": str(round)})
    write_atomically(path, lambda file: file.write(content))
