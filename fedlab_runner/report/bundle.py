"""A bundle: one zip file with all files behind the tables of a report, for `fedlab-verify` and for people.

The files of the runs lie as in `outputs`, so that the same code makes a report of an unpacked bundle. The bundle's
tables are made of the bundle's own files.
"""

import hashlib
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from fedlab_runner.config.hydra_record import EXPERIMENTS
from fedlab_runner.experiment import failure, provenance
from fedlab_runner.report import build, csv_files, ro_crate
from fedlab_runner.report.folders import FoundRuns, find, records_of, without_run
from fedlab_runner.report.runs import Run
from fedlab_runner.sweep import states
from fedlab_runner.utils import untrusted
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.escaping import visible
from fedlab_runner.utils.files import write_atomically
from fedlab_runner.utils.run_files import CONFIG
from fedlab_runner.utils.version import __version__

FORMAT = 1  # version of the bundle's format
MAX_BYTES = 2**31  # of the files in a bundle, which `fedlab-verify` unpacks, and of the zip file
OUTPUTS, SWEEPS, TABLES = "outputs", "sweeps", "tables"  # folders of a bundle; sweeps lie in outputs
ABOUT, MANIFEST, CRATE = "bundle.json", "manifest-sha256.txt", "ro-crate-metadata.json"
README, REQUIREMENTS = "README.md", "requirements.txt"
COMPOSED, CHOICES = ".hydra/config.yaml", ".hydra/hydra.yaml"
# The files of a run, with their descriptions.
RUN_FILES = {
    CONFIG: "the resolved config of the run",
    COMPOSED: "the config of a run that has not begun",
    CHOICES: "the choices of config files, and the overrides",
    EXPERIMENTS: "the experiments of the commands that asked for the run, one a line",
    "metrics.jsonl": "the metrics, an object a round; a function of the config",
    "timings.jsonl": "seconds, an object a round",
    "summary.json": "the objective, and the SHA-256 of metrics.jsonl",
    provenance.COMMANDS_FILE: "an object a start: command, commits, versions, processor, threads, digests of the code",
    "executor.json": "threads, and the executors that executor=auto chose",
    "pruned.json": "why a sweep ended the run early",
    failure.NOTE_FILE: "the error that ended the run",
    "partition.csv": "examples of each client by use and class",
    "clients.csv": "accuracies of each client",
}
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # of every file, so that the same runs make the same bytes
MAX_NAME_CHARACTERS = 200  # of the name of a run's folder in a bundle
_RUN_NAME = re.compile(rf"[^/\\:]{{1,{MAX_NAME_CHARACTERS}}}")  # such a name


class Bundle(NamedTuple):
    """A written bundle."""

    path: Path
    runs: int
    manifest: str  # the SHA-256 of the manifest, which identifies everything in the bundle
    personal: int  # files that hold the path of the user's home folder


