"""What each algorithm composes with, as the algorithms themselves say it: a part of docs/reference/algorithm.md."""

from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import OmegaConf

from docs.generate import markdown
from fedlab_runner.config.build import conf_dir
from fedlab_runner.core.algorithm import Algorithm

LEAD = (
    "A server optimiser, several architectures, feature blocks or a home do the same with every algorithm that has a "
    "place for them. The run refuses the others before it starts, in one line with the reason. Where there is no "
    "server nobody is late, and the run says that it does not use `delay`. All that an algorithm accepts works "
    "together, and resumes to the same bits ([test](../../tests/algorithms/test_choices.py)). Every algorithm takes "
    "every data set, partition, client split, executor and evaluation, unless its section says otherwise."
)
HEADER = ["algorithm", "late clients", "server optimiser", "several architectures", "feature blocks", "home"]


def composition() -> list[str]:
    """The paragraphs of the part: a heading, a lead and a table."""
    paths = sorted((conf_dir() / "algorithm").glob("*.yaml"))
    return ["## What composes with what", LEAD, markdown.table(HEADER, list(map(_row, paths)))]


def _row(path: Path) -> list[str]:
    method = built(path)
    answers = (
        not method.decentralized,
        method.makes_server_steps,
        method.heterogeneous,
        method.holds_blocks,
    )
    fault = method.home_fault()
    home = "yes" if fault is None else f"no: an algorithm {fault}"
    return [f"[`{path.stem}`](#{path.stem})", *("yes" if answer else "no" for answer in answers), home]


def built(path: Path) -> Algorithm[Any]:
    """The algorithm of a config file with its defaults; a wrapper's base is its default one."""
    node: Any = OmegaConf.load(path)
    for entry in node.pop("defaults", []):
        for where, name in entry.items() if OmegaConf.is_dict(entry) else ():
            if str(where).startswith("/algorithm@"):
                node[str(where).partition("@")[2]] = OmegaConf.load(path.with_name(f"{name}.yaml"))
    made: Algorithm[Any] = instantiate(node, _convert_="all")
    return made
