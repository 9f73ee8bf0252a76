"""Installation: the commands, the wheel, and the config folder found both ways."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from fedlab_runner import __version__
from fedlab_runner.config import build
from tests.helpers.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_config_folder_of_the_repository_is_found() -> None:
    assert build.conf_dir() == ROOT / "conf"


def test_the_config_folder_inside_the_package_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "conf", tmp_path / "fedlab_runner" / "conf")
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    monkeypatch.setattr(build, "__file__", str(tmp_path / "fedlab_runner" / "config" / "build.py"))
    assert build.conf_dir() == tmp_path / "fedlab_runner" / "conf"


def test_a_package_without_its_configs_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "__file__", str(tmp_path / "fedlab_runner" / "config" / "build.py"))
    with pytest.raises(build.UserError, match=r"no conf/train\.yaml in .*: install the package again"):
        build.conf_dir()


def test_the_wheel_is_told_to_carry_the_configs() -> None:
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"] == {"conf": "fedlab_runner/conf"}
    scripts = {"fedlab": "fedlab_runner.__main__:command", "fedlab-report": "fedlab_runner.report.cli:main"}
    assert PROJECT["project"]["scripts"] == scripts | {
        "fedlab-dashboard": "fedlab_runner.report.wandb_workspace:main",
        "fedlab-verify": "fedlab_runner.verify.cli:main",
    }


def test_the_metadata_are_those_of_the_citation() -> None:
    project, citation = PROJECT["project"], yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert project["authors"] == citation["authors"] and project["keywords"] == citation["keywords"]
    assert project["description"] == citation["abstract"]
    supported = {each.rpartition(" ")[2] for each in project["classifiers"] if ":: Python :: 3." in each}
    assert supported == {"3.11", "3.12", "3.13"} and project["requires-python"] == ">=3.11,<3.14"
    assert "Typing :: Typed" in project["classifiers"] and (ROOT / "fedlab_runner" / "py.typed").is_file()


def test_the_source_distribution_has_all_that_its_checks_need() -> None:
    listed = {name.lstrip("/") for name in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("needs the repository")
    tops = {name.partition("/")[0] for name in tracked.stdout.splitlines()}
    # hatchling adds pyproject.toml and .gitignore; outputs/ holds runs.
    assert tops - listed - {"pyproject.toml", ".gitignore", "outputs"} == set()
    assert [name for name in listed if not (ROOT / name).exists()] == []


def test_the_image_is_made_of_what_the_wheel_is_made_of() -> None:
    """Without a Docker daemon: the files of the build are let through, and the Python is one that is supported."""
    text = (ROOT / "Dockerfile").read_text()
    copied = {name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.M) for name in line.split()}
    let_through = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.M)
    assert copied == set(let_through) and all((ROOT / name).exists() for name in copied)
    assert {"pyproject.toml", "conf", "fedlab_runner", PROJECT["project"]["readme"]} <= copied
    assert set(PROJECT["project"]["license-files"]) <= copied
    (python,) = re.findall(r"^ARG PYTHON=(\S+)$", text, re.M)
    assert f"Programming Language :: Python :: {python}" in PROJECT["project"]["classifiers"]
    (entry,) = re.findall(r'^ENTRYPOINT \["(\S+)"\]$', text, re.M)
    assert entry in PROJECT["project"]["scripts"]


def test_the_extras_and_the_licence() -> None:
    assert {"test", "ray", "slurm", "joblib", "optuna"} <= set(PROJECT["project"]["optional-dependencies"])
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert (ROOT / "LICENSE").read_text().lstrip().startswith("Apache License\n")


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_help_lists_every_target() -> None:
    command = ["make", "--no-print-directory", "help"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    phony = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith(".PHONY:"))
    assert [line.split()[1] for line in shown.splitlines()] == phony.removeprefix(".PHONY:").split()


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_without_a_python_says_what_is_missing(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    ended = subprocess.run(["make", "run", "PYTHON="], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode != 0
    assert ended.stderr.startswith("error: no Python 3.11, 3.12 or 3.13 with venv found")


@pytest.mark.slow
def test_a_wheel_in_an_empty_folder_runs(tmp_path: Path) -> None:
    """Needs the package index for hatchling. The dependencies are those of this environment."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"fedlab_runner-{__version__}-")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"fedlab_runner/conf/train.yaml", "fedlab_runner/py.typed"} <= set(names)
    subprocess.run([*pip, "install", "--no-deps", "--target", str(tmp_path / "site"), str(wheel)], check=True)
    empty = tmp_path / "empty"
    empty.mkdir()
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); "
        "sys.argv = ['fedlab', 'rounds=1', 'logger=none', 'model=logistic']; "
        "from fedlab_runner import train; from fedlab_runner.config.build import conf_dir; "
        "print(conf_dir()); sys.exit(train.main())"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=empty, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[0] == str(tmp_path / "site" / "fedlab_runner" / "conf")
    assert list(empty.glob("outputs/feddle-*/summary.json"))
