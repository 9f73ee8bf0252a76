"""The pages in docs/reference, made from docstrings, configs and docs/choices.md: `make docs` writes them."""

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from docs.generate import markdown
from docs.generate.composition import composition
from fedlab_runner.config import listing, schema, targets
from fedlab_runner.config.build import conf_dir

DOCS = Path(__file__).resolve().parents[1]
MAX_VALUE_LENGTH = 60  # characters of a default; a longer list is shortened to its first entries
_NOTE = "<!-- Made by `make docs` from docstrings and configs. Change those, not this page. -->"
_FIELD = re.compile(r"(\w+):[^#]*(?:#\s*(.*))?")  # a top-level line of a YAML file: key and comment


class Group(NamedTuple):
    """A config group: the title of its page, and the page's introduction."""

    title: str
    lead: str


GROUPS = {
    "algorithm": Group(
        "Algorithms",
        "An algorithm says what the server and the clients do in a round. Set a hyperparameter with "
        "`algorithm.<key>=<value>`. [Metrics](../metrics.md) lists what each algorithm logs, "
        "[open choices](../choices.md) what it does where its paper is silent.",
    ),
    "dataset": Group(
        "Data sets",
        "A data set has training and test examples. A data set with files reads them below `dataset.root`, by default "
        "the folder that the environment variable `FEDLAB_DATA` names, else `data`. Where a file is missing, the "
        "error names the file and where to get it. Images are resized, and grey images are replicated to three "
        "channels, as the model's `image_size` and `channels` ask.",
    ),
    "partition": Group("Partitions", "A partition deals the training examples out to the clients."),
    "client_split": Group(
        "Client splits",
        "A client split says on which of its examples a client trains, and on which it is validated and tested: see "
        "[the evaluation matrix](../metrics.md#the-evaluation-matrix). The run refuses `client_split.test` and "
        "`client_split.validation` where several clients hold an example, and `natural` where training or test "
        "examples have no users or clients share one.",
    ),
    "delay": Group(
        "Delays",
        "A delay says how many rounds after its start a client's update arrives. With `draw=client` a client keeps one "
        "delay; with `draw=dispatch` it gets a new one each time it starts.",
    ),
    "participation": Group(
        "Participation",
        "Participation says which idle clients start in a round, and which clients never do. `algorithm=hyfem` refuses "
        "`participation.held_out_clients`, as its server places the neurons of all clients.",
    ),
    "model": Group("Models", "All clients train this model, or a mix of several (`model=mix`)."),
    "local": Group(
        "Local training",
        "Local training says how a client trains: the optimiser, the learning rate and the number of steps.",
    ),
    "lr_schedule": Group(
        "Learning-rate schedules", "A schedule is a factor on `local.lr` by round; rounds are counted from 0."
    ),
    "home": Group(
        "Homes",
        "A home says which part of its model a client keeps to itself: its own values there are never sent and never "
        "counted as sent, and they go from round to round in the client's row. FedPer, LG-FedAvg and FedBN are "
        "`algorithm=fedavg` with `head`, `body` and `norm`; `fedrep` and `fedbabu` have `head` unless the command line "
        "names another.\n\n"
        "Local training starts from the received model with the client's own part in it. A client that has not trained "
        "has the values of the run's first model. A late client has its new values when its update arrives; one whose "
        "update is not finite keeps the old ones. Proximal terms pull the shared part alone; `local.update_norm` "
        "bounds the change of both parts together. The server, its optimiser and its caches see no change of the part "
        "at home. A server that trains or distils on its own examples has a part of its own there, which nobody "
        "receives.\n\n"
        "`client/...` in `evaluation.matrix` tests the clients' own models; `test/accuracy` tests them only where "
        "there is no server.\n\n"
        "[A table](algorithm.md#what-composes-with-what) has the algorithms that take a home, and why others do not. "
        "FedWalk takes one where its base does. `fedgen` refuses one that keeps "
        "part of the classifier, and so does `hyfem` with `first_classifiers=own`; `analysis=update_cosines` refuses "
        "every one. `head` and `body` need a model that ends in one linear layer, `norm` one with normalising layers, "
        "`prefixes` names that it has.",
    ),
    "aggregator": Group(
        "Aggregators",
        "An aggregator says what the server takes for the mean of the updates that arrive, where some of them may be "
        "Byzantine: sent by clients that fail or lie. It acts in every mean and sum that an algorithm makes of them, "
        "late ones included: of changes or models, batch norm's statistics, SCAFFOLD's control variates, FedDyn's h. A "
        "server optimiser, a home, late clients and `nonfinite` work as with the mean. An aggregator keeps nothing "
        "from round to round. [A table](algorithm.md#what-composes-with-what) has the algorithms that take one: those "
        "whose server steps by the mean of the arriving updates alone, and FedWalk around them.\n\n"
        "`median` and `trimmed_mean` take each value by itself. `krum`, `multi_krum`, `bulyan` and `geometric_median` "
        "decide once in a round, by the distances between whole updates: all vectors that a client sends, as one, "
        "without single numbers such as FedNova's count of steps. Then the decision holds for each vector. Comparing A "
        "updates costs about A^2 / 2 distances; blocks of values bound the memory.\n\n"
        "`aggregator.byzantine` is a share, because with late clients the number A of arriving updates varies. The run "
        "refuses a share that a whole cohort cannot bear (`krum` and `multi_krum` need A >= 2f + 3, `bulyan` A >= 4f + "
        "3); in a round with fewer arrivals f is the largest that they allow, and `aggregator/tolerated` logs it.\n\n"
        "With `aggregator.sum_every` a round holds the models of so many clients and not of a whole cohort; the column "
        "`sum_every` of that table has the algorithms that take it.",
    ),
    "server_optimizer": Group(
        "Server optimisers",
        "A server optimiser acts on the step that an algorithm makes of the server's model: minus the step is its "
        "gradient, and the trainable parameters follow the optimiser instead. Batch norm's statistics stay as the "
        "algorithm leaves them, and a round that moves nothing is no step. It works with every algorithm whose server "
        "makes steps from clients' updates. FedAvgM, FedAdam, FedYogi and FedAdagrad are `algorithm=fedavg` with "
        "`sgd`, `adam`, `yogi` and `adagrad`. FedBuff, CA2FL and FedAsync may make several steps in a round. An "
        "algorithm's own `server_lr` scales its step before the optimiser sees it. [Which algorithms take "
        "one](algorithm.md#what-composes-with-what) is in a table; `fedma` refuses it with `layerwise=true` or "
        "`first_models=own`, where the model's neurons move and its moments would stay behind.",
    ),
    "loss": Group(
        "Losses",
        "A loss says what a client learns from its labels, under every algorithm. It is cross entropy with an offset "
        "for the logit of each class, and a loss of your own can choose these offsets alone. Any other training loss, "
        "such as label smoothing or a focal loss, is the `loss=` of `cohort.train` in "
        "[an algorithm of your own](../extending/algorithm.md).",
    ),
    "augment": Group(
        "Augmentations",
        "An augmentation changes an example each time a client trains on it: in local training, and on the aggregator "
        "where models teach each other. Server data, test examples and the examples on which clients are evaluated "
        "stay as they are.",
    ),
    "server_data": Group(
        "Server data",
        "Server data are examples that the server has. In-domain examples are taken out of the test set before "
        "anything else, for every algorithm, so all algorithms are tested on the same rest. Images of another domain "
        "are resized to the model's input and keep classes of their own.",
    ),
    "topology": Group(
        "Topologies",
        "A topology says which clients can reach each other where there is no server. It is drawn once; the run's log "
        "has it.",
    ),
    "executor": Group(
        "Executors",
        "An executor carries out the local training of a cohort. It changes the speed, not the result. "
        "[Speed and scale](../speed.md) compares them.",
    ),
    "analysis": Group(
        "Analyses",
        "An analysis measures something beside the algorithm. It changes nothing that the algorithm sees.",
    ),
    "pruning": Group(
        "Pruning",
        "Pruning ends a run of a sweep early where the run is behind the others: see [sweeps](../sweeps.md#pruning).",
    ),
}
_LOGGERS = (  # the end of the page of settings
    "`logger=none` has `progress`, `pictures` and `save_model` alone. For the keys of `logger=trackio` and "
    "`logger=tensorboard`: `fedlab --cfg job -p logger logger=trackio`."
)
SETTINGS = ("evaluation", "checkpoint", "logger")  # groups of one file, or nearly; they share the page of settings
WITH_SOURCE = (
    "algorithm",
    "dataset",
    "partition",
    "model",
    "aggregator",
    "server_optimizer",
    "home",
    "augment",
    "analysis",
)  # their modules cite one


