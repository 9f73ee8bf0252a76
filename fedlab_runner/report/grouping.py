"""Groups the runs of one setting, which differ in the seed, and names settings by the keys in which they differ."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import and_
from typing import Any

from fedlab_runner.config.run_id import without_volatile
from fedlab_runner.methods.registry import Method, method_style
from fedlab_runner.report.runs import Run
from fedlab_runner.sweep import ranking
from fedlab_runner.sweep.records import natural
from fedlab_runner.utils.escaping import short

# Keys of the condition under which a report compares methods. All other keys belong to the method.
CONDITIONS = (
    *("dataset", "model", "partition", "num_clients", "participation", "delay", "label_noise", "drop_empty"),
    *("train_fraction", "rounds", "evaluation", "precision"),
)
MAX_NAME_CHARACTERS = 120  # of a key and its value in a name
Peers = tuple[str | None, ...]
Setting = Mapping[str, str]  # all keys that decide a run's numbers, except the seed: choices by group, and values


@dataclass(frozen=True)
class SeedGroup:
    """The runs of one setting, one for each seed."""

    setting: Setting
    condition: str  # the keys that it shares with the methods beside it, e.g. `delay.std=20`; empty if all share them
    method: str  # as on the command line, e.g. `feddle local.epochs=5`
    runs: Sequence[Run]
    name: str  # as in papers, e.g. `Feddle-ID local.epochs=5`
    style: Method
    left_out: Sequence[Run] = ()  # runs with rows whose seed is that of a run above, which counts in their place

    @cached_property
    def finished(self) -> dict[Any, float]:
        """The objective of each seed that has one."""
        return {run.seed: value for run in self.runs if (value := run.objective) is not None}

    @property
    def counting(self) -> list[Run]:
        """The finished runs; while there are none, all runs with undamaged rows."""
        return [run for run in self.runs if run.finished] or [run for run in self.runs if not run.damaged]


def setting(run: Run) -> dict[str, str]:
    """The setting of a run: the choice of each group, the value of each other key, and the number of rounds."""
    return dict(_flat(without_volatile(run.config), "", run.choices)) | {"rounds": text(run.config.get("rounds"))}


def group(runs: Iterable[Run]) -> list[SeedGroup]:
    """The runs by setting, in the order of conditions, with names that distinguish them."""
    found = _by_setting(runs)
    settings = [dict(key) for key in found]
    differences, groups = Differences(settings), []
    for one, members in zip(settings, found.values(), strict=True):
        keys = differences.of(one)
        condition = label(one, filter(is_condition, keys))
        own = [key for key in keys if key != "algorithm" and not is_condition(key)]
        style = method_style(one.get("algorithm", "none"), one)
        name = " ".join(filter(None, [style.name, label(one, (key for key in own if key not in style.told))]))
        counting = _one_a_seed(members)
        left_out = [run for run in members if run.rows and not any(run is each for each in counting)]
        method = label(one, ["algorithm", *own])
        groups.append(SeedGroup(one, condition, method, counting, name, style, left_out))
    taken = Counter((each.condition, each.name) for each in groups)
    names = [f"{each.name} ({each.method})" if taken[each.condition, each.name] > 1 else each.name for each in groups]
    groups = [replace(each, name=name) for each, name in zip(groups, ranking.short(names), strict=True)]
    return sorted(groups, key=lambda each: (natural([each.condition]), natural([each.method])))


def _by_setting(runs: Iterable[Run]) -> dict[tuple[tuple[str, str], ...], list[Run]]:
    """The runs by the sorted keys and values of their setting. A run that was refused has its config as composed: it
    joins a setting that has its values wherever they are no interpolations.
    """
    found: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    composed = []
    for run in runs:
        one = setting(run)
        if any(map(_is_interpolation, one.values())):
            composed.append((run, one))
        else:
            found.setdefault(tuple(sorted(one.items())), []).append(run)
    for run, one in composed:
        key = next((each for each in found if _fits(one, dict(each))), tuple(sorted(one.items())))
        found.setdefault(key, []).append(run)
    return found


def _fits(one: Setting, other: Setting) -> bool:
    same = all(other.get(key) == value or _is_interpolation(value) for key, value in one.items())
    return same and one.keys() == other.keys()


def _is_interpolation(value: str | None) -> bool:
    """Whether a value is one that a refused run has not computed."""
    return value is not None and "${" in value


def blocks(groups: Sequence[SeedGroup]) -> list[tuple[str, list[SeedGroup]]]:
    """The groups in blocks of comparable conditions, each block named by the keys that its conditions share,
    those first that tell it from most other blocks.

    Two conditions are comparable if they have the same metric and rule, and if at least half of the methods run under
    either were run under both. A block names its groups again, because fewer keys distinguish them.
    """
    conditions: dict[str, list[SeedGroup]] = {}
    for each in groups:
        conditions.setdefault(each.condition, []).append(each)
    members: list[list[SeedGroup]] = []
    for those in conditions.values():
        related = [block for block in members if any(_related(those, conditions[one.condition]) for one in block)]
        members = [block for block in members if all(block is not each for each in related)]
        members.append([*(each for block in related for each in block), *those])
    if len(members) == 1:
        return [("", list(groups))]
    differences = Differences([each.setting for each in groups])
    found, having = [], defaultdict[tuple[str, str], int](int)  # by key and value: a bit for each block that has it
    ranked = sorted(members, key=lambda block: (not any(map(_has_result, block)), groups.index(block[0])))
    for number, block in enumerate(ranked):
        for item in block[0].setting.items():
            having[item] |= 1 << number
    for block in ranked:
        first = block[0].setting
        keys = [
            key
            for key in differences.of(first)
            if is_condition(key) and all(each.setting.get(key) == first.get(key) for each in block)
        ]
        keys.sort(key=lambda key: (CONDITIONS.index(key.partition(".")[0]), key.count(".")))
        told = _telling(keys, first, (1 << len(ranked)) - 1, having)
        found.append((label(first, told), group(run for each in block for run in each.runs)))
    titles = ranking.short([title for title, _ in found])
    return [(title, members) for title, (_, members) in zip(titles, found, strict=True)]


def _telling(keys: Sequence[str], one: Setting, left: int, having: Mapping[tuple[str, str], int]) -> list[str]:
    """The keys in an order in which the first few tell a setting from the others; the given order, where it does so.

    `left` has a bit for each setting. `having` has those of the settings with a value, by key and value. Lists, such as
    the mean of a data set's channels, come last where the other keys tell as much.
    """

    def alike(some: Iterable[str]) -> int:
        return reduce(and_, (having[key, one[key]] for key in some), left)

    lists = [key for key in keys if one[key].startswith("[")]
    rest, found = [key for key in keys if key not in lists], list[str]()
    if alike(rest) != alike(keys):
        rest, lists = list(keys), []
    while rest:
        next_key = min(rest, key=lambda key: (left & having[key, one[key]]).bit_count())
        if (still := left & having[next_key, one[next_key]]) == left:  # no key tells it from those
            break
        rest.remove(next_key)
        left, found = still, [*found, next_key]
    return [*found, *rest, *lists]


def _has_result(group: SeedGroup) -> bool:
    return any(map(math.isfinite, group.finished.values()))


def _related(some: Sequence[SeedGroup], others: Sequence[SeedGroup]) -> bool:
    one, other = some[0].runs[0], others[0].runs[0]
    if (one.metric, one.rule) != (other.metric, other.rule):
        return False
    first, second = ({each.name for each in those} for those in (some, others))
    return 2 * len(first & second) >= len(first | second)


def is_condition(key: str) -> bool:
    """Whether a key belongs to the condition under which a report compares methods."""
    return key.partition(".")[0] in CONDITIONS


class Differences:
    """The keys in which some settings differ.

    A key of a choice counts only among the settings with this choice, and a key of the method only among the settings
    of the same algorithm: two learning rates of one algorithm do not change the name of another algorithm. An
    interpolation counts nowhere.
    """

    def __init__(self, settings: Sequence[Setting]) -> None:
        self._settings = settings
        self._values: dict[tuple[str, Peers], set[str | None]] = {}
        for key in dict.fromkeys(key for each in settings for key in each):
            for each in settings:
                known = self._values.setdefault((key, _peers(key, each)), set())
                known |= set() if _is_interpolation(each.get(key)) else {each.get(key)}

    def of(self, one: Setting) -> list[str]:
        """The keys of one of the settings that distinguish it from others."""
        return [key for key in one if len(self._values[key, _peers(key, one)]) > 1 and not _is_interpolation(one[key])]

    def between_algorithms(self) -> dict[str, dict[str, str]]:
        """The keys that differ only between algorithms, so that no name has them, with the value by algorithm."""
        told = {key for (key, _), values in self._values.items() if len(values) > 1}
        found = {}
        for key in dict.fromkeys(key for key, _ in self._values):
            values = {each["algorithm"]: each[key] for each in self._settings if key in each and "algorithm" in each}
            of_method = not is_condition(key) and key.partition(".")[0] != "algorithm"
            if of_method and key not in told and len(set(values.values())) > 1:
                found[key] = values
        return found


def label(setting: Setting, keys: Iterable[str]) -> str:
    """Some keys of a setting in words, with the algorithm as its name alone."""
    words = [setting[key] if key == "algorithm" else f"{key}={setting[key]}" for key in keys if key in setting]
    return " ".join(short(word, MAX_NAME_CHARACTERS) for word in words)


def text(value: Any) -> str:
    """A value as on the command line; 1.0 and 1 are the same."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _flat(node: Mapping[str, Any], path: str, choices: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """The keys of a node with their values. A choice stands at the path of its node."""
    for key, value in node.items():
        name = f"{path}.{key}" if path else str(key)
        if name == "seed":
            continue
        if isinstance(value, Mapping) and "_target_" in value:
            yield name, choices.get(name) or ".".join(str(value["_target_"]).split(".")[-2:-1])
            value = {inner: each for inner, each in value.items() if inner != "_target_"}
        if isinstance(value, Mapping):
            yield from _flat(value, name, choices)
        else:
            yield name, text(value)


def _peers(key: str, one: Setting) -> Peers:
    """The values that two settings must share if this key is to count between them."""
    parts = key.split(".")
    same = [".".join(parts[:i]) for i in range(1, len(parts))]
    if not is_condition(key) and key != "algorithm":
        same.append("algorithm")
    return tuple(one.get(name) for name in same)


def _one_a_seed(runs: Sequence[Run]) -> list[Run]:
    """The run of each seed that is undamaged or longest, in the order of seeds, those without a round last."""
    best: dict[Any, Run] = {}
    for run in runs:
        if run.seed not in best or run.rank > best[run.seed].rank:
            best[run.seed] = run
    return [best[seed] for seed in sorted(best, key=lambda seed: (not best[seed].rows, natural([str(seed)])))]
