"""Published settings: each runs, its sweep asks for what exists, and together they cover the paper's numbers."""

import itertools
import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf, open_dict

from fedlab_runner.config import composing
from fedlab_runner.config.build import build, check, conf_dir, register_resolvers
from fedlab_runner.experiment.run import prepare, run_in
from tests.helpers.composed import composed, with_values

CONF = conf_dir()
EXPERIMENTS = sorted(
    str(path.relative_to(CONF / "experiment").with_suffix("")) for path in (CONF / "experiment").rglob("*.yaml")
)
RUNS = ("algorithm", "topology", "home", "aggregator")
YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the fast one where there is one


@cache
def chosen(experiment: str) -> dict[str, str]:
    """The choices of an experiment's file and of those that it builds on, by group."""
    found: dict[str, str] = {}
    file = yaml.load((CONF / "experiment" / f"{experiment}.yaml").read_text(), YAML)
    for each in file.get("defaults", []):
        if isinstance(each, dict):
            found |= {str(key).removeprefix("override ").removeprefix("/"): str(value) for key, value in each.items()}
        elif each != "_self_":
            found |= chosen(each.removeprefix("/experiment/"))
    return found


# Of the experiments that choose the same of these groups, the first.
DISTINCT = {tuple(map(chosen(name).get, RUNS)): name for name in reversed(EXPERIMENTS)}.values()
TABLES = sorted(path.relative_to(CONF / "paper") for path in (CONF / "paper").rglob("*.yaml"))
CHOICES = (
    "algorithm",
    "dataset",
    "model",
    "server_data",
    "partition",
    "delay",
    "topology",
    "loss",
    "server_optimizer",
    "aggregator",
    "home",
)
# Of each file of choices the overrides of a group at a place, group@place=choice, that its comments name.
PLACED = [
    (path.relative_to(CONF), each)
    for path in sorted(CONF.rglob("*.yaml"))
    for each in re.findall(r"\+?\w+@[\w.]+=\w+", "\n".join(re.findall("#.*", path.read_text())))
]
NEEDS_MORE = {"natural", "assigned_blocks", "random_blocks"}  # partitions of users and of feature blocks
TINY = ("num_clients=12", "participation.cohort_size=3", "local.epochs=1", "rounds=1", "device=cpu")


@cache
def with_hydra(experiment: str) -> DictConfig:
    register_resolvers()
    return composing.composed([f"experiment={experiment}"], with_hydra=True)


def published(experiment: str) -> DictConfig:
    """A copy of its config."""
    with open_dict(cfg := with_hydra(experiment).copy()):
        del cfg["hydra"]
    return cfg


def grid(experiment: str) -> dict[str, list[str]]:
    """The values of each key of the sweep."""
    params = with_hydra(experiment).hydra.sweeper.params or {}
    return {str(key): str(value).split(",") for key, value in params.items()}


def without_files(cfg: DictConfig) -> DictConfig:
    """The same with a data set, server data and a model that need no files and no time, and without W&B."""

    def load(choice: str, **changes: Any) -> DictConfig:
        return OmegaConf.merge(OmegaConf.load(CONF / f"{choice}.yaml"), changes)

    with open_dict(cfg):
        model = cfg.model
        cfg.dataset = load("dataset/synthetic", num_users=12)
        normalised = "norm" in cfg.home._target_  # a home of norm layers needs some
        cfg.model = load("model/preact_resnet", widths=[4, 4], image_size=8) if normalised else load("model/mlp")
        cfg.logger = load("logger/none")
        cfg.evaluation.held_out = min(cfg.evaluation.held_out, 50)
        if "size" in cfg.server_data:
            cfg.server_data.size, cfg.server_data.fraction = 50, None
        for group in ("server_data", "auxiliary_data"):
            if "max_images" in cfg[group]:
                target = "fedlab_runner.server_data.torchvision.OtherDataset"
                other = load("dataset/synthetic", num_classes=7, num_train=60)
                cfg[group] = {"_target_": target, "dataset": other, "part": "train", "max_images": 50}
        if cfg.local.steps is not None:
            cfg.local.epochs, cfg.local.steps = None, 2
        if "num_blocks" in cfg.partition:
            fit_blocks(cfg, model)
    return cfg


