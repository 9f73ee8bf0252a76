"""Small files with a sum: each bit of them counts, and what older versions wrote is read."""

import json
from pathlib import Path

import pytest

from fedlab_runner.utils import checksummed_json

CONTENT = {"overrides": ["seed=1"], "objective": 0.25, "summary": {"a": [1, None, "ü"], "sha256": "x"}, "error": None}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content in (CONTENT, {}, {"x": float("inf")}):
        path.write_text(checksummed_json.text(content))
        assert checksummed_json.read(path) == content
    assert json.loads(checksummed_json.text(CONTENT)).keys() == CONTENT.keys() | {"format", "sha256"}
    with pytest.raises(FileNotFoundError):
        checksummed_json.read(tmp_path / "none.json")


def test_every_bit_and_every_length(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    whole = checksummed_json.text(CONTENT).encode()
    for position in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:position] + bytes([whole[position] ^ 1 << bit]) + whole[position + 1 :])
            with pytest.raises(checksummed_json.Damaged, match="damaged"):
                checksummed_json.read(path)
        if position < len(whole) - 1:  # the last byte ends the line
            path.write_bytes(whole[:position])
            with pytest.raises(checksummed_json.Damaged):
                checksummed_json.read(path)


def test_other_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(CONTENT, indent=1))
    with pytest.raises(checksummed_json.Damaged, match=r"^is damaged$"):
        checksummed_json.read(path)  # without its checksum
    with monkeypatch.context() as patch:
        patch.setattr(checksummed_json, "FORMAT", 2)
        path.write_text(checksummed_json.text(CONTENT))
    with pytest.raises(checksummed_json.Damaged, match=r"^has another format than 1, which this version reads$"):
        checksummed_json.read(path)
    for text in ("[]", "", "{", "[" * 100_000, "\xff"):
        path.write_text(text, encoding="latin-1")
        with pytest.raises(checksummed_json.Damaged):
            checksummed_json.read(path)
