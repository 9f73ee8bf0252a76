"""The entry point: what it prints, how it ends, and what it does not import."""

import gc
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.hydra_config import HydraConfig
from hydra.errors import MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from fedlab_runner import train
from fedlab_runner.config import build, listing
from fedlab_runner.config.explain import explain
from fedlab_runner.report.folders import find
from fedlab_runner.utils import attempt, imports, signals
from fedlab_runner.utils.errors import Diverged, Interrupted, UserError
from tests.helpers.crash import TINY
from tests.helpers.in_process import own_handlers

HEAVY = ("torch", "torchvision", "timm", "wandb", "matplotlib", "sklearn", "scipy")

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """`fedlab` in this process, in an empty folder: the exit code and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fedlab", *arguments])
        return train.main(), capsys.readouterr().err

    with own_handlers():
        yield run


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[DictConfig], float]], None]:
    """Puts a function in place of a run."""

    return lambda function: monkeypatch.setattr("fedlab_runner.experiment.run.run", function)


def folders() -> list[str]:
    return sorted(path.name for path in Path("outputs").glob("*") if path.is_dir())


def test_a_run_belongs_to_all_experiments_that_asked_for_it(command: Command, stand_in: Any) -> None:
    """Each once; a command without an experiment takes none away."""
    Path("mine/experiment").mkdir(parents=True)
    for name in ("table", "figure"):
        Path(f"mine/experiment/{name}.yaml").write_text("# @package _global_\nnum_clients: 12\n")
    stand_in(lambda cfg: 0.5)
    for asked in ("experiment=table", "experiment=figure", "num_clients=12", "experiment=table"):
        assert command("--config-dir=mine", asked) == (0, "")
    (run,) = find([Path("outputs", *folders())]).runs
    assert run.experiments == ["table", "figure"]


def test_hydra_composes_a_command_once(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the config is the one that Hydra's own loader would compose."""
    asked: list[list[str]] = []
    real, words = ConfigLoaderImpl.load_configuration, ("seed=7", "algorithm=scaffold")

    def counted(self: Any, name: str | None, overrides: list[str], *args: Any) -> DictConfig:
        asked.append([*overrides])
        return real(self, name, overrides, *args)

    def same(cfg: DictConfig) -> float:
        loader = ConfigLoaderImpl(create_config_search_path(str(build.conf_dir())))
        fresh: Any = OmegaConf.to_container(real(loader, "train", [*words, "hydra.mode=RUN"], RunMode.RUN))
        hydra: Any = OmegaConf.to_container(OmegaConf.structured(HydraConfig.get()))
        hydra["runtime"]["output_dir"] = "???"
        assert {**dict(OmegaConf.to_container(cfg)), "hydra": hydra} == fresh  # type: ignore[arg-type]
        return 0.0

    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", counted)
    monkeypatch.setattr(train, "_run", same)
    assert command(*words) == (0, "") and asked == [[*words]]


# The parts that must stay light.


LIGHT = (
    *("--help", "--cfg job", "--info defaults", "--version", "--list models", "--list", "--list modle", "--hydra-help"),
    *("local.lrr=1", "algorithm=fedvag", "-m algorithm=fedvag,fedbuff", "seed=0,1", "local.lr=[1"),
    "--config-name=trian",
)


def test_nothing_heavy_is_imported_before_a_run(tmp_path: Path) -> None:
    """One process has all the commands: what one of them imports is there after it."""
    code = f"""
import sys
from fedlab_runner import train
for arguments in {LIGHT}:
    sys.argv = ["fedlab", *arguments.split()]
    try:
        train.main()
    except SystemExit as end:
        assert not end.code, arguments
    heavy = set({HEAVY}) & set(sys.modules)
    assert not heavy, (arguments, heavy)
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("commands", "light"),
    [
        (
            (
                "from fedlab_runner.report.cli import main; main(['nowhere'])",
                "from fedlab_runner.report.cli import main; main(['--help'])",
                "from fedlab_runner.report.wandb_workspace import main; main(['--help'])",
                "from fedlab_runner.verify.cli import main; main(['--help'])",
                "from fedlab_runner.verify.cli import main; main(['x.zip', '--rounds', '-1'])",
            ),
            HEAVY,
        ),
        # A range check needs the classes of the config, and these import torch; nothing else.
        (
            (
                "from fedlab_runner.api import compose, run; run(compose('local.lr=-1'))",
                "import fedlab_runner.experiment.run, fedlab_runner.executors.processes",
            ),
            HEAVY[1:],
        ),
    ],
    ids=["light", "run"],
)
def test_a_command_imports_only_what_it_uses(commands: tuple[str, ...], light: tuple[str, ...], tmp_path: Path) -> None:
    code = f"""
