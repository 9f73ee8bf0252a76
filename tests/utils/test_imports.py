"""The garbage collector: seldom during imports, as usual during a run."""

import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from fedlab_runner.utils import imports


@pytest.fixture(autouse=True)
def set_aside() -> Iterator[None]:
    """What pytest has collected is, before a test and after it."""
    yield
    gc.freeze()


def test_it_is_seldom_within_the_block_and_usual_behind_it_whatever_happens() -> None:
    with pytest.raises(RuntimeError), imports.kept():
        assert gc.get_threshold() == imports.SELDOM
        raise RuntimeError
    assert gc.get_threshold() == imports.USUAL


def test_only_a_block_that_imports_sets_objects_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of an ended job of a sweep must go."""
    gc.unfreeze()
    with imports.kept():
        pass
    assert gc.get_freeze_count() == 0
    with imports.kept():
        monkeypatch.setitem(sys.modules, "a_module_of_this_test", ModuleType("a_module_of_this_test"))
    assert gc.get_freeze_count() > 0


@pytest.mark.parametrize("compiled", [False, True])
def test_a_process_that_compiled_sets_nothing_aside_at_its_end(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.9 prints some thirty lines on objects of its own that are left; the others' end takes time."""
    monkeypatch.delitem(sys.modules, imports.TELLS, raising=False)
    if compiled:
        monkeypatch.setitem(sys.modules, imports.TELLS, ModuleType(imports.TELLS))
    gc.freeze()
    imports.let_go()
    assert (gc.get_freeze_count() == 0) == compiled