def fit_blocks(cfg: DictConfig, model: Any) -> None:
    """The feature blocks of the partition in 64 pixels, 10 classes, and a model that reads as many as the published."""
    count = cfg.partition.num_blocks
    blocks = OmegaConf.load(CONF / "model/blocks_mlp.yaml")
    changes = {"sizes": [5] * (count - 1) + [64 - 5 * (count - 1)], "blocks": model.blocks}
    cfg.model = OmegaConf.merge(blocks, changes, {"server_hidden": model.server_hidden})
    if "blocks" in cfg.partition:
        cfg.num_clients = len(cfg.partition.blocks)
        cfg.partition.classes = [sorted({c % 10 for c in mine}) for mine in cfg.partition.classes]
    else:
        cfg.partition.classes_per_client = 5


@pytest.mark.parametrize(("path", "override"), PLACED, ids=str)
def test_what_a_comment_says_to_write_composes(path: Path, override: str) -> None:
    composed(f"{path.parts[0]}={Path(*path.parts[1:]).with_suffix('')}", override)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_builds_and_those_that_differ_in_their_choices_run(experiment: str, tmp_path: Path) -> None:
    """Its sweep asks for choices that exist. In the slow tests those run too that differ in data, model and values."""
    cfg = published(experiment)
    build(cfg)
    if OmegaConf.select(cfg, "model.weights") is not None:  # whatever the data set's own statistics are
        assert (cfg.dataset.mean, cfg.dataset.std) == ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]), "not ImageNet's"

    for key, values in grid(experiment).items():
        group = CONF / key.partition("@")[0]
        assert not group.is_dir() or all((group / f"{value}.yaml").is_file() for value in values), key
    if experiment in DISTINCT:
        assert_it_runs_a_round(experiment, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("experiment", sorted({*EXPERIMENTS} - {*DISTINCT}))
def test_the_others_run(experiment: str, tmp_path: Path) -> None:
    assert_it_runs_a_round(experiment, tmp_path)


def assert_it_runs_a_round(experiment: str, tmp_path: Path) -> None:
    assert 0 <= run_in(tmp_path, without_files(with_values(published(experiment), *TINY))) <= 1


IN_LITTLE = ("example", "feddle/table7", "dfml/table3", "fedwalk/table2", "fedcda/table1")


@pytest.mark.parametrize(
    "experiment",
    [*IN_LITTLE, *(pytest.param(name, marks=pytest.mark.slow) for name in sorted({*EXPERIMENTS} - {*IN_LITTLE}))],
)
def test_an_experiment_in_little_is_little(experiment: str) -> None:
    cfg = composed("+debug=tiny", f"experiment={experiment}", small=False)
    tiny, whole = build(cfg), check(published(experiment))
    assert tiny.rounds <= 2 and tiny.num_clients <= 10 and tiny.train_fraction <= 0.02
    assert tiny.participation.cohort(tiny.num_clients) <= min(4, tiny.num_clients)
    assert (tiny.local.epochs or 1) == 1 and (tiny.local.steps or 1) <= 2
    assert "debug" not in check(cfg).values and check(cfg).run_id != whole.run_id


@pytest.mark.parametrize(
    ("experiment", "change", "part", "little"),
    [
        ("feddle/table7_ood", "algorithm=feddf", "server_data", {"max_images": 200}),
        ("feddle/table7_ood", "algorithm=feddf", "algorithm", {"epochs": 1, "max_steps": 2}),
        ("fedwalk/fig4", "algorithm.pretrain=300", "auxiliary_data", {"max_images": 200}),
        ("fedwalk/fig4", "algorithm.pretrain=300", "algorithm", {"pretrain": 2}),
        ("feddle/table2_celeba", "algorithm=fedavg", "dataset", {"image_size": 32}),
    ],
)
def test_data_and_server_in_little_are_little(experiment: str, change: str, part: str, little: dict[str, int]) -> None:
    """Its own null, all images and no cap on steps, is bounded too."""
    built = getattr(build(composed("+debug=tiny", f"experiment={experiment}", change, small=False)), part)
    assert {name: getattr(built, name) for name in little} == little


@pytest.mark.slow
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_value_of_a_sweep_builds(experiment: str) -> None:
    """The first values of all keys together, then the second ones, until each was there."""
    params = {key: values for key, values in grid(experiment).items() if key != "seed"}
    for i in range(max(map(len, params.values()), default=0)):
        job = [f"{key}={values[i % len(values)]}" for key, values in params.items()]
        build(composed(f"experiment={experiment}", *job, small=False))


@pytest.mark.parametrize("experiment", IN_LITTLE)
def test_an_experiment_in_little_runs(experiment: str, tmp_path: Path) -> None:
    cfg = without_files(composed("+debug=tiny", f"experiment={experiment}", "device=cpu", small=False))
    cfg.debug.train_fraction = 0.5  # of the few examples that stand in for the files
    assert 0 <= run_in(tmp_path, cfg) <= 1
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("choice", sorted({path.stem for path in (CONF / "partition").glob("*.yaml")} - NEEDS_MORE))
def test_each_partition_deals_the_few_examples_of_an_experiment_in_little(choice: str) -> None:
    config = build(composed("+debug=tiny", "dataset=digits", f"partition={choice}", "model=logistic", small=False))
    assert 1 <= prepare(config).simulation.fed.num_clients <= 10


def jobs(experiment: str) -> Iterator[dict[str, str]]:
    """What the jobs of a sweep choose, group by group, and the values that they set; without the seeds."""
    cfg, params = with_hydra(experiment), grid(experiment)
    params.pop("seed", None)
    common = {group: str(cfg.hydra.runtime.choices[group]) for group in CHOICES}
    common |= {
        key: str(value)
        for key in ("partition.alpha", "delay.std", "label_noise", "num_clients")
        if (value := OmegaConf.select(cfg, key)) is not None
    }
    for values in itertools.product(*params.values()):
        yield {**common, **dict(zip(params, values, strict=True)), "experiment": experiment}


def fits(job: dict[str, str], wanted: dict[str, Any]) -> bool:
    for key, value in wanted.items():
        have = job.get(key)
        if value == "out_of_domain":
            if have != "tiny_imagenet":
                return False
        elif isinstance(value, int | float):
            if have is None or not math.isclose(float(have), value):
                return False
        elif value != "any" and key != "metric" and have != value:
            return False
    return True


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_the_papers_numbers_are_whole_and_each_has_its_run(table: Path) -> None:
    """One number for each row and column, and exactly one job (over the seeds) of the experiments of that name."""
    paper = OmegaConf.to_container(OmegaConf.load(CONF / "paper" / table))
    assert all("model" in column for column in paper["columns"]), "takes the runs of other tables"
    names = [name for name in EXPERIMENTS if f"{name}_".startswith(f"{table.with_suffix('')}_")]
    runs = [job for name in names for job in jobs(name)]
    assert set(paper) == {"unit", "spread", "columns", "rows"} and len({row["name"] for row in paper["rows"]}) == len(
        paper["rows"]
    )
    for row in paper["rows"]:
        for kind in ("mean", "std") if "std" in row else ("mean",):
            assert len(row[kind]) == len(paper["columns"])
            assert all(value is None or value >= 0 for value in row[kind])
        for column in paper["columns"]:
            found = [job for job in runs if fits(job, {**column, **row["choice"]})]
            assert len(found) == 1, (row["name"], column, found)


def test_the_papers_tables_are_there() -> None:
    assert {f"feddle/table{number}.yaml" for number in range(1, 9)} <= {str(table) for table in TABLES}
    assert {f"dfml/table{number}.yaml" for number in (*range(3, 10), 11, 12)} <= {str(table) for table in TABLES}
    figures = {f"feddle/fig{number}" for number in (2, *range(5, 14))}
    mine = {f"dfml/fig{n}" for n in (1, 4, 5, 6, 7, 9, 12, 13, 14, *range(19, 23), *range(24, 29))}
    assert mine | {f"dfml/table{number}" for number in (*range(3, 10), 11, 12)} <= set(EXPERIMENTS)
    assert figures | {f"feddle/table{number}" for number in range(1, 9)} <= set(EXPERIMENTS)
    assert {"fedcda/table1.yaml", "fedcda/table2.yaml", "fedwalk/table2.yaml"} <= {str(table) for table in TABLES}
    assert {
        f"fedcda/{name}" for name in ("table1", "table2", "fig2a", "fig2b", "fig2c", "fig2d", "fig3", "fig4")
    } <= set(EXPERIMENTS)
    assert {f"fedwalk/{name}" for name in ("table2", "fig2", "fig3", "fig4", "fig5")} <= set(EXPERIMENTS)


@pytest.mark.parametrize(
    "experiment",
    [name for name in EXPERIMENTS if "of each run" in (CONF / "experiment" / f"{name}.yaml").read_text()],
)
def test_a_sweep_draws_the_pictures_of_each_run_that_a_comment_names(experiment: str) -> None:
    assert published(experiment).logger.pictures is True


@pytest.mark.parametrize("experiment", ["hyfem/mu2", "hyfem/search_c1"])
def test_a_search_over_an_experiment_with_pictures_draws_them_on_demand(experiment: str) -> None:
    assert published(experiment).logger.pictures is None


WSM, IID, DIRICHLET = "loss._target_", "partition=iid", "partition=dirichlet"
# What papers, codes that they name, or the experiment's own comment say of a setting.
STATED: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    *((f"fedcda/{name}_fedlaw", (), {"algorithm.lr": 0.005}) for name in ("table1", "table1_shards", "table2")),
    *(
        (f"fedcda/table1_cifar{kind}_fedlaw", (f"dataset={dataset}",), {"algorithm.lr": lr})
        for kind in ("", "_shards")
        for dataset, lr in (("cifar10", 0.01), ("cifar100", 0.005))
    ),
    *(  # its authors' weights, but where the learning rate is a hundred times Table 1's
        (f"fedcda/{name}_fedgen", (), {"algorithm.alpha": weight, "algorithm.beta": weight})
        for name, weight in (("table1", 10.0), ("table1_cifar_shards", 10.0), ("table2", 1.0))
    ),
    *(  # DFML, A.5.1: less than 1 but for cross entropy on skewed shares
        (f"dfml/{name}", (partition,), {"algorithm.alpha_max": alpha})
        for name in ("table9_ce", "fig7", "fig9_cyclic", "fig26")
        for partition, alpha in ((IID, 0.9), (DIRICHLET, 1.0))
    ),
    *(  # A.5.3 and ANL's own: up to 1 whatever the shares
        (f"dfml/{name}", (partition,), {"algorithm.alpha_max": 1.0})
        for name in ("fig27", "fig26_anl")
        for partition in (IID, DIRICHLET)
    ),
    ("feddle/table5", ("server_data=in_domain",), {"algorithm.lam": 0.01}),
    ("feddle/table5_init", ("server_data=tiny_imagenet",), {"algorithm.lam": 0.0}),
    ("dfml/fig26_anl", ("rounds=60",), {"algorithm.anneal_rounds": 60}),
    ("dfml/fig28", (), {WSM: "fedlab_runner.core.losses.WSM", "algorithm.alpha_max": 0.9}),
    *(  # CIFAR's images are augmented, as in HeteroFL's code, others not
        (f"dfml/{name}", (), {"augment._target_": f"fedlab_runner.augment.{augment}"})
        for name, augment in (
            *((each, "crop_flip.CropFlip") for each in ("table3", "table6_n10", "federated_dropout", "fig12_server")),
            *((each, "none.NoAugment") for each in ("table5", "table5_photographs", "table7")),
        )
    ),
    ("late_clients", (), {"server_data._target_": "fedlab_runner.server_data.none.NoServerData"}),
    ("hyfem/mu2", ("algorithm.mu2=0.3",), {"algorithm.mu1": 0.1, "algorithm.mu2": 0.3}),
]