import sys
for command in {commands}:
    try:
        exec(command)
    except (SystemExit, ValueError):
        pass
heavy = set({light}) & set(sys.modules)
assert not heavy, heavy
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_shell_completion_knows_keys_and_choices(tmp_path: Path) -> None:
    def complete(line: str) -> list[str]:
        environment = {**os.environ, "COMP_LINE": f"fedlab {line}", "COMP_POINT": str(len(line) + 7)}
        query = [sys.executable, "-X", "importtime", "-m", "fedlab_runner", "-sc", "query=bash"]
        ended = subprocess.run(query, cwd=tmp_path, capture_output=True, text=True, env=environment)
        assert "| torch\n" not in ended.stderr
        return ended.stdout.split()

    assert "local.lr=" in complete("local.l")
    assert {"algorithm=fedavg", "algorithm=fedbuff"} <= set(complete("algorithm=fed"))
    assert {"experiment=feddle/table7", "experiment=fedcda/table1"} <= set(complete("experiment=fed"))
    tables = {path.stem for path in (build.conf_dir() / "experiment" / "dfml").glob("*.yaml")}
    assert set(complete("experiment=dfml/")) == {f"experiment=dfml/{name}" for name in tables}


@pytest.mark.parametrize("group", listing.groups())
def test_every_choice_is_listed_with_what_it_is(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    listing.show(listing.plural(group))
    lines, folder = capsys.readouterr().out.splitlines(), build.conf_dir() / group
    choices = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")}
    assert {line.split()[0] for line in lines} == choices
    assert all(len(line.split()) > 1 and line.count("(") == line.count(")") for line in lines), "whole sentences"
    assert not [line for line in lines if line.endswith(":") or "fedlab -m " in line], "examples stand below it"


@pytest.mark.parametrize("plural", ["delays", "losses", "analyses", "topologies", "hparams_searches", "models"])
def test_a_group_is_listed_by_its_plural(plural: str, capsys: pytest.CaptureFixture[str]) -> None:
    listing.show(plural)
    shown = capsys.readouterr().out
    listing.show(next(name for name in listing.groups() if name[:4] == plural[:4]))
    assert shown == capsys.readouterr().out != ""


def test_the_groups_are_listed(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedlab", "--list"])
    assert train.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == listing.groups()
    assert all(len(line) <= 80 for line in lines)
    for name, *words in map(str.split, lines):
        names = [choice for choice, _ in listing.choices(name, [build.conf_dir()])]
        shown = " ".join(words).removesuffix(", ...").split(", ")
        assert shown == names if words[-1] != "..." else shown == names[: len(shown)] != names
    assert {"algorithm", "experiment", "hydra/launcher"} <= set(listing.groups())
    code, shown = command("--list", "modle")
    assert code == 2 and shown.startswith("error: modle is not a group: did you mean model? groups: aggregator, ")
    code, shown = command("--list", "zzz")
    assert code == 2 and shown.startswith("error: zzz is not a group: choose one of aggregator, ")


def test_help_names_the_groups_and_what_to_type(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "fedlab_runner", "--help"], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 0
    assert "fedlab -m algorithm=fedavg,fedbuff seed=0,1" in ended.stdout
    assert "partition: assigned_blocks, dirichlet, " in ended.stdout and "paper" not in ended.stdout
    head = ended.stdout.partition("== Configuration groups ==")[0]
    assert max(map(len, head.splitlines())) <= 80, "a terminal's width"


# One clear line.


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("local.lrr=1", "local.lrr is not a key: did you mean local.lr?"),
        ("lr=1", "lr is not a key: did you mean algorithm.lr or local.lr?"),
        ("locl.lr=1", "locl.lr is not a key: did you mean local.lr?"),
        ("experiment/feddle=table7", "experiment/feddle is not a group: did you mean experiment=feddle/table7?"),
        ("experiment/feddle=tabel7", "experiment/feddle is not a key: "),
        ("=5", "cannot read '=5': expected key=value"),
        ("seed=1 -m rounds=2", "cannot read 'rounds=2': options such as -m stand before all keys"),
        ("dataset.root=data/Übung", "cannot read 'dataset.root=data/Übung': quote the text twice, for the shell and "),
        (
            "dataset.target=rate(%)",
            "cannot read 'dataset.target=rate(%)': quote the text twice, for the shell and for ",
        ),
        (f"seed={2**48}", f"seed must be less than 2^48 in size, got {2**48}"),
        (f"seed={'9' * 4000}", "seed must be less than 2^48 in size, got more"),
        (f"seed={'9' * 5000}", "a number has thousands of digits: whole numbers must be less than 2^48 in size"),
        (f"logger.tags={'[' * 600}{']' * 600}", "a value of the config is nested too deeply to be read"),
        (
            "participation.fraction=0.5",
            "participation.cohort_size and fraction: set exactly one of them and the",
        ),
        ("local.lr=1e300", "local.lr must be > 0 and < 3e38, got 1e+300"),
        ("algorithm=fedprox algorithm.mu=inf", "algorithm.mu must be >= 0 and < 3e38, got inf"),
        ("local.lr=inf", "local.lr must be > 0 and < 3e38, got inf"),
        ("threads=1000000", "threads must be in [1, "),
        ("hydra.run.dir=/proc/nobody/x", "/proc/nobody: no folder can be made there (No such file or directory): give"),
        ("hydra.run.dir=file", "file: no folder can be made there (File exists): give another folder (hydra.run.dir; "),
        ("hydra.run.dir=file/x", "file/x: no folder can be made there (Not a directory): give another folder (hydra."),
        (f"hydra.run.dir={'x' * 300}", f"{'x' * 300}: no folder can be made there (File name too long): give another"),
        (
            "model._target_=fedlab_runner.delays.none.NoDelay",
            "model._target_ must be of the kind Architecture (fed",
        ),
        ("algoritm=fedavg", "algoritm is not a key: did you mean algorithm?"),
        ("~local.lrr", "local.lrr is not a key: did you mean local.lr?"),
        ("algorithm=fedprox algorithm.muu=1", "algorithm.muu is not a key: did you mean algorithm.mu?"),
        ("delay=none delay.std=3", "delay.std is not a key: delay=none has "),
        ("algorithm.mu=1", "algorithm.mu is not a key: algorithm=feddle has "),
        (
            "experiment=fedwalk/table2 model=cnn_small",
            "model.weights is not a key: model has channels, image_size; to drop it from an experiment: ~model.weights",
        ),
        (
            "model=timm model.kwargs.drop_path_rate=0.1",
            "model.kwargs takes keys that are not in the config: write +model.kwargs.drop_path_rate=0.1\n",
        ),
        (
            "model=timm model.kwargs={depth:2}",
            "model.kwargs takes keys that are not in the config: write +model.kwargs={depth:2}\n",
        ),
        (
            "model=pretrained model@model.base=timm +model.base.kwargs.a=1 model.base.kwargs.b.c=1",
            "model.base.kwargs takes keys that are not in the config: write +model.base.kwargs.b.c=1\n",
        ),
        ("model=timm model.name.x=1", "model.name.x is not a key: model.name has no keys; to drop it "),
        ("model=timm ~model.kwargs.x", "model.kwargs.x is not a key: model.kwargs has no keys; to drop it "),
        ("hydra.run.dri=x", "hydra.run.dri is not a key: did you mean hydra.run.dir?"),
        ("algorithm=fedvag", "algorithm=fedvag is not a choice: did you mean fedavg? choices: "),
        ("-m algorithm=fedvag,fedbuff", "algorithm=fedvag is not a choice: did you mean fedavg? choices: "),
        ("experiment=exampel", "experiment=exampel is not a choice: did you mean example? choices: "),
        (
            "experiment=feddle/table77",
            "experiment=feddle/table77 is not a choice: did you mean feddle/table7? choices: feddle/",
        ),
        ("experiment=feddle", "experiment=feddle is not a choice: choose one of feddle/common, feddle/fig10, "),
        ("experiment=table7", "experiment=table7 is not a choice: choose one of dfml/table7, feddle/table7\n"),
        ("experiment=table0", "experiment=table0 is not a choice: choose one of example, late_clients, adaptive/..., "),
        ("paper/dfml=table11", "paper/dfml is not a key: the config has "),
        ("--cfg job -p loca", "loca is not a key: did you mean local?"),
        ("--cfg job -p threads", "threads is null"),
        ("--cfg job -p logger.x logger=none", "logger.x is not a key: logger has progress, pictures, save_model\n"),
        ("--cfg job -p hydra.launcher", "--cfg job does not show hydra.launcher: give --cfg hydra\n"),
        ("--cfg hydra -p local", "--cfg hydra does not show local: give --cfg job\n"),
        ("evaluation.target=80", "evaluation.target must be <= 1 for metric=test/accuracy, a share, got 80: 0.8 is 80"),
        ("hydra/launcher=joblip", "hydra/launcher=joblip is not a choice: "),
        ("seed=0,1", "seed=0,1 has several values: add -m to run each of them, or write a list as key=[a,b]"),
        ("rounds", "cannot read 'rounds': expected key=value (missing EQUAL at '<EOF>')"),
        ("local.lr=[1", "cannot read 'local.lr=[1': expected key=value ("),
        ("local=null", "local=null is not a choice: choose one of adam, adamw, sgd"),
        ("delay=null", "delay=null is not a choice: did you mean none? choices: constant, "),
        (
            "--algorithm=fedavg",
            "cannot read '--algorithm=fedavg': a key has no dashes, as in local.lr=0.1; opt",
        ),
        ("debug=tiny", "debug is not in the default config: add it, as +debug=tiny"),
        (
            "algorithm=fml model@algorithm.meme=dfml_cnn",
            "model@algorithm.meme is not in the default config: add it, as +model@algorithm.meme=dfml_cnn",
        ),
        ("algorithm=fml model@algorithm.mem=mlp", "algorithm.mem is not a key: did you mean algorithm.meme?"),
        (
            "+experiment=example",
            "cannot read '+experiment=example': the default config has the group: write exp",
        ),
        ("+debug=tiny debug.rounds=few", "debug.rounds must be a number, the bound of rounds, got 'few'\n"),
        ("+debug=tiny debug.rounds=[1]", "debug.rounds must be a number, the bound of rounds, got [1]\n"),
        ("+debug=tiny debug.rounds=true", "debug.rounds must be a number, the bound of rounds, got True\n"),
        ("+debug=tiny debug.rounds=nan", "debug.rounds must be a number, the bound of rounds, got nan\n"),
        ("+debug=tiny debug.local=1", "debug.local must be bounds of the keys of local, got 1\n"),
        ("+debug=tiny +experiment=example", "cannot read '+experiment=example': the default config has the group: "),
        ("experiment=null delay=null", "delay=null is not a choice: did you mean none? choices: constant, "),
        ("+experiment=null", "cannot read '+experiment=null': it adds no choice: leave it out"),
        ("++delay=none", "cannot read '++delay=none': the default config has the group: write delay=none"),
        ("dataset=CIFAR10", "dataset=CIFAR10 is not a choice: did you mean cifar10? choices: "),
        ("-m seed=0,1 hydra.run.dir=here", "hydra.run.dir is for a single run: hydra.sweep.dir is the folder of "),
        ("-m hydra.launcher=joblib seed=0,1", "hydra.launcher is a group: write hydra/launcher=joblib\n"),
        ("-m hydra.sweeper=optuna seed=0,1", "hydra.sweeper is a group: write hydra/sweeper=optuna\n"),
        ("hydra.mode=MULTIRUN seed=0,1 hydra.run.dir=here", "hydra.run.dir is for a single run: hydra.sweep.dir "),
        (
            "-m hydra.sweeper.params={seed:1}",
            "cannot read 'hydra.sweeper.params={seed:1}': write hydra.sweeper.params into an experi",
        ),
        (
            "-m ++hydra.sweeper.params.seed=1",
            "cannot read '++hydra.sweeper.params.seed=1': write hydra.sweeper.params into an experi",
        ),
        ("hydra.sweeper.params=x", "cannot read 'hydra.sweeper.params=x': write hydra.sweeper.params into an experi"),
        ("--list dataset delays", "--list shows one group, got dataset delays"),
        ("--config-dir=mine delay=other delay.shares=1", "delay.shares is not a key: did you mean delay.share?"),
        ("hydra.searchpath=[mine] delay=other delay.shares=1", "delay.shares is not a key: did you mean delay.share?"),
        ("--config-dir=mine/è delay=other delay.shares=1", "delay.shares is not a key: did you mean delay.share?"),
        ("--config-name=trian", "Cannot find primary config 'trian'."),
        ("--config-dir=nowhere", "Additional config directory '"),
        ("local.lr=fast", "local.lr must be a number, got 'fast'"),
        ("+local.momentun=1", "local.momentun is not a key: did you mean local.momentum?"),
        ("partition.alpha=-1", "partition.alpha must be "),
        ("participation.cohort_size=60", "participation.cohort_size must be <= the number of clients (50), got 60"),
        ("hydra.run.dir=${oc.env:NOWHERE_TO_BE_FOUND}", "KeyError raised while resolving interpolation: "),
        ("local.lr=${nowhere}", "local.lr: Interpolation key 'nowhere' not found"),
        ("hydra.hydra_logging.version=3", "hydra.job_logging or hydra.hydra_logging cannot be used: Unsupported vers"),
        (
            "hydra.hydra_logging.root.level=LOUD",
            "hydra.job_logging or hydra.hydra_logging cannot be used: Unable to configure root logger: Unknown level: ",
        ),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(arguments: str, line: str, command: Command) -> None:
    Path("file").touch()
    for folder in (Path("mine"), Path("mine/è")):
        (folder / "delay").mkdir(parents=True)
        (folder / "delay" / "other.yaml").write_text("share: 0.5\n")
    code, shown = command(*arguments.split())
    assert code == 2
    assert shown.startswith(f"error: {line}") and shown.count("\n") == 1
    assert not Path("outputs").exists()


def test_a_product_of_numbers_that_no_float_holds_is_one_line(command: Command) -> None:
    code, shown = command("algorithm=fedavg", "server_optimizer=adam", "server_optimizer.tau=1e38", *TINY)
    line = "error: float32 cannot hold a number of the config, or a product of two: lower what is far above 1\n"
    assert (code, shown) == (2, line)


def test_all_faults_are_shown_a_line_each(command: Command) -> None:
    code, shown = command("local.lr=fast", "rounds=-1", "partition.alpha=0")
    assert code == 2
    assert [line.split()[:2] for line in shown.splitlines()] == [
        ["error:", "local.lr"],
        ["error:", "rounds"],
        ["error:", "partition.alpha"],
    ]


def test_a_missing_extra_says_how_to_get_it() -> None:
    error = MissingConfigException("gone", missing_cfg_file="hydra/launcher/joblib", options=["basic"])
    lines = explain(error, ["hydra/launcher=joblib"])
    assert lines == ['hydra/launcher=joblib needs an extra: pip install "fedlab-runner[joblib]"']


def test_a_damaged_config_file_is_named(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine" / "local").mkdir(parents=True)
    (tmp_path / "mine" / "local" / "odd.yaml").write_text("lr: [1\n")
    code, shown = command("--config-dir=mine", "local=odd")
    assert code == 2
    assert shown.count("\n") == 1 and "odd.yaml" in shown


def test_configs_of_the_user_are_found(command: Command, tmp_path: Path, stand_in: Callable[..., None]) -> None:
    (tmp_path / "mine" / "local").mkdir(parents=True)
    text = (build.conf_dir() / "local" / "sgd.yaml").read_text().replace("\nlr: ", "\nlr: 0.125 # was ")
    (tmp_path / "mine" / "local" / "slow.yaml").write_text(text)
    seen = []
    stand_in(lambda cfg: seen.append(cfg.local.lr) or 0.0)
    assert command("--config-dir=mine", "local=slow") == (0, "")
    assert seen == [0.125]


# How a run ends.


def test_a_run_that_ends_well_is_silent_on_stderr(command: Command, stand_in: Callable[..., None]) -> None:
    stand_in(lambda cfg: 0.5)
    assert command("seed=3") == (0, "")
    assert [name.partition("-")[0] for name in folders()] == ["feddle"]


def test_the_folder_of_a_run_is_the_users_choice(
    command: Command, stand_in: Callable[..., None], tmp_path: Path
) -> None:
    from hydra.core.hydra_config import HydraConfig

    seen = []
    stand_in(lambda cfg: seen.append(HydraConfig.get().runtime.output_dir) or 0.0)
    assert command("hydra.run.dir=here") == (0, "")
    assert seen == [str(tmp_path / "here")]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("the file x is damaged: download it again"), 2, "error: the file x is damaged: download it again\n"),
        (Diverged("diverged in round 3"), 1, "error: diverged in round 3\n"),
        (UserError("a\x1b[2Jb"), 2, "error: a\\x1b[2Jb\n"),  # a text of a stranger's file
    ],
)
def test_what_the_user_can_mend_has_no_traceback(
    error: Exception, code: int, line: str, command: Command, stand_in: Callable[..., None]
) -> None:
    def fail(cfg: DictConfig) -> float:
        raise error

    stand_in(fail)
    assert command() == (code, line)


