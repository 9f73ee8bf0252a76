"""Pictures of a sweep: which are drawn, and of which numbers."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fedlab_runner.methods.registry import method_style
from fedlab_runner.sweep import plots, ranking, records
from fedlab_runner.sweep.plots import plot_sweep
from fedlab_runner.sweep.records import Job
from fedlab_runner.sweep.table import show
from fedlab_runner.utils import checksummed_json

SUMMARY: dict[str, Any] = {"metric": "test/accuracy", "rule": "best"}


def job(
    folder: Path,
    objective: float | None,
    *overrides: str,
    seed: int = 0,
    status: str = "finished",
    rounds: int | None = None,
    tested: Sequence[int] = range(4),
) -> None:
    """A job's record, and its run's metrics in the rounds `tested`."""
    summary = SUMMARY | ({} if rounds is None else {"rounds": rounds})
    number = len(list(folder.glob("jobs/*.json")))
    run = folder.parent / f"run{number}"
    run.mkdir(parents=True)
    rows: list[dict[str, Any]] = [
        {"round": r, "test/accuracy": None if r == 1 else (objective or 0) * r} for r in tested
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = Job([*overrides, f"seed={seed}"], seed, status, objective, str(run), summary)
    (folder / "jobs").mkdir(parents=True, exist_ok=True)
    (folder / "jobs" / f"{number}.json").write_text(checksummed_json.text(asdict(record)))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[float], list[list[float]]]]:
    """What is drawn: the label, and the values at each x, before they are averaged."""
    drawn: list[tuple[str, list[float], list[list[float]]]] = []
    draw = plots._draw

    def note(axes: Any, look: Any, x: Any, values: Any, label: str, **how: bool) -> None:
        drawn.append((label, list(x), [list(each) for each in values]))
        draw(axes, look, x, values, label, **how)

    monkeypatch.setattr(plots, "_draw", note)
    return drawn


def test_the_objective_against_a_swept_number_has_a_line_for_each_other_setting(tmp_path: Path, lines: Any) -> None:
    folder = tmp_path / "sweep"
    for data in ("in_domain", "none"):
        for lam in ("0.01", "0", "1e-3"):
            for seed in (0, 1):
                job(folder, float(lam) + seed, f"algorithm.lam={lam}", f"server_data={data}", "rounds=3", seed=seed)
    drawn = plot_sweep(folder)
    assert [str(path.relative_to(folder)) for path in drawn] == ["plots/algorithm.lam.png", "plots/curves.png"]
    against = [[0.0, 1.0], [0.001, 1.001], [0.01, 1.01]]
    assert lines[:2] == [(f"server_data={data}", [0, 1, 2], against) for data in ("in_domain", "none")]
    assert len(lines) == 2 + 6
    label, rounds, values = lines[2]
    assert label.startswith("algorithm.lam=") and rounds == [0, 2, 3], "what is not finite is left out"
    assert all(len(seeds) == 2 for seeds in values)
    for path in drawn:
        with Image.open(path) as image:
            assert len(image.convert("RGB").getcolors(2**24) or []) > 50
        assert "shaded by a standard deviation" in path.with_suffix(".svg").read_text()


def test_pictures_keep_what_they_draw_alone_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten settings of runs of 50,000 rounds would not fit into memory."""
    folder, kept = tmp_path / "sweep", list[dict[str, Any]]()
    for number, lr in enumerate(("0.1", "0.2")):
        job(folder, 0.5, f"local.lr={lr}")
        rows = [{"round": r, "late/arrived": 3} | ({"test/accuracy": 0.5} if r % 3 == 0 else {}) for r in range(5)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"run{number}" / "metrics.jsonl").write_text(text)
    draw = plots._over_rounds

    def note(*what: Any) -> Path | None:
        kept.extend(row for runs in what[-1] for run in runs for row in run)
        return draw(*what)

    monkeypatch.setattr(plots, "_over_rounds", note)
    monkeypatch.setattr(plots, "CURVES", ())
    plot_sweep(folder)
    assert kept == [{"round": round, "test/accuracy": 0.5} for round in (0, 3)] * 2


