"""Delays: their distributions, files of delays, and what is refused."""

import json
import os
import re

import numpy as np
import pytest
from scipy.stats import chisquare, halfnorm

from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.delays.base import drawn_delays
from fedlab_runner.delays.constant import ConstantDelay
from fedlab_runner.delays.exponential import ExponentialDelay
from fedlab_runner.delays.from_file import DelayFromFile
from fedlab_runner.delays.half_normal import HalfNormalDelay
from fedlab_runner.delays.none import NoDelay
from fedlab_runner.delays.uniform import UniformDelay
from fedlab_runner.utils.errors import UserError

MANY = np.arange(200_000)
RANDOM = [
    HalfNormalDelay("client", 5.0),
    HalfNormalDelay("client", 20.0),
    ExponentialDelay("client", 4.0),
    UniformDelay("client", 2, 9),
]
NEVER_CHANGES = "draw does nothing where a client's delay never changes: it must be client, got dispatch"
EVERY = [
    *RANDOM,
    NoDelay("client"),
    ConstantDelay("client", 3),
    HalfNormalDelay("client", 0.0),
    ExponentialDelay("client", 0.0),
]


def draw(delay, clients=MANY, seed=0):
    return delay.sample(generator(seed, Purpose.DELAY), clients)


@pytest.mark.parametrize("delay", EVERY, ids=repr)
@pytest.mark.parametrize("n", [0, 1, 500])
def test_delays_are_whole_rounds_one_a_client(delay, n):
    delays = draw(delay, np.arange(n))
    assert delays.dtype == np.int64 and delays.shape == (n,) and (delays >= 0).all()


@pytest.mark.parametrize("delay", RANDOM, ids=repr)
def test_the_key_decides_and_more_clients_change_nobodys_delay(delay):
    few, many = draw(delay, np.arange(50)), draw(delay, np.arange(100))
    assert np.array_equal(few, many[:50])
    assert not np.array_equal(few, many[50:])
    assert not np.array_equal(few, draw(delay, np.arange(50), seed=1))


@pytest.mark.parametrize("std,mean,never_late", [(5.0, 4.0, 0.159), (20.0, 16.0, 0.040)])
def test_half_normal_delays_are_those_of_feddle(std, mean, never_late):
    delays = draw(HalfNormalDelay("client", std))
    assert (delays == 0).mean() == pytest.approx(never_late, abs=0.003)
    exact = halfnorm.sf(np.arange(1, 20 * std), scale=std).sum()  # E floor(X) is the sum of P(X >= k)
    assert delays.mean() == pytest.approx(exact, rel=0.01)
    assert exact == pytest.approx(mean - 0.5, abs=0.05)  # the known means are those before rounding down
    shares = np.diff(halfnorm.cdf([*range(int(2 * std)), np.inf], scale=std))
    counts = np.bincount(np.minimum(delays, len(shares) - 1), minlength=len(shares))
    assert chisquare(counts, shares * len(MANY)).pvalue > 1e-4


def test_exponential_delays_are_geometric_once_rounded_down():
    delays = draw(ExponentialDelay("client", 4.0))
    assert (delays == 0).mean() == pytest.approx(1 - np.exp(-1 / 4), abs=0.005)
    assert delays.mean() == pytest.approx(1 / np.expm1(1 / 4), rel=0.01)


def test_uniform_delays_include_both_ends_equally():
    counts = np.bincount(draw(UniformDelay("client", 2, 9)), minlength=10)
    assert counts[:2].sum() == 0 and len(counts) == 10
    assert chisquare(counts[2:]).pvalue > 1e-4
    assert (draw(UniformDelay("client", 3, 3)) == 3).all()


def test_delays_that_do_not_vary():
    assert not draw(NoDelay("client")).any()
    assert (draw(ConstantDelay("client", 3)) == 3).all()
    assert not draw(HalfNormalDelay("client", 0.0)).any()


def test_delays_beyond_any_run_can_still_be_added_to_a_round():
    delays = draw(HalfNormalDelay("client", 1e38), np.arange(10))
    assert (delays > 1e9).all() and (delays + 10**6 > delays).all()


@pytest.mark.parametrize(
    "make,message",
    [
        (lambda: NoDelay("dispatch"), NEVER_CHANGES),
        (lambda: ConstantDelay("dispatch", 1), NEVER_CHANGES),
        (lambda: DelayFromFile("dispatch", "delays.csv"), NEVER_CHANGES),
        (lambda: NoDelay("round"), "draw must be one of client, dispatch, got round"),
        (lambda: ConstantDelay("x", 1), "draw must be one of client, dispatch, got x"),
        (lambda: DelayFromFile("x", "delays.csv"), "draw must be one of client, dispatch, got x"),
        (lambda: ConstantDelay("client", -1), "rounds must be >= 0, got -1"),
        (lambda: HalfNormalDelay("client", -0.5), "std must be >= 0, got -0.5"),
        (lambda: HalfNormalDelay("client", float("inf")), "std must be >= 0 and < 3e38, got inf"),
        (lambda: ExponentialDelay("dispatch", -1.0), "mean must be >= 0, got -1.0"),
        (lambda: ExponentialDelay("dispatch", float("nan")), "mean must be >= 0, got nan"),
        (lambda: UniformDelay("client", -1, 3), "low must be >= 0, got -1"),
        (lambda: UniformDelay("client", 4, 3), "high must be >= low (4), got 3"),
    ],
)
def test_wrong_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()


# files

