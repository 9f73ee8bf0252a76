"""The config folder is the registry: every choice fits its class, every fault has its line, every run its name."""

import dataclasses
import math
import re
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from fedlab_runner.algorithms.fedavg import FedAvg
from fedlab_runner.config import build, components, schema, targets
from fedlab_runner.delays.base import Delay
from fedlab_runner.delays.constant import ConstantDelay
from fedlab_runner.participation.uniform import UniformParticipation
from fedlab_runner.utils.errors import UserError
from tests.helpers import composed as shared
from tests.helpers.paths import ROOT

CONF = build.conf_dir()
CHOICES = sorted(
    str(path.relative_to(CONF).with_suffix(""))
    for path in CONF.rglob("*.yaml")
    if re.search("^_target_:", path.read_text(), re.M) and path.relative_to(CONF).parts[0] != "hydra"
)
# What a choice needs to be told before it can be built.
NEEDED = {
    "delay/from_file": ["delay.path=delays.txt"],
    "participation/fixed": ["participation.clients=[0]"],
    "topology/edge_list": ["topology.path=links.txt"],
    "server_data/image_folder": ["server_data.root=images"],
    "dataset/csv": ["dataset.path=table.csv", "dataset.target=class"],
    "dataset/huggingface": ["dataset.path=owner/name"],
    "dataset/image_folder": ["dataset.root=images"],
    "dataset/npz": ["dataset.path=arrays.npz"],
    "model/pretrained": ["model.weights=model.safetensors"],
}
composed = partial(shared.composed, small=False)


