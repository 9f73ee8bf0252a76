"""Which code a run is made of: edited code neither continues a run nor hands back its number without a word."""

import importlib
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from fedlab_runner.config.build import fingerprint
from fedlab_runner.experiment import code_hash, provenance
from fedlab_runner.experiment.code_hash import code_of
from fedlab_runner.experiment.run import run_in, run_whole
from fedlab_runner.utils.errors import UserError
from tests.helpers.composed import composed
from tests.helpers.kinds import by_kind
from tests.helpers.toy import ALGORITHMS

ALGORITHM = '''
"""An algorithm of a user's."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from parts{n}.steps import step
from fedlab_runner.algorithms.fedavg import FedAvg, Params

if TYPE_CHECKING:
    import unread{n}


class Middle(FedAvg):
    """A base that is no dataclass of its own."""


@dataclass(frozen=True)
class Mine(Middle):
    def server_step(self, state, arrivals, fed):
        return Params(step(state.params, arrivals))
'''
FILES = {
    "mine{n}.py": ALGORITHM,
    "parts{n}/__init__.py": "",
    "parts{n}/steps.py": "from . import sign\n\n\ndef step(x, a):\n    return x + sign.SIGN * a.mean(a.upload.rows)\n",
    "parts{n}/sign.py": "SIGN = 1.0\n",
    "unread{n}.py": "",
    "beside{n}.py": "",
}


class User:
    """A user's own files, with names that no other test has imported, and a run folder."""

    number = 0

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        User.number += 1
        self.n, self.code, self.run = f"_{os.getpid()}_{User.number}", folder / "code", folder / "run"
        monkeypatch.syspath_prepend(self.code)
        for name, text in FILES.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        """As an editor does between two processes, of which the second imports the file again."""
        path = self.code / name.format(n=self.n)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{n}", self.n))
        for module in [m for m in sys.modules if self.n in m]:
            del sys.modules[module]

    def config(self, *overrides: str) -> DictConfig:
        importlib.import_module(f"mine{self.n}")  # a config may name what its program has imported
        cfg = composed("algorithm=fedavg", "delay=none", "server_data=none", "evaluation.every=1", *overrides)
        cfg.algorithm = OmegaConf.create({**cfg.algorithm, "_target_": f"mine{self.n}.Mine"})
        return cfg

    def names(self) -> set[str]:
        return {name.replace(self.n, "") for name in code_of(fingerprint(self.config())) if self.n in name}


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> User:
    return User(tmp_path, monkeypatch)


def test_the_code_is_what_the_classes_need(user: User) -> None:
    assert user.names() == {"mine", "parts.steps", "parts.sign"}
    names = set(code_of(fingerprint(user.config())))
    assert {
        "fedlab_runner.algorithms.fedavg",
        "fedlab_runner.core.algorithm",
        "fedlab_runner.algorithms.shared.averaging",
    } <= names
    assert not {name.partition(".")[0] for name in names} & {"torch", "numpy", "abc"}


@pytest.mark.parametrize("name", by_kind(ALGORITHMS))
def test_the_code_of_every_algorithm(name: str) -> None:
    """Its own module and what all rounds are made of; nothing that only shows, keeps or composes."""
    names = set(code_of(fingerprint(composed(f"algorithm={name}"))))
    assert {
        f"fedlab_runner.algorithms.{name}",
        "fedlab_runner.core.federation",
        "fedlab_runner.core.client_data",
    } <= names
    shown = ("recorder", "recording", "report", "plots", "drawing", "sweep", "readme", "docs", "config", "train")
    assert not {each for each in names if each.split(".")[1] in shown}