FILES = {
    "lines.txt": "3\n0\n\n7 # the slow one\n2.9\n",
    "line.csv": "3, 0, 7, 2.9\n",
    "commas.csv": "3,\n0,\n7,\n2.9\n",
    "blanks": "# rounds\n3 0 7 2.9",
    "windows.csv": "\ufeff3\r\n0\r\n7\r\n2.9\r\n",
    "array.json": "[3, 0, 7, 2.9]",
    "windows.json": "\ufeff[3, 0, 7, 2.9]\r\n",
    "vector.npy": np.array([3, 0, 7, 2.9]),
    "whole.npy": np.array([3, 0, 7, 2], np.uint8),
}


def write(folder, name, content):
    if isinstance(content, np.ndarray):
        np.save(folder / name, content)
    else:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(folder / name)


@pytest.mark.parametrize("name", FILES)
def test_entry_i_is_the_delay_of_client_i(tmp_path, name):
    delay = DelayFromFile("client", write(tmp_path, name, FILES[name]))
    assert draw(delay, np.arange(4)).tolist() == [3, 0, 7, 2]
    delays = draw(delay, np.array([2, 0, 2]))
    assert delays.tolist() == [7, 3, 7] and delays.dtype == np.int64
    assert draw(delay, np.arange(0)).shape == (0,)


@pytest.mark.parametrize(
    "name,content,message",
    [
        ("d.csv", "3\n-1\n", "path must hold delays, numbers >= 0, got -1.0 in .*d.csv, line 2"),
        ("d.csv", "client,delay\n0,3\n", "path must hold one delay a line or all in one, got 2 in .*d.csv, line 1"),
        ("d.csv", "3\n0 4\n", "path must hold one delay a line or all in one, got 2 in .*d.csv, line 2"),
        ("d.csv", "delay\n3\n", "path must hold delays, numbers >= 0, got 'delay' in .*d.csv, line 1"),
        ("d.txt", "1\n\nnan\n", "path must hold delays, numbers >= 0, got nan in .*d.txt, line 3"),
        ("d.txt", "inf", "path must hold delays, numbers >= 0, got inf in .*d.txt, line 1"),
        ("d.txt", b"\x80\xff\x00", "path must be a text, .csv, .json or .npy file, got .*d.txt, which is none"),
        ("d.txt", "1\n2\n3\n", "path must hold a delay for each of 4 clients, got 3 in .*d.txt"),
        ("d.txt", "", "path must hold a delay for each of 4 clients, got 0 in .*d.txt"),
        ("d.json", "[1,\n2,\n", "path must hold a JSON array, got .*d.json, line 3: .*"),
        ("d.json", '{"0": 3}', "path must hold a JSON array, got .*d.json, line 1: dict"),
        ("d.json", b"\x80\xff", "path must hold a JSON array, got .*d.json, which is not text"),
        ("d.json", '[1, 2, "3", 4]', "path must hold delays, numbers >= 0, got '3' in .*d.json, entry 2"),
        ("d.json", "[1, true]", "path must hold delays, numbers >= 0, got True in .*d.json, entry 1"),
        ("d.json", "[1, NaN]", "path must hold delays, numbers >= 0, got nan in .*d.json, entry 1"),
        ("d.npy", np.array([1, 2, -3]), "path must hold delays, numbers >= 0, got -3 in .*d.npy, entry 2"),
        ("d.npy", np.ones((2, 2)), r"path must hold a vector of numbers, got float64 \[2, 2\] in .*d.npy"),
        ("d.npy", np.array(["1"]), r"path must hold a vector of numbers, got <U1 \[1\] in .*d.npy"),
        ("d.npy", b"1, 2, 3", "path must hold a numpy vector, got .*d.npy, which cannot be read"),
        ("d.npy", b"", "path must hold a numpy vector, got .*d.npy, which cannot be read"),
        ("d.npy", b"PK\x03\x04", "path must hold a numpy vector, got .*d.npy, which is an archive"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, name, content, message):
    delay = DelayFromFile("client", write(tmp_path, name, content))
    with pytest.raises(UserError, match=f"^{message}$"):
        draw(delay, np.arange(4))


def test_a_tilde_is_the_users_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, "d.csv", "3\n5\n")
    assert draw(DelayFromFile("client", "~/d.csv"), np.arange(2)).tolist() == [3, 5]


@pytest.mark.parametrize("name", ["absent.csv", "absent.json", "absent.npy", "."])
def test_a_file_that_is_not_there_is_named(tmp_path, name):
    with pytest.raises(UserError, match=r"^path must be a readable file, got '[^\n]*': [^\n]*$"):
        draw(DelayFromFile("client", str(tmp_path / name)), np.arange(4))


def test_an_archive_of_arrays_is_no_vector(tmp_path):
    np.savez(tmp_path / "d.npz", np.arange(4))
    archive = (tmp_path / "d.npz").rename(tmp_path / "d.npy")
    with pytest.raises(UserError, match=r"^path must hold a numpy vector, got .*d\.npy, which is an archive$"):
        draw(DelayFromFile("client", str(archive)), np.arange(4))


@pytest.mark.parametrize("name", ["d.csv", "d.json", "d.npy"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)  # to open it would wait for ever
    with pytest.raises(UserError, match=rf"^path must be a readable file, got '.*{name}': it is not a plain file$"):
        draw(DelayFromFile("client", str(tmp_path / name)), np.arange(4))


def test_huge_entries_are_never_rather_than_an_overflow(tmp_path):
    delay = DelayFromFile("client", write(tmp_path, "d.json", json.dumps([10**400, 1e300, 5])))
    assert drawn_delays(delay, generator(0, Purpose.DELAY), np.arange(3)).tolist() == [2**40, 2**40, 5]
