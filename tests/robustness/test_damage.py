"""A damaged file is said, or what was before it is used; it never gives other numbers in silence.

Every test runs a real, tiny experiment in a child of the template, damages its folder, and runs the command again.
"""

import io
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedlab_runner.checkpoints import store
from tests.helpers.crash import FAMILIES, Ended, Template, results

DISK = FAMILIES["rows_fedcda"].split()
LONGER = ("rounds=8",)  # of which the damaged run has done five


@pytest.fixture(scope="module")
def five(template: Template, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five rounds, with checkpoints after four and five of them."""
    folder = tmp_path_factory.mktemp("five") / "run"
    ended = template.run(folder, *DISK)
    assert ended.status == 0, ended.said
    return folder


@pytest.fixture(scope="module")
def eight(template: Template, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What eight rounds give that nothing has befallen."""
    folder = tmp_path_factory.mktemp("eight") / "run"
    assert template.run(folder, *DISK, *LONGER).status == 0
    return results(folder)


@pytest.fixture(scope="module")
def extended(template: Template, five: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the five rounds, continued to eight, give: round 5 was evaluated as the last one."""
    ended, work = go_on(template, five, tmp_path_factory.mktemp("extended") / "run", "", lambda folder: None)
    assert ended.status == 0, ended.said
    return results(work)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << random.Random(position).randrange(8)
    path.write_bytes(content)


def cut(path: Path, position: int) -> None:
    path.write_bytes(path.read_bytes()[:position])


def go_on(
    template: Template, five: Path, work: Path, name: str, damage: Callable[[Path], object], *more: str
) -> tuple[Ended, Path]:
    """Continues to eight rounds after a file of the five was damaged."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(five, work)
    damage(work / name)
    return template.run(work, *DISK, *(more or LONGER)), work


def one_line(ended: Ended, pattern: str) -> bool:
    """Whether the run was refused, in one line, with these words."""
    last = ended.said.strip().splitlines()[-1]
    return ended.status == 2 and "Traceback" not in ended.said and re.search(pattern, last) is not None


def sample(size: int, count: int | None) -> list[int]:
    return list(range(size)) if count is None else sorted(random.Random(size).sample(range(size), min(size, count)))


@pytest.mark.parametrize("count", [3, pytest.param(120, marks=pytest.mark.slow)])
@pytest.mark.parametrize("damage", [flip, cut])
@pytest.mark.parametrize("name", ["checkpoints/round_000005.pt", "client_state/rows_51_float32.bin", "metrics.jsonl"])
def test_a_damaged_file_is_noticed(
    name: str,
    damage: Callable[[Path, int], None],
    count: int,
    template: Template,
    five: Path,
    eight: dict[str, bytes],
    extended: dict[str, bytes],
    tmp_path: Path,
) -> None:
    """Either the older checkpoint is whole and is used, or none is, and that is said; in both cases aloud."""
    used = refused = unneeded = 0
    for position in sample((five / name).stat().st_size, count):
        ended, work = go_on(
            template, five, tmp_path / "work", name, lambda path, position=position: damage(path, position)
        )
        how = f"{damage.__name__} {name} at {position}: {ended.said}"
        if ended.status == 0:
            aloud = "is damaged" in ended.said or "cannot be" in ended.said
            noticed = aloud and "continues after round 4" in ended.said
            assert results(work) == (eight if noticed else extended), how
            assert noticed or name.startswith("client_state"), how  # a slot that no State has may hold anything
            used, unneeded = used + noticed, unneeded + (not noticed)
        else:
            assert one_line(ended, r"there is no other checkpoint: delete .* or give another folder"), how
            refused += 1
    assert used or refused
    print(f"\n{damage.__name__} {name}: {used} the one before was used, {refused} refused, {unneeded} not needed")


@pytest.mark.parametrize("count", [3, pytest.param(120, marks=pytest.mark.slow)])
def test_a_damaged_finished_run_is_mended_or_refused(
    count: int, template: Template, five: Path, tmp_path: Path
) -> None:
    """The same command again, which otherwise only reads."""
    whole, mended, refused = results(five), 0, 0
    for name in ("summary.json", "metrics.jsonl"):
        for position in sample((five / name).stat().st_size, count):
            ended, work = go_on(
                template,
                five,
                tmp_path / "work",
                name,
                lambda path, position=position: flip(path, position),
                "rounds=5",
            )
            if ended.status == 0:
                assert results(work) == whole, f"{name} at {position}: {ended.said}"
                mended += 1
            else:
                assert name == "metrics.jsonl" and one_line(ended, "there is no other checkpoint"), ended.said
                refused += 1
    assert mended
    print(f"\nfinished runs: {mended} mended, {refused} refused")


def test_a_line_cut_in_the_middle(template: Template, five: Path, eight: dict[str, bytes], tmp_path: Path) -> None:
    """The last line: the checkpoint before it is used. A line that the checkpoints need: refused."""
    lines = (five / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    for torn, good in ((b"".join(lines)[:-20], True), (b"".join([*lines[:2], lines[2][:20], *lines[3:]]), False)):
        ended, work = go_on(
            template, five, tmp_path / "work", "metrics.jsonl", lambda path, torn=torn: path.write_bytes(torn)
        )
        if good:
            assert ended.status == 0 and results(work) == eight and "continues after round 4" in ended.said
        else:
            assert one_line(ended, r"metrics\.jsonl does not hold each of the rounds 0 to 5")


def test_a_digit_changed_in_a_line(template: Template, five: Path, tmp_path: Path) -> None:
    """Still valid JSON, with another accuracy: what no parser would notice."""

    def change(path: Path) -> None:
        lines = path.read_text().splitlines()
        row = json.loads(lines[2])
        lines[2] = json.dumps(row | {"test/accuracy": row["test/accuracy"] / 2})
        path.write_text("\n".join(lines) + "\n")

    for more in (LONGER, ("rounds=5",)):
        ended, _ = go_on(template, five, tmp_path / "work", "metrics.jsonl", change, *more)
        assert one_line(ended, r"does not hold the rounds 0 to 4 as they were written\); there is no other checkpoint")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "too short"),
        (b"PK\x03\x04" + bytes(500), "not a checkpoint"),
        (b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.", "too short"),
    ],
)
def test_a_foreign_file_in_the_place_of_a_checkpoint(
    content: bytes, words: str, template: Template, five: Path, eight: dict[str, bytes], tmp_path: Path
) -> None:
    ended, work = go_on(
        template, five, tmp_path / "work", "checkpoints/round_000005.pt", lambda path: path.write_bytes(content)
    )
    assert ended.status == 0 and results(work) == eight and f"is damaged ({words})" in ended.said


def test_the_checkpoint_of_another_run_is_refused(template: Template, five: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert template.run(other, *DISK, "seed=1").status == 0
    ended, _ = go_on(
        template,
        five,
        tmp_path / "work",
        "checkpoints/round_000005.pt",
        lambda path: shutil.copy(other / "checkpoints" / path.name, path),
    )
    assert one_line(ended, r"round_000005\.pt is of another config: seed \(1 there, 0 here\): delete ")


def test_a_renamed_checkpoint_is_the_round_that_it_was(
    template: Template, five: Path, eight: dict[str, bytes], tmp_path: Path
) -> None:
    """An old one under the name of the newest: its header, which is checked, tells the round."""
    ended, work = go_on(
        template,
        five,
        tmp_path / "work",
        "checkpoints/round_000005.pt",
        lambda path: shutil.copy(path.with_name("round_000004.pt"), path),
    )
    assert ended.status == 0 and results(work) == eight


SWAPPED = """
from fedlab_runner.datasets.synthetic import Synthetic
load = Synthetic.load
def other(self, seed):
    data = load(self, seed)
    data.{part}.inputs[3, 0, 1, 1] ^= 1
    return data
Synthetic.load = other
"""


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_run_does_not_go_on_with_other_data(part: str, template: Template, five: Path, tmp_path: Path) -> None:
    """One bit of one pixel, in files without checksums: the run knows what it began with."""
    work, code = tmp_path / "work", SWAPPED.format(part=part)
    shutil.copytree(five, work)
    ended = template.run(work, *DISK, *LONGER, code=code)
    assert one_line(ended, r"^the examples, which client has which, .*, are not those that the run began with: bring ")
    ended = template.run(work, *DISK, *LONGER, "checkpoint.same_data=false", code=code)
    assert ended.status == 0 and "the run continues with these" in ended.said


def test_a_run_does_not_go_on_with_other_frozen_weights(template: Template, tmp_path: Path) -> None:
    """Which are in no checkpoint: of a LoRA model, say, whose file was swapped."""
    code = """
import torch
from fedlab_runner.models.logistic import Logistic
build = Logistic.build
def partly_frozen(self, *sizes):
    model = build(self, *sizes)
    model.register_parameter("frozen", torch.nn.Parameter(torch.tensor([1.0, {value}]), requires_grad=False))
    return model
Logistic.build = partly_frozen
"""
    work = tmp_path / "work"
    assert template.run(work, *DISK, code=code.format(value=2)).status == 0
    ended = template.run(work, *DISK, *LONGER, code=code.format(value=3))
    assert one_line(
        ended, r"^the model's frozen weights are not those that the run began with: bring back the file of "
    )
    ended = template.run(work, *DISK, *LONGER, code=code.format(value=2))
    assert ended.status == 0 and "continues after round 5" in ended.said


@pytest.mark.parametrize(
    "change", ['"state": payload["state"][:-1]', '"layout": {"another": None} | payload["layout"]', '"state": None']
)
def test_a_state_of_another_version_is_refused(change: str, template: Template, tmp_path: Path) -> None:
    """A field more, another name; and what has no sense at all."""
    other = f"""
from fedlab_runner.checkpoints.store import CheckpointStore
save = CheckpointStore.save
CheckpointStore.save = lambda self, round, fingerprint, payload: save(
    self, round, fingerprint, payload | {{{change}}}
)
"""
    assert template.run(tmp_path / "run", *DISK, code=other).status == 0
    ended = template.run(tmp_path / "run", *DISK, *LONGER)
    assert one_line(
        ended, r"^the checkpoint after round 5 is of a version whose State of FedCDA had other fields: use "
    )


def test_half_a_line_of_a_killed_start_is_cut_off(template: Template, five: Path, tmp_path: Path) -> None:
    ended, work = go_on(template, five, tmp_path / "work", "commands.jsonl", lambda path: cut(path, 30))
    assert ended.status == 0
    assert len([json.loads(line) for line in (work / "commands.jsonl").read_text().splitlines()]) == 1


# Whole by its sums, and made by somebody


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of each part of a payload, at every depth."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in inner:
        yield from _paths(item, (*path, key))


def _with(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """The same payload with another part at a path."""
    if not path:
        return change(value)
    if isinstance(value, dict):
        return {key: _with(item, path[1:], change) if key == path[0] else item for key, item in value.items()}
    return type(value)(_with(item, path[1:], change) if key == path[0] else item for key, item in enumerate(value))


def _other_size(value: Any) -> Any:
    return torch.cat([value, value]) if isinstance(value, torch.Tensor) and value.dim() else [value]


FORGERIES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda value: None,
    "a word": lambda value: "forged",
    "a number": lambda value: -(10**12),
    "another size": _other_size,
    "another type": lambda value: value.to(torch.int16) if isinstance(value, torch.Tensor) else 0.5,
    "an empty list": lambda value: [],
    "other keys": lambda value: {"forged": value, 7: value},
}


@pytest.mark.parametrize("count", [20, pytest.param(None, marks=pytest.mark.slow)])
def test_a_forged_checkpoint_is_one_line(count: int | None, template: Template, five: Path, tmp_path: Path) -> None:
    """Every part of it in turn is something else, with sums that fit."""
    newest = five / "checkpoints" / "round_000005.pt"
    content = newest.read_bytes()
    begin = content.index(b"}\n" if b"}\nPK" in content else b"}PK") + 1
    header = json.loads(content[store._PREFIX.size : begin])
    payload = torch.load(io.BytesIO(content[begin:].lstrip(b"\n")), weights_only=True)
    forgeries = [(path, name) for path in _paths(payload) for name in FORGERIES]
    assert len(forgeries) > 100
    refused = 0
    for number, (path, name) in enumerate(forgeries if count is None else random.Random(0).sample(forgeries, count)):
        folder = tmp_path / str(number)
        shutil.copytree(five, folder)
        forged = _with(payload, path, FORGERIES[name])
        with (folder / "checkpoints" / "round_000005.pt").open("wb") as file:
            store._write(file, header["round"], header["fingerprint"], forged)
        ended = template.run(folder, *DISK, *LONGER)
        assert ended.status in (0, 2) and "Traceback" not in ended.said, (path, name, ended.said)
        refused += ended.status
        shutil.rmtree(folder)
    assert refused
