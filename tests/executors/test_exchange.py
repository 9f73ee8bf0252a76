"""Workers that exchange rows in every step, as threads of this process."""

import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import pytest
import torch
from torch import Tensor

from fedlab_runner.executors._ray import exchange as module
from fedlab_runner.executors._ray.exchange import Host, PartnerLost, exchange

PLACES = [torch.tensor([0, 3]), torch.tensor([1]), torch.tensor([4, 2])]


def work(number: int, host: Host, steps: int, leaves: int = -1) -> list[Tensor]:
    """All rows of each step; the worker `leaves` does no step."""
    found = []
    with exchange(number, PLACES, None if number else host, host.rendezvous) as complete:
        for step in range(steps if number != leaves else 0):
            mine = (10.0 * step + PLACES[number]).unsqueeze(1).requires_grad_()
            rows = complete(PLACES[number], mine)
            (gradient,) = torch.autograd.grad(rows.sum(), mine)
            assert torch.equal(gradient, torch.ones_like(mine)), "its own rows have their graph"
            found.append(rows.detach())
    return found


def dribble(end: socket.socket) -> None:
    """Sends a message byte by byte in 20 seconds, or until the other end has had enough."""
    with suppress(OSError):
        for byte in struct.pack("!i", 36) + bytes(36):
            end.sendall(bytes([byte]))
            time.sleep(0.5)


def test_each_has_all_rows_and_strangers_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_SECONDS", 1)
    host, began = Host("127.0.0.1", len(PLACES)), time.monotonic()
    address = tuple(host.rendezvous[:2])
    with ThreadPoolExecutor() as pool, socket.create_connection(address), socket.create_connection(address) as slow:
        pool.submit(dribble, slow)  # the other one says nothing
        first = pool.submit(work, 0, host, 20)
        with pytest.raises((AuthenticationError, EOFError, OSError)):
            Client(address, authkey=b"another")
        found = [first, *(pool.submit(work, number, host, 20) for number in (2, 1))]  # whoever comes first
        for step, rows in enumerate(zip(*(each.result(60) for each in found), strict=True)):
            assert all(torch.equal(mine.squeeze(1), 10.0 * step + torch.arange(5)) for mine in rows)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("leaves", [0, 2])
def test_without_one_worker_the_others_end(leaves: int) -> None:
    host = Host("127.0.0.1", len(PLACES))
    with ThreadPoolExecutor() as pool:
        found = [pool.submit(work, number, host, 3, leaves) for number in range(3)]
        for number, each in enumerate(found):
            if number != leaves:
                with pytest.raises(PartnerLost):
                    each.result(60)


def test_a_host_out_of_reach_is_named() -> None:
    nowhere = module.Rendezvous("127.0.0.1", 9, b"key")
    with pytest.raises(PartnerLost, match=r"^a worker cannot reach another at 127.0.0.1:9: "):
        exchange(1, PLACES, None, nowhere).__enter__()
