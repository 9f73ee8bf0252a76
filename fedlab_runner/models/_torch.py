"""Adapts models of other libraries to vmap, and reads their weights."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from fedlab_runner.utils.errors import UserError


def for_vmap(model: nn.Module) -> nn.Module:
    """Changes a model so that it runs under `vmap(grad(...))` and with the values of one model after another, with the
    same results, and returns it.

    vmap refuses activations that overwrite an input that is not batched or is still needed. It runs fused attention
    client by client; timm has plain attention too. In evaluation timm keeps attention's biases from the first call on;
    here each call takes those of its own model.
    """
    for module in model.modules():
        for switch in {"inplace", "fused_attn"} & vars(module).keys():
            vars(module)[switch] = False
        if hasattr(module, "attention_bias_cache"):
            vars(module)["get_attention_biases"] = partial(_attention_biases, module)
    return model


def _attention_biases(module: nn.Module, device: torch.device) -> Tensor:
    biases: Tensor = module.attention_biases[:, module.attention_bias_idxs]  # type: ignore[index]  # timm's names
    return biases


def find_weights(path: str, hint: str) -> Path:
    """A local file. If it does not exist, raises UserError that ends with `hint`, which says where to get the file."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"weights must be a local file, got '{path}', which does not exist; {hint}")
    return file


def read_weights(path: str, hint: str) -> dict[str, Tensor]:
    """The state dict in a local .safetensors or torch file. Executes nothing in the file.

    Raises UserError that says what is wrong with the file and ends with `hint`, which says where to get a right one.
    """
    file = find_weights(path, hint)
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            weights = load_file(file)
        else:
            weights = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise anything, from EOFError to UnpicklingError
        raise UserError(f"weights must be a state dict, got '{path}', which cannot be read; {hint}") from error
    # an empty dict is refused too: timm would treat it as no weights and download its own
    if not isinstance(weights, dict) or not weights or not all(isinstance(value, Tensor) for value in weights.values()):
        raise UserError(f"weights must be a state dict (names to tensors), got '{path}', which is not one; {hint}")
    return weights


def load_weights(model: nn.Module, classifier: str, path: str, network: str, hint: str) -> None:
    """Puts the state dict in a local file into the model; a classifier of other classes stays as it was drawn.

    `classifier` is the name of the linear layer that gives the logits, `network` what the message calls the model.
    Raises UserError that names a tensor which is missing, unknown or of another shape, and ends with `hint`.
    """
    weights = read_weights(path, hint)
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    head = {name for name in own if name.startswith(f"{classifier}.")}
    if weights.keys() >= head and any(weights[name].shape[:1] != own[name].shape[:1] for name in head):
        weights |= {name: own[name] for name in head}
    # batch norm's counters of steps are missing from torchvision's own files
    missing = {name for name in own.keys() - weights.keys() if not name.endswith("num_batches_tracked")}
    other = {name for name in own.keys() & weights.keys() if own[name].shape != weights[name].shape}
    unknown = weights.keys() - own.keys()
    kinds = (("lacks {}", missing), ("has {} of another shape", other), ("has {}, which the network lacks", unknown))
    if wrong := [f"{words.format(min(names))} ({len(names)} such)" for words, names in kinds if names]:
        raise UserError(f"weights must fit {network}, got '{path}', which {' and '.join(wrong)}; {hint}")
    if any(value.dtype == torch.float64 for value in weights.values()):
        model.double()  # a network of float32 would round them, also for a run in float64
    model.load_state_dict(weights, strict=False)