@pytest.mark.parametrize(("experiment", "changes", "stated"), STATED, ids=str)
def test_what_is_stated_is_what_runs(experiment: str, changes: tuple[str, ...], stated: dict[str, Any]) -> None:
    cfg = composed(f"experiment={experiment}", *changes, small=False)
    assert {key: OmegaConf.select(cfg, key) for key in stated} == stated


@pytest.mark.parametrize(
    ("row", "table", "data"),
    [("feddle/table5_init", "feddle/table6", "in_domain"), ("feddle/table5", "feddle/table6_ood", "tiny_imagenet")],
)
def test_a_row_of_feddles_table_5_without_a_change_is_a_run_of_table_6(row: str, table: str, data: str) -> None:
    """With lam at its default, which is 0 in-domain and 0.01 out-of-domain. On the other data the row sets it."""
    ids = {
        (each, where): check(composed(f"experiment={each}", f"server_data={where}", small=False)).run_id
        for each in (row, table)
        for where in ("in_domain", "tiny_imagenet")
    }
    assert {where for where in ("in_domain", "tiny_imagenet") if ids[row, where] == ids[table, where]} == {data}


def test_fedlaw_is_in_its_own_part_of_fedcdas_tables() -> None:
    """With the rest it would have one learning rate for all data sets."""
    tables = [name for name in EXPERIMENTS if name.startswith("fedcda/table")]
    assert all(name.endswith("_fedlaw") for name in tables if "fedlaw" in grid(name).get("algorithm", []))


