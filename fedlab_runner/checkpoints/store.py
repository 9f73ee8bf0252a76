"""Checkpoints on disk: a kill at any instant leaves the newest whole one readable."""

import hashlib
import io
import json
import logging
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from fedlab_runner.utils.digest import canonical
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.files import TEMPORARY, open_to_read, write_atomically
from fedlab_runner.utils.run_files import OTHER_FOLDER
from fedlab_runner.utils.signals import deferred
from fedlab_runner.utils.validate import at_least, within

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)

MAGIC = b"FEDLABCK"  # the first bytes of a checkpoint
VERSION = 2  # of the format
# A file begins with the magic, the version, the length of the header, and the SHA-256 of version, length and header.
# The header, in JSON, holds the SHA-256 of the body, which torch.save writes. Other versions begin in the same way.
_PREFIX = struct.Struct("<8sII32s")
_NAME = re.compile(r"round_(\d{6,})\.pt")
_HEADER = {"round", "sha256", "fingerprint"}
_MAX_KEYS_SHOWN = 5


@dataclass(frozen=True)
class Checkpointing:
    """When to write a checkpoint, how many to keep, and what must be the same to continue from one.

    `seconds`, `rounds`: write a checkpoint when the last one is this old; None: no such rule.
    `share`: largest share of the run's time for checkpoints under the rule `seconds`; slow ones are written less often.
    `same_data`, `same_code`: refuse to continue a run with other examples, delays or links of clients, or other code,
    than it began with.
    """

    seconds: float | None
    rounds: int | None
    share: float
    keep: int
    same_data: bool
    same_code: bool

    def __post_init__(self) -> None:
        at_least(0, seconds=self.seconds)
        at_least(1, rounds=self.rounds, keep=self.keep)
        within("(0, 1]", share=self.share)

    def due(self, round: int, last_round: int, elapsed: float, took: float) -> bool:
        """Whether `round` ends with a checkpoint: the last one is `elapsed` seconds old and took `took` to write."""
        by_age = self.seconds is not None and elapsed >= max(self.seconds, took * (1 / self.share - 1))
        by_number = self.rounds is not None and round - last_round >= self.rounds
        return by_age or by_number


class CheckpointStore:
    """The newest `keep` checkpoints of a run folder, `checkpoints/round_<round>.pt`.

    A payload holds dicts, lists and tuples of tensors, numbers, strings, bytes, booleans and None. torch.load reads
    these with `weights_only=True`, so no checkpoint can run code.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder  # of the run
        self._folder = folder / "checkpoints"
        self.keep = keep

    @deferred()  # torch.save replaces the exception of a signal by its own
    def save(self, round: int, fingerprint: dict[str, Any], payload: Any) -> Path:
        """Writes the checkpoint of `round`, then removes older and later checkpoints and leftovers of a kill."""
        path = self._folder / f"round_{round:06d}.pt"
        payload = _portable(payload)
        write_atomically(path, lambda file: _write(file, round, fingerprint, payload))
        kept = [other for other in self._newest_first() if _round(other) <= round][: self.keep]
        for other in {*self._newest_first(), *self._folder.glob(f"*{TEMPORARY}")} - set(kept):
            other.unlink(missing_ok=True)
        return path

    def load(
        self,
        fingerprint: dict[str, Any],
        device: "torch.device | str" = "cpu",
        find_damage: Callable[[int, Any], str | None] = lambda round, payload: None,
        also: Sequence[dict[str, Any]] = (),
    ) -> tuple[int, Any] | None:
        """The newest whole checkpoint as (round, payload), its tensors on `device`; None where none was ever written.

        The checkpoint must have this fingerprint or one of those in `also`. The store skips, with a warning, a damaged
        file and a file for which `find_damage(round, payload)` returns a reason. Raises UserError where no checkpoint
        is left, or where the newest whole one has another config or another format.
        """
        reasons = []
        for path in self._newest_first():
            try:
                round, payload = _read(path, (fingerprint, *also), device)
            except _Damaged as damage:
                reasons.append(f"{path} is damaged ({damage})")
            else:
                if (found := find_damage(round, payload)) is None:
                    for reason in reasons:
                        _log.warning("%s: the run continues after round %d", reason, round)
                    return round, payload
                reasons.append(f"{path} cannot be continued ({found})")
        if reasons:
            raise UserError(f"{'; '.join(reasons)}; there is no other checkpoint: {_remedy(self.folder)}")
        return None

    def check(self, fingerprint: dict[str, Any], also: Sequence[dict[str, Any]] = ()) -> None:
        """Raises UserError, as `load` does, where the newest checkpoint with a whole header is of another fingerprint
        or another format.
        """
        for path in self._newest_first():
            with suppress(_Damaged), open_to_read(path) as file:
                _read_header(file, path, (fingerprint, *also))
                return

    def rounds(self) -> list[int]:
        """The rounds of all checkpoints, whole or damaged, newest first."""
        return [_round(path) for path in self._newest_first()]

    def _newest_first(self) -> Iterator[Path]:
        found = [path for path in self._folder.glob("round_*.pt") if _NAME.fullmatch(path.name)]
        yield from sorted(found, key=_round, reverse=True)


class _Damaged(Exception):
    """A checkpoint is damaged; the message says in which way."""


class _Hashing:
    """A file to write to. Keeps the SHA-256 of the bytes written, and the disk's error if the disk refused some."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


