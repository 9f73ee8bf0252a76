"""Topologies: symmetric, connected, of the right degrees; and what is refused."""

import os
import re
import tracemalloc
from dataclasses import replace
from pathlib import Path

import networkx
import numpy as np
import pytest
from PIL import Image
from scipy.stats import binomtest, chisquare

from fedlab_runner.config import build as config_build
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.experiment.run import run_in
from fedlab_runner.experiment.setup import prepare
from fedlab_runner.plots.topology import layout, plot_topology
from fedlab_runner.topologies.edge_list import EdgeList
from fedlab_runner.topologies.graphs import describe, metropolis, spectral_gap, unreachable
from fedlab_runner.topologies.mesh import Mesh
from fedlab_runner.topologies.random_regular import RandomRegular
from fedlab_runner.topologies.ring import Ring
from fedlab_runner.topologies.star import Star
from fedlab_runner.topologies.two_groups import TwoGroups
from fedlab_runner.utils.errors import UserError
from tests.helpers.composed import composed

EVERY = [Mesh(), TwoGroups(), Ring(), Star(0), RandomRegular(2), RandomRegular(4)]


def draw(topology, n: int, seed: int = 0) -> np.ndarray:
    return topology.draw(generator(seed, Purpose.TOPOLOGY), n)


@pytest.mark.parametrize("topology", EVERY, ids=repr)
@pytest.mark.parametrize("n", [5, 6, 50])
def test_links_go_both_ways_and_reach_everyone(topology, n: int) -> None:
    linked = draw(topology, n)
    assert linked.shape == (n, n) and linked.dtype == bool
    assert (linked == linked.T).all() and not linked.diagonal().any()
    assert len(unreachable(linked)) == 0
    assert np.array_equal(linked, draw(topology, n))


@pytest.mark.parametrize("topology", [Mesh(), TwoGroups(), Ring(), Star(0)], ids=repr)
def test_one_client_alone(topology) -> None:
    assert draw(topology, 1).tolist() == [[False]]


def test_the_search_for_the_unreachable_reads_the_links_of_each_client_once() -> None:
    read: list[int] = []

    class Links(np.ndarray):
        def __getitem__(self, rows):
            read.extend(np.arange(len(self))[rows])
            return np.asarray(self)[rows]

    assert unreachable(draw(Ring(), 50).view(Links)).tolist() == [] and sorted(read) == list(range(50))
    cut = np.kron(np.eye(2, dtype=bool), draw(Ring(), 10)).view(Links)
    assert unreachable(cut).tolist() == list(range(10, 20)), "two rings without a link between them"


def test_degrees() -> None:
    assert set(draw(Mesh(), 7).sum(1)) == {6}
    assert set(draw(Ring(), 7).sum(1)) == {2}
    assert draw(Star(3), 7).sum(1).tolist() == [1, 1, 1, 6, 1, 1, 1]
    for degree, n in ((2, 9), (3, 10), (4, 11), (5, 50), (9, 10), (8, 10), (48, 50)):
        assert set(draw(RandomRegular(degree), n).sum(1)) == {degree}
    assert not np.array_equal(draw(RandomRegular(4), 20), draw(RandomRegular(4), 20, seed=1))
    assert describe(draw(Ring(), 2)) == "2 clients, 1 link, 1 at each client"
    assert describe(draw(Star(0), 5)) == "5 clients, 4 links, 1 to 4 at each client"


def test_two_groups_of_fifty_are_those_of_the_paper() -> None:
    """Figure 23: 25 odd and 25 even ids, one link between the medians, here 0-based."""
    linked = draw(TwoGroups(), 50)
    assert sorted(linked.sum(1))[:-2] == [24] * 48 and sorted(linked.sum(1))[-2:] == [25, 25]
    assert np.argwhere(linked[::2, 1::2]).tolist() == [[12, 12]], "clients 24 and 25, the medians"
    assert np.argwhere(draw(TwoGroups(), 8)[::2, 1::2]).tolist() == [[1, 1]], "of an even number the lower median"