def write(
    path: Path,
    folders: Sequence[Path],
    experiment: str | None = None,
    targets: Sequence[float] = (),
    found: FoundRuns | None = None,
) -> Bundle:
    """Writes the bundle of the runs in some folders, or of one experiment's runs there; only reads the folders.
    `found`: the runs in them; None: they are read.

    Raises UserError if there are no runs, if they are too large, or if the file cannot be written.
    """
    found = found or find(folders)
    groups = build.select(found.runs, experiment)
    runs = _named([run for group in groups for run in group.runs])
    others = states.counted(job.state for job in without_run(folders, found, experiment))
    with tempfile.TemporaryDirectory(prefix="fedlab-bundle-") as place:
        staged = Path(place)
        for name, folder in runs.items():
            _copy_run(folder, staged / OUTPUTS / name)
        for sweep, record in records_of(folders, set(runs.values())):
            target = staged / OUTPUTS / SWEEPS / sweep / "jobs" / record.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(_read(record))
        _put(staged / ABOUT, _json(_about(runs, experiment, targets)))
        _put(staged / REQUIREMENTS, _requirements())
        _put(staged / README, _readme(len(runs), experiment, others))
        for file, text in tables(find([staged / OUTPUTS]), experiment, targets).items():
            _put(staged / TABLES / file, text)
        names = sorted(each.relative_to(staged).as_posix() for each in staged.rglob("*") if each.is_file())
        manifest = "".join(f"{_sha256(staged / name)}  {name}\n" for name in names)
        _put(staged / MANIFEST, manifest)
        sizes = {name: (staged / name).stat().st_size for name in [*names, MANIFEST]}
        starts = {name: provenance.last_start(staged / OUTPUTS / name) for name in runs}
        _put(staged / CRATE, _json(ro_crate.metadata(sizes, RUN_FILES, starts, experiment, datetime.now(UTC).date())))
        if (size := (staged / CRATE).stat().st_size + sum(sizes.values())) > MAX_BYTES:
            raise UserError(
                f"{path} would hold {size / 2**30:.1f} GiB, and fedlab-verify unpacks {MAX_BYTES / 2**30:.0f} GiB: "
                "give fewer runs, or --experiment"
            )
        personal = sum(_is_personal(staged / name) for name in names)
        try:
            write_atomically(path, lambda file: _zip(file, staged, [CRATE, MANIFEST, *names]))
        except OSError as error:
            raise UserError(f"{path} cannot be written ({error.strerror}): give --bundle another file") from error
        except zipfile.LargeZipFile as error:
            raise UserError(f"{path} would be too large ({error}): give fewer runs, or --experiment") from error
    return Bundle(path, len(runs), hashlib.sha256(manifest.encode()).hexdigest(), personal)


def tables(found: FoundRuns, experiment: str | None, targets: Sequence[float]) -> dict[str, str]:
    """The tables of some runs as CSV, by name of the file. Raises UserError if the experiment has no run."""
    groups = build.select(found.runs, experiment)
    known = build.papers_of([run for group in groups for run in group.runs], experiment)
    return csv_files.files(groups, known, targets)


def words(bundle: Bundle) -> str:
    """The message about a written bundle."""
    lines = [f"{visible(os.path.relpath(bundle.path))}: {count_of(bundle.runs, 'run')}, manifest {bundle.manifest}"]
    if bundle.personal:
        lines.append(
            f"note: {count_of(bundle.personal, 'file')} of the bundle hold the path of your home folder; look at them "
            "before an anonymous review"
        )
    return "\n".join(lines)


def is_run_name(name: str) -> bool:
    """Whether a folder in a bundle may have this name."""
    return bool(_RUN_NAME.fullmatch(name)) and name.isprintable() and name.strip(" .") == name and name != SWEEPS


def _named(runs: Iterable[Run]) -> dict[str, Path]:
    """The folders of the runs by the name of the run in the bundle."""
    found: dict[str, Path] = {}
    for run in runs:
        name = run.name.replace("/", "-")
        if not is_run_name(name):
            raise UserError(
                f"'{visible(name)}' is no name for a run in a bundle: rename {run.folder} (no \\, no colon, nothing "
                f"unprintable, no space or dot at the ends, not {SWEEPS}, at most {MAX_NAME_CHARACTERS} characters)"
            )
        if name in found:
            both = visible(f"{found[name]} and {run.folder}")
            raise UserError(f"{both} would both be {visible(name)} in the bundle: rename one of the folders")
        found[name] = run.folder
    return found


def _copy_run(source: Path, target: Path) -> None:
    """Copies the files of a run. Of files that name folders of this machine it copies only the parts that a report
    reads.
    """
    shortened: dict[str, Callable[[bytes], bytes]] = {
        CHOICES: _choices,
        provenance.COMMANDS_FILE: lambda content: b"".join(map(_start, content.splitlines(keepends=True))),
    }
    for name in RUN_FILES:
        if name == COMPOSED and (source / CONFIG).is_file():
            continue
        try:
            content = _read(source / name)
        except FileNotFoundError:
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(shortened.get(name, bytes)(content))