def faults(*overrides: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        build.build(composed(*overrides))
    return str(caught.value).splitlines()


# The config folder.


def test_choices_are_discovered() -> None:
    assert {"algorithm/feddle", "dataset/digits", "local/sgd", "delay/half_normal"} <= set(CHOICES)


@pytest.mark.parametrize("choice", CHOICES)
def test_keys_of_a_choice_are_the_fields_of_its_class(choice: str) -> None:
    node = OmegaConf.load(CONF / f"{choice}.yaml")
    cls = targets.find_class(node["_target_"])
    assert {str(key) for key in node} - {"_target_", "defaults"} == {field.name for field in dataclasses.fields(cls)}
    assert all(field.default is dataclasses.MISSING for field in dataclasses.fields(cls)), "defaults live in the YAML"


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_builds_in_the_default_experiment(choice: str) -> None:
    """Hydra composes those that have defaults of their own; the others are put where Hydra would put them. Aggregators
    are built beside FedAvg.
    """
    group, _, name = choice.partition("/")
    node = OmegaConf.load(CONF / f"{choice}.yaml")
    target = node["_target_"]
    if "defaults" in node:
        cfg = composed(f"{group}={name}")
    else:
        cfg = composed(*(["algorithm=fedavg"] if group == "aggregator" else []))
        cfg[group] = node
    components = build.build(shared.with_values(cfg, *NEEDED.get(choice, [])))
    assert type(getattr(components, group)).__qualname__ == target.rpartition(".")[2]


def test_an_experiment_overrides_the_defaults_and_the_command_line_overrides_it() -> None:
    assert composed("experiment=example").algorithm._target_.endswith("FedAvg")
    assert composed("experiment=example", "algorithm=fedprox").algorithm._target_.endswith("FedProx")


def test_every_group_of_the_defaults_is_a_component() -> None:
    groups = [key for entry in OmegaConf.load(CONF / "train.yaml").defaults if entry != "_self_" for key in entry]
    groups = [key for key in groups if not key.startswith("override") and key not in ("experiment", "hparams_search")]
    groups = [key.rpartition("@")[2] for key in groups]  # server_data@probe_data is a node of another name
    kinds = {field.name: field.type for field in dataclasses.fields(components.Components)}
    assert sorted(groups) == sorted(name for name, kind in kinds.items() if targets.takes_objects(kind))


def test_build_gives_objects_and_plain_values() -> None:
    components = build.build(composed("rounds=7", "local.lr=1", "participation=fixed", "participation.clients=[3,1]"))
    assert components.rounds == 7
    assert type(components.local.lr) is float and components.local.lr == 1.0
    assert type(components.participation.clients) is list


# Faults.


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("local.lr=fast", "local.lr must be a number, got 'fast'"),
        ("local.batch_size=1.5", "local.batch_size must be a whole number, got 1.5"),
        ("local.batch_size=null", "local.batch_size must be a whole number, got null"),
        ("local.nesterov=1", "local.nesterov must be true or false or null, got 1"),
        ("+local.momentun=0.9", "local.momentun is not a key: did you mean local.momentum?"),
        ("+sed=1", "sed is not a key: did you mean seed?"),
        ("~local.lr", "local.lr is missing: expected a number"),
        ("local.lr=???", "local.lr is missing: expected a number"),
        ("local.lr=nan", "local.lr must be a number, got nan"),
        ("local.lr=${nowhere}", "local.lr: Interpolation key 'nowhere' not found"),
        ("rounds=many", "rounds must be a whole number, got 'many'"),
        ("rounds=-1", "rounds must be >= 0, got -1"),
        ("seed=-1", "seed must be in [0, 281474976710656), got -1"),
        ("seed=281474976710656", "seed must be less than 2^48 in size, got 281474976710656"),
        ("train_fraction=0", "train_fraction must be in (0, 1], got 0"),
        ("train_fraction=1.1", "train_fraction must be in (0, 1], got 1.1"),
        ("label_noise=1.5", "label_noise must be in [0, 1], got 1.5"),
        ("precision=float8", "precision must be one of float32, bfloat16, float64, got float8"),
        ("device=gpu", "device must be one of auto, cpu, cuda, cuda:<index>, got gpu"),
        ("delay.std=-1", "delay.std must be >= 0, got -1.0"),
        ("participation.cohort_size=51", "participation.cohort_size must be <= the number of clients (50), got 51"),
        ("num_clients=9", "participation.cohort_size must be <= the number of clients (9), got 10"),
        (
            "local._target_=fedlab_runner.core.local_training.Nothing",
            "'fedlab_runner.core.local_training' has no 'Nothing'",
        ),
        ("local._target_=nowhere.Nothing", "no module named 'nowhere'"),
        ("local._target_=Nothing", "cannot be imported"),
        ("local._target_=fedlab_runner.utils.errors.UserError", "local._target_ must name a dataclass, got 'fedlab"),
        ("local._target_=fedlab_runner.__main__.X", "local._target_ may name a class of fedlab_runner, "),
        ("local._target_=__main__.X", "local._target_ cannot be a class of a script or notebook itself, got '__main"),
        ("local._target_=pathlib.Path", "local._target_ may name a class of fedlab_runner, "),
        ("local._target_=torch.nn.Linear", "of a module that the program has imported, or of an installed plugin"),
        ("local._target_=1", "local._target_ cannot be imported, got 1: expected <module>.<class>"),
        ("~local", "local is missing"),
    ],
)
def test_a_fault_has_one_line(override: str, line: str) -> None:
    (found,) = faults(override)
    assert line in found


@dataclass(frozen=True)
class Unfinished(Delay):
    """A delay that draws none."""


def test_a_class_that_lacks_a_method_is_one_line() -> None:
    target = f"{__name__}.Unfinished"
    assert faults(f"delay._target_={target}", "~delay.std") == [
        f"delay._target_ '{target}' lacks sample: the class must define each method of its base class"
    ]


@dataclass
class Thawed:
    def split(self) -> None: ...


@dataclass(frozen=True)
class Remembering:
    share: float = 0.5
    cache: dict[str, Any] = field(default_factory=dict)

    def split(self) -> None: ...


