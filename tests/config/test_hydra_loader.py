"""Hydra's loader in this package: what is read and composed once."""

import os
import pickle
import sys
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_store import ConfigStore
from hydra.errors import ConfigCompositionException, HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError

from fedlab_runner.config import config_files, hydra_loader
from fedlab_runner.config.build import conf_dir
from fedlab_runner.config.config_files import FileConfigSource
from fedlab_runner.config.hydra_loader import Loader, checked
from fedlab_runner.config.hydra_values import faults
from fedlab_runner.utils.errors import UserError


def loader() -> Loader:
    config_files.register()
    return Loader(create_config_search_path(str(conf_dir())))


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The overrides of each composition."""
    found: list[list[str]] = []
    real = ConfigLoaderImpl.load_configuration

    def counted(self: ConfigLoaderImpl, config_name: str, overrides: list[str], *args: Any, **kwargs: Any) -> Any:
        found.append(overrides)
        return real(self, config_name, overrides, *args, **kwargs)

    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", counted)
    return found


def test_jobs_with_the_same_choices_are_composed_once(
    composed: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hydra asks for the configs of all jobs, and then for each when it starts. To copy or check one takes longer than
    all else.
    """
    one = loader()
    master = one.load_configuration("train", ["seed=7"], RunMode.MULTIRUN)
    jobs = [[f"seed={seed}", f"algorithm={name}"] for name in ("fedavg", "scaffold") for seed in range(3)]
    checked = [one.load_sweep_config(master, job) for job in jobs]
    with monkeypatch.context() as patch:
        patch.setattr(DictConfig, "__deepcopy__", None)
        patch.setattr(hydra_loader, "faults", None)
        started = [one.load_sweep_config(master, job) for job in jobs]
    assert composed == [["seed=7"], ["algorithm=fedavg"], ["algorithm=scaffold"]] and started == checked
    started[0].delay.std = 1  # what a job does to its config does not reach other jobs
    assert one.load_sweep_config(master, jobs[0]) == checked[0]
    size = len(pickle.dumps(loader()))
    for _ in range(2):  # a launcher sends the loader with each job
        content = pickle.dumps(one)
        assert len(content) < size + 1000, "and no config of another job"
        assert pickle.loads(content).load_sweep_config(master, jobs[3]) == checked[3]
    assert len(composed) == 3
    loader().load_sweep_config(master, jobs[3])  # of another command, before which files may have changed
    assert len(composed) == 4 and len(hydra_loader._sweeps) == 1


@pytest.mark.parametrize("job", ["device=/a/12345678", "device={WANDB_API_KEY: 1}"])
def test_no_job_holds_a_key_of_wandb(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "12345678")
    one = loader()
    master = one.load_configuration("train", [], RunMode.MULTIRUN)
    with pytest.raises(UserError, match=r"(?m)^device\S* holds a W&B key"):
        one.load_sweep_config(master, [job])


@dataclass
class Settings:
    """Of a launcher."""

    _target_: str = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


