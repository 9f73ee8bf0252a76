"""The final models of a run as a safetensors file, which other programs read."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.files import write_atomically, write_text_atomically

DESCRIPTION_FILE = "config.json"  # which the library of the architecture reads besides the weights
ABOUT = "fedlab_runner"  # the key of the metadata; safetensors writes several in a random order


def check_savable(family: ModelFamily) -> None:
    """Raises UserError if a file of models cannot hold those of a family."""
    for name, value in family.module.state_dict().items():
        if isinstance(value, Tensor) and value.dtype == torch.complex128:
            raise UserError(
                f"logger.save_model must be false for the model's {name} of complex128, which safetensors does not "
                "have: take precision=float32, or load() the run from its checkpoint"
            )


def save_models(path: Path, models: Sequence[tuple[ModelFamily, Tensor]], round: int) -> None:
    """Writes models [D] with their families' frozen parameters: equal models are equal bytes. The metadata has the
    number of models and `round`.

    A tensor has its name from PyTorch; with several models the name is `<i>.<name>`.
    """
    from safetensors.torch import save

    named = [family.state_dict(w) for family, w in models]
    tensors = {
        name if len(named) == 1 else f"{i}.{name}": value.cpu().contiguous()
        for i, values in enumerate(named)
        for name, value in values.items()
    }
    content = save(tensors, metadata={ABOUT: json.dumps({"round": round, "models": len(named)})})
    write_atomically(path, lambda file: file.write(content))


def saved_round(path: Path) -> int | None:
    """The round of a file of models; None if it does not exist. Raises UserError for a damaged file."""
    return _read(path)[0] if path.exists() else None


def read_models(path: Path) -> list[dict[str, Tensor]]:
    """The tensors of each model in a file by name, on the CPU. Raises UserError for a damaged file."""
    _, count, tensors = _read(path)
    if count == 1:
        return [tensors]
    models: list[dict[str, Tensor]] = [{} for _ in range(count)]
    for name, value in tensors.items():
        number, _, rest = name.partition(".")
        if not number.isdecimal() or int(number) >= count:
            raise _damaged(path, f"has a tensor {name!r} of none of its {count} models")
        models[int(number)][rest] = value
    return models


def save_description(folder: Path, description: dict[str, Any]) -> Path:
    """Writes the description that the library of an architecture reads besides the weights; returns the file."""
    path = folder / DESCRIPTION_FILE
    write_text_atomically(path, json.dumps(description, indent=2) + "\n")
    return path


def _read(path: Path) -> tuple[int, int, dict[str, Tensor]]:
    """The round, the number of models, and all tensors."""
    from safetensors import safe_open

    if not path.is_file():
        raise _damaged(path, "is no plain file")
    try:
        with safe_open(path, "pt") as file:
            about = json.loads(file.metadata()[ABOUT])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
            return int(about["round"]), int(about["models"]), tensors
    except Exception as error:  # a damaged file can raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise _damaged(path, f"cannot be read ({reason})") from None


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path} {what}: delete it, and run the experiment again with logger.save_model=true")