def test_a_class_keeps_nothing_that_a_checkpoint_would_lack() -> None:
    cfg = composed()
    cfg.partition = {"_target_": f"{__name__}.Thawed"}
    with pytest.raises(UserError) as caught:
        build.build(cfg)
    assert str(caught.value) == (
        f"partition._target_ must name a frozen dataclass, got '{__name__}.Thawed': write @dataclass(frozen=True) "
        "above the class"
    )
    cfg.partition = {"_target_": f"{__name__}.Remembering"}
    way_out = "is missing: write its default into the YAML file and not into the class; no field keeps what a run"
    with pytest.raises(UserError, match=rf"^partition.share {way_out} changes\npartition.cache {way_out} changes$"):
        build.build(cfg)


def test_a_group_must_be_a_choice() -> None:
    cfg = composed()
    cfg.local = "sgd"
    with pytest.raises(UserError, match=r"^local must be a choice: local=<one of the files in conf/local>, got 'sgd'$"):
        build.build(cfg)


@dataclass(frozen=True)
class Steps(ConstantDelay):
    """A delay whose field a config cannot hold."""

    stairs: tuple[float, ...]


@dataclass(frozen=True)
class Named(FedAvg):
    """An algorithm whose fields take the place of a property and of a method of its base class."""

    name: str
    models: int


def test_a_field_that_no_config_can_fill_is_one_line() -> None:
    assert faults("delay=constant", f"delay._target_={__name__}.Steps", "+delay.stairs=[1,2]") == [
        "delay.stairs must be declared as list[float] in its class, as a config holds no tuple, got [1, 2]"
    ]
    (line,) = faults(f"algorithm._target_={__name__}.Named", "+algorithm.name=mine")
    assert line == (
        f"algorithm._target_ '{__name__}.Named' has a field name, models, which its base class has for itself: give "
        "the field another name"
    )


def test_all_faults_are_told_at_once() -> None:
    lines = faults("local.lr=fast", "partition.alpha=-1", "rounds=-2", "delay.std=-3", "participation.cohort_size=60")
    assert [line.split()[0] for line in lines] == [
        "local.lr",
        "rounds",
        "partition.alpha",
        "delay.std",
        "participation.cohort_size",
    ]


def test_cuda_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (line,) = faults("device=cuda")
    assert line == "device must be cpu or auto, got cuda: torch finds no CUDA GPU on this machine"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert faults("device=cuda:2") == ["device must be one of cuda:0 to cuda:1, got cuda:2"]
    assert build.build(composed("device=cuda:1")).device == "cuda:1"


@dataclass(frozen=True)
class Leaf:
    alpha: float

    def __post_init__(self) -> None:
        if self.alpha <= 0:
            raise ValueError(f"alpha must be > 0, got {self.alpha}")


@dataclass(frozen=True)
class Wrapper:
    base: Leaf
    more: list[Leaf]

    def split(self) -> None:
        """What makes it a partition, for a config."""


def nested(alpha: Any, **extra: Any) -> DictConfig:
    leaf = {"_target_": f"{__name__}.Leaf", "alpha": alpha, **extra}
    cfg = composed()
    cfg.partition = {"_target_": f"{__name__}.Wrapper", "base": leaf, "more": [leaf]}
    return cfg


def test_nested_components_are_checked_and_built() -> None:
    built = build.build(nested(2)).partition
    assert built == Wrapper(Leaf(2.0), [Leaf(2.0)])


@pytest.mark.parametrize(
    ("cfg", "line"),
    [
        (
            lambda: nested("x"),
            "partition.base.alpha must be a number, got 'x'\npartition.more[0].alpha must be a number",
        ),
        (
            lambda: nested(-1),
            "partition.base.alpha must be > 0, got -1.0\npartition.more[0].alpha must be > 0, got -1.0",
        ),
        (lambda: nested(1, alhpa=2), "partition.base.alhpa is not a key: did you mean partition.base.alpha?"),
    ],
)
def test_faults_of_nested_components_name_the_inner_key(cfg: Any, line: str) -> None:
    with pytest.raises(UserError) as caught:
        build.build(cfg())
    assert str(caught.value).startswith(line)