@pytest.mark.parametrize("topology", EVERY, ids=repr)
def test_the_layout_has_linked_clients_near_each_other(topology) -> None:
    linked = draw(topology, 12)
    places = layout(linked)
    assert places.shape == (12, 2) and np.array_equal(places, layout(linked))
    distances = np.linalg.norm(places[:, None] - places, axis=-1)
    apart = distances[~np.eye(12, dtype=bool)]
    assert apart.min() > 0.1 and np.isfinite(apart).all(), "no two in one place"
    if linked.sum() != 12 * 11:
        assert distances[linked].mean() < apart.mean()


@pytest.mark.parametrize("n", [1, 2, 50, 201])
def test_every_topology_can_be_drawn(tmp_path: Path, n: int) -> None:
    plot_topology(tmp_path / "plots/topology.png", draw(Ring(), n), "a run")
    with Image.open(tmp_path / "plots/topology.png") as drawn:
        assert drawn.size == (900, 900) and np.asarray(drawn.convert("L")).std() > 1
        blue = (np.asarray(drawn.convert("RGB")) == (0x00, 0x72, 0xB2)).all(-1)
    assert n > 40 or blue.any(0).sum() > 20, "whole points, although all are on one line"


def test_the_picture_of_many_clients_holds_few_bytes_for_each_pair_of_them(tmp_path: Path) -> None:
    n, linked = 1000, draw(Ring(), 1000)
    plot_topology(tmp_path / "first.png", draw(Ring(), 3), "what a first picture loads")
    tracemalloc.start()
    try:
        plot_topology(tmp_path / "topology.png", linked, "a run")
        assert tracemalloc.get_traced_memory()[1] < 32 * n**2, "colours of all pairs"
    finally:
        tracemalloc.stop()


@pytest.mark.pictures
def test_a_run_without_a_server_draws_its_topology(tmp_path: Path) -> None:
    run_in(tmp_path, composed("algorithm=dec_fedavg", "topology=ring", "rounds=1", "executor=loop"))
    assert (tmp_path / "plots/topology.png").exists()


def test_a_file_of_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "links.txt").write_text("# a path\n0 1\n1,2\n\n3, 2\n")
    for path in (str(tmp_path / "links.txt"), "~/links.txt"):
        assert np.argwhere(np.triu(draw(EdgeList(path), 4))).tolist() == [[0, 1], [1, 2], [2, 3]]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("0 1\n2 3\n", r"^topology\.path must be a connected graph: client 0 cannot reach client 2 in "),
        ("", r"^topology\.path must be a connected graph: client 0 cannot reach client 1 in "),
        ("0 1\n1 4\n", r"^topology\.path must list two client ids from 0 to 3 in each line, got line 2 of .*: '1 4'$"),
        ("0 1 2\n", r"got line 1 of "),
        ("0 -1\n", r"got line 1 of "),
        ("a b\n", r"got line 1 of "),
        ("0 ²\n", r"got line 1 of "),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "links.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=fault) as error:
        draw(EdgeList(str(path)), 4)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^topology\.path must be a readable text file, got "):
        draw(EdgeList(str(tmp_path / "none.txt")), 4)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "links.txt")  # to open it would wait for ever
    with pytest.raises(
        UserError, match=r"^topology\.path must be a readable text file, got .* \(is not a plain file\)$"
    ):
        draw(EdgeList(str(tmp_path / "links.txt")), 4)


def test_graphs_that_do_not_exist_are_refused() -> None:
    for build in (lambda: RandomRegular(1), lambda: Star(-1)):
        with pytest.raises(ValueError, match=r"^(degree|center) must be >= "):
            build()
    for topology, n in ((RandomRegular(4), 4), (RandomRegular(3), 5), (Star(5), 5)):
        with pytest.raises(ValueError, match=r"^(degree|center) must be "):
            draw(topology, n)


