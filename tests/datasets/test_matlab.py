"""MATLAB files: what scipy writes is read as scipy reads it, and anything else is a ValueError."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import loadmat, savemat

from fedlab_runner.datasets import _matlab


def written(path: Path, compressed: bool, **variables: Any) -> bytes:
    savemat(path, variables, do_compression=compressed)
    return path.read_bytes()


def table(n: int) -> np.ndarray:
    rows = np.zeros(n, dtype=[("class", object), ("fname", object), ("box", object)])
    for i in range(n):
        rows[i] = (i + 1, f"{i:05d}.jpg", np.array([1.5, i]))
    return rows


@pytest.mark.parametrize("compressed", [False, True])
def test_what_is_written_is_read(compressed: bool, tmp_path: Path) -> None:
    names = np.array(["AM General", "Citroën 2CV", "x"], object)
    numbers = np.arange(6, dtype=np.int16).reshape(2, 3)
    content = written(tmp_path / "a.mat", compressed, names=names, table=table(3), numbers=numbers, empty=np.zeros(0))
    assert _matlab.variable(content, "names") == names.tolist()
    found = _matlab.variable(content, "table")
    assert [row["fname"] for row in found] == ["00000.jpg", "00001.jpg", "00002.jpg"]
    assert [row["class"] for row in found] == [[1], [2], [3]] and found[2]["box"] == [1.5, 2.0]
    theirs = loadmat(tmp_path / "a.mat")["numbers"]
    assert _matlab.variable(content, "numbers") == theirs.ravel("F").tolist()
    assert _matlab.variable(content, "empty") == []
    with pytest.raises(ValueError, match=r"^it has no other$"):
        _matlab.variable(content, "other")


def test_the_other_byte_order() -> None:
    """An element as a machine with the other order writes it."""

    def element(kind: int, data: bytes) -> bytes:
        return kind.to_bytes(4, "big") + len(data).to_bytes(4, "big") + data + bytes(-len(data) % 8)

    flags = element(6, (4).to_bytes(4, "big") + bytes(4))
    parts = flags + element(5, (1).to_bytes(4, "big") + (2).to_bytes(4, "big")) + element(1, b"x")
    content = bytes(124) + b"\x01\x00MI" + element(14, parts + element(17, "äb".encode("utf-16-be")))
    assert _matlab.variable(content, "x") == "äb"


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_damaged_bytes_are_a_value_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """scipy's reader ends the process at some of these."""
    path = tmp_path_factory.getbasetemp() / "b.mat"
    content = bytearray(written(path, False, table=table(2), names=np.array(["a", "bc"], object)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    for damaged in (bytes(content), bytes(content[:cut])):
        for name in ("table", "names"):
            try:
                _matlab.variable(damaged, name)
            except ValueError as error:
                assert str(error) and "\n" not in str(error)


def test_what_claims_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = written(tmp_path / "a.mat", True, x=np.zeros(10_000))
    monkeypatch.setattr(_matlab, "MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(ValueError, match=r"cut off or too large"):
        _matlab.variable(content, "x")
    monkeypatch.undo()
    size = int.from_bytes(content[132:136], "little")
    body = bytearray(zlib.decompress(content[136 : 136 + size]))
    place = body.index((10_000).to_bytes(4, "little"))
    body[place : place + 4] = (2**31 - 1).to_bytes(4, "little")
    with pytest.raises(ValueError, match=r"not of that class or size"):
        _matlab.variable(content[:128] + bytes(body), "x")
    deep: Any = np.zeros(1)
    for _ in range(12):
        outer = np.empty(1, object)
        outer[0] = deep
        deep = outer
    with pytest.raises(ValueError, match=r"nested too deeply"):
        _matlab.variable(written(tmp_path / "a.mat", False, x=deep), "x")