def test_the_settings_of_a_launcher_may_have_a_class_that_was_loaded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As joblib's and submitit's, whose modules Hydra loads again when it looks for plugins."""
    store = ConfigStore.instance()
    monkeypatch.setattr(store, "repo", deepcopy(store.repo))
    store.store(group="hydra/launcher", name="anew", node=Settings)
    monkeypatch.setattr(sys.modules[__name__], "Settings", type("Settings", (), {}))
    one = loader()
    master = one.load_configuration("train", ["hydra/launcher=anew"], RunMode.MULTIRUN)
    assert one.load_sweep_config(master, ["seed=1"]).hydra.launcher == master.hydra.launcher


@pytest.mark.parametrize(
    ("job", "alone"),
    [
        (["seed=3", "local.lr=0.5", "seed=4"], False),
        (["experiment=feddle/table7", "dataset=fashion_mnist", "delay.std=20"], False),
        (["+debug=tiny", "rounds=null", "delay.std=${seed}", "device='cpu'"], False),
        (["~topology", "seed=1"], False),
        (["+algorithm.other=1", "algorithm=fedprox", "algorithm.mu=2"], True),
        (["algorithm.lr=2", "~algorithm.lr"], True),
        (["model={channels: 3}", "seed=2"], False),
        (["hydra.job.name=other", "seed=2"], True),
    ],
)
def test_a_job_has_the_config_that_hydra_composes(composed: list[list[str]], job: list[str], alone: bool) -> None:
    """With the same flags, whatever jobs came before; `alone`: those whose files the loader composes for them alone."""
    one = loader()
    master = one.load_configuration("train", ["seed=7", "hydra.sweep.subdir=${hydra.job.num}"], RunMode.MULTIRUN)
    configs = [one.load_sweep_config(master, words) for words in (job, ["seed=9"], job)]
    assert sum(words[1:] == job for words in composed) == 2 * alone
    own: Any = ConfigLoaderImpl(create_config_search_path(str(conf_dir()))).load_sweep_config(master, job)
    for cfg in (configs[0], configs[2]):
        assert cfg == own and OmegaConf.to_yaml(cfg) == OmegaConf.to_yaml(own)
        assert OmegaConf.is_struct(cfg) and OmegaConf.get_cache(cfg) == OmegaConf.get_cache(own)
        with pytest.raises(ConfigAttributeError):
            cfg.other = 1


@pytest.mark.parametrize(
    "job", [["sed=1"], ["delay.stt=2"], ["delay=late"], ["seed=1,2"], ["~other"], ["++delay=none"], ["delay.std.x=1"]]
)
def test_a_faulty_job_is_refused_as_by_hydra(job: list[str]) -> None:
    one, other = loader(), ConfigLoaderImpl(create_config_search_path(str(conf_dir())))
    master = one.load_configuration("train", [], RunMode.MULTIRUN)
    lines = []
    for each in (one, other):
        with pytest.raises(HydraException) as refused:
            each.load_sweep_config(master, job)
        lines.append(f"{refused.type} {refused.value} {refused.value.__cause__}")
    assert lines[0] == lines[1]


def test_a_launcher_may_stand_at_each_level_of_hydras_plugins() -> None:
    words = "hydra.launcher={_target_: %s}"
    for place in ("own_launcher", "own", "own.launching"):
        name = f"hydra_plugins.{place}.OwnLauncher"
        cfg: Any = loader().load_configuration("train", [words % name], RunMode.MULTIRUN)
        assert cfg.hydra.launcher._target_ == name
    for name in (
        "hydra_plugins.OwnLauncher",
        "hydra_plugins.a.b.c.OwnLauncher",
        "hydra_plugins.own.logging.FileHandler",
    ):
        with pytest.raises(UserError, match=r"hydra\.launcher\._target_ must be a class of Hydra or of an installed"):
            loader().load_configuration("train", [words % name], RunMode.MULTIRUN)


def test_a_job_with_a_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    one = loader()
    master = one.load_configuration("train", [], RunMode.MULTIRUN)
    with pytest.raises(UserError, match="W&B"):
        one.load_sweep_config(master, [f"logger.group={'0123456789' * 4}"])


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (RunMode.RUN, ["seed=7", "algorithm=scaffold"]),
        (RunMode.MULTIRUN, ["seed=7,8", "algorithm=scaffold,fedavg", "experiment=feddle/table7"]),
    ],
)
def test_a_command_is_composed_once(composed: list[list[str]], mode: RunMode, words: list[str]) -> None:
    """Hydra asks for its mode first; what the run or the sweep gets is what Hydra's own loader composes for it."""
    one = loader()
    seen = one.load_configuration("train", words, RunMode.MULTIRUN, validate_sweep_overrides=False)
    assert seen.hydra.mode is None
    with_mode = [*words, f"hydra.mode={mode.name}"]
    cfg = one.load_configuration("train", with_mode, mode)
    assert composed == [words] and cfg is seen
    own = ConfigLoaderImpl(create_config_search_path(str(conf_dir()))).load_configuration("train", with_mode, mode)
    assert cfg == own
    assert one.load_configuration("train", with_mode, mode) is not cfg, "a third one is its own"


def test_a_command_with_several_values_is_refused_as_ever(composed: list[list[str]]) -> None:
    one, words = loader(), ["seed=1,2"]
    one.load_configuration("train", words, RunMode.MULTIRUN, validate_sweep_overrides=False)
    with pytest.raises(ConfigCompositionException, match=r"Ambiguous value for argument 'seed=1,2'"):
        one.load_configuration("train", [*words, "hydra.mode=RUN"], RunMode.RUN)


