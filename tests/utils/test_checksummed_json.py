"""Small files with a sum: each bit of them counts, and what older versions wrote is read."""

import json
from pathlib import Path

import pytest

from fedlab_runner.utils import checksummed_json as sealed

CONTENT = {"overrides": ["seed=1"], "objective": 0.25, "summary": {"a": [1, None, "ü"], "sha256": "x"}, "error": None}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content in (CONTENT, {}, {"x": float("inf")}):
        path.write_text(sealed.text(content))
        assert sealed.read(path) == content
    assert json.loads(sealed.text(CONTENT)).keys() == CONTENT.keys() | {"format", "sha256"}
    with pytest.raises(FileNotFoundError):
        sealed.read(tmp_path / "none.json")


def test_every_bit_and_every_length(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    whole = sealed.text(CONTENT).encode()
    for position in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:position] + bytes([whole[position] ^ 1 << bit]) + whole[position + 1 :])
            with pytest.raises(sealed.Damaged, match="damaged"):
                sealed.read(path)
        if position < len(whole) - 1:  # the last byte ends the line
            path.write_bytes(whole[:position])
            with pytest.raises(sealed.Damaged):
                sealed.read(path)


def test_other_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(CONTENT, indent=1))
    assert sealed.read(path) == CONTENT, "of an older version"
    with monkeypatch.context() as patch:
        patch.setattr(sealed, "FORMAT", 2)
        path.write_text(sealed.text(CONTENT))
    with pytest.raises(sealed.Damaged, match=r"^has another format than 1, which this version reads$"):
        sealed.read(path)
    for text in ("[]", "", "{", "[" * 100_000, "\xff"):
        path.write_text(text, encoding="latin-1")
        with pytest.raises(sealed.Damaged):
            sealed.read(path)