def _write(file: BinaryIO, round: int, fingerprint: dict[str, Any], payload: Any) -> None:
    import torch

    header = {"round": round, "sha256": "0" * 64, "fingerprint": fingerprint}
    file.write(_head(header))  # has the length of the final header, which replaces it
    body = _Hashing(file)
    try:
        torch.save(payload, cast(BinaryIO, body))  # torch.save calls only write and flush
    except RuntimeError:  # torch puts its own error in place of the disk's
        if body.error is not None:
            raise body.error from None
        raise
    file.seek(0)
    file.write(_head(header | {"sha256": body.sha256.hexdigest()}))


def _head(header: dict[str, Any]) -> bytes:
    text = json.dumps(header).encode()
    return _PREFIX.pack(MAGIC, VERSION, len(text), _prefix_digest(VERSION, text)) + text


def _prefix_digest(version: int, header: bytes) -> bytes:
    return hashlib.sha256(struct.pack("<II", version, len(header)) + header).digest()


def _read_header(file: BinaryIO, path: Path, fingerprints: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The header of a checkpoint, which is of one of the fingerprints. The file then stands at the body."""
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size:
        raise _Damaged("too short")
    magic, version, length, digest = _PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise _Damaged("not a checkpoint")
    text = file.read(min(length, path.stat().st_size))
    if _prefix_digest(version, text) != digest:
        raise _Damaged("its header was changed or cut off")
    if version != VERSION:
        raise UserError(f"{path} has format {version}, this version reads {VERSION}: {_remedy(path.parents[1])}")
    header = _parsed(lambda: json.loads(text))
    if not isinstance(header, dict) or not header.keys() >= _HEADER or type(header["round"]) is not int:
        raise _Damaged("its header lacks keys")
    if not isinstance(header["fingerprint"], dict):
        raise _Damaged("its header holds no config")
    if _parsed(lambda: canonical(header["fingerprint"])) not in map(canonical, fingerprints):
        raise UserError(other_config(path, header["fingerprint"], fingerprints[0], path.parents[1]))
    return header


def _read(path: Path, fingerprints: Sequence[dict[str, Any]], device: "torch.device | str") -> tuple[int, Any]:
    import torch

    with open_to_read(path) as file:
        header = _read_header(file, path, fingerprints)
        body = file.read()
    if hashlib.sha256(body).hexdigest() != header["sha256"]:
        raise _Damaged("its body was changed or cut off")
    payload = _parsed(lambda: torch.load(io.BytesIO(body), map_location=device, weights_only=True))
    if not isinstance(payload, dict):
        raise _Damaged("its body is no mapping")
    return header["round"], payload


def _parsed(parse: Callable[[], Any]) -> Any:
    """The result of `parse`. Whatever `parse` raises is damage: anybody can write a file with right checksums."""
    try:
        return parse()
    except MemoryError:
        raise
    except Exception as error:
        raise _Damaged(f"it cannot be read: {type(error).__name__}") from error


def _portable(payload: Any, known: dict[int, Any] | None = None) -> Any:
    """The payload, checked to be readable again; a tensor that is a view of a larger storage is copied. A tensor that
    occurs several times, as `known` by its id, is one tensor again.
    """
    import torch

    known = {} if known is None else known
    if isinstance(payload, torch.Tensor):
        if id(payload) not in known:
            tensor = payload.detach()
            whole = tensor.untyped_storage().nbytes() <= tensor.numel() * tensor.element_size()
            known[id(payload)] = tensor if whole else tensor.clone()
        return known[id(payload)]
    if type(payload) is dict:
        assert all(type(key) in (str, int) for key in payload), f"keys of {list(payload)}"
        return {key: _portable(value, known) for key, value in payload.items()}
    if type(payload) in (list, tuple):
        return type(payload)(_portable(item, known) for item in payload)
    assert payload is None or type(payload) in (bool, int, float, str, bytes), f"{type(payload)} in a checkpoint"
    return payload


def other_config(path: Path, theirs: dict[str, Any], ours: dict[str, Any], folder: Path) -> str:
    """The line on a file, in a run's folder, of another fingerprint than ours."""
    there, here = (dict(sorted(_leaves(each))) for each in (theirs, ours))
    names = there | here
    keys = [key for key in names if canonical(there.get(key, "absent")) != canonical(here.get(key, "absent"))]
    shown = [f"{key} ({there.get(key, 'absent')} there, {here.get(key, 'absent')} here)" for key in keys]
    more = f" and {len(shown) - _MAX_KEYS_SHOWN} more" if len(shown) > _MAX_KEYS_SHOWN else ""
    return f"{path} is of another config: {', '.join(shown[:_MAX_KEYS_SHOWN])}{more}: {_remedy(folder)}"


def _leaves(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _remedy(folder: Path) -> str:
    return f"delete {folder} to start the run again, or give {OTHER_FOLDER}"


def _round(path: Path) -> int:
    return int(_NAME.sub(r"\1", path.name))