def test_a_fault_inside_a_constructor_is_not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Broken:
        def __post_init__(self) -> None:
            raise KeyError("a bug")

        def split(self) -> None: ...

    monkeypatch.setattr(sys.modules[__name__], "Broken", Broken, raising=False)
    cfg = composed()
    cfg.partition = {"_target_": f"{__name__}.Broken"}
    with pytest.raises(Exception, match="a bug") as caught:
        build.build(cfg)
    assert not isinstance(caught.value, UserError)


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (1, float, 1.0),
        (1e2, int, 100),
        ("0.5", float, 0.5),
        ("3", int, 3),
        (7, str, "7"),
        (None, float | None, None),
        (3, float | None, 3.0),
        (3, int | str, 3),
        ("3", int | str, "3"),
        ([1, 2], list[float], [1.0, 2.0]),
        ({"a": 1}, dict[str, float], {"a": 1.0}),
        ("sgd", Literal["sgd", "adam"], "sgd"),
        ({"a": [1]}, Any, {"a": [1]}),
    ],
)
def test_values_are_converted_where_nothing_is_lost(value: Any, hint: Any, expected: Any) -> None:
    errors: list[str] = []
    converted = schema.convert_fields({"x": value}, {"x": hint}, "", errors)["x"]
    assert (converted, type(converted), errors) == (expected, type(expected), [])


def test_there_is_no_negative_zero() -> None:
    """Numpy refuses it as a scale, with words of its own."""
    for std in (-0.0, "-0.0"):
        cfg = composed()
        cfg.delay.std = std
        assert math.copysign(1.0, build.build(cfg).delay.std) == 1.0


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (True, int, "a whole number"),
        (True, float, "a number"),
        (1, bool, "true or false"),
        (True, str, "a text"),
        (None, str, "a text"),
        ("x", int | None, "a whole number or null"),
        (1, list[int], "a list (each a whole number)"),
        (1, dict[str, Any], "a mapping"),
        ("sgdd", Literal["sgd", "adam"], "one of sgd, adam"),
        ([1], float, "a number"),
    ],
)
def test_values_of_another_type_are_refused(value: Any, hint: Any, expected: str) -> None:
    errors: list[str] = []
    schema.convert_fields({"x": value}, {"x": hint}, "a.b", errors)
    (line,) = errors
    assert line.startswith(f"a.b.x must be {expected}, got ")


def test_an_element_of_a_list_is_named() -> None:
    errors: list[str] = []
    schema.convert_fields({"x": [1, "y"]}, {"x": list[int]}, "a", errors)
    assert errors == ["a.x[1] must be a whole number, got 'y'"]


# Names of runs.


def test_the_run_id_is_the_algorithm_and_a_hash() -> None:
    name, _, digest = build.run_id(composed("algorithm=fedavg")).partition("-")
    assert name == "fedavg" and len(digest) == 8 and int(digest, 16) >= 0


@pytest.mark.parametrize(
    "overrides",
    [
        ["rounds=7"],
        ["executor=loop"],
        ["device=cpu"],
        ["logger.mode=disabled"],
        ["checkpoint.keep=5"],
        ["local.lr=${oc.decode:'5e-2'}"],
        ["seed=0.0"],
        ["num_clients=5e1"],
    ],
)
def test_what_does_not_decide_the_numbers_keeps_the_run(overrides: list[str]) -> None:
    start = ["local.lr=0.05"]
    assert build.run_id(composed(*start, *overrides)) == build.run_id(composed(*start))


@pytest.mark.parametrize(
    "override", ["seed=1", "local.lr=0.051", "delay.std=5.5", "partition.alpha=1", "model=mlp", "num_clients=51"]
)
def test_what_decides_the_numbers_makes_another_run(override: str) -> None:
    assert build.run_id(composed(override)) != build.run_id(composed())


