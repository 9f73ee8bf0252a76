"""A run that dies anywhere continues to the same bytes: killed at any call that changes its folder, at any instant,
half-way through a write, by a loss of power; and what a full disk, a refused folder or a wrong clock do to it.

Storage engines are tested like this. The slow tests try every point of every family, hundreds of deaths; the others
a few of them. `docs/reliability.md` has the counts.
"""

import random
import shutil
from pathlib import Path

import pytest

from tests.helpers import wandb_files
from tests.helpers.crash import FAMILIES, Ended, Template, results

FEW = ("buffered",)
# Every point of these is tried; the others write the same files and are killed at some.
EVERY = (
    *("synchronous", "buffered", "late_in_flight", "rows_scaffold", "rows_fedcda"),
    *("decentralised_pairs", "rows_decentralised", "matching", "hybrid"),
)


def newest(folder: Path) -> int:
    return max((int(path.stem.removeprefix("round_")) for path in folder.glob("checkpoints/round_*.pt")), default=0)


def reference(template: Template, folder: Path, family: str) -> Ended:
    """An uninterrupted run."""
    ended = template.run(folder, *FAMILIES[family].split())
    assert ended.status == 0, ended.said
    return ended


def finish(template: Template, folder: Path, whole: Path, family: str, how: str) -> None:
    """What is left of a run continues from its newest checkpoint to the bytes of the whole one; no rubbish is left."""
    done = newest(folder)
    ended = template.run(folder, *FAMILIES[family].split())
    assert ended.status == 0, f"{how}: {ended.said}"
    assert not done or f"continues after round {done} of" in ended.said or "is finished already" in ended.said, how
    assert results(folder) == results(whole), how
    assert not list(folder.rglob("*.tmp")), how
    shutil.rmtree(folder)


def die(template: Template, folder: Path, family: str, **plan: object) -> bool:
    """Runs until it is killed; whether it was."""
    ended = template.run(folder, *FAMILIES[family].split(), **plan)
    assert ended.status in (0, -9), ended.said
    return ended.status == -9


def at_points(template: Template, tmp_path: Path, family: str, acts: tuple[str, ...], most: int | None) -> int:
    """Kills a run once at each of its points (at `most` of them, drawn), lets it finish; how many died."""
    rng, deaths = random.Random(family), 0
    points = reference(template, tmp_path / "whole", family).points
    cases = [(act, at) for act in acts for at in range(1, points + 1)]
    for act, at in cases if most is None else rng.sample(cases, most):
        assert die(template, tmp_path / "run", family, at=at, act=act, seed=at)
        deaths += 1
        finish(template, tmp_path / "run", tmp_path / "whole", family, f"{family}: {act} at point {at} of {points}")
    return deaths


def again_and_again(template: Template, tmp_path: Path, family: str, runs: int) -> int:
    """Runs of which each is killed several times, at instants and at points; how many died."""
    rng, deaths = random.Random(f"{family} again"), 0
    whole = reference(template, tmp_path / "whole", family)
    for number in range(runs):
        for _ in range(rng.randint(2, 5)):
            if rng.random() < 0.5:
                plan: dict[str, object] = {"after": rng.uniform(0, whole.seconds)}
            else:
                act = rng.choice(("kill", "tear", "power"))
                plan = {"at": rng.randint(1, whole.points), "act": act, "seed": rng.random()}
            deaths += die(template, tmp_path / "run", family, **plan)
        finish(template, tmp_path / "run", tmp_path / "whole", family, f"{family}: run {number}")
    return deaths


@pytest.mark.parametrize("family", FEW)
def test_a_run_that_dies_at_some_points_ends_in_the_same_bytes(family: str, template: Template, tmp_path: Path) -> None:
    assert at_points(template, tmp_path, family, ("tear", "power"), most=8) == 8


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_that_dies_at_any_point_ends_in_the_same_bytes(family: str, template: Template, tmp_path: Path) -> None:
    deaths = at_points(template, tmp_path, family, ("tear", "power"), most=None if family in EVERY else 20)
    print(f"\n{family}: {deaths} deaths at points")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_that_dies_again_and_again_ends_in_the_same_bytes(
    family: str, template: Template, tmp_path: Path
) -> None:
    deaths = again_and_again(template, tmp_path, family, runs=6)
    assert deaths >= 6
    print(f"\n{family}: {deaths} deaths at instants and points")


def histories(folder: Path) -> list[list[dict[str, object]]]:
    """The rounds in each W&B file of a run that is to be uploaded, without times and media."""

    def numbers(row: dict[str, object]) -> dict[str, object]:
        return {key: row[key] for key in sorted(row) if not key.startswith(("time/", "partition", "topology"))}

    return [[numbers(row) for row in wandb_files.history(path)] for path in folder.glob("wandb/offline-run-*/*.wandb")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "runs"), [("buffered", 20), ("rows_fedcda", 8), ("decentralised_pairs", 8), ("matching", 8)]
)
def test_the_history_in_wandb_is_that_of_an_uninterrupted_run(
    family: str, runs: int, template: Template, tmp_path: Path
) -> None:
    """With the real W&B, offline: whenever the run dies, one file of it is left in the end, with each round once."""

    def run(name: str, **plan: object) -> Ended:
        folder = tmp_path / name
        return template.run(
            folder / "run", *FAMILIES[family].split(), "logger=wandb", f"logger.dir={folder}/wandb", **plan
        )

    rng, deaths, whole = random.Random(f"{family} wandb"), 0, run("whole")
    assert whole.status == 0, whole.said
    (expected,) = histories(tmp_path / "whole")
    assert len(expected) == 6
    for number in range(runs):
        # In the last points the numbers are all there, and W&B is being closed.
        late = number % 2 == 0
        plan = {"at": rng.randint(whole.points - 8 if late else 12, whole.points)}
        ended = run(f"{number}", **(plan if late or rng.random() < 0.5 else {"after": rng.uniform(0, whole.seconds)}))
        assert ended.status in (0, -9), ended.said
        deaths += ended.status == -9
        ended = run(f"{number}")
        assert ended.status == 0, ended.said
        assert results(tmp_path / f"{number}" / "run") == results(tmp_path / "whole" / "run")
        assert histories(tmp_path / f"{number}") == [expected], (number, plan, ended.said)
    assert deaths >= runs // 2
    print(f"\n{family}: {deaths} deaths with W&B")