def test_lines_are_called_and_drawn_as_the_registry_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, looks = tmp_path / "sweep", {}
    draw = plots._draw

    def note(axes: Any, look: Any, x: Any, values: Any, label: str, spread: bool = True) -> None:
        looks[label] = look
        draw(axes, look, x, values, label, spread)

    monkeypatch.setattr(plots, "_draw", note)
    job(folder, 0.5, "algorithm=feddle", "server_data=in_domain")
    job(folder, 0.5, "algorithm=feddle", "server_data=tiny_imagenet")
    job(folder, 0.5, "algorithm=fedavg", "server_data=in_domain")
    job(folder, 0.5, "algorithm=fedavg", "server_data=none")
    target = "fedlab_runner.algorithms.fedavg.FedAvg"
    node = {"_target_": "fedlab_runner.server_optimizers.adam.Adam"}
    for run in sorted(tmp_path.glob("run*"))[2:]:  # a run's config says more than the overrides
        config = {"algorithm": {"_target_": target}, "server_optimizer": node}
        (run / "config.yaml").write_text(json.dumps(config))
    plot_sweep(folder)
    names = ["Feddle-ID", "Feddle-OOD server_data=tiny_imagenet", "FedAdam server_data=in_domain"]
    assert set(looks) == {*names, "FedAdam server_data=none"}
    assert looks["Feddle-ID"] == method_style("feddle", {"server_data": "in_domain"}).line
    assert looks[names[2]] == method_style("fedavg", {"server_optimizer": "adam"}).line
    assert len({(look.dash, look.marker) for look in looks.values()}) == 4


@pytest.mark.parametrize(
    ("metric", "seen", "drawn"),
    [
        (
            "test/accuracy",
            {"analysis/update_cosine_mean": 0.4, "analysis/update_cosine_min": -0.1, "analysis/update_cosine_max": 0.6},
            ["update_cosines"],
        ),
        ("test/accuracy", {"client/global": 0.4, "client/validation": 0.5}, ["client-global", "client-validation"]),
        ("client/global", {"client/global": 0.4}, []),
        ("test/accuracy", {"regular/accuracy": 0.4, "meme/accuracy": 0.3}, ["regular-accuracy", "meme-accuracy"]),
        ("test/accuracy", {"server/train_weighted_loss": 2.0}, ["train-loss"]),
    ],
)
def test_what_runs_have_besides_the_objective_is_drawn_over_the_settings_too(
    metric: str, seen: dict[str, float], drawn: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SUMMARY, "metric", metric)
    folder = tmp_path / "sweep"
    for alpha in ("0.1", "1.0"):
        job(folder, 0.5, f"partition.alpha={alpha}")
    for run in tmp_path.glob("run*"):
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"round": 4, "test/accuracy": 0.5, **seen}) + "\n")
    assert [path.stem for path in plot_sweep(folder)] == ["partition.alpha", "curves", *drawn]


def test_nothing_is_drawn_where_there_is_nothing_to_compare(tmp_path: Path) -> None:
    for name, overrides in {"one": ["local.lr=1"], "words": ["algorithm=a"]}.items():
        job(tmp_path / name / "sweep", 0.5, *overrides)
        assert plot_sweep(tmp_path / name / "sweep") == []
    failed = tmp_path / "failed" / "sweep"
    for lr in ("1", "2"):
        job(failed, None, f"local.lr={lr}", status="failed")
    assert plot_sweep(failed) == []
    search = tmp_path / "search" / "sweep"  # each trial has values of its own: lines of one point
    for i in range(3):
        job(search, 0.5, f"local.lr={i}", f"local.epochs={i}")
    assert [path.stem for path in plot_sweep(search)] == ["curves"]
    many = tmp_path / "many" / "sweep"
    for i in range(plots.MAX_LINES + 1):
        for lr in ("1", "2"):
            job(many, 0.5, f"algorithm=a{i}", f"local.lr={lr}")
    assert [path.stem for path in plot_sweep(many)] == ["curves-best"], "more lines than a picture holds"


def test_many_settings_get_a_picture_for_each_combination_of_numbers(tmp_path: Path, lines: Any) -> None:
    folder = tmp_path / "sweep"
    for algorithm in ("a", "b", "c"):
        for alpha in ("0.1", "0.3"):
            for std in ("5", "20"):
                job(folder, 0.5, f"algorithm={algorithm}", f"partition.alpha={alpha}", f"delay.std={std}")
    drawn = [path.stem for path in plot_sweep(folder)]
    assert drawn[:2] == ["delay.std", "partition.alpha"]
    assert sorted(drawn[2:]) == [f"curves-delay.std={std}-partition.alpha={a}" for std in (20, 5) for a in (0.1, 0.3)]
    assert [label for label, *_ in lines[-3:]] == ["a", "b", "c"]


