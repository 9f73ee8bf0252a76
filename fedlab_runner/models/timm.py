"""Any image classifier of the timm library. https://github.com/huggingface/pytorch-image-models"""

import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any
from unittest import mock
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from torch import nn

from fedlab_runner.models._torch import find_weights, for_vmap, read_weights
from fedlab_runner.models.base import Architecture
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import within

HINT = "timm's own are at https://huggingface.co/timm"  # where to get weights, for messages
HUB_TIMEOUT_SECONDS = 3.0  # limit of a connection to the Hugging Face hub
# Arguments of timm that `kwargs` must not set.
RESERVED = {"model_name", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path"}
RESERVED |= {"num_classes", "in_chans", "img_size", "drop_rate"}  # arguments that other fields or the data set give


@dataclass(frozen=True)
class Timm(Architecture):
    """The model that `timm.create_model(name)` makes, for the data's channels, image size and classes.

    `pretrained` downloads timm's weights. `weights` is a local .safetensors or torch state dict of the same
    architecture, or a .npz file of the Vision Transformer's authors. timm adapts the weights to other channels, image
    sizes and classes. `drop_rate` is the dropout before the classifier. `kwargs` go unchanged to `timm.create_model`.
    """

    name: str
    pretrained: bool
    weights: str | None
    drop_rate: float
    kwargs: dict[str, Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pretrained and self.weights is not None:
            raise ValueError(f"weights must be null when pretrained is true, got '{self.weights}'")
        within("[0, 1)", drop_rate=self.drop_rate)
        if taken := sorted(RESERVED & self.kwargs.keys()):
            raise ValueError(f"kwargs must not set what the configuration or the data set does, got {', '.join(taken)}")

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        import timm

        known = timm.list_models() + timm.list_pretrained()
        if self.name not in known:
            near = ", ".join(get_close_matches(self.name, known)) or "see timm.list_models()"
            raise UserError(f"name must be a timm model, got '{self.name}' (nearest: {near})")
        source = timm.get_pretrained_cfg(self.name)
        assert source is not None  # every model in the list has one
        arguments = {**self.kwargs, "num_classes": num_classes, "in_chans": channels}
        if self.drop_rate > 0:  # not every model takes drop_rate
            arguments["drop_rate"] = self.drop_rate
        if source.fixed_input_size:  # timm's mark of a model that takes img_size
            arguments["img_size"] = image_size
        dtype, overlay = torch.get_default_dtype(), dict[str, Any]()
        if self.weights is not None:
            overlay = _overlay(self.weights, source.classifier, num_classes)
            arguments |= {"pretrained_cfg_overlay": overlay, "num_classes": overlay["num_classes"]}
            if any(value.dtype == torch.float64 for value in overlay.get("state_dict", {}).values()):
                dtype = torch.float64  # a network of float32 would round them, also for a run in float64
        try:
            if "state_dict" in overlay:
                channels_of_file = self._channels(source, overlay["state_dict"], arguments)
                overlay["input_size"] = (channels_of_file, *source.input_size[1:])
            with _hub() if self.pretrained else nullcontext(), _default(dtype):
                model: Any = timm.create_model(self.name, self.pretrained or self.weights is not None, **arguments)
        except Exception as error:  # timm, the architecture and the download can raise anything
            raise self._refused(error) from error
        model.pretrained_cfg.pop("state_dict", None)  # the weights are in the model now
        with _default(dtype):
            if arguments["num_classes"] != num_classes:
                model.reset_classifier(num_classes)
            _check(model, channels, image_size, num_classes, self.name)
        return for_vmap(model)

    def description(
        self,
        module: nn.Module,
        image_size: int,
        mean: Sequence[float] | None,
        std: Sequence[float] | None,
        class_names: Sequence[str],
    ) -> dict[str, Any]:
        """The config.json by which `timm.create_model("local-dir:<folder>", pretrained=True)` makes this model."""
        model: Any = module
        source: dict[str, Any] = model.pretrained_cfg
        sized = {"img_size": image_size} if source.get("fixed_input_size") else {}
        channels = len(mean or ()) or 3
        about: dict[str, Any] = {
            key: source[key] for key in ("first_conv", "classifier", "fixed_input_size") if key in source
        }
        about |= {"input_size": [channels, image_size, image_size], "num_classes": len(class_names)}
        about |= {"mean": list(mean or ()), "std": list(std or ())}
        about |= {"interpolation": "bilinear", "crop_pct": 1.0, "crop_mode": "squash", "custom_load": False}
        return {
            "architecture": source["architecture"],
            "num_classes": len(class_names),
            "num_features": model.num_features,
            "label_names": list(class_names),
            "model_args": {**self.kwargs, **sized, "in_chans": channels},
            "pretrained_cfg": about,
        }

    def _channels(self, source: Any, weights: dict[str, torch.Tensor], arguments: dict[str, Any]) -> int:
        """The channels of a file's network, by its first convolution; those of timm's own weights if it has none."""
        import timm

        usual: int = source.input_size[0]
        names = (source.first_conv,) if isinstance(source.first_conv, str) else source.first_conv or ()
        shapes = {name: weights[f"{name}.weight"].shape for name in names if f"{name}.weight" in weights}
        name, shape = next(((name, shape) for name, shape in shapes.items() if len(shape) == 4), ("", ()))
        if not shape or shape[1] == usual:
            return usual
        with torch.device("meta"):
            model: Any = timm.create_model(self.name, **arguments)
        # a convolution may read several values of a channel, such as those of 4 x 4 pixels
        channels: int = shape[1] * arguments["in_chans"] // model.get_submodule(name).weight.shape[1]
        return max(1, channels)

    def _refused(self, error: Exception) -> UserError:
        reason = _first_line(error)
        if self.weights is not None and not isinstance(error, TypeError):
            return UserError(f"weights must fit timm's '{self.name}', got '{self.weights}': {reason}")
        if self.pretrained and not isinstance(error, TypeError):
            return UserError(f"pretrained cannot be true for timm's '{self.name}', use weights=<local file>: {reason}")
        return UserError(f"kwargs or image_size do not suit timm's '{self.name}': {reason}")


@contextmanager
def _hub() -> Iterator[None]:
    """Sets the Hugging Face hub offline if it does not answer at once, because its retries take a minute.

    Files of earlier downloads come from its cache in both cases.
    """
    from huggingface_hub import constants

    host = urlsplit(constants.ENDPOINT)
    offline: AbstractContextManager[Any] = nullcontext()
    try:
        if not constants.HF_HUB_OFFLINE and not getproxies():  # behind a proxy a connection proves nothing
            port = host.port or (80 if host.scheme == "http" else 443)
            socket.create_connection((host.hostname or "", port), HUB_TIMEOUT_SECONDS).close()
    except OSError:
        offline = mock.patch.object(constants, "HF_HUB_OFFLINE", True)
    with offline:
        yield


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    """PyTorch makes parameters of this type within the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _overlay(path: str, classifier: str | tuple[str, ...] | None, num_classes: int) -> dict[str, Any]:
    """The settings with which timm loads a local file: its tensors and its classes (0: the file has no classifier).

    With the file's number of classes timm loads it strictly; with any other number it would ignore names that do not
    match. The model itself reads a .npz, and takes the classifier only if it has as many classes as the data.
    """
    if path.endswith(".npz"):
        return {"file": str(find_weights(path, HINT)), "custom_load": True, "num_classes": num_classes}
    weights = read_weights(path, HINT)
    if any(name.endswith(".lora_a") for name in weights):
        raise UserError(
            f"weights must be without LoRA, got '{path}', which a run with LoRA has saved: begin from it with "
            "model=pretrained model@model.base=vit_lora"
        )
    heads = (classifier,) if isinstance(classifier, str) else classifier or ()
    classes = [len(weights[f"{head}.weight"]) for head in heads if f"{head}.weight" in weights]
    return {"state_dict": weights, "num_classes": classes[0] if classes else 0, "label_offset": 0}


def _check(model: nn.Module, channels: int, image_size: int, num_classes: int, name: str) -> None:
    """Runs the model on one image, as timm notices a wrong size only then. Raises ValueError, named after the field."""
    model.eval()
    try:
        with torch.no_grad():
            logits = model(torch.zeros(1, channels, image_size, image_size))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise ValueError(f"image_size must suit timm's '{name}', got {image_size}: {_first_line(error)}") from error
    model.train()
    if not isinstance(logits, torch.Tensor) or logits.shape != (1, num_classes):
        raise ValueError(
            f"name and kwargs must give a classifier of {num_classes} classes, which timm's '{name}' is not"
        )


def _first_line(error: Exception) -> str:
    """The first line of a message; if it ends in a colon, also the first thing that the second line lists."""
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    if not first.endswith(":") or not others:
        return first.rstrip(":")
    listed, more, _ = others[0].strip().partition('", ')
    return f"{first} {listed}{more[:1]}"
