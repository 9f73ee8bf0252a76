"""The description of a bundle as RO-Crate 1.2. https://w3id.org/ro/crate/1.2

This module does not use the library `rocrate`: for one JSON file it would bring five packages, and it copies files
itself, while `report.bundle` writes and hashes a bundle's files. `rocrate-validator` found in a bundle all that version
1.2 requires. Of its recommendations only the publisher and the licence are missing.
"""

from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any
from urllib.parse import quote

from fedlab_runner.utils.version import __version__

VERSION = "https://w3id.org/ro/crate/1.2"  # of the specification
APACHE = "https://www.apache.org/licenses/LICENSE-2.0"  # of the program, not of the bundle
LICENCE = "#licence"  # of the bundle
PROGRAM = "fedlab-runner"  # pip's name of this package
FORMATS = {  # media types by the end of a file's name
    "json": "application/json",
    "jsonl": "application/jsonl",
    "yaml": "application/yaml",
    "csv": "text/csv",
    "md": "text/markdown",
    "txt": "text/plain",
}
Entity = dict[str, Any]


def metadata(
    sizes: Mapping[str, int],
    words: Mapping[str, str],
    starts: Mapping[str, Mapping[str, Any]],
    experiment: str | None,
    today: date,
) -> Entity:
    """The content of ro-crate-metadata.json.

    `sizes`: the bytes of each file except this one. `words`: the description of each file of a run. `starts`: for each
    run the last line of its commands.jsonl.
    """
    runs = {name: f"outputs/{name}/" for name in starts}
    versions = {name: _versions(start) for name, start in starts.items()}
    programs = {_id("program", each): each for found in versions.values() for each in found.items()}
    root: Entity = {
        "@id": "./",
        "@type": "Dataset",
        "name": f"Runs of fedlab_runner: {experiment or f'{len(starts)} experiments'}",
        "description": f"Configs, metrics and tables of {len(starts)} experiments in federated learning, which "
        "fedlab-verify can check and compute again",
        "datePublished": today.isoformat(),
        "license": {"@id": LICENCE},
        "hasPart": _links(
            [*map(_path, runs.values()), *(_path(each) for each in sizes if _run_of(each) not in starts)]
        ),
        "mentions": _links(_id("run", name) for name in starts),
    }
    return {
        "@context": f"{VERSION}/context",
        "@graph": [
            {
                "@id": "ro-crate-metadata.json",
                "@type": "CreativeWork",
                "about": {"@id": "./"},
                "conformsTo": {"@id": VERSION},
            },
            root,
            *(_folder(name, place, sizes) for name, place in runs.items()),
            *(_file(name, size, words) for name, size in sizes.items()),
            *(_action(name, runs[name], starts[name], versions[name], sizes) for name in runs),
            *(_program(key, *each) for key, each in programs.items()),
            {"@id": APACHE, "@type": "CreativeWork", "name": "Apache License 2.0", "description": "fedlab_runner's"},
            {
                "@id": LICENCE,
                "@type": "CreativeWork",
                "name": "No licence stated",
                "description": "The authors of the experiments may put their licence here.",
            },
        ],
    }


def _folder(name: str, place: str, sizes: Mapping[str, int]) -> Entity:
    inside = [_path(each) for each in sizes if each.startswith(place)]
    about: Entity = {"@id": _path(place), "@type": "Dataset", "name": f"The run {name}"}
    return about | {"description": "Config, metrics and record of one run", "hasPart": _links(inside)}


def _file(name: str, size: int, words: Mapping[str, str]) -> Entity:
    kind = FORMATS.get(name.rpartition(".")[2], "application/octet-stream")
    about: Entity = {"@id": _path(name), "@type": "File", "name": name}
    about |= {"contentSize": str(size), "encodingFormat": kind}
    inside = name.split("/", 2)[-1]
    return about | {"description": words.get(inside, "of the bundle as a whole; README.md says what it is")}


def _action(
    name: str, place: str, start: Mapping[str, Any], versions: Mapping[str, str], sizes: Mapping[str, int]
) -> Entity:
    """The run as an action, in which programs computed files from a config."""
    config = [f"{place}{each}" for each in ("config.yaml", ".hydra/config.yaml") if f"{place}{each}" in sizes]
    ended = f"{place}summary.json" in sizes
    action: Entity = {
        "@id": _id("run", name),
        "@type": "CreateAction",
        "name": f"The run {name}",
        "instrument": _links(_id("program", each) for each in versions.items()),
        "object": _links(map(_path, config)),
        "result": _links(_path(each) for each in sizes if each.startswith(place) and each not in config),
        "actionStatus": f"http://schema.org/{'Completed' if ended else 'Active'}ActionStatus",
    }
    command = start.get("command")
    return action | ({"description": command} if isinstance(command, str) and command else {})


def _program(key: str, name: str, version: str) -> Entity:
    """A program. This package has no address, without which the specification does not call it an application."""
    about: Entity = {"@id": key, "name": name, "version": version}
    if name == PROGRAM:
        return about | {"@type": "CreativeWork", "license": {"@id": APACHE}}
    address = "https://www.python.org/" if name == "python" else f"https://pypi.org/project/{quote(name)}/"
    return about | {"@type": "SoftwareApplication", "url": address}


def _versions(start: Mapping[str, Any]) -> dict[str, str]:
    """The programs that a run noted; this package if it noted none."""
    told = start.get("versions")
    found = {str(name): str(version) for name, version in told.items()} if isinstance(told, Mapping) else {}
    return {PROGRAM: __version__, **found}


def _run_of(path: str) -> str:
    parts = path.split("/")
    return parts[1] if parts[0] == "outputs" and len(parts) > 2 else ""


def _path(name: str) -> str:
    """The name of a file or folder as a relative, percent-encoded id."""
    return quote(name)


def _id(kind: str, what: str | tuple[str, str]) -> str:
    return f"#{kind}-{quote(what if isinstance(what, str) else '-'.join(what), safe='')}"


def _links(ids: Iterable[str]) -> Any:
    """Links to entities. A single link is not a list."""
    found = [{"@id": each} for each in ids]
    return found[0] if len(found) == 1 else found
