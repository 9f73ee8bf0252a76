"""Rows that workers on several machines exchange in every step."""

import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from threading import Timer
from typing import NamedTuple

import torch
from torch import Tensor

KEY_BYTES = 32  # of the secret that workers show each other
NUMBER_BYTES = 4  # of a worker's number
HANDSHAKE_SECONDS = 5  # that a worker has to show that it is one


class PartnerLost(Exception):
    """Another worker is gone or out of reach."""


class Rendezvous(NamedTuple):
    """Where the first worker waits for the others."""

    host: str
    port: int
    key: bytes


class Host:
    """The first worker's end, before the others come."""

    def __init__(self, host: str, workers: int) -> None:
        self._key, self._socket = secrets.token_bytes(KEY_BYTES), socket.create_server((host, 0), backlog=workers)

    @property
    def rendezvous(self) -> Rendezvous:
        host, port = self._socket.getsockname()
        return Rendezvous(str(host), int(port), self._key)

    def others(self, count: int) -> list[Connection]:
        """The connections to the other workers, in the order of their numbers, which begin with 1. Who has not the
        key, or is slow to show it, is turned away.
        """
        found: dict[int, Connection] = {}
        while len(found) < count:
            end, _ = self._socket.accept()
            connection, late = Connection(os.dup(end.fileno())), Timer(HANDSHAKE_SECONDS, _hang_up, [end])
            late.start()
            try:
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
                found[int.from_bytes(connection.recv_bytes(NUMBER_BYTES))] = connection
            except (AuthenticationError, EOFError, OSError):
                connection.close()
            finally:
                late.cancel()
                end.close()
        self._socket.close()
        return [found[number] for number in sorted(found)]


class Exchange:
    """Completes rows: every worker sends its own to the first one, which sends all rows to each. Connections carry
    nothing but numbers: a stranger can have no worker carry out code.
    """

    def __init__(self, places: Sequence[Tensor], lines: Sequence[Connection], leads: bool) -> None:
        self._places, self._lines, self._leads = places, lines, leads
        for line in lines:
            with socket.socket(fileno=os.dup(line.fileno())) as its:
                its.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a step waits for each message

    def __call__(self, places: Tensor, rows: Tensor) -> Tensor:
        """All rows [M, ...], these with their graph. Raises PartnerLost."""
        mine = rows.detach().cpu().contiguous()
        whole = mine.new_empty(sum(map(len, self._places)), *mine.shape[1:])
        try:
            if self._leads:
                whole[places] = mine
                for its, line in zip(self._places[1:], self._lines, strict=True):
                    whole[its] = _received(line, mine.new_empty(len(its), *mine.shape[1:]))
                for line in self._lines:
                    line.send_bytes(_bytes(whole))
            else:
                self._lines[0].send_bytes(_bytes(mine))
                _received(self._lines[0], whole)
        except (EOFError, OSError) as error:
            raise PartnerLost("a worker is gone") from error
        return whole.to(rows.device).index_copy(0, places.to(rows.device), rows)


@contextmanager
def exchange(number: int, places: Sequence[Tensor], host: Host | None, rendezvous: Rendezvous) -> Iterator[Exchange]:
    """The exchange of worker `number` (the first, 0, is the host); worker i has the rows at `places[i]`."""
    lines: list[Connection] = []
    try:
        if host is not None:
            lines += host.others(len(places) - 1)
        else:
            try:
                lines.append(Client((rendezvous.host, rendezvous.port), authkey=rendezvous.key))
                lines[0].send_bytes(number.to_bytes(NUMBER_BYTES))
            except (EOFError, OSError) as error:
                where = f"{rendezvous.host}:{rendezvous.port}"
                raise PartnerLost(f"a worker cannot reach another at {where}: {error}") from error
        yield Exchange(places, lines, leads=host is not None)
    finally:
        for line in lines:
            line.close()


def _hang_up(end: socket.socket) -> None:
    """Ends a connection for whoever reads from it or writes to it."""
    with suppress(OSError):  # the other end was faster
        end.shutdown(socket.SHUT_RDWR)


def _bytes(values: Tensor) -> memoryview:
    return values.view(-1).view(torch.uint8).numpy().data


def _received(line: Connection, room: Tensor) -> Tensor:
    """A tensor from the line, written into `room`."""
    if line.recv_bytes_into(_bytes(room)) != room.nbytes:
        raise EOFError
    return room