EDITS = {
    "a comment": ("mine{n}.py", ALGORITHM.replace("return Params", "# why\n        return Params"), True),
    "a docstring": ("mine{n}.py", ALGORITHM.replace("of a user's", "of mine"), True),
    "layout": ("parts{n}/sign.py", "SIGN = (1.0\n  )\n", True),
    "what only type checkers read": ("unread{n}.py", "x = 1\n", True),
    "a file beside": ("beside{n}.py", "x = 1\n", True),
    "the algorithm": ("mine{n}.py", ALGORITHM.replace("step(state", "2 * step(state"), False),
    "a base": ("mine{n}.py", ALGORITHM.replace('of its own."""', 'of its own."""\n    sent = 2'), False),
    "what a helper imports": ("parts{n}/sign.py", "SIGN = -1.0\n", False),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_between_two_calls(edit: str, user: User, caplog: pytest.LogCaptureFixture) -> None:
    """Of a run that continues, and of a finished one."""
    name, text, harmless = EDITS[edit]
    number = run_in(user.run, user.config("rounds=2"))
    user.write(name, text)
    if harmless:
        assert run_in(user.run, user.config("rounds=2")) == number
        run_in(user.run, user.config("rounds=3"))
        return
    module = name.removesuffix(".py").replace("/", ".").format(n=user.n)
    with pytest.raises(UserError, match=rf"^[^\n]*other code has finished \(changed: {module}\): delete it[^\n]*$"):
        run_in(user.run, user.config("rounds=2"))
    with pytest.raises(UserError, match=rf"^the code is not that which [^\n]*\(changed: {module}\): bring it back"):
        run_in(user.run, user.config("rounds=3"))
    with pytest.raises(UserError, match=r"^the code is not"):
        run_whole(user.run, user.config("rounds=2"))
    caplog.clear()
    caplog.set_level(logging.WARNING, "fedlab_runner")
    assert run_in(user.run, user.config("rounds=2", "checkpoint.same_code=false")) == number
    assert "returns the number of that code" in caplog.text
    with pytest.raises(UserError, match="other code"):  # it was taken once
        run_in(user.run, user.config("rounds=2"))
    run_in(user.run, user.config("rounds=3", "checkpoint.same_code=false"))
    assert "the run continues with the present code" in caplog.text
    run_in(user.run, user.config("rounds=4"))  # which is its code now


def test_a_file_that_is_edited_while_the_process_works_is_what_was_imported(user: User) -> None:
    before = code_of(fingerprint(user.config()))
    path = user.code / f"mine{user.n}.py"
    path.write_text(path.read_text() + "X = 1\n")
    assert code_of(fingerprint(user.config())) == before
    user.write("mine{n}.py", ALGORITHM + "X = 1\n")  # imported again
    assert code_of(fingerprint(user.config())) != before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("steps", "+ sign.SIGN", "- sign.SIGN"),
        ("steps", "return", "retur"),
        ("sign", "1.0", "-1.0"),
        ("sign", "SIGN", "@cache\ndef more():\n    pass\n\n\nSIGN"),
    ],
    ids=["function", "half", "constant", "new"],
)
def test_a_file_that_was_edited_before_the_first_run_of_the_process(
    file: str, old: str, new: str, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text is not what the process computes with. Neither is that of a module that imports it before a reload."""
    path = user.code / f"parts{user.n}" / f"{file}.py"
    before = path.read_text()
    cfg = user.config()
    begin = time.time_ns()
    while path.stat().st_ctime_ns <= begin:  # the file system's clock has steps of milliseconds
        path.write_text(before.replace(old, new))
    for _ in range(2):
        with pytest.raises(UserError, match=rf"^{path} was edited after its import: importlib\.reload the module, or "):
            code_of(fingerprint(cfg))
    with pytest.raises(UserError, match="was edited"):
        run_whole(user.run, cfg)
    assert not (user.run / "failed.json").exists()
    path.write_text(before)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    importers = {"steps": ["mine"], "sign": [f"parts{user.n}.steps", "mine"]}[file]
    importlib.reload(sys.modules[(again := f"parts{user.n}.{file}")])
    for name in (each if user.n in each else f"{each}{user.n}" for each in importers):
        with pytest.raises(
            UserError, match=rf"^{name} was imported before {again} was reloaded: reload {name} too, or "
        ):
            code_of(fingerprint(cfg))
        importlib.reload(sys.modules[(again := name)])
    code_of(fingerprint(cfg))


def test_files_of_another_clock_are_as_they_were_imported(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file server's clock may be ahead, and that of a machine may be set back. An edit counts under each clock."""
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: 0)
        cfg = user.config()
    code_of(fingerprint(cfg))
    path = user.code / f"mine{user.n}.py"
    text, before = path.read_text(), path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before:
        path.write_text(text + "X = 1\n")
    monkeypatch.setattr(code_hash, "_read", {})
    with pytest.raises(UserError, match="was edited"):
        code_of(fingerprint(cfg))