def test_choices_that_only_the_jobs_of_a_sweep_have(tmp_path: Path) -> None:
    """`hydra.mode` is found although a choice is missing, and so are the jobs' configs."""
    (tmp_path / "own.yaml").write_text(
        "defaults:\n  - train\n  - delay@late: ???\n  - _self_\nhydra:\n  mode: MULTIRUN\n"
    )
    path = create_config_search_path(str(conf_dir()))
    path.prepend("test", f"file://{tmp_path}")
    config_files.register()
    one = Loader(path)
    cfg = one.load_configuration("own", [], RunMode.MULTIRUN, validate_sweep_overrides=False)
    assert cfg.hydra.mode == RunMode.MULTIRUN
    master = one.load_configuration("own", [], RunMode.MULTIRUN)
    assert (
        one.load_sweep_config(master, ["delay@late=none"]).late
        == one.load_sweep_config(master, ["delay@late=none", "delay=none"]).delay
    )
    with pytest.raises(ConfigCompositionException, match="You must specify 'delay@late'"):
        one.load_configuration("own", ["hydra.mode=RUN"], RunMode.RUN)


def test_choices_are_gathered_for_a_file_whose_defaults_hold_an_interpolation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And for no other file; the config is Hydra's own."""
    gathered: list[int] = []
    real = hydra_loader._all_choices

    def counted(overrides: Any, defaults: list[Any], self_added: bool) -> Any:
        gathered.append(len(defaults))
        return real(overrides, defaults, self_added)

    (tmp_path / "own.yaml").write_text("defaults:\n  - train\n  - delay@late: ${delay}\n  - _self_\n")
    monkeypatch.setattr(hydra_loader, "_all_choices", counted)
    for name, times in (("train", 0), ("own", 1)):
        path = create_config_search_path(str(conf_dir()))
        path.prepend("test", f"file://{tmp_path}")
        config_files.register()
        with checked():
            ours = Loader(path).load_configuration(name, ["+debug=tiny"], RunMode.RUN)
        assert len(gathered) == times
        assert ours == ConfigLoaderImpl(path).load_configuration(name, ["+debug=tiny"], RunMode.RUN)
        assert name == "train" or ours.late == ours.delay


def test_few_configs_are_kept(monkeypatch: pytest.MonkeyPatch, composed: list[list[str]]) -> None:
    """Those that were used last."""
    monkeypatch.setattr(hydra_loader, "MAX_COMPOSED", 2)
    one = loader()
    master = one.load_configuration("train", [], RunMode.MULTIRUN)
    composed.clear()
    for name in ("none", "constant", "none", "uniform", "none", "constant"):
        one.load_sweep_config(master, [f"delay={name}", "seed=3"])
    assert composed == [["delay=none"], ["delay=constant"], ["delay=uniform"], ["delay=constant"]]


def test_the_choices_of_all_groups_are_read_from_one_list_of_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    one, real, times = loader(), ConfigLoaderImpl._parse_overrides_and_create_caching_repo, []
    monkeypatch.setattr(
        ConfigLoaderImpl,
        "_parse_overrides_and_create_caching_repo",
        lambda *args: [times.append(args), real(*args)][1],
    )
    assert "loop" in one.get_group_options("executor") and "mlp" in one.get_group_options("model")
    assert len(times) == 1
    one.get_group_options("executor", config_name="train", overrides=["seed=1"])
    assert len(times) == 2


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, path, read = FileConfigSource("main", f"file://{tmp_path}"), tmp_path / "one.yaml", []
    real = FileConfigSource._checked
    monkeypatch.setattr(FileConfigSource, "_checked", lambda *args: read.append(args) or real(*args))
    path.write_text("# @package one\na: 1\n")
    for _ in range(2):
        result = source.load_config("one")
        assert result.config == {"a": 1} and result.header == {"package": "one"}
        result.config.a, result.header["package"] = 9, "other"  # Hydra changes what it gets
    assert len(read) == 1
    path.write_text("a: 2\n")
    os.utime(path, ns=(1, 1))
    assert source.load_config("one").config == {"a": 2} and len(read) == 2


@pytest.mark.parametrize("direction", [["maximize"], ["maximize", "minimize"], "maximize", None])
def test_a_search_has_one_objective(direction: list[str] | str | None) -> None:
    found = faults(OmegaConf.create({"hydra": {"sweeper": {"direction": direction}}}))
    line = "hydra.sweeper.direction must be minimize or maximize, as a run has one objective, got a list"
    assert found == ([line] if isinstance(direction, list) else [])


@pytest.mark.parametrize("key", ["sweeper.n_trials", "sweeper.n_jobs", "launcher.n_jobs"])
@pytest.mark.parametrize(("value", "right"), [(0, False), (1, True), (12, True), ("${oc.env:JOBS}", True)])
def test_a_search_or_launcher_has_work_to_do(key: str, value: int | str, right: bool) -> None:
    cfg = OmegaConf.create({"hydra": {}})
    OmegaConf.update(cfg, f"hydra.{key}", value)
    assert [line.startswith(f"hydra.{key} must be a ") for line in faults(cfg)] == ([] if right else [True])