def test_rounds_count_where_another_key_uses_them() -> None:
    follow = ("lr_schedule=cosine", "lr_schedule.rounds=${rounds}")
    ids = [build.run_id(composed(*follow, f"rounds={rounds}")) for rounds in (10, 20)]
    assert ids[0] != ids[1]


def test_data_folders_do_not_count() -> None:
    ids = {build.run_id(composed("dataset=cifar10", f"dataset.root={root}")) for root in ("a", "b")}
    assert ids == {build.run_id(composed("dataset=cifar10", "dataset.download=true"))}


@pytest.mark.parametrize(
    ("choice", "key"),
    [("csv", "path"), ("huggingface", "path"), ("image_folder", "root"), ("npz", "path")],
)
def test_other_data_of_ones_own_are_another_run(choice: str, key: str) -> None:
    needed = [f"dataset={choice}", *NEEDED[f"dataset/{choice}"]]
    assert build.run_id(composed(*needed)) != build.run_id(composed(*needed, f"dataset.{key}=other/name"))


def test_own_images_may_move_where_they_have_a_name() -> None:
    named = ("dataset=image_folder", "dataset.name=birds")
    ids = {build.run_id(composed(*named, f"dataset.root={root}", f"dataset.cache={root}")) for root in ("a", "b")}
    assert len(ids) == 1
    assert faults("dataset=image_folder") == ["dataset.root is missing: dataset.name takes its value"]


def test_own_images_of_the_server_are_another_run_unless_they_have_a_name() -> None:
    needed = ["server_data=image_folder", "server_data.max_images=null"]
    ids = {build.run_id(composed(*needed, f"server_data.root={root}")) for root in ("a", "b")}
    assert len(ids) == 2
    named = {build.run_id(composed(*needed, "server_data.name=birds", f"server_data.root={root}")) for root in "ab"}
    assert len(named) == 1


def test_the_order_of_keys_does_not_count() -> None:
    cfg = composed()
    backwards = OmegaConf.create({key: cfg[key] for key in reversed(list(cfg))})
    assert build.run_id(backwards) == build.run_id(cfg)


@pytest.mark.parametrize(
    "overrides",
    [
        ["local.lr=1", "algorithm=fedavg", "~algorithm.server_lr", "delay.std=3", "+logger.note={a: [1, x]}", "seed=2"],
        [
            "experiment=feddle/table7",
            "server_data@auxiliary_data=in_domain",
            "auxiliary_data.size=5",
            "model.channels=1",
        ],
        ["hydra.job.chdir=true", "rounds=7", "logger=none", "rounds=8"],
    ],
)
def test_what_tests_compose_is_what_hydra_composes(overrides: list[str]) -> None:
    mine = composed(*overrides)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        assert mine == compose("train", overrides)


def test_the_run_id_is_the_same_in_another_process() -> None:
    code = "from fedlab_runner.config.build import run_id; from tests.helpers.composed import composed; "
    code += "print(run_id(composed('seed=3', small=False)))"
    here = ROOT
    shown = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=True).stdout
    assert shown.strip() == build.run_id(composed("seed=3"))


def test_the_resolver_is_run_id_with_the_hydra_section_present() -> None:
    build.register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("train", ["seed=3"], return_hydra_config=True)
    assert cfg.hydra.run.dir == f"outputs/{build.run_id(composed('seed=3'))}"
    assert cfg.hydra.sweep.subdir == build.run_id(composed("seed=3"))


def test_no_sensible_config_has_no_name() -> None:
    with pytest.raises(UserError, match=r"local\.lr must be a number"):
        build.run_id(composed("local.lr=fast"))


def test_a_policy_that_names_no_field_is_named_by_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(self: UniformParticipation, num_clients: int) -> None:
        raise ValueError("too few clients")

    monkeypatch.setattr(UniformParticipation, "check", check)
    with pytest.raises(UserError, match=r"^UniformParticipation\.check: too few clients$"):
        build.build(shared.composed())
