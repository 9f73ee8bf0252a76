"""Rows on disk: the same numbers as in memory, nothing lost by a kill, nothing kept that is not needed."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedlab_runner.checkpoints.state_packing import pack, unpack
from fedlab_runner.core.client_state import PLACES, ClientStateStore
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.own_models import each_model
from fedlab_runner.core.row_file import RowFile
from fedlab_runner.utils.attempt import next_start
from fedlab_runner.utils.errors import RunFailed, UserError
from tests.helpers.kinds import by_kind, in_turns
from tests.helpers.paths import ROOT
from tests.helpers.toy import ALGORITHMS, algorithm, default_home, federation, few_rounds, run, tensors

CPU = torch.device("cpu")
ALL = slice(None)
LATE: dict[str, Any] = {"sizes": [6, 3, 9, 1, 12, 8, 5, 7, 2, 10], "cohort": 3, "std": 2.0}
WITHOUT_FILES = {"feddle"}  # its rows may be on the device and the host alone
KEEPERS = [name for name in ALGORITHMS if hasattr(algorithm(name), "store_on") and name not in WITHOUT_FILES]


def keeper(name: str, place: str) -> Any:
    return few_rounds(name, store_on=place, **({"keep_own": True} if name == "hyfem" else {}))


def setting(name: str, folder: Path | None = None) -> Federation:
    return federation(**LATE, folder=folder, home=default_home(name))


def evaluated(built: Any, state: Any, fed: Federation) -> list[torch.Tensor]:
    """All models that a run evaluates."""
    found = [w for _, w in each_model(fed, built.models(state))]
    return found if len(found) > 1 else [*found, built.client_models(state, fed, np.arange(fed.num_clients))]


def saved(state: Any, fed: Federation, round: int) -> dict[str, Any]:
    """What a checkpoint after so many rounds has of a State and the federation."""
    with fed.client_state.naming(round) as named:
        packed = {"state": pack(state, named), "fed": pack(fed.state_dict(), named)}
    packed["fed"]["client_state"] = fed.client_state.state_dict(round)
    return packed


def restored(packed: dict[str, Any], built: Any, fed: Federation) -> Any:
    """The State of a checkpoint."""
    fed.load_state_dict(packed["fed"])
    return unpack(fed.client_state.named(packed["state"]), like=built.init(fed))


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tensors(a), tensors(b), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("on_disk", [True, False])
def test_a_row_comes_back_and_is_a_copy(place: str, dtype: torch.dtype, on_disk: bool, tmp_path: Path) -> None:
    rows = ClientStateStore(tmp_path if on_disk else None, CPU).rows(place, 5, dtype)
    row = torch.randn(2, 5, dtype=dtype)[1]  # a view: not the start of its memory
    wanted, kept, other = row.clone(), rows.put(row), rows.put(row + 1)
    row.zero_()
    assert torch.equal(rows.get(kept), wanted) and torch.equal(rows.get(other), wanted + 1)
    assert torch.equal(rows.get(kept, slice(2, 4)), wanted[2:4])
    assert (place == "disk") == isinstance(kept, int)


def test_a_slot_is_used_again_when_neither_the_state_nor_a_checkpoint_has_it() -> None:
    file = RowFile(None, 1, torch.float64)
    file.begin(0)
    first = file.put(torch.zeros(1))
    file.begin(1)
    file.drop(first)
    assert file.put(torch.ones(1)) != first, "the round may end early, and its start be what is saved"
    file.retain([1])
    file.begin(2)
    assert file.put(torch.ones(1)) != first, "the checkpoint after round 1 has it"
    file.retain([2])
    file.begin(3)
    assert file.put(torch.ones(1)) == first


def test_a_killed_run_finds_every_row_of_every_checkpoint() -> None:
    """Random rounds, checkpoints of which two are kept, kills, and a newest checkpoint that is damaged."""
    rng = np.random.default_rng(0)
    file, round, held = RowFile(None, 3, torch.float64), 0, {}
    saved: dict[int, Any] = {}  # by rounds done: what the clients hold, and the file's state

    def check(held: dict[int, tuple[int, float]]) -> None:
        assert len({slot for slot, _ in held.values()}) == len(held)
        for slot, value in held.values():
            assert file.get(slot, ALL, CPU).tolist() == [value] * 3

    used, kills = 0, 0
    for step in range(600):
        file.begin(round)
        before, after = dict(held), dict(held)
        for client in rng.choice(8, size=3, replace=False).tolist():
            value = float(step * 10 + client)
            if client in after:
                file.drop(after[client][0])
            after[client] = (file.put(torch.full((3,), value)), value)
        check(before)
        if rng.random() < 0.15 and saved:  # killed inside a round: it never was
            kills += 1
            if rng.random() < 0.3 and len(saved) > 1:  # and the newest checkpoint cannot be read
                saved.pop(max(saved))
            round = max(saved)
            held, state = dict(saved[round][0]), saved[round][1]
            file.load_state_dict(state)
            file.retain(saved)
        else:
            held, round = after, round + 1
            if rng.random() < 0.3:
                saved[round] = (dict(held), file.state_dict())
                saved = {r: saved[r] for r in sorted(saved)[-2:]}
                file.retain(saved)
        check(held)
        for rows, _ in saved.values():
            check(rows)
        used = max([used, *(slot for slot, _ in held.values())])
    assert kills > 30 and used < 8 * 3 + 64, "old slots serve again"


def test_rows_that_were_never_put_take_no_room(tmp_path: Path) -> None:
    store = ClientStateStore(tmp_path, CPU)
    rows = store.rows("disk", 10**6, torch.float32)
    assert not (tmp_path / "client_state").exists()
    rows.put(torch.ones(10**6))
    (path,) = (tmp_path / "client_state").iterdir()
    assert path.name == "rows_1000000_float32.bin" and path.stat().st_blocks * 512 < 5e6


def test_a_lost_file_is_said_in_one_line(tmp_path: Path) -> None:
    store = ClientStateStore(tmp_path, CPU)
    kept, state = store.rows("disk", 4, torch.float32).put(torch.ones(4)), store.state_dict()
    (tmp_path / "client_state" / "rows_4_float32.bin").unlink()
    again = ClientStateStore(tmp_path, CPU)
    again.load_state_dict(state)
    message = f"{tmp_path}/client_state/rows_4_float32.bin lacks rows that the run needs: {next_start()}"
    with pytest.raises(RunFailed, match=rf"^{re.escape(message)}$"):
        again.rows("disk", 4, torch.float32).get(kept)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "client_state" / "rows_4_float32.bin").mkdir(parents=True)
    with pytest.raises(IsADirectoryError, match=r"rows_4_float32\.bin'$"):
        ClientStateStore(tmp_path, CPU).rows("disk", 4, torch.float32).put(torch.ones(4))


@pytest.mark.parametrize("name", by_kind(KEEPERS))
def test_where_rows_are_kept_makes_no_difference(name: str, tmp_path: Path) -> None:
    models, metrics = [], []
    for place in PLACES:
        built, fed = keeper(name, place), setting(name, tmp_path)
        models.append(evaluated(built, run(built, fed, 7), fed))
        metrics.append(fed.collect())
    assert all(same(models[0], other) for other in models) and metrics[0] == metrics[1] == metrics[2]


@pytest.mark.parametrize(("name", "place"), in_turns(KEEPERS, ["device", "disk"]))
def test_a_resumed_run_equals_the_whole_bit_for_bit(name: str, place: str, tmp_path: Path) -> None:
    """From any of the last two checkpoints, with clients in flight, after rounds that no checkpoint has seen."""
    whole, built = setting(name), keeper(name, place)
    expected = evaluated(built, run(built, whole, 7), whole)
    for last, resumed in ((4, 4), (6, 2)):
        folder = tmp_path / f"{last}-{resumed}"
        fed, checkpoints = setting(name, folder), {}
        state = built.init(fed)
        for round in range(last):
            state = run(built, fed, 1, first=round, state=state)
            if round + 1 in (2, 4):
                checkpoints[round + 1] = saved(state, fed, round + 1)
                fed.client_state.retain(checkpoints)
        run(built, fed, 1, first=last, state=state)  # lost
        fed = setting(name, folder)
        again = restored(checkpoints[resumed], built, fed)
        fed.client_state.retain(checkpoints)
        again = run(built, fed, 7 - resumed, first=resumed, state=again)
        assert same(evaluated(built, again, fed), expected) and fed.collect() == whole.collect()


@pytest.mark.parametrize("name", by_kind(KEEPERS))
def test_a_round_on_disk_leaves_its_state_alone(name: str, tmp_path: Path) -> None:
    built, fed = keeper(name, "disk"), setting(name, tmp_path)
    state = run(built, fed, 4)
    before = fed.state_dict()
    once = run(built, fed, 1, first=4, state=state)
    fed.load_state_dict(before)
    twice = run(built, fed, 1, first=4, state=state)
    assert same(once, twice)


def test_a_place_that_does_not_exist() -> None:
    for name in KEEPERS:
        with pytest.raises(Exception, match="store_on must be one of device, host, disk, got cloud"):
            algorithm(name, store_on="cloud")
    with pytest.raises(UserError, match=r"^store_on must be one of device, host, disk, got 'cloud'$"):  # an own method
        federation().row_store("cloud", 3)


LIMITED = """
import resource, sys
from pathlib import Path
from torch import nn
from tests.helpers.toy import CLASSES, FEATURES, algorithm, federation, local, run

