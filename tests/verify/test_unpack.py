"""Zip files of strangers: nothing is written outside the folder or grows without bound, each fault is one line."""

import os
import stat
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fedlab_runner.report import bundle
from fedlab_runner.utils.errors import UserError
from fedlab_runner.verify import unpack
from fedlab_runner.verify.unpack import unpack as unpacked
from tests.helpers.bundles import contents, write

FEW = {bundle.ABOUT: b"{}", bundle.MANIFEST: b""}
LONG = "outputs/a/metrics.jsonl"


def below(folder: Path) -> dict[str, bytes]:
    """The files in a folder by name."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(path: Path, folder: Path) -> str:
    """The line with which a file is refused; nothing may be left outside of the folder."""
    before = sorted(each for each in folder.parent.rglob("*") if folder not in each.parents)
    folder.mkdir()
    with pytest.raises(UserError) as caught:
        unpacked(path, folder)
    assert sorted(each for each in folder.parent.rglob("*") if folder not in each.parents) == sorted([*before, folder])
    assert not [each for each in folder.rglob("*") if each.is_symlink()]
    line = str(caught.value)
    assert "\n" not in line and line.isprintable()
    return line


def test_a_bundle_is_unpacked_as_it_is(bundled: Path, tmp_path: Path) -> None:
    unpacked(bundled, tmp_path)
    assert {
        path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    } == (contents(bundled))


def test_folders_that_other_programs_list_are_no_fault(bundled: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "b.zip", {"outputs/": b"", **contents(bundled)})
    (tmp_path / "there").mkdir()
    unpacked(path, tmp_path / "there")


@pytest.mark.parametrize(
    "name",
    [
        *("../bundle.json", "outputs/../../x", "/etc/x", "outputs//config.yaml", "./bundle.json"),
        *("outputs/a/../config.yaml", "C:/x", "outputs\\a\\config.yaml", "outputs/a:b/config.yaml"),
        *("outputs/../config.yaml", "outputs/ /config.yaml", "setup.py", "outputs/a/.hydra/overrides.yaml"),
        *("tables/../x.csv", "tables/a b.csv", "outputs/a\n/config.yaml", "outputs/sweeps/a/jobs/../x.json"),
        *("outputs/sweeps/a/jobs/x.py", "bundle.json/x", f"outputs/{'x' * 300}/config.yaml"),
        "outputs/sweeps/config.yaml",
    ],
)
def test_a_name_that_no_bundle_has_is_refused(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "b.zip", {**FEW, name: b"x"}, listed=False)
    assert refused(path, tmp_path / "there").endswith(("which is no file of a bundle", "as its name"))


def test_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    for i, (a, b) in enumerate(("aa", "aA", ("\N{LATIN SMALL LETTER E WITH ACUTE}", "e\N{COMBINING ACUTE ACCENT}"))):
        first, second = (f"outputs/{run}/config.yaml" for run in (a, b))
        with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's writer warns of the same name
            for name in (*FEW, first, second):
                archive.writestr(name, "x")
        assert "twice" in refused(tmp_path / "b.zip", tmp_path / f"there{i}")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFDIR])
def test_only_plain_files_are_unpacked(kind: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        entry = zipfile.ZipInfo("outputs/a/config.yaml")
        entry.external_attr = (kind | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    assert "as a link, encrypted or packed" in refused(tmp_path / "b.zip", tmp_path / "there")


def test_bombs_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousandfold, whatever the file says about its size."""
    monkeypatch.setattr(unpack, "MAX_LINES_BYTES", 3 * 2**20)
    path = write(tmp_path / "b.zip", {**FEW, LONG: bytes(2**24)})
    assert path.stat().st_size < 2**17
    assert "larger than a bundle's files are" in refused(path, tmp_path / "there")
    assert (tmp_path / "there" / LONG).stat().st_size <= 5 * 2**20
    lying = path.read_bytes().replace(struct.pack("<I", 2**24), struct.pack("<I", 5))
    assert lying != path.read_bytes()
    (tmp_path / "lying.zip").write_bytes(lying)
    refused(tmp_path / "lying.zip", tmp_path / "again")
    monkeypatch.setattr(bundle, "MAX_BYTES", 2**20)
    many = {f"outputs/{i}/config.yaml": bytes(2**18) for i in range(9)}
    assert "larger than a bundle's files are" in refused(
        write(tmp_path / "many.zip", {**FEW, **many}), tmp_path / "many"
    )
    large = write(tmp_path / "large.zip", {**FEW, LONG: os.urandom(2**20)})
    assert refused(large, tmp_path / "large").endswith("large.zip is larger than 1 MiB")


def test_a_long_list_of_files_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "b.zip", {**FEW, **{f"outputs/{i}/config.yaml": b"" for i in range(100)}})
    monkeypatch.setattr(unpack, "MAX_DIRECTORY_BYTES", 1000)
    monkeypatch.setattr(zipfile, "ZipFile", None)  # would be an error if called
    assert refused(path, tmp_path / "there").endswith("lists more files than a bundle has")


def test_a_list_with_larger_numbers_is_not_read(bundled: Path, tmp_path: Path) -> None:
    content = bundled.read_bytes()
    (tmp_path / "b.zip").write_bytes(content[:-22] + b"PK\x06\x07" + bytes(16) + content[-22:])
    assert refused(tmp_path / "b.zip", tmp_path / "there").endswith("lists more files than a bundle has")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: None,
        pipe,
        Path.mkdir,
        sparse,
        Path.touch,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path.name),
        lambda path: path.write_bytes(b"PK\x05\x06" + bytes(18)),
        lambda path: path.write_bytes(b"PK\x05\x06" + b"\xff" * 18),
        lambda path: path.write_bytes(os.urandom(1000)),
        lambda path: write(path, {bundle.ABOUT: b"{}"}, listed=False),
    ],
)
def test_what_is_no_bundle_is_refused(make: Callable[[Path], object], tmp_path: Path) -> None:
    make(tmp_path / "b.zip")
    assert "b.zip" in refused(tmp_path / "b.zip", tmp_path / "there")


def test_a_damaged_bundle_is_refused_or_unpacked_as_it_was(bundled: Path, tmp_path: Path) -> None:
    """A byte changed at many places, and the file cut off."""
    content, whole = bundled.read_bytes(), contents(bundled)
    for number, place in enumerate(range(0, len(content), len(content) // 30)):
        damaged = bytearray(content)
        damaged[place] ^= 0x55
        (tmp_path / "b.zip").write_bytes(damaged)
        folder = tmp_path / f"{number}"
        folder.mkdir()
        try:
            unpacked(tmp_path / "b.zip", folder)
        except UserError as error:
            assert "\n" not in str(error)
            continue
        assert set(below(folder).values()) <= set(whole.values())
    for number, size in enumerate(range(0, len(content), len(content) // 10)):
        (tmp_path / "b.zip").write_bytes(content[:size])
        refused(tmp_path / "b.zip", tmp_path / f"cut{number}")