@pytest.mark.parametrize(("metric", "sign"), [("test/accuracy", 1), ("test/loss", -1)])
def test_too_many_settings_are_drawn_by_the_best(
    tmp_path: Path, lines: Any, monkeypatch: pytest.MonkeyPatch, metric: str, sign: int
) -> None:
    """Not as dozens of pictures, and not as a line for each combination of the other numbers."""
    monkeypatch.setitem(SUMMARY, "metric", metric)
    folder = tmp_path / "sweep"
    for a, algorithm in enumerate(("a", "b")):
        for lr in range(6):
            for std in range(6):
                value = sign * (a + lr / 10 + std / 100)  # the largest are the best
                job(folder, value, f"algorithm={algorithm}", f"local.lr={lr}", f"delay.std={std}")
    drawn = [path.stem for path in plot_sweep(folder)]
    assert drawn == ["delay.std", "local.lr"] + ["curves-best"] * (metric == "test/accuracy")
    assert [label for label, *_ in lines[:4]] == ["a", "b"] * 2
    assert lines[1][2] == [[pytest.approx(sign * (1.5 + std / 100))] for std in range(6)]
    assert lines[2][2] == [[pytest.approx(sign * (lr / 10 + 0.05))] for lr in range(6)]
    against = (folder / "plots" / "local.lr.svg").read_text()
    assert "The best setting of the other numbers at each value." in against
    if metric == "test/accuracy":
        assert len(lines) == 4 + plots.MAX_LINES and lines[4][2][0] == [0]
        assert [values[-1][0] for *_, values in lines[4:]] == sorted(
            (pytest.approx(3 * (1 + lr / 10 + std / 100)) for lr in (5, 4) for std in range(6)),
            key=lambda each: -each.expected,
        )[:10]
        assert "best 10 of 72 settings" in (folder / "plots" / "curves-best.svg").read_text()


def test_the_best_settings_are_named_by_all_that_differs_in_the_sweep(tmp_path: Path, lines: Any) -> None:
    """Also by what these settings share."""
    for i in range(13):
        job(tmp_path / "sweep", i / 20, f"algorithm=a{i}", f"home={'head' if i > 2 else 'none'}")
    plot_sweep(tmp_path / "sweep")
    assert [label for label, *_ in lines] == [f"a{i} home=head" for i in range(12, 2, -1)]


def test_no_name_of_a_line_is_wider_than_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "_saved", lambda figure, *_: drawn.append(figure))
    for i in range(2):
        job(tmp_path / "sweep", i / 20, *(f"data.{name}={'words' * 3}{i}" for name in "abcd"))
    plot_sweep(tmp_path / "sweep")
    for figure in drawn:
        figure.draw_without_rendering()
        (legend,) = figure.legends
        assert legend.get_window_extent().x1 <= figure.bbox.x1
        assert figure.axes[0].get_window_extent().height > figure.dpi * 2.5


@pytest.mark.parametrize("lowest", [0.0, 0.012345678])
def test_a_searchs_many_values_are_points_on_a_scale(tmp_path: Path, lines: Any, lowest: float) -> None:
    """A place for each value would hide all of them; the numbers of a sampler have 17 digits."""
    folder, values = tmp_path / "sweep", [lowest + i * 0.0123456789 for i in range(20)]
    for i, lr in enumerate(values):
        job(folder, i / 20, f"local.lr={lr}", f"local.epochs={i % 2}")
    paths = [path.stem for path in plot_sweep(folder)]
    assert paths == ["local.epochs", "local.lr", "curves-best"]
    assert [x for _, x, _ in lines[1:3]] == [values[::2], values[1::2]]
    drawn = (folder / "plots" / "local.lr.svg").read_text()
    assert not any(str(lr) in drawn for lr in values[1:])
    assert (">0.02<" in drawn) == bool(lowest), "logarithmic where all values are above 0"
    assert [label for label, *_ in lines[3:5]] == [f"local.epochs={i % 2} local.lr={values[i]:.4g}" for i in (19, 18)]


def test_a_searchs_few_values_are_points_on_a_scale_too(tmp_path: Path) -> None:
    drawn, values = [], [0.021107211086166440, 0.037561961444998390, 0.34901238723645]
    for key, found in (("local.lr", values), ("num_clients", [16384, 32768, 65536])):
        for i, value in enumerate(found):
            job(tmp_path / key / "sweep", i / 20, f"{key}={value}")
        plot_sweep(tmp_path / key / "sweep")
        drawn.append((tmp_path / key / "sweep" / "plots" / f"{key}.svg").read_text())
    assert ">0.2<" in drawn[0] and not any(str(lr) in drawn[0] for lr in values)
    assert ">32768<" in drawn[1], "whole numbers have a place each"


