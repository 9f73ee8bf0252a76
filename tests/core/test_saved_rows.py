"""Rows in memory in checkpoints: written once, shared as they are, and there after every kill."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedlab_runner.checkpoints.state_packing import pack
from fedlab_runner.core.client_state import ClientStateStore, RowStore
from fedlab_runner.core.row_file import RowFile
from fedlab_runner.utils.errors import RunFailed

CPU = torch.device("cpu")


def store(folder: Path) -> tuple[ClientStateStore, RowStore]:
    found = ClientStateStore(folder, CPU)
    return found, found.rows("host", 3, torch.float64)


def saved(held: Any, clients: ClientStateStore, round: int) -> tuple[Any, Any]:
    with clients.naming(round) as named:
        packed = pack(held, named)
    return packed, clients.state_dict(round)


def row(value: float) -> Tensor:
    return torch.full((3,), value, dtype=torch.float64)


def test_a_row_is_written_once_and_one_that_is_shared_once_for_all(tmp_path: Path, monkeypatch: Any) -> None:
    put, written = RowFile.put, list[float]()

    def spy(self: RowFile, row: Tensor, after: int | None = None) -> int:
        written.append(float(row[0]))
        return put(self, row, after)

    monkeypatch.setattr(RowFile, "put", spy)
    clients, rows = store(tmp_path)
    held: dict[int, Any] = {}
    rows.replace_all(held, [0, 1, 2], row(5.0))
    rows.replace(held, 3, row(6.0))
    other = row(7.0)
    first, _ = saved({"rows": held, "other": other}, clients, 1)
    assert written == [5.0, 6.0] and first["other"] is other, "a tensor that is no row stays in the checkpoint"
    rows.replace(held, 1, row(8.0))
    second, state = saved({"rows": held, "other": other}, clients, 2)
    assert written == [5.0, 6.0, 8.0]
    again, _ = store(tmp_path)
    again.load_state_dict(state)
    found = again.named(second)["rows"]
    assert [float(found[client][0]) for client in range(4)] == [5.0, 8.0, 5.0, 6.0] and found[0] is found[2]
    saved({"rows": found, "other": other}, again, 3)
    assert len(written) == 3, "a resumed run does not write them again"


def test_without_a_folder_rows_stay_in_the_checkpoint() -> None:
    clients = ClientStateStore(None, CPU)
    kept = clients.rows("host", 3, torch.float64).put(row(1.0))
    packed, _ = saved({"row": kept}, clients, 1)
    assert packed["row"] is kept


def test_damage_and_a_lost_file_are_found(tmp_path: Path) -> None:
    clients, rows = store(tmp_path)
    packed, state = saved({0: rows.put(row(1.0))}, clients, 1)
    (path,) = (tmp_path / "client_state").iterdir()
    for harm, fault in ((bytes(24), "is damaged in slot 0"), (b"", "lacks rows")):
        path.write_bytes(harm)
        again, _ = store(tmp_path)
        assert fault in (again.find_damage(1, state) or "")
        again.load_state_dict(state)
        with pytest.raises(RunFailed, match=fault):
            again.named(packed)


def test_a_killed_run_finds_every_row_of_every_checkpoint(tmp_path: Path) -> None:
    """Random rounds, some of them cut off with a checkpoint of the State before them, of which two are kept; kills, and
    a newest checkpoint that is damaged.
    """
    rng = np.random.default_rng(0)
    clients, rows = store(tmp_path)
    round, held, values = 0, dict[int, Any](), dict[int, float]()
    kept: dict[int, Any] = {}  # by rounds done: the packed State, the state of the files, and what it should be
    kills = cut = 0
    for step in range(500):
        clients.begin(round)
        after, then = dict(held), dict(values)
        for client in rng.choice(8, size=3, replace=False).tolist():
            then[client] = float(step * 10 + client)
            rows.replace(after, client, row(then[client]))
        ends = rng.random()
        if ends < 0.1:  # an error within the round: the State before it is saved
            cut += 1
            kept[round] = (*saved(held, clients, round), dict(values))
        if ends < 0.2 and kept:  # killed
            kills += 1
            if rng.random() < 0.3 and len(kept) > 1:  # and the newest checkpoint cannot be read
                kept.pop(max(kept))
            round = max(kept)
            clients, rows = store(tmp_path)
            packed, state, values = kept[round]
            clients.load_state_dict(state)
            held = clients.named(packed)
        else:
            held, values, round = after, then, round + 1
            if rng.random() < 0.3:
                kept[round] = (*saved(held, clients, round), dict(values))
        kept = {each: kept[each] for each in sorted(kept)[-2:]}
        clients.retain(kept)
        assert {client: float(ref[0]) for client, ref in held.items()} == values
        for each, (packed, state, expected) in kept.items():
            fresh, _ = store(tmp_path)
            assert fresh.find_damage(each, state) is None
            fresh.load_state_dict(state)
            assert {client: float(ref[2]) for client, ref in fresh.named(packed).items()} == expected
    (path,) = (tmp_path / "client_state").iterdir()
    assert kills > 30 and cut > 20 and path.stat().st_size < (8 * 3 + 64) * 24, "old slots serve again"
