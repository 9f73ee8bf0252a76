"""The commands, library versions and code of a run: a line of `commands.jsonl` for each start."""

import json
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_original_cwd
from omegaconf import DictConfig, OmegaConf

from fedlab_runner.config.build import RUN_ID, conf_dir
from fedlab_runner.config.hydra_record import overrides_of
from fedlab_runner.experiment.code_hash import Code, own_folders
from fedlab_runner.utils import untrusted
from fedlab_runner.utils.digest import digest
from fedlab_runner.utils.files import append_line
from fedlab_runner.utils.system import processor

if TYPE_CHECKING:  # a report reads commands without torch
    import torch

COMMANDS_FILE = "commands.jsonl"  # in the run's folder


def record(
    folder: Path, command: str | None, tracked_as: str, threads: int, code: Code, device: "torch.device"
) -> str | None:
    """Notes a start of the run in `folder`: its command (None: a program started it), folder, id in W&B and its like,
    threads, code and device.

    Returns the commit of this package; None outside of a repository.
    """
    commit = commit_here()
    own = {str(place): found for place in own_folders(code) if (found := _commit(place))}
    cwd = get_original_cwd() if HydraConfig.initialized() else str(Path.cwd())
    line: dict[str, Any] = {"command": command, "cwd": cwd, "folder": str(folder.resolve()), "tracked_as": tracked_as}
    line |= {"threads": threads, "commit": commit, "own_commits": own, "versions": versions()}
    line |= {"machine": machine(device), "code": code}
    append_line(folder / COMMANDS_FILE, json.dumps(line))
    return commit


def codes(folder: Path) -> list[Code]:
    """The code of each start of the run in a folder, as far as it can be read."""
    noted = (start.get("code") for start in _starts(folder))
    return [{str(name): str(hashed) for name, hashed in code.items()} for code in noted if isinstance(code, dict)]


def last_start(folder: Path) -> dict[str, Any]:
    """The note of the last start of the run in a folder that can be read; empty if there is none."""
    return [{}, *_starts(folder)][-1]


def tracked_as(folder: Path, name: str, shared: bool) -> str:
    """The id by which W&B and its like know the run `name` in a folder.

    It is that of the last start if that was in this folder, or in one that exists no more, as the run was moved. Else,
    as in a copy of a folder, it is `name` in the default folder, and an id of its own in any other folder or where the
    place of W&B's files is `shared` with other working folders.
    """
    own = re.compile(f"{re.escape(name)}(-[0-9a-f]{{4}}){'' if shared else '?'}", re.ASCII)
    noted = [each for each in _starts(folder) if own.fullmatch(str(each.get("tracked_as")))]
    there = noted[-1].get("folder") if noted else None
    if isinstance(there, str) and (there == str(folder.resolve()) or not os.path.exists(there)):
        return str(noted[-1]["tracked_as"])
    place = folder.absolute()
    usual = place == Path("outputs", name).absolute() and not shared
    return name if usual else f"{name}-{digest(str(place))[:4]}"


def _starts(folder: Path) -> Iterator[dict[str, Any]]:
    """The notes of each start of the run in a folder, as far as they can be read."""
    with suppress(OSError, untrusted.Unreadable):
        for line in untrusted.lines(folder / COMMANDS_FILE):
            with suppress(ValueError):
                if isinstance(start := untrusted.parse_json(line), dict):
                    yield start


def command_of(hydra: DictConfig, name: str) -> str:
    """The command that starts Hydra's run of this id, or a job of a sweep by itself, from the folder where the user
    typed it.
    """
    parts = ["fedlab"]
    for source in hydra.runtime.config_sources:
        if source.provider == "main" and Path(source.path) != conf_dir():
            parts += ["--config-path", source.path]
        if source.provider == "command-line":
            parts += ["--config-dir", source.path]
    if hydra.job.config_name != "train":
        parts += ["--config-name", hydra.job.config_name]
    parts += [each for each in overrides_of(hydra, "hydra") if not each.startswith("hydra.mode=")]
    place, cwd = Path(hydra.runtime.output_dir), Path(hydra.runtime.cwd)
    alone: Any = OmegaConf.to_container(hydra.run, resolve=False)
    if cwd / str(alone["dir"]).replace(RUN_ID, name) != place:
        folder = str(place.relative_to(cwd) if place.is_relative_to(cwd) else place)
        parts = [each for each in parts if not each.startswith("hydra.run.dir=")]
        parts.append("hydra.run.dir=" + (folder if re.fullmatch(r"[\w./-]+", folder) else _quoted(folder)))
    return shlex.join([*parts, *overrides_of(hydra)])


def _quoted(text: str) -> str:
    """The text, quoted for Hydra's command line so that braces do not begin an interpolation."""
    return "'" + text.replace("'", "\\'") + "'"


def short_commit(commit: str) -> str:
    """The first digits of a commit, with the mark of files that differ from it."""
    return commit[:8] + ("-dirty" if commit.endswith("-dirty") else "")


def commit_here() -> str | None:
    """The commit of this package, with `-dirty` if files differ from it. None outside of a repository, and for a
    package that is installed below the folder of another repository.
    """
    here = Path(__file__)
    try:
        _git(here.parent, "ls-files", "--error-unmatch", here.name)
    except (OSError, subprocess.SubprocessError):
        return None
    return _commit(here.parent)


def machine(device: "torch.device") -> dict[str, str]:
    """The hardware that numbers depend on: operating system, processor, its instructions as torch uses them, and the
    GPU if the models are on one. The name of the machine is not part of it.
    """
    import torch

    told = {"system": f"{platform.system()} {platform.machine()}", "processor": processor()}
    told["instructions"] = torch.backends.cpu.get_cpu_capability()
    return told | ({"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {})


def versions() -> dict[str, str]:
    """The versions of Python, of this package and of the libraries that numbers depend on."""
    found = {"python": platform.python_version()}
    for name in ("fedlab-runner", "torch", "torchvision", "timm", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a checkout that is not installed
            continue
    return found


def _commit(folder: Path) -> str | None:
    """The git commit of a folder, with `-dirty` if files differ from it; None outside of a repository."""
    try:
        dirty = "-dirty" if _git(folder, "status", "--porcelain", "--untracked-files=no") else ""
        return _git(folder, "rev-parse", "HEAD") + dirty
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    told = subprocess.run(command, capture_output=True, check=True, timeout=10).stdout
    return told.decode(errors="replace").strip()  # with core.quotepath=false it shows any bytes of a name
