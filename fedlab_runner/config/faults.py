"""Faults of a config beyond types: ranges of the top-level values, and values that do not go together."""

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import at_least, one_of, within

PRECISIONS = ("float32", "bfloat16", "float64")  # values of the key `precision`
MAX_THREADS = max(64, 4 * (os.cpu_count() or 1))  # more threads wait for each other, and the system may refuse them
MAX_SEED = 2**48  # the key of a stream of random numbers has 48 bits for the seed (`core.rng`)
NONFINITE = ("stop", "drop", "zero", "clip")  # what `core.update_guard` can do about an update that is not finite


def of_settings(values: Mapping[str, Any], errors: list[str]) -> list[str]:
    """The range faults of the top-level values, for those of the right type."""
    checks: dict[str, Callable[..., None]] = {
        "rounds": partial(at_least, 0),
        "seed": partial(within, f"[0, {MAX_SEED})"),
        "num_clients": partial(at_least, 1),
        "threads": partial(within, f"[1, {MAX_THREADS}]"),
        "train_fraction": partial(within, "(0, 1]"),
        "label_noise": partial(within, "[0, 1]"),
        "nonfinite": partial(one_of, NONFINITE),
        "precision": partial(one_of, PRECISIONS),
        "device": _check_device,
    }
    faults = []
    for key, check_value in checks.items():
        if not has_fault(key, errors):
            try:
                check_value(**{key: values[key]})
            except ValueError as error:
                faults.append(str(error))
    return faults


def _check_device(device: str) -> None:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise ValueError(f"device must be one of auto, cpu, cuda, cuda:<index>, got {device}")


def across(values: Mapping[str, Any], built: Mapping[str, Any], errors: list[str]) -> list[str]:
    """Faults of a value that depend on another value or on the machine."""
    # These import torch: not for --help, not for shell completion.
    from fedlab_runner.config.component_faults import faults as component_faults
    from fedlab_runner.homes.base import Home

    faults = []
    if not has_fault("participation", errors) and not has_fault("num_clients", errors):
        policy = built["participation"]
        try:
            with component_faults("participation", policy):
                policy.check(values["num_clients"])
        except UserError as error:
            faults.append(str(error))
    if values.get("nonfinite") == "clip" and not has_fault("local", errors) and built["local"].update_norm is None:
        faults.append(
            "nonfinite must be stop, drop or zero where local.update_norm is null, got clip: the rest of an update "
            "that is not finite needs a bound"
        )
    if not has_fault("server_optimizer", errors) and not has_fault("algorithm", errors):
        algorithm = built["algorithm"]
        if built["server_optimizer"].acts and not algorithm.makes_server_steps:
            faults.append(
                f"server_optimizer must be none with algorithm={algorithm.name}, where no server makes steps from "
                "clients' updates"
            )
    if not has_fault("aggregator", errors) and not has_fault("algorithm", errors):
        algorithm = built["algorithm"]
        serverless = "which has no server" if algorithm.decentralized else None
        if built["aggregator"].acts and not algorithm.takes_aggregator():
            why = serverless or "whose server does not step by the mean of updates"
            faults.append(f"aggregator must be mean with algorithm={algorithm.name}, {why}")
        if built["aggregator"].at_once() is not None and not algorithm.takes_sums():
            why = serverless or "whose server needs each update"
            faults.append(f"aggregator.sum_every must be null with algorithm={algorithm.name}, {why}")
    if not has_fault("home", errors) and not has_fault("algorithm", errors):
        algorithm = built["algorithm"]
        if isinstance(built["home"], Home) and (fault := algorithm.home_fault()) is not None:
            faults.append(f"home must be none with algorithm={algorithm.name}, {fault}")
    if not has_fault("device", errors) and values["device"].startswith("cuda"):
        faults += _cuda_faults(values["device"])
    return faults


def has_fault(path: str, errors: list[str]) -> bool:
    """Whether one of the errors is about this value or something inside it."""
    return any(error.startswith((f"{path} ", f"{path}.", f"{path}[")) for error in errors)


def _cuda_faults(device: str) -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return [f"device must be cpu or auto, got {device}: torch finds no CUDA GPU on this machine"]
    index, count = int(device.partition(":")[2] or 0), torch.cuda.device_count()
    return [] if index < count else [f"device must be one of cuda:0 to cuda:{count - 1}, got {device}"]
