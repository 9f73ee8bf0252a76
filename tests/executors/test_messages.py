"""What the processes of a run, which are no forks, say to each other."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fedlab_runner.executors._lasting import SentOnce
from fedlab_runner.executors._messages import started
from fedlab_runner.executors._sending import dumped, loaded
from tests.helpers.toy import model_family

CHILD = """
import sys
from fedlab_runner.executors._messages import Failed, channel
channel(sys.argv[1]).send(Failed(repr(sys.path).encode()))
"""


@pytest.mark.parametrize("first", [[], [""]])
def test_a_process_finds_modules_where_the_run_does(
    first: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the working folder, whose files may have the names of Python's modules, unless the run does."""
    work, own = tmp_path / "work", tmp_path / "own"
    for folder in (work, own):
        folder.mkdir()
    (own / "child_of_a_run.py").write_text(CHILD)
    monkeypatch.chdir(work)
    monkeypatch.setattr(sys, "path", [*first, str(own), *sys.path])
    channel, process = started("child_of_a_run", errors=None)
    path = channel.receive().error.decode()
    channel.close()
    assert process.wait(10) == 0 and repr(str(own)) in path and (repr(str(work)) in path) == bool(first)


def test_a_tensor_is_sent_once_and_what_is_frozen_stays_so() -> None:
    layer = nn.Linear(100, 100)
    layer.bias.requires_grad_(False)
    sent = dumped([layer, layer.weight])
    assert len(sent) < 2 * layer.weight.nbytes, "at two places"
    found, weight = loaded(sent, torch.device("cpu"))
    assert found.weight is weight and torch.equal(weight, layer.weight)
    assert (found.weight.requires_grad, found.bias.requires_grad) == (True, False)


def test_a_family_is_sent_again_when_it_reads_another_part() -> None:
    """And to new processes."""
    family, numbers, sent = model_family(), SentOnce(), list[int]()
    for part, forgets in ((0, False), (0, False), (1, False), (1, False), (1, True)):
        family.module.active_part = (part,)  # type: ignore[assignment]  # which torch has as a tensor or a module
        if forgets:
            numbers.forget()
        assert numbers.of([family], lambda keep: sent.append(keep.number)) == sent[-1:]
    assert sent == [1, 2, 3] and numbers.in_use == {3}
