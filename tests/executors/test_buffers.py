"""Memory of a cohort's models is used again, but never while somebody holds a part of it."""

import pickle
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedlab_runner.executors._blocks import Blocks
from fedlab_runner.executors._fork.buffers import Buffer
from tests.helpers.paths import ROOT
from tests.helpers.toy import federation


@pytest.mark.parametrize("shared", [False, True])
def test_memory_is_used_again_when_nobody_holds_it(shared: bool) -> None:
    buffer = Buffer(shared)
    first = buffer.take(3, 2, torch.float64)
    first.fill_(7)
    place = first.data_ptr()
    del first
    again = buffer.take(3, 2, torch.float64)
    assert again.data_ptr() == place and again.shape == (3, 2)
    assert buffer.take(4, 2, torch.float64).shape == (4, 2) and buffer.take(0, 2, torch.float32).shape == (0, 2)


@pytest.mark.parametrize("hold", [lambda y: y, lambda y: y[1], lambda y: y.numpy()[0], lambda y: y.view(-1)[3:]])
def test_what_is_held_keeps_its_values(hold: object) -> None:
    assert callable(hold)
    buffer = Buffer(shared=False)
    y = buffer.take(3, 2, torch.float64)
    y.fill_(7)
    held = hold(y)
    del y
    buffer.take(3, 2, torch.float64).fill_(-1)
    assert bool((torch.as_tensor(held) == 7).all())


def test_a_block_is_found_by_what_begins_it() -> None:
    buffer, cpu = Buffer(shared=True), torch.device("cpu")
    first, second = (buffer.empty(3, 2, torch.float64, cpu) for _ in range(2))
    assert [buffer.block_of(each) for each in (first, second)] == [0, 1]
    assert buffer.block_of(first[0]) == 0 and torch.equal(buffer.again(0, (2,), torch.float64), first[0])
    assert all(buffer.block_of(each) is None for each in (first[1], first.T, first.clone(), first[:0], torch.ones(1)))
    assert buffer.empty(3, 2, torch.float64, torch.device("meta")).device.type == "meta"


WRITE = """
import pickle, sys
block = pickle.load(sys.stdin.buffer)
block.models().fill_(7)
moved, unlike = block._replace(holder="/proc/self/fd/0"), block._replace(target="/memfd:fedlab-0 (deleted)")
assert moved.models() is None and unlike.models() is None
"""


def test_another_process_writes_into_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """And into no other memory, if the path leads to something else by now."""
    work: Any = SimpleNamespace(ids=range(3), family=federation().family)
    y, block = (blocks := Blocks()).staged(work)
    assert y is not None and block is not None and y.shape == (3, work.family.size)
    written = subprocess.run([sys.executable, "-c", WRITE], input=pickle.dumps(block), capture_output=True, cwd=ROOT)
    assert not written.returncode, written.stderr.decode()
    assert bool((y == 7).all())
    other, block_of_other = blocks.staged(work)  # the first is held
    assert other is not None and block_of_other is not None and other.data_ptr() != y.data_ptr()
    assert block_of_other.target != block.target
    blocks.close()
    assert block.models() is None and bool((y == 7).all())
    monkeypatch.setattr("fedlab_runner.executors._blocks.MAX_STAGED_BYTES", 0)
    work.family = SimpleNamespace(size=5, dtype=torch.float64, device=torch.device("meta"))
    assert blocks.staged(work) == (None, None)


def test_blocks_that_are_given_back_keep_no_descriptor() -> None:
    work: Any = SimpleNamespace(ids=range(3), family=federation().family)
    blocks = Blocks()
    for clients in range(1, 30):  # each larger than the last, which nobody holds
        work.ids = range(clients)
        blocks.staged(work)
    assert len(blocks._descriptors) == len(blocks.numbers) <= 3


def test_the_models_of_a_round_outlive_the_next() -> None:
    fed = federation()
    ids = np.arange(4)
    y = fed.cohort(ids).train(fed.family.init(0))
    kept = y.clone()
    fed.begin(1, 1.0)
    assert not torch.equal(fed.cohort(ids).train(fed.family.init(1)), kept) and torch.equal(y, kept)