def wide():
    return nn.Sequential(nn.Linear(FEATURES, 60_000), nn.Tanh(), nn.Linear(60_000, CLASSES))

built = algorithm("fedcda", warmup=2, store_on=sys.argv[1])
kinds = {"build": wide, "cohort": 6, "training": local(epochs=1)}
run(built, federation([4] * 60, folder=Path(sys.argv[2]), **kinds), 3)  # all that is loaded once is loaded
megabytes = lambda key: int(next(l for l in open("/proc/self/status") if l.startswith(key)).split()[1]) // 1024
resource.setrlimit(resource.RLIMIT_DATA, ((megabytes("VmData") + 400) << 20,) * 2)
fed = federation([4] * 60, folder=Path(sys.argv[2]) / "limited", **kinds)
run(built, fed, 40)
print(fed.collect()["cost/server_cache_mb"] * fed.family.dtype.itemsize / 4)
"""


@pytest.mark.slow
def test_a_table_larger_than_the_memory_that_is_allowed(tmp_path: Path) -> None:
    def limited(place: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", LIMITED, place, str(tmp_path / place)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert limited("device").returncode != 0, "the limit is one"
    ended = limited("disk")
    assert ended.returncode == 0, ended.stderr
    assert float(ended.stdout) > 700, "MB, where 400 were allowed"


@pytest.mark.parametrize("place", PLACES)
def test_a_change_is_added_to_the_last_row(place: str, tmp_path: Path) -> None:
    store = ClientStateStore(tmp_path, CPU)
    store.begin(0)
    rows, refs, change = store.rows(place, 3, torch.float32), dict[int, Any](), torch.tensor([1.0, 2.0, 4.0])
    rows.add(refs, 7, change)
    first = refs[7]
    change.zero_().add_(1.0)  # the row is a copy
    rows.add(refs, 7, change, -0.5)
    assert rows.get(refs[7]).tolist() == [0.5, 1.5, 3.5]
    assert isinstance(first, int) or first.tolist() == [1.0, 2.0, 4.0]  # an earlier State keeps its row