def test_libraries_inside_a_users_project_are_none_of_his_code(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    place = user.code / ".venv" / "lib" / "site-packages"
    user.write(f".venv/lib/site-packages/library{user.n}.py", "")
    monkeypatch.syspath_prepend(place)
    user.write("mine{n}.py", "import library{n}\n" + ALGORITHM)
    assert user.names() == {"mine", "parts.steps", "parts.sign"}


def test_the_commit_of_a_users_repository_is_noted(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for arguments in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "x"]):
        subprocess.run(["git", "-C", str(user.code), *arguments], check=True, capture_output=True)
    commit = subprocess.run(["git", "-C", str(user.code), "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    run_in(user.run, user.config("rounds=1"))
    user.write("parts{n}/sign.py", "SIGN = 1.00\n")
    run_in(user.run, user.config("rounds=2"))
    starts = [json.loads(line) for line in (user.run / provenance.COMMANDS_FILE).read_text().splitlines()]
    noted = [{Path(path): commit for path, commit in start["own_commits"].items()} for start in starts]
    assert noted == [{user.code: commit.strip()}, {user.code: commit.strip() + "-dirty"}]


def test_a_repository_whose_names_are_no_text_has_a_commit(tmp_path: Path) -> None:
    """git shows them as they are with core.quotepath=false, which people with umlauts set."""
    name = os.fsencode(tmp_path) + b"/\xfc.txt"
    Path(os.fsdecode(name)).write_text("x")
    for arguments in (["init", "-q"], ["config", "core.quotepath", "false"], ["add", "."]):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "-C", str(tmp_path), *who, "commit", "-qm", "x"], check=True)
    Path(os.fsdecode(name)).write_text("longer")
    assert str(provenance._commit(tmp_path)).endswith("-dirty")


def test_a_summary_without_its_code_is_written_anew(user: User) -> None:
    """The run continues from its checkpoint; starts whose lines are damaged are passed over."""
    run_in(user.run, user.config("rounds=1"))
    summary = json.loads((user.run / "summary.json").read_text())
    kept = summary.pop("code_sha256")
    (user.run / "summary.json").write_text(json.dumps(summary))
    (user.run / provenance.COMMANDS_FILE).write_text('{"code": 3}\n[]\nnonsense\n{"code": {"a": "b"}}\n')
    run_in(user.run, user.config("rounds=1"))
    assert json.loads((user.run / "summary.json").read_text())["code_sha256"] == kept
    assert len(starts := provenance.codes(user.run)) == 2 and starts[0] == {"a": "b"}
    user.write("parts{n}/sign.py", "SIGN = -1.0\n")
    with pytest.raises(UserError, match=r"other code has finished .*sign.*: delete"):
        run_in(user.run, user.config("rounds=1"))


def test_many_changes_are_counted() -> None:
    theirs = dict.fromkeys("abcdef", "1")
    assert code_hash.changed(theirs, theirs | {"b": "2"}) == "b"
    assert code_hash.changed(theirs, {}) == "a, b, c, d and 2 more"


def test_each_folder_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep of finished runs asks for the code of each, where this took a tenth of the time."""
    config, looked = fingerprint(composed("algorithm=fedavg")), list[str]()
    real = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda path: looked.append(path) or real(path))
    code_of(config)
    assert len(looked) == len(set(looked)) > 20
    looked.clear()
    code_of(config)  # a module may have been added since
    assert looked


def test_what_was_parsed_is_kept_for_later_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By content, so that an edited module is parsed again; a damaged file is no obstacle."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config, parsed = fingerprint(composed("algorithm=fedavg")), []

    def again() -> code_hash.Code:
        """As in a fresh process."""
        code_hash._known.cache_clear()
        monkeypatch.setattr(code_hash, "_read", {})
        return code_of(config)

    real = code_hash.ast.parse
    monkeypatch.setattr(code_hash.ast, "parse", lambda text: parsed.append(text) or real(text))
    first = again()
    assert len(parsed) == len(set(parsed)) > 20
    (place,) = (tmp_path / "fedlab").glob("modules-*.json")
    parsed.clear()
    assert again() == first and not parsed
    place.write_text(place.read_text().replace('"', "'", 1))
    assert again() == first and len(parsed) > 20, "the damaged file is written again"
    parsed.clear()
    assert again() == first and not parsed
    code_hash._known.cache_clear()