def pages() -> dict[str, str]:
    """All pages of docs/reference by file name."""
    made = {f"{group}.md": group_page(group) for group in GROUPS}
    return {"index.md": index(), **made, "settings.md": settings(), "experiment.md": experiments()}


def main() -> int:
    """Write docs/reference again."""
    for old in (DOCS / "reference").glob("*.md"):
        old.unlink()
    for name, text in pages().items():
        (DOCS / "reference" / name).write_text(text, encoding="utf-8")
    return 0


def index() -> str:
    rows = [
        [f"[{group.title}]({name}.md)", f"`{name}=`", f"`{_chosen()[name]}`", markdown.first_sentence(group.lead)]
        for name, group in GROUPS.items()
    ]
    lead = (
        "Every choice of an experiment is a file in a folder of `conf/`, a config group. `fedlab <group>=<choice>` "
        "takes another file, `fedlab <group>.<key>=<value>` sets a key of it."
    )
    more = (
        "Keys without a group, evaluation, checkpoints and logging are on the page of [settings](settings.md). "
        "[Experiments](experiment.md) are settings under version control. `fedlab --list <group>` prints a group in "
        "the terminal, `fedlab --cfg job -p <group>` the keys that a command would use."
    )
    return _page("Reference", lead, markdown.table(["page", "chosen with", "default", "in short"], rows), more)


