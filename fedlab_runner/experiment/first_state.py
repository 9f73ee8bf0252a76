"""Holds an algorithm's first State against the contract."""

from typing import Any

from torch import Tensor

from fedlab_runner.checkpoints.state_packing import pack
from fedlab_runner.core.algorithm import Algorithm, ServerAlgorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.updates import tensors_in
from fedlab_runner.utils.contract import is_named, require


def first_state(algorithm: Algorithm[Any], fed: Federation) -> Any:
    """The State that `init` gives. Raises UserError unless it is a NamedTuple of tensors without a gradient's history
    that has, where there is a server, the server's model [D].
    """
    state = algorithm.init(fed)
    require(is_named(state), algorithm, "init", "a NamedTuple, the State", state)
    free = not any(tensor.requires_grad for tensor in tensors_in(state))
    require(free, algorithm, "init", "a State of tensors without a gradient's history (x.detach())", state)
    if isinstance(algorithm, ServerAlgorithm):
        found = type(algorithm).server_model is not ServerAlgorithm.server_model or "params" in state._fields
        require(found, algorithm, "init", "a State with a field params, the server's model [D]", state)
        model: Any = algorithm.server_model(state)
        right = isinstance(model, Tensor) and model.is_floating_point() and model.shape == (fed.family.size,)
        require(right, algorithm, "init", f"as the server's model a tensor of floats [{fed.family.size}]", model)
    pack(state, of=f"the State that {type(algorithm).__name__}.init gives")  # or fails before the first round
    check_models(algorithm, fed, state)
    return state


def check_models(algorithm: Algorithm[Any], fed: Federation, state: Any) -> None:
    """Raises UserError unless `Algorithm.models` gives a model [D], or by client the model of each client."""
    found: Any = algorithm.models(state)
    if not isinstance(found, dict):
        words = f"the server's model, floats [{fed.family.size}], or a dict of all clients' models"
        require(_is_model(found, fed.family), algorithm, "models", words, found)
        return
    lacking = next((client for client in range(fed.num_clients) if client not in found), None)
    words = f"the model of each client from 0 to {fed.num_clients - 1}"
    require(lacking is None, algorithm, "models", words, f"none of client {lacking}")
    for client, ref in found.items():
        family = fed.families[client % len(fed.families)]
        right = isinstance(ref, int) or _is_model(ref, family)  # a slot in a file, or the row itself
        words = f"for client {client} a row [{family.size}] of {family.dtype}"
        require(right, algorithm, "models", words, ref)


def _is_model(value: Any, family: ModelFamily) -> bool:
    return isinstance(value, Tensor) and value.shape == (family.size,) and value.dtype == family.dtype