def _read(path: Path) -> bytes:
    try:
        if path.suffix == ".jsonl":
            return b"".join(untrusted.lines(path))
        return untrusted.read_bytes(path)
    except untrusted.Unreadable as fault:
        raise UserError(f"{visible(str(path))} {fault}: it cannot be bundled") from None


def _choices(content: bytes) -> bytes:
    """Hydra's record without the folders of this machine."""
    try:
        told = untrusted.parse_yaml(content)["hydra"]
        kept = {"runtime": {"choices": told["runtime"]["choices"]}, "overrides": {"task": told["overrides"]["task"]}}
    except (untrusted.Unreadable, KeyError, TypeError):
        return b"{}\n"
    return _json({"hydra": kept}).encode()


def _start(line: bytes) -> bytes:
    """A line of the commands without the folders of the command and the run, and the paths of the user's own code."""
    try:
        start = untrusted.parse_json(line)
        own = start.pop("own_commits", {})
        for place in ("cwd", "folder"):
            start.pop(place, None)
        start["own_commits"] = {Path(str(place)).name: commit for place, commit in own.items()}
    except (untrusted.Unreadable, AttributeError, TypeError):
        return line
    return json.dumps(start).encode() + b"\n" * line.endswith(b"\n")


def _about(runs: Iterable[str], experiment: str | None, targets: Sequence[float]) -> dict[str, Any]:
    here = {"fedlab_runner": __version__, "commit": provenance.commit_here()}
    return {
        "format": FORMAT,
        "made": here,
        "experiment": experiment,
        "targets": list(targets),
        "runs": sorted(runs),
    }


def _requirements() -> str:
    """The packages that are installed on this machine, in pip's format."""
    found = {(each.metadata["Name"] or "").lower(): each.version for each in distributions()}
    lines = [f"{name}=={version}\n" for name, version in sorted(found.items()) if name]
    return "# The packages that were installed where this bundle was made.\n" + "".join(lines)


def _readme(runs: int, experiment: str | None, others: Sequence[str]) -> str:
    without = f"Jobs of the sweeps without a run: {', '.join(others)}.\n\n" if others else ""
    files = "".join(f"| `outputs/<run>/{name}` | {words} |\n" for name, words in RUN_FILES.items())
    return (
        f"# {runs} runs of fedlab_runner{f': {experiment}' if experiment else ''}\n\n"
        f"`fedlab-verify <this zip>` checks the hashes, and that the tables follow from the metrics;\n"
        f"`--cells 3` computes three runs again. fedlab_runner {__version__} made this bundle.\n\n"
        f"{without}"
        "| file | contents |\n| --- | --- |\n"
        f"| `{TABLES}/*.csv` | a row for each run, for each setting, and for each cell of a paper's table |\n"
        f"{files}"
        f"| `{OUTPUTS}/{SWEEPS}/*/jobs/*.json` | how the jobs of the sweeps ended |\n"
        f"| `{REQUIREMENTS}` | the packages where the bundle was made |\n"
        f"| `{ABOUT}` | the runs, and the options of the tables |\n"
        f"| `{MANIFEST}` | the hash of each file: `sha256sum -c {MANIFEST}` |\n"
        f"| `{CRATE}` | RO-Crate metadata, which the authors may complete: no check reads them |\n"
    )


def _is_personal(path: Path) -> bool:
    home = os.path.expanduser("~").encode()
    return len(home) > 1 and home in path.read_bytes()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def _zip(file: BinaryIO, folder: Path, names: Sequence[str]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, allowZip64=False) as archive:
        for name in names:
            entry = zipfile.ZipInfo(name, _ZIP_DATE)
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, (folder / name).read_bytes())