@pytest.mark.parametrize("digits", [1, 9])
def test_no_tick_runs_into_another(digits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long values of a grid are turned; a wide range names powers of ten."""
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "_saved", lambda figure, *_: drawn.append(figure))
    folder = tmp_path / "sweep"
    for i in range(12):
        job(folder, i / 20, f"a={10 ** (digits - 1) + i}", f"b={1.2345678 * 10.0 ** (i - 6)}")
    plot_sweep(folder)
    for figure in drawn[:2]:
        figure.draw_without_rendering()
        (axes,) = figure.axes
        texts = [text for text in axes.get_xticklabels() if text.get_text()]
        boxes = [text.get_window_extent() for text in texts]
        assert len(texts) > 2
        if texts[0].get_rotation() == 0:
            assert all(one.x1 < other.x0 for one, other in pairwise(boxes)), [text.get_text() for text in texts]
        else:
            assert digits == 9 and len(texts) == 12
    assert [each.axes[0].get_xticklabels()[0].get_rotation() for each in drawn[:2]] == [45 if digits == 9 else 0, 0]


def test_settings_of_another_metric_or_rule_have_pictures_and_ranks_of_their_own(
    tmp_path: Path, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sweep"
    for metric, rule in (("test/accuracy", "best"), ("test/accuracy", "last"), ("test/loss", "best")):
        for lr in (1, 2):
            monkeypatch.setitem(SUMMARY, "metric", metric)
            monkeypatch.setitem(SUMMARY, "rule", rule)
            job(folder, lr / 4, f"evaluation.metric={metric}", f"evaluation.summary={rule}", f"local.lr={lr}")
    drawn = [path.stem for path in plot_sweep(folder) if path.stem.startswith("local.lr")]
    assert drawn == [f"local.lr-test-{kind}" for kind in ("accuracy-best", "accuracy-last", "loss-best")]
    assert all(values == [[0.25], [0.5]] for _, x, values in lines if x == [0, 1])
    loss, share = (
        (folder / "plots" / f"local.lr-test-{kind}.svg").read_text() for kind in ("loss-best", "accuracy-last")
    )
    assert "test/loss, best" in loss and "%<" not in loss and "test/accuracy, last" in share and "%<" in share
    rates = [row.setting[2][-1] for row in ranking.best_first(records.read(folder))]
    assert rates == ["2", "1", "2", "1", "1", "2"], "each metric in its own direction"


def test_rounds_of_a_longer_run_than_the_job_asked_for_are_left_out(tmp_path: Path, lines: Any) -> None:
    folder = tmp_path / "sweep"
    job(folder, 0.5, "local.lr=1", rounds=3)
    job(folder, 0.5, "local.lr=2", rounds=2)
    plot_sweep(folder)
    assert [x for _, x, _ in lines[1:]] == [[0, 2, 3], [0, 2]]


def test_a_curve_has_the_rounds_that_all_its_seeds_have(tmp_path: Path, lines: Any) -> None:
    """A run that was made longer has an evaluation after its former last round, which other seeds lack."""
    folder = tmp_path / "sweep"
    for lr in ("1", "2"):
        job(folder, 0.2, f"local.lr={lr}", seed=0, tested=(0, 2, 4))
        job(folder, 0.5, f"local.lr={lr}", seed=1, tested=(0, 2, 3, 4))
    plot_sweep(folder)
    assert [x for _, x, _ in lines[1:]] == [[0, 2, 4], [0, 2, 4]]


def test_runs_that_have_moved_leave_out_the_curves(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    for lr in ("1", "2"):
        job(folder, 0.5, f"local.lr={lr}")
    for path in tmp_path.glob("run*/metrics.jsonl"):
        path.unlink()
    assert [path.stem for path in plot_sweep(folder)] == ["local.lr"]


def test_the_pictures_are_named_after_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for lr in ("1", "2"):
        job(tmp_path / "sweep", 0.5, f"local.lr={lr}")
    show(tmp_path / "sweep")
    out = capsys.readouterr().out.splitlines()
    assert out[-4:-1] == ["sweep/table.md", "sweep/plots/local.lr.png", "sweep/plots/curves.png"]
    assert out[-1] == "a page of all results: fedlab-report sweep"