def group_page(group: str) -> str:
    """A table of the choices of a group, then a chapter for each."""
    paths = files(group)
    contents = markdown.table(
        [f"`{group}=`", "in short"], [[f"[`{path.stem}`](#{path.stem})", _in_short(path)] for path in paths]
    )
    default = f"The default is `{group}={_chosen()[group]}`."
    presets = sorted(path for path in (conf_dir() / group).glob("*/*.yaml"))
    more = ["## More settings", _listed(group, presets)] if presets else []
    beside = composition() if group == "algorithm" else []
    return _page(GROUPS[group].title, GROUPS[group].lead, default, contents, *beside, *map(chapter, paths), *more)


def chapter(path: Path) -> str:
    """A choice: its code, where it comes from, what it does, its keys, and what it does where its paper is silent."""
    group, cls = path.parent.name, target(path)
    if (original := _original(path)) != path:
        what = [_comment(path), f"It is [`{original.stem}`](#{original.stem}) with other defaults."]
        return "\n\n".join([f"## {path.stem}", *what, keys_table(path)])
    code = Path(*cls.__module__.split(".")).with_suffix(".py")
    head = [f"## {path.stem}", f"`{cls.__name__}` in [{code}](../../{code})"]
    if group in WITH_SOURCE:
        head.append(f"Source: {markdown.source(about(cls))}" if group == "algorithm" else markdown.linked(about(cls)))
    what = list(map(markdown.escaped, markdown.paragraphs(cls.__doc__)))
    silent = _silent(path, cls) if group == "algorithm" else []
    return "\n\n".join([*head, *what, *(_files(cls) if group == "dataset" else []), keys_table(path), *silent])


def settings() -> str:
    """The keys that belong to no group of components."""
    parts = ["## Run", keys_table(conf_dir() / "train.yaml")]
    for group in SETTINGS:
        path = conf_dir() / group / f"{_chosen()[group]}.yaml"
        parts += [f"## {group.capitalize()}", keys_table(path)]
    lead = "These keys are the same for all choices of the groups."
    return _page("Settings", lead, *parts, _LOGGERS)


def experiments() -> str:
    """All experiments with what each is."""
    folder = conf_dir() / "experiment"
    parts = ["## General", _listed("experiment", sorted(folder.glob("*.yaml")))]
    for paper in sorted(path for path in folder.iterdir() if path.is_dir()):
        parts += [f"## {paper.name}", _listed("experiment", sorted(paper.glob("*.yaml")))]
    lead = (
        "An experiment is a file in `conf/experiment` that sets several groups and keys. The command line overrides "
        "it: `fedlab experiment=feddle/table7 dataset=fashion_mnist seed=1`. `+debug=tiny` runs any experiment in "
        "small."
    )
    return _page("Experiments", lead, *parts)


def files(group: str) -> list[Path]:
    """The config files of a group, without those in folders of it."""
    return sorted((conf_dir() / group).glob("*.yaml"))