@pytest.mark.parametrize("topology", [Mesh(), TwoGroups(), Ring(), Star(0)], ids=repr)
def test_clients_that_may_train_reach_each_other_or_no_run_begins(topology) -> None:
    """Held-out clients pass no model on: what they leave of the graph is connected, or the run is refused."""
    choice = type(topology).__module__.rpartition(".")[2]
    small = ("dataset=synthetic", "dataset.num_train=60", "num_clients=7", "participation.cohort_size=1")
    for seed in range(5):
        config = config_build.build(
            composed(*small, "algorithm=dec_fedavg", f"topology={choice}", "participation.held_out_clients=3")
        )
        config = replace(config, seed=seed)
        out = config.participation.held_out(generator(seed, Purpose.HELD_OUT_CLIENTS), 7)
        graph = networkx.from_numpy_array(draw(topology, 7))
        graph.remove_nodes_from(out.tolist())
        if networkx.is_connected(graph):
            assert prepare(config).simulation.fed.participants.tolist() == list(graph)
        else:
            with pytest.raises(UserError, match=r"^topology must stay connected without .*held_out_clients=0") as error:
                prepare(config)
            first, other = map(int, re.findall(r"client (\d)", str(error.value)))
            assert first in graph and other in graph and not networkx.has_path(graph, first, other)


def test_random_graphs_are_nearly_uniform() -> None:
    """Of 5 clients with 2 neighbours each there are 12 graphs, all of them rings."""
    graphs = [draw(RandomRegular(2), 5, seed).tobytes() for seed in range(600)]
    counts = [graphs.count(graph) for graph in set(graphs)]
    assert len(counts) == 12 and chisquare(counts).pvalue > 1e-4


def test_random_graphs_have_no_more_triangles_than_uniform_ones() -> None:
    """Six clients with three neighbours have 70 graphs, of which ten, two groups of three, have no triangle; of many
    clients a uniform graph has (3 - 1)^3 / 6 triangles on average, nearly Poisson."""
    few = [draw(RandomRegular(3), 6, seed) for seed in range(700)]
    many = [draw(RandomRegular(3), 60, seed) for seed in range(700)]
    without = sum(not np.trace(np.linalg.matrix_power(each.astype(int), 3)) for each in few)
    triangles = [np.trace(np.linalg.matrix_power(each.astype(int), 3)) / 6 for each in many]
    assert binomtest(without, 700, 10 / 70).pvalue > 1e-3
    assert np.mean(triangles) == pytest.approx(4 / 3, abs=3.3 * np.sqrt(4 / 3 / 700))


@pytest.mark.parametrize("clients", [2, 3, 10])
def test_metropolis_weights_are_those_of_a_doubly_stochastic_symmetric_matrix_on_the_links(clients: int) -> None:
    for topology in (Mesh(), Star(1), Ring()):
        linked = topology.draw(generator(0, Purpose.TOPOLOGY), clients)
        weights = metropolis(linked)
        assert np.array_equal(weights, weights.T) and (weights.diagonal() > 0).all()
        assert ((weights > 0) == (linked | np.eye(clients, dtype=bool))).all()
        np.testing.assert_allclose(weights.sum(1), 1, rtol=0, atol=1e-15)


def test_spectral_gaps_that_are_known() -> None:
    ring, mesh = (metropolis(each.draw(generator(0, Purpose.TOPOLOGY), 12)) for each in (Ring(), Mesh()))
    assert spectral_gap(ring) == pytest.approx(2 / 3 * (1 - np.cos(2 * np.pi / 12)))
    assert spectral_gap(mesh) == pytest.approx(1)
    between = np.add.outer(np.arange(6), np.arange(6)) % 2 == 1
    assert spectral_gap(metropolis(between)) == pytest.approx(1 / 2), "-1/2 is larger than 1/4 in absolute value"
    apart = np.zeros((4, 4), bool)
    apart[0, 1] = apart[1, 0] = apart[2, 3] = apart[3, 2] = True
    assert spectral_gap(metropolis(apart)) == pytest.approx(0, abs=1e-12)
    assert spectral_gap(metropolis(np.zeros((1, 1), bool))) == 1
    assert spectral_gap(np.eye(2)[::-1]) == 0, "two clients that swap their models never agree"
