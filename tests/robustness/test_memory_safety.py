"""No model's training overwrites memory or depends on the layout: any narrow width, any batch size, any threads."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fedlab_runner.core.layers.replacement import prepare
from fedlab_runner.core.normalize import Normalize
from tests.core.layers.test_convolutions import unsafe
from tests.helpers import memory
from tests.models.test_models import modules

memory.fill()
TO_ONE_PIXEL = "preact_resnet to one pixel"
NARROW = ("preact_resnet [8, 16]", "own code")
CHECKER = Path("/lib/x86_64-linux-gnu/libc_malloc_debug.so.0")  # ends a process that has overwritten memory


@pytest.fixture(scope="module")
def template() -> Iterator["subprocess.Popen[str]"]:
    environment = os.environ | {"GOMP_SPINCOUNT": "1000", "MALLOC_PERTURB_": "165"}
    if CHECKER.is_file():
        environment |= {"LD_PRELOAD": str(CHECKER), "GLIBC_TUNABLES": "glibc.malloc.check=3"}
    command = [sys.executable, memory.__file__]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def faults(template: "subprocess.Popen[str]", **case: Any) -> list[str]:
    assert template.stdin is not None and template.stdout is not None
    template.stdin.write(json.dumps({"lowered": False, **case}) + "\n")
    template.stdin.flush()
    found: list[str] = json.loads(template.stdout.readline())
    return found


def test_every_model_is_among_the_cases() -> None:
    """A mix and a pretrained network are of the others."""
    files = {type(model).__module__.rpartition(".")[2] for model, _ in memory.CASES.values()}
    assert modules("model") - {"mix", "pretrained"} <= files


@pytest.mark.parametrize("name", memory.CASES)
def test_no_strided_convolution_of_kernel_one_reaches_pytorch(name: str) -> None:
    model, (channels, size) = memory.CASES[name]
    module = prepare(model.build(channels, size, memory.CLASSES)).eval()
    images = Normalize(None, None)(memory.torch.zeros(2, channels, size, size), memory.torch.float32)
    assert not unsafe(module, images)


@pytest.mark.parametrize("name", NARROW)
def test_narrow_resnets(name: str, template: "subprocess.Popen[str]") -> None:
    """As those do that crash on two threads with an odd batch."""
    assert not faults(template, model=name, threads=2, batches=[3, 5], compiled=False)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "threads"), list(product(memory.CASES, (1, 2, 4))))
def test_every_model(name: str, threads: int, template: "subprocess.Popen[str]") -> None:
    assert not faults(template, model=name, threads=threads, batches=list(range(1, 10)), compiled=False)


def test_images_smaller_than_the_kernel_in_bfloat16(template: "subprocess.Popen[str]") -> None:
    assert not faults(template, model=TO_ONE_PIXEL, threads=2, batches=[3, 5], compiled=False, lowered=True)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "compiled"), [*((name, False) for name in memory.CASES), (TO_ONE_PIXEL, True)])
def test_every_model_in_bfloat16(name: str, compiled: bool, template: "subprocess.Popen[str]") -> None:
    assert not faults(template, model=name, threads=2, batches=[2, 3, 9], compiled=compiled, lowered=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", memory.CASES)
def test_every_model_compiled(name: str, template: "subprocess.Popen[str]") -> None:
    assert not faults(template, model=name, threads=2, batches=[3], compiled=True)
