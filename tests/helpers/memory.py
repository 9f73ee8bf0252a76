"""Models whose gradients are compared with float64's, each case in a process of its own, which may die.

`python memory.py` reads cases, a JSON object a line on its input, and writes a report a line on its output. It imports
everything once; a case is a fork.
"""

import json
import os
import resource
import sys
import traceback
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.normalize import Normalize
from fedlab_runner.executors.graphs import graph_of
from fedlab_runner.models.base import Architecture
from fedlab_runner.models.preact_resnet import PreActResNet
from fedlab_runner.models.vit_lora import ViTLoRA

CLASSES, MODELS_AT_ONCE = 5, 3
TOLERANCE = 0.05  # of the norm, as a ReLU whose input is zero but for rounding passes a pixel on, or does not
# The same in bfloat16, whose rounding batch norm of few examples amplifies; what the memory held before is far larger.
LOWERED_TOLERANCE = 100.0
CASES: dict[str, tuple[Architecture, tuple[int, int]]] = {}  # and the inputs: channels, image size


class OwnCode(Architecture):
    """A user's network that calls convolutions itself."""

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        return _OwnCode(channels, num_classes)


class _OwnCode(nn.Module):
    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 8, 3, padding=1)
        self.weight = nn.Parameter(torch.randn(12, 8, 1, 1) / 3)
        self.head = nn.Linear(12, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        x = F.conv2d(self.stem(inputs).relu(), self.weight, stride=2)
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def fill() -> None:
    """All models of the tests of models, and the narrowest ResNets; imported late, as it imports pytest."""
    from tests.models.test_models import MODELS, timm_model

    CASES.update(MODELS)
    for widths in ([1, 2], [3, 4], [8, 16], [12, 5], [15, 4], [17, 4], [4, 8, 16, 32]):
        CASES[f"preact_resnet {widths}"] = (PreActResNet(None, None, widths), (3, 16))
    CASES["preact_resnet to one pixel"] = (PreActResNet(None, None, [4, 8, 16, 16, 16, 32]), (3, 16))
    CASES["own code"] = (OwnCode(None, None), (3, 16))
    CASES["vit_lora"] = (ViTLoRA(3, 32, "test_vit", False, None, 2, 2.0), (3, 32))
    for name in ("test_resnet", "test_efficientnet", "test_convnext", "test_byobnet", "test_nfnet"):
        CASES[f"timm {name}"] = (replace(timm_model(name)), (3, 32))


def check(case: dict[str, Any]) -> list[str]:
    """What is wrong with a case: `model`, `threads`, `batches`, `compiled`, and whether in bfloat16 (`lowered`)."""
    model, (channels, size) = CASES[case["model"]]
    torch.set_num_threads(case["threads"])

    def build() -> nn.Module:
        torch.manual_seed(0)
        return model.build(channels, size, CLASSES)

    place, lower = torch.device("cpu"), torch.bfloat16 if case["lowered"] else None
    family = ModelFamily(build, CLASSES, normalize=Normalize(None, None), device=place, autocast=lower)
    faults = []
    for batch in case["batches"]:
        torch.manual_seed(batch)
        images = torch.randn(MODELS_AT_ONCE, batch, channels, size, size)
        targets = torch.randint(CLASSES, (MODELS_AT_ONCE, batch))
        try:
            expected = reference(build().double(), images, targets)
        except ValueError:  # batch norm of a single value
            continue
        faults += [f"batch {batch}: {each}" for each in compare(family, images, targets, expected, case["compiled"])]
    return faults


def reference(module: nn.Module, images: Tensor, targets: Tensor) -> list[list[Tensor]]:
    """Logits and gradients of each set of images, in float64 and in the contiguous layout, by PyTorch's own layers."""
    values, found = {k: p for k, p in module.named_parameters() if p.requires_grad}, []
    for x, y in zip(images.double(), targets, strict=True):
        logits = module(x)
        gradients = torch.autograd.grad(F.cross_entropy(logits, y), list(values.values()))
        found.append([logits.detach(), torch.cat([g.reshape(-1) for g in gradients])])
    return found


def compare(
    family: ModelFamily, images: Tensor, targets: Tensor, expected: list[list[Tensor]], compiled: bool
) -> list[str]:
    """Which of the ways to train a model as this package does it differ from what is expected."""
    w = family.vector(family.module)
    params, buffers = w[: family.num_params], w[family.num_params :]
    family.mode(True)

    def loss(params: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        values = family.views(params) | {k: b.clone() for k, b in family.buffer_views(buffers).items()}
        logits = family.forward(values, x)
        return F.cross_entropy(logits, y), logits

    one, x = grad(loss, has_aux=True), [family.normalize(each, torch.float32) for each in images]
    found = {"alone": [one(params, *pair) for pair in zip(x, targets, strict=True)]}
    many = vmap(one, (0, 0, 0), randomness="different")
    # Buffers of many models would need copies of their own; not every model computes side by side with autocast.
    if not family.num_buffers and family.autocast is None:
        everyone = params.repeat(len(x), 1), torch.stack(x), targets
        found["side by side"] = list(zip(*many(*everyone), strict=True))
        leaf = everyone[0].requires_grad_()
        values, logits = vmap(loss, (0, 0, 0), randomness="different")(leaf, *everyone[1:])
        (gradients,) = torch.autograd.grad(values.sum(), leaf)  # as vectorized steps of small models take them
        found["side by side, by autograd"] = list(zip(gradients, logits, strict=True))
    if compiled:
        found["compiled"] = [graph_of(one)(params, x[0], targets[0])]
    faults = []
    for how, pairs in found.items():
        for (gradient, logits), (its_logits, its_gradient) in zip(pairs, expected, strict=False):
            for name, mine, its in (("gradient", gradient, its_gradient), ("logits", logits, its_logits)):
                error = float((mine.detach().double() - its).norm() / its.norm())
                if not error <= (TOLERANCE if family.autocast is None else LOWERED_TOLERANCE):
                    faults.append(f"{name} {how} differs by {error:.1e}")
    return faults


def _child(case: dict[str, Any], report: int) -> None:
    """One case; never returns."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        faults = check(case)
    except BaseException:
        faults = [traceback.format_exc()]
    os.write(report, json.dumps(faults).encode()[:60_000])
    os._exit(0)


def main() -> None:
    fill()
    for line in sys.stdin:
        readable, writable = os.pipe()
        child = os.fork()
        if not child:
            _child(json.loads(line), writable)
        os.close(writable)
        with open(readable, "rb") as file:
            text = file.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps(json.loads(text) if text else [f"died of signal {-status}"]), file=OUT, flush=True)


if __name__ == "__main__":
    OUT = os.fdopen(os.dup(1), "w")  # libraries may print
    os.dup2(2, 1)
    main()