def test_a_value_error_of_our_own_code_is_for_the_user_and_one_of_a_library_is_a_bug(
    command: Command, stand_in: Callable[..., None]
) -> None:
    from fedlab_runner.config.targets import find_class

    stand_in(lambda cfg: float(find_class("nowhere.X") is None))
    assert command() == (2, "error: cannot be imported, got 'nowhere': no module named 'nowhere'\n")
    stand_in(lambda cfg: float("x"))
    code, shown = command()
    assert code == 1 and "Traceback" in shown and "could not convert string to float" in shown


def test_a_run_has_the_usual_garbage_collector(command: Command, stand_in: Callable[..., None]) -> None:
    found = []
    stand_in(lambda cfg: found.append(gc.get_threshold()) or 0.5)
    assert command()[0] == 0 and found == [gc.get_threshold()] != [imports.SELDOM]


def test_a_bug_shows_its_traceback(command: Command, stand_in: Callable[..., None]) -> None:
    def fail(cfg: DictConfig) -> float:
        raise RuntimeError("a bug\x1b[2J")

    stand_in(fail)
    code, shown = command()
    assert code == 1 and "\x1b" not in shown
    assert "in fail" in shown and "RuntimeError: a bug" in shown and "Error executing job" not in shown


def test_a_bug_in_a_constructor_shows_its_traceback(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedlab_runner.core.local_training import LocalTraining

    def fail(self: LocalTraining) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(LocalTraining, "__post_init__", fail)
    code, shown = command()
    assert code == 1
    assert "Traceback" in shown and "KeyError: 'a bug'" in shown
    assert re.findall(r'File ".*/(antlr4|hydra|omegaconf)/', shown) == []


def test_sigterm_interrupts_the_run_and_the_handlers_come_back(
    command: Command, stand_in: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the run knows its folder, no line says that the run begins again."""
    assert str(Interrupted(signal.SIGINT)) == "stopped by Ctrl-C"
    cleaned = []

    def stop(cfg: DictConfig) -> float:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        finally:
            cleaned.append(True)
        raise AssertionError("not interrupted")

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    stand_in(stop)
    monkeypatch.setattr(attempt, "_checkpoints", None)
    code, shown = command()
    assert code == 128 + signal.SIGTERM and cleaned
    assert shown == "stopped by signal 15; the same command continues from the last checkpoint, if there is one\n"
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_signal_waits_where_exceptions_get_lost() -> None:
    done = []
    with pytest.raises(Interrupted), signals.raised():
        with signals.deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            done.append("what was begun")
        done.append("what comes after")
    assert done == ["what was begun"]


def test_ignored_signals_stay_ignored(command: Command, stand_in: Callable[..., None]) -> None:
    def run(cfg: DictConfig) -> float:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0.0

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        stand_in(run)
        assert command() == (0, "")
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_environment_is_put_back(
    command: Command, stand_in: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDLAB_SWEEP", "of-another-sweep")
    seen = []
    stand_in(lambda cfg: seen.append(os.environ.get("FEDLAB_SWEEP")) or 0.0)
    assert command() == (0, "")
    assert seen == [None]
    assert os.environ["FEDLAB_SWEEP"] == "of-another-sweep"
    assert "HYDRA_FULL_ERROR" not in os.environ


# For real, as users start it.


def test_a_real_run_and_the_same_command_again(command: Command, tmp_path: Path) -> None:
    """It imports the compiler, which takes as long as torch, only where that is asked for. SCAFFOLD adds to steps."""
    code = "import sys; from fedlab_runner import train; train.main(); "
    code += "assert not {'torch._dynamo', 'triton'} & {*sys.modules}"
    arguments = [*TINY, "algorithm=scaffold"]
    first = subprocess.run([sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert (first.returncode, first.stderr) == (0, "")
    (folder,) = (tmp_path / "outputs").glob("scaffold-*")
    metrics = (folder / "metrics.jsonl").read_bytes()
    assert command(*arguments) == (0, "")
    assert (folder / "metrics.jsonl").read_bytes() == metrics
