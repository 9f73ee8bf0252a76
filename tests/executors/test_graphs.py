"""A step that the compiler cannot read whole is told of, and executor=auto does not take it."""

import errno
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedlab_runner.executors import graphs
from fedlab_runner.executors._autotune.measure import agrees
from fedlab_runner.executors.graphs import graph_of, whole_graphs
from fedlab_runner.executors.loop import Loop
from tests.helpers.toy import CLASSES, federation
from tests.helpers.work import work_of

pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's compiler warns about is not ours


class Broken(nn.Module):
    """Its second layer is in another graph than its first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        torch._dynamo.graph_break()
        result: Tensor = self.second(hidden)
        return result


@pytest.fixture(autouse=True)
def _read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions are read by the compiler and run as they are: it writes no code."""
    compile = torch.compile

    def read(function: Callable[..., Any], fullgraph: bool = False, options: Any = None) -> Callable[..., Any]:
        return compile(function, fullgraph=fullgraph, backend="eager")

    monkeypatch.setattr(torch, "compile", read)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of this package; the compiler has a log of its own."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("fedlab_runner")]


def test_the_log_tells_it_once(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: Tensor) -> Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return 2 * y

    graph, x = graph_of(function), torch.ones(2)
    for _ in range(2):
        assert torch.equal(graph(x), 2 * (x + 1))
    (line,) = told(caplog)
    assert line.startswith("the compiler cannot read the whole step, so that compile=false may be faster: ")
    assert "\n" not in line
    with pytest.raises(RuntimeError, match="graph_break"):
        graph_of(function, whole=True)(x)
    with whole_graphs(), pytest.raises(RuntimeError, match="cannot read the whole step"):
        graph_of(function)(x)


def test_many_shapes_are_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    """The compiler gives up after some of them, and leaves the others as they are."""
    graph = graph_of(lambda x, n: x.view(n, -1).sum(1))
    with whole_graphs(), torch._dynamo.config.patch(recompile_limit=2):
        for n in range(1, 12):
            x = torch.ones(n, n)
            assert torch.equal(graph(x, n), x.sum(1))
    assert not told(caplog)


@pytest.mark.parametrize("build", [Broken, None])
def test_a_trial_refuses_it(build: Callable[[], nn.Module] | None, caplog: pytest.LogCaptureFixture) -> None:
    fed = federation(**({} if build is None else {"build": build}))
    agreed = agrees(work_of(fed), "loop compiled", Loop(compile=True), Loop(compile=False))
    assert agreed == (build is None)
    assert any("cannot carry out this work" in line for line in told(caplog)) == (build is Broken)


@pytest.mark.parametrize(
    ("folder", "present", "failures", "tries"),
    [("cache", True, 1, 2), ("cache", False, 1, 2), ("cache", True, 9, 2), ("elsewhere", True, 9, 1)],
    ids=["damaged", "deleted by another job", "damaged each time", "outside of the cache"],
)
def test_a_library_that_cannot_be_loaded_is_compiled_again_once(
    folder: str, present: bool, failures: int, tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    library, tried = tmp_path / folder / "k.main.so", 0
    library.parent.mkdir()

    def compiled(x: Tensor) -> Tensor:
        nonlocal tried
        tried += 1
        if tried > failures:
            return x
        if present:
            library.touch()
        raise RuntimeError(f"InductorError: ImportError: {library}: file too short")

    monkeypatch.setattr(torch, "compile", lambda function, **_: compiled)
    graph = graph_of(lambda x: x)
    with nullcontext() if failures == 1 else pytest.raises(RuntimeError, match="file too short"):
        graph(torch.ones(2))
    assert tried == tries and library.exists() == (failures > 1)


@pytest.mark.parametrize("fault", [None, "no folder", "no room"])
def test_compiled_code_has_another_folder_where_the_users_cache_cannot_be_written(
    fault: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a container whose user has the home folder `/`, and where a quota is used up: torch has its own."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # which is put back afterwards
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    if fault == "no folder":
        cache.touch()
    if fault == "no room":

        def full(descriptor: int) -> None:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

        monkeypatch.setattr(graphs, "make_folder", lambda folder: folder.mkdir(parents=True))
        monkeypatch.setattr(os, "fsync", full)
    graphs._writable_cache.cache_clear()
    for _ in range(2):
        graph_of(lambda x: x)
    graphs._writable_cache.cache_clear()
    assert os.environ.get("TORCHINDUCTOR_CACHE_DIR", "").startswith(str(cache)) == (fault is None)
    assert len(told(caplog)) == (fault is not None)
