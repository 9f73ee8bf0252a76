"""An own class that breaks its contract is named in one line, where its result would be a wrong number."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from fedlab_runner.algorithms.shared.averaging import Models
from fedlab_runner.analyses.base import observed
from fedlab_runner.client_splits.base import Parts, checked_split
from fedlab_runner.core.aggregation import Aggregation
from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.client_homes import ClientHomes
from fedlab_runner.core.client_state import ClientStateStore
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.core.round_metrics import RoundMetrics
from fedlab_runner.core.server_data import ServerData
from fedlab_runner.core.updates import sent
from fedlab_runner.datasets.checks import loaded
from fedlab_runner.datasets.examples import Data, Examples
from fedlab_runner.delays.base import drawn_delays
from fedlab_runner.homes.base import Home
from fedlab_runner.lr_schedules.base import factor_of
from fedlab_runner.participation.base import asked_clients, cohort_size, never_asked, reporting_clients
from fedlab_runner.partitions.base import dealt
from fedlab_runner.server_data.checks import reserved
from fedlab_runner.topologies.base import drawn_links
from fedlab_runner.utils.errors import UserError
from tests.helpers.toy import CPU, local, model_family


class Count(NamedTuple):
    seen: int


IDS, NAN = np.arange(3), float("nan")
RIGHT = [np.array([0, 2]), np.array([1]), np.array([], np.int64)]  # of three clients and three examples
IMAGES = Examples(torch.zeros(3, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1, 1]), torch.tensor([0, 1, 1]), None)
TWO = IMAGES.select(torch.tensor([True, True, False]))
PICTURES = Data(IMAGES, IMAGES, ("a", "b"), (0.5,), (0.5,))
FLOATS = IMAGES._replace(inputs=torch.zeros(3, 1, 4, 4))
FEATURES = IMAGES._replace(inputs=torch.tensor([[0.0], [1.0], [NAN]]))
NUMBERS = IMAGES._replace(inputs=torch.zeros(3, 1))
ARRAYS, TEXTS = IMAGES._replace(inputs=np.zeros((3, 1), np.float32)), IMAGES._replace(targets=["a text"] * 600)
SHORTS, GRADIENT = FLOATS._replace(inputs=torch.zeros(3, 1).to(torch.uint16)), torch.zeros(3, 1, requires_grad=True)
NAMES = IMAGES._replace(targets=np.array(["a", "b", "a"]))
NO_CLASS, TWO_USERS = IMAGES._replace(targets=torch.tensor([0, -100, 1])), IMAGES._replace(users=torch.tensor([0, 1]))
COUNT = Count(3)
NOBODY = IMAGES.select(torch.zeros(3, dtype=torch.bool))
CHAIN = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], bool)  # 0 - 1 - 2


class Mine:
    """An own component, one method of which gives `result`."""

    compares = num_views = False
    known = ()

    def __init__(self, method: str, result: Any) -> None:
        setattr(self, method, lambda *_: result)


def rng() -> np.random.Generator:
    return generator(0, Purpose.ALGORITHM)


def delays(mine: Any) -> Any:
    return drawn_delays(mine, rng(), IDS)


def asked(mine: Any) -> Any:
    return asked_clients(mine, rng(), np.array([1, 4, 7]), 9, 0)


def size(mine: Any) -> Any:
    return cohort_size(mine, 3)


def held_out(mine: Any) -> Any:
    return never_asked(mine, rng(), 3)


def reporting(mine: Any) -> Any:
    return reporting_clients(mine, np.array([7, 1]), np.array([0, 3]))


def partition(mine: Any) -> Any:
    return dealt(mine, np.zeros(3, np.int64), None, 3, rng())


def split(mine: Any) -> Any:
    return checked_split(mine, RIGHT, IMAGES, TWO, 0)


def links(mine: Any) -> Any:
    return drawn_links(mine, rng(), 3)


def factor(mine: Any) -> Any:
    return factor_of(mine, 0)


def data(mine: Any) -> Any:
    return loaded(mine, 0)


def upload(mine: Any) -> Any:
    return sent(mine, mine.client_update(), 3)


def server_data(mine: Any) -> Any:
    return reserved(mine, PICTURES, PICTURES, 0)


def weights(mine: Any) -> Any:
    mine.tolerated = lambda arrived: None
    return Aggregation(mine, Any).weights(torch.full((2,), 0.5, dtype=torch.float64), [torch.zeros(2, 4)])  # type: ignore[arg-type]


def views(mine: Any) -> Any:
    mine.numbers, mine.num_views = 1, lambda shape: 2
    clients = ClientData(IMAGES.inputs, IMAGES.targets, [IDS], CPU, augment=mine)
    return clients.plan(np.array([0]), local(epochs=1, batch_size=3), seed=0, round=0, drop_single=False)


def offsets(mine: Any) -> Any:
    return ClientData(IMAGES.inputs, IMAGES.targets, RIGHT, CPU).offsets(mine, IDS, 2)


def home(mine: Any) -> Any:
    class Own(Home):
        def keeps(self, *_: Any) -> Any:
            return mine.keeps()

    return ClientHomes(Own("host"), [model_family()], ClientStateStore(None, CPU), 0)


def observe(mine: Any) -> Any:
    nothing: Any = None
    return observed(mine, *[nothing] * 5)


def served(**changes: Any) -> tuple[ServerData, Data]:
    fields = {"inputs": IMAGES.inputs, "targets": IMAGES.targets, "num_classes": 2, "in_domain": True}
    return ServerData(**(fields | changes)), PICTURES  # type: ignore[arg-type]


def marked(row: int, column: int, value: bool) -> np.ndarray:
    changed = CHAIN.copy()
    changed[row, column] = value
    return changed


BREACHES: list[tuple[Callable[[Any], Any], str, Any, str]] = [
    (
        delays,
        "sample",
        np.array([0.0, 1.5, 2.0]),
        "whole rounds from 0 to 2^40, int64 [3], got numpy float64 [3] from",
    ),
    (delays, "sample", np.array([0, -1, 2]), "got numpy int64 [3] from -1 to 2"),
    (delays, "sample", np.array([0, 1]), "got numpy int64 [2]"),
    (delays, "sample", torch.tensor([0, 1, 2]), "got torch int64 [3] from 0 to 2"),
    (delays, "sample", [0, 1, 2], "got a list of 3"),
    (
        asked,
        "sample",
        np.array([1, 1]),
        "distinct ids, int64 [n], of the 3 idle clients, got numpy int64 [2] from 1 to 1",
    ),
    (asked, "sample", np.array([1, 5]), "got numpy int64 [2] from 1 to 5"),
    (asked, "sample", np.array([8]), "got numpy int64 [1] from 8 to 8"),
    (asked, "sample", np.array([1.0]), "got numpy float64 [1]"),
    (size, "cohort", 0, "a whole number from 1 to 3, got 0"),
    (size, "cohort", 4, "got 4"),
    (size, "cohort", 3.0, "got 3.0"),
    (held_out, "held_out", [0], "ascending ids, int64 [n], of the 3 clients, got a list of 1"),
    (held_out, "held_out", np.array([3]), "got numpy int64 [1] from 3 to 3"),
    (held_out, "held_out", np.array([-1]), "got numpy int64 [1] from -1 to -1"),
    (held_out, "held_out", np.array([1, 1]), "got numpy int64 [2] from 1 to 1"),
    (held_out, "held_out", np.array([1, 0]), "got numpy int64 [2] from 0 to 1"),
    (
        reporting,
        "reporting",
        (np.array([4]), np.array([0])),
        "distinct ids of the 2 asked clients, got numpy int64 [1]",
    ),
    (reporting, "reporting", (np.array([7, 1]), np.array([0])), "delays >= 0, int64 [2], got numpy int64 [1]"),
    (reporting, "reporting", (np.array([7, 1]), np.array([0, -1])), "delays >= 0, int64 [2], got numpy int64 [2]"),
    (partition, "split", RIGHT[:2], "a list of 3 ascending int64 arrays of the indices of 3 examples, got a list of 2"),
    (partition, "split", [np.array([1, 0]), *RIGHT[1:]], "got numpy int64 [2] from 0 to 1"),
    (partition, "split", [*RIGHT[:2], np.array([2, 3])], "got numpy int64 [2] from 2 to 3"),
    (partition, "split", [*RIGHT[:2], np.array([-1])], "got numpy int64 [1] from -1 to -1"),
    (partition, "split", [*RIGHT[:2], np.array([0.0])], "got numpy float64 [1] from 0 to 0"),
    (split, "split", Parts(RIGHT, RIGHT[:1], None), "as validation a list of 3 ascending int64 arrays"),
    (split, "split", Parts(RIGHT, RIGHT, [*RIGHT[:2], np.array([3])]), "as test a list of 3 ascending int64 arrays"),
    (split, "split", Parts(RIGHT, RIGHT, RIGHT, from_test_set=True), "as test a list of 3 ascending int64 arrays"),
    (
        links,
        "draw",
        CHAIN.astype(int),
        "links [3, 3] bool: symmetric, without a client's link to itself",
    ),
    (links, "draw", marked(0, 0, True), "got numpy bool [3, 3]"),
    (links, "draw", marked(0, 2, True), "got numpy bool [3, 3]"),
    (links, "draw", np.zeros((3, 3), bool), "got numpy bool [3, 3]"),
    (factor, "factor", -0.5, "a finite number >= 0 for round 0, got -0.5"),
    (factor, "factor", NAN, "got nan"),
    (factor, "factor", None, "got None"),
    (data, "load", (IMAGES, IMAGES), "a Data, got a tuple of 2"),
    (
        data,
        "load",
        replace(PICTURES, train=FLOATS),
        "train.inputs as a tensor, uint8 [n, channels, side, side] or float32",
    ),
    (data, "load", replace(PICTURES, train=ARRAYS), "or float32 [n, features], got numpy float32 [3, 1] from 0 to 0"),
    (data, "load", replace(PICTURES, train=SHORTS), "or float32 [n, features], got torch uint16 [3, 1]"),
    (
        data,
        "load",
        replace(PICTURES, train=NUMBERS._replace(inputs=GRADIENT)),
        "train.inputs without a gradient's history (x.detach()), got torch float32 [3, 1]",
    ),
    (data, "load", replace(PICTURES, train=TEXTS), "int64 [3] from 0 to 1, got ['a text', "),
    (data, "load", replace(PICTURES, train=NAMES), "int64 [3] from 0 to 1, got numpy <U1 [3]"),
    (data, "load", replace(PICTURES, test=FLOATS), "test.inputs as a tensor, uint8"),
    (data, "load", replace(PICTURES, train=FEATURES), "finite train.inputs, got torch float32 [3, 1]"),
    (
        data,
        "load",
        replace(PICTURES, test=FEATURES._replace(inputs=torch.zeros(3, 1))),
        "of the shape and type of train",
    ),
    (
        data,
        "load",
        replace(PICTURES, class_names=("a",)),
        "train.targets as a tensor, int64 [3] from 0 to 0, got torch int64 [3]",
    ),
    (
        data,
        "load",
        replace(PICTURES, test=NO_CLASS),
        "got torch int64 [3] from -100",
    ),
    (
        data,
        "load",
        replace(PICTURES, train=TWO_USERS),
        "train.users as a tensor, int64 [3]",
    ),
    (data, "load", replace(PICTURES, class_names=(0, 1)), "as class_names a tuple of texts, got a tuple of 2"),
    (data, "load", replace(PICTURES, class_names="ab"), "as class_names a tuple of texts, got 'ab'"),
    (data, "load", replace(PICTURES, test=NOBODY), "one example or more as test, got torch uint8 [0, 1, 4, 4]"),
    (data, "load", replace(PICTURES, std=(0.0,)), "as std finite numbers > 0, got a tuple of 1"),
    (data, "load", replace(PICTURES, mean=(NAN,)), "as mean finite numbers, got a tuple of 1"),
    (data, "load", replace(PICTURES, mean=None), "as mean a number for each channel, or None for features, got None"),
    (data, "load", replace(PICTURES, test=None), "as test an Examples, got None"),
    (upload, "client_update", (torch.zeros(3, 2),), "a NamedTuple of tensors [3, ...], got a tuple of 1"),
    (upload, "client_update", Models(torch.zeros(3, 2).requires_grad_()), "tensors without a gradient's history"),
    (upload, "client_update", Models(torch.zeros(3, 2, dtype=torch.complex64)), "tensors of real numbers (torch"),
    (server_data, "reserve", served(inputs=torch.zeros(3, 1, 4, 4)), "as the clients', torch uint8 [3, 1, 4, 4]"),
    (
        server_data,
        "reserve",
        served(num_classes=1),
        "targets as a tensor, int64 [3] from 0 to 0, got torch int64 [3] from 0 to 1",
    ),
    (
        weights,
        "weights",
        torch.tensor([0.5, 0.4]),
        "weights [2] that add up to 1, got torch float32 [2] from 0.4 to 0.5",
    ),
    (weights, "weights", torch.tensor([NAN, 1.0]), "weights [2] that add up to 1"),
    (views, "views", np.array([0, 2, 1]), "views [3] from 0 to 1, got numpy int64 [3] from 0 to 2"),
    (observe, "observe", {"analysis/n": 1.0}, "the next memory and a dict of metrics, got a dict of 1"),
    (observe, "observe", (None, {"test/loss": 1.0}), "metrics whose keys begin with analysis/, got 'test/loss'"),
    (observe, "observe", (None, {"analysis/n": torch.ones(2)}), "a number as analysis/n, got torch float32 [2] from"),
    (observe, "observe", (None, {"analysis/n": "many"}), "a number as analysis/n, got 'many'"),
    (observe, "observe", (COUNT, {}), "a memory whose NamedTuples that of init has, or the annotations of its"),
    (observe, "observe", ({"seen": [COUNT]}, {}), "a memory whose NamedTuples that of init has, or the"),
    (offsets, "offsets", torch.zeros(3), "a tensor [3, 2] without NaN, got torch float32 [3] from 0 to 0"),
    (offsets, "offsets", torch.full((3, 2), NAN), "a tensor [3, 2] without NaN, got torch float32 [3, 2] from nan"),
    (home, "keeps", ["0.weight", "head"], "some of the names that it is given, got ['head']"),
]


@pytest.mark.parametrize(("use", "method", "given", "words"), BREACHES)
def test_a_breach_is_one_line(use: Callable[[Any], Any], method: str, given: Any, words: str) -> None:
    with pytest.raises(UserError) as raised:
        use(Mine(method, given))
    line = str(raised.value)
    assert ("Own" if use is home else "Mine") + f".{method} must give " in line and words in line and "\n" not in line
    assert len(line) < 400


def test_a_memory_that_no_checkpoint_can_hold_is_named_before_one_is_due() -> None:
    with pytest.raises(UserError, match=r"^the memory that Mine\.observe gives must hold .*, not numpy\.ndarray$"):
        observe(Mine("observe", ({"seen": IDS}, {})))


def test_no_aggregator_writes_into_the_updates() -> None:
    mine = Mine("combine", None)
    setattr(mine, "combine", lambda rows, weights: rows.mul_(weights[:, None]).sum(0))  # noqa: B010  # mypy: no such field
    with pytest.raises(UserError, match=r"^Mine\.combine writes into the updates or the weights, which the run"):
        Aggregation(mine, Any).combine(torch.ones(2, 4), torch.ones(2))  # type: ignore[arg-type]


@pytest.mark.parametrize("read", [lambda d: d.sum(1), lambda d: d.argmin(1), lambda d: d.T, torch.diag, lambda d: d[0]])
def test_no_aggregator_reads_distances_that_nobody_has_computed(read: Callable[[Any], Any]) -> None:
    """But how many there are."""
    mine = Mine("", None)
    setattr(mine, "weights", lambda shares, d: shares / shares.sum() * len(d) / d.shape[0])  # noqa: B010  # mypy: no such field
    mine.tolerated = lambda arrived: None
    Aggregation(mine, RoundMetrics()).weights(torch.full((2,), 0.5, dtype=torch.float64), [torch.zeros(2, 4)])
    setattr(mine, "weights", lambda shares, distances: (read(distances), shares)[1])  # noqa: B010  # mypy: no such field
    with pytest.raises(UserError, match=r"^aggregator reads .* `compares: ClassVar\[bool\] = True`: write that into"):
        weights(mine)


@pytest.mark.parametrize(
    ("use", "method", "given"),
    [
        (delays, "sample", np.array([0, 5, 2])),
        (asked, "sample", np.array([7, 1])),
        (asked, "sample", np.array([], np.int64)),
        (size, "cohort", 3),
        (held_out, "held_out", np.array([0, 2])),
        (reporting, "reporting", (np.array([1]), np.array([3]))),
        (partition, "split", RIGHT),
        (partition, "split", [np.array([0, 1]), np.array([0, 1]), np.array([1])]),  # clients may share examples
        (split, "split", Parts(RIGHT, RIGHT, None)),
        (links, "draw", CHAIN),
        (factor, "factor", 0),
        (data, "load", PICTURES),
        (server_data, "reserve", served()),
        (server_data, "reserve", (None, PICTURES)),
        (views, "views", np.array([0, 1, 1])),
        (observe, "observe", (None, {"analysis/n": torch.tensor(1.0), "analysis/m": np.float32(1)})),
        (observe, "observe", ({"seen": [(1, torch.ones(2))]}, {})),
        (home, "keeps", ["0.weight"]),
    ],
)
def test_what_keeps_its_contract_passes(use: Callable[[Any], Any], method: str, given: Any) -> None:
    use(Mine(method, given))


def test_what_an_own_class_writes_into_its_arguments_reaches_nobody_else() -> None:
    """A partition that merges classes in the array of the labels must not change what the models learn."""
    ids, labels = np.arange(1, 4), torch.tensor([5, 6, 7])
    examples = Examples(IMAGES.inputs, labels, labels.clone(), labels.clone(), torch.ones(3, 2, dtype=torch.bool))
    arrays = [ids, *(part.numpy() for part in examples[1:])]  # type: ignore[union-attr]
    before = [array.copy() for array in arrays]

    def writing(method: str, result: Any) -> Any:
        def write(*given: Any) -> Any:
            for each in given:
                parts = each[1:] if isinstance(each, Examples) else each if isinstance(each, list) else [each]
                for part in (part for part in parts if isinstance(part, np.ndarray | torch.Tensor)):
                    part[:] = 0
            return result

        mine = Mine("", None)
        setattr(mine, method, write)
        return mine

    dealt(writing("split", RIGHT), arrays[1], arrays[3], 3, rng())
    checked_split(writing("split", Parts(RIGHT, RIGHT, None)), [ids[:1], ids[1:], ids[:0]], examples, examples, 0)
    drawn_delays(writing("sample", np.arange(3)), rng(), ids)
    asked_clients(writing("sample", np.array([2])), rng(), ids, 9, 0)
    reporting_clients(writing("reporting", (np.array([2]), np.array([1]))), ids, ids)
    assert all(np.array_equal(one, other) for one, other in zip(arrays, before, strict=True))