def test_fedwalks_first_learning_rate_lasts_while_t_is_below_100() -> None:
    """Its t starts at 1: 99 rounds."""
    schedule = build(composed("experiment=fedwalk/table2", small=False)).lr_schedule
    assert [schedule.factor(t - 1) * 1e-2 for t in (1, 99, 100, 300)] == pytest.approx([1e-2, 1e-2, 1e-5, 1e-5])


SERVER = {"algorithm.lr": [1e-5, 1e-4, 1e-3], "algorithm.epochs": [1, 10, 20]}
BUFFER = {"algorithm.server_lr": [0.01, 0.1, 1], "algorithm.buffer_size": [10, 20, 50]}
RATES = {"local.lr": [1e-2, 1e-3, 1e-4]}
SEARCHES: dict[str, dict[str, list[float]]] = {  # Feddle, appendix D; FedWalk, section 5.1; DFML, appendix A
    "feddle/search_center": {"algorithm.lr": [1e-5, 1e-4, 1e-3], "algorithm.epochs": [10, 20, 50]},
    **{f"feddle/search_{name}": SERVER for name in ("fedft", "feddf", "feddle")},
    **{f"feddle/search_{name}": BUFFER for name in ("fedbuff", "ca2fl")},
    "feddle/search_fedasync": {"algorithm.a": [0.1, 0.5, 0.9], "algorithm.alpha": [0.2, 0.4, 0.8]},
    "fedwalk/search_plain": RATES,
    "fedwalk/search_plain_scaffold": RATES,
    "fedwalk/search_fedwalk": {**RATES, "algorithm.tau": [0, 0.5, 1]},
    "fedwalk/search_fedwalk_cifar100": {**RATES, "algorithm.tau": [0, 0.5, 1]},
    "fedwalk/search_fedwalk_mh": {**RATES, "algorithm.tau": [-1, -0.5, 0]},
    "fedwalk/search_fedwalk_hh": {**RATES, "algorithm.tau": [-1.3, -1.1]},
    "fedcda/search_fedlaw": {"algorithm.lr": [0.005, 0.01]},
    "dfml/search_lr": {"local.lr": [0.1, 0.01, 0.001]},
    "dfml/search_mu": {"algorithm.mu": [0.5, 1, 2]},
    "dfml/search_alpha_max": {"algorithm.alpha_max": [0.8, 0.9, 1.0]},
}


@pytest.mark.parametrize("name", SEARCHES)
def test_the_papers_searches_are_sweeps(name: str) -> None:
    params = {key: values for key, values in grid(name).items() if key not in ("algorithm", "partition", "seed")}
    assert {key: [float(value) for value in values] for key, values in params.items()} == SEARCHES[name]


def test_a_key_on_the_command_line_takes_the_place_of_its_grid() -> None:
    """As the experiments' comments say: Hydra's sweeper lets the later of two overrides of one key win."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    params = [f"{key}={','.join(values)}" for key, values in grid("feddle/table7").items()]
    parsed = OverridesParser.create().parse_overrides([*params, "seed=0", "dataset=fashion_mnist"])
    (batch,) = BasicSweeper.split_arguments(parsed, None)
    assert len(batch) == 9 * 2 * 2 and all("seed=0" in job and "dataset=fashion_mnist" in job for job in batch)