def target(path: Path) -> type:
    return targets.find_class(_content(path)["_target_"])


def about(cls: type) -> str:
    """How the module's docstring starts, with the address that may stand alone below."""
    module = inspect.getmodule(cls)
    first, *others = markdown.paragraphs(module.__doc__ if module else None)
    return " ".join([first, *(each for each in others[:1] if each.startswith("http"))])


def keys(path: Path) -> Iterator[list[str]]:
    """The keys that users set in a file: name, default and comment."""
    comments = {match[1]: match[2] or "" for line in path.read_text().splitlines() if (match := _FIELD.match(line))}
    group = "" if path.parent == conf_dir() else path.parent.name
    for key, value in _content(path).items():
        if key not in ("_target_", "defaults", "hydra"):
            yield [f"`{schema.join(group, key)}`", f"`{_short(value)}`", comments.get(key, "")]


def keys_table(path: Path) -> str:
    rows = list(keys(path))
    return markdown.table(["key", "default", "meaning"], rows) if rows else "It has no keys."


def choices() -> list[list[str]]:
    """The rows of docs/choices.md: question, what is done, keys."""
    return markdown.rows((DOCS / "choices.md").read_text(encoding="utf-8"))


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", _NOTE, *map(markdown.wrapped, parts)]) + "\n"


def _listed(group: str, paths: Sequence[Path]) -> str:
    what = dict(listing.choices(group, [conf_dir()]))
    names = [path.relative_to(conf_dir() / group).with_suffix("").as_posix() for path in paths]
    return markdown.table([f"`{group}=`", "in short"], [[f"`{name}`", what[name]] for name in names])


def _in_short(path: Path) -> str:
    return markdown.first_sentence(target(path).__doc__) if _original(path) == path else _comment(path)


def _original(path: Path) -> Path:
    """The file of the same group and class that describes the class: named as its module, else the default choice."""
    cls = target(path)
    same = {each.stem: each for each in files(path.parent.name) if target(each) is cls}
    names = (cls.__module__.rpartition(".")[2], _chosen()[path.parent.name])
    return next((same[name] for name in names if name in same), path)


def _silent(path: Path, cls: type) -> list[str]:
    lines = [
        f"- {question} {done}" + (f" ({key})" if key != "fixed" else "")
        for question, done, key in choices()
        if _concerns(path.stem, cls, question, done, key)
    ]
    return ["Where the paper is silent:", "\n".join(lines)] if lines else []


def _concerns(name: str, cls: type, question: str, done: str, key: str) -> bool:
    """Whether a choice is one of this algorithm: it has the key, the question names it, or it has no key and does."""
    words = question if "algorithm=" in key else f"{question} {done}"
    words = re.sub("[+-]", "", words).replace("decentralised Fed", "DecFed")  # Fed+FT, q-FedAvg: as their classes
    named = re.search(rf"\b{cls.__name__}\b", words, re.IGNORECASE)
    return bool(named or re.search(rf"\balgorithm={name}\b", key))


def _files(cls: type) -> list[str]:
    """The files of a data set, and what else its module says, such as the licence."""
    module = sys.modules[cls.__module__]
    others = [each for each in markdown.paragraphs(module.__doc__)[1:] if not each.startswith("http")]
    layout = getattr(module, "LAYOUT", None)
    return [
        *([f"Files below `dataset.root`: {markdown.escaped(layout)}."] if layout else []),
        *map(markdown.escaped, others),
    ]


def _chosen() -> dict[str, str]:
    """The choice of each group in the default experiment."""
    entries = _content(conf_dir() / "train.yaml")["defaults"]
    return {group: name for entry in entries if isinstance(entry, dict) for group, name in entry.items()}


def _comment(path: Path) -> str:
    return next(text for name, text in listing.choices(path.parent.name, [conf_dir()]) if name == path.stem)


@cache
def _content(path: Path) -> dict[str, Any]:
    content: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    return {str(key): value for key, value in content.items()}


def _short(value: Any) -> str:
    """A default; of a long list the first entries and the number of all."""
    text = _value(value)
    if isinstance(value, list) and len(text) > MAX_VALUE_LENGTH:
        return f"[{text[1 : text.index(',', MAX_VALUE_LENGTH // 2)]},...] ({len(value)} entries)"
    return text


def _value(value: Any) -> str:
    """A value as it is typed on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_value(each)}' for key, each in value.items())}}}"
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
