"""Feature blocks: who holds which, how examples are cut, data sets in blocks, and what is said of bad ones."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedlab_runner.config.build import build
from fedlab_runner.core.flops import FlopCounter
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.datasets import eurosat, herigraph, modelnet40_views
from fedlab_runner.datasets.eurosat import EuroSAT
from fedlab_runner.datasets.examples import Data
from fedlab_runner.datasets.herigraph import HeriGraph
from fedlab_runner.datasets.modelnet40_views import ModelNet40Views
from fedlab_runner.experiment.run import prepare
from fedlab_runner.models._blocks import BlockNetwork, Grid, extract_each, extract_grouped
from fedlab_runner.models.blocks_cnn import BlocksCNN
from fedlab_runner.models.blocks_mlp import BlocksMLP
from fedlab_runner.models.blocks_resnet import BlocksResNet
from fedlab_runner.partitions.assigned_blocks import AssignedBlocks
from fedlab_runner.partitions.blocks import by_blocks, common_blocks, with_their_blocks
from fedlab_runner.partitions.random_blocks import RandomBlocks
from fedlab_runner.plots.blocks import block_table, plot_blocks
from fedlab_runner.utils.errors import UserError
from tests.helpers.composed import composed


def rng(seed: int = 0) -> np.random.Generator:
    return generator(seed, Purpose.PARTITION)


def cells(component: Any, num_clients: int, num_classes: int) -> np.ndarray:
    """How many clients have each block of each class [d0, C]."""
    blocks, classes = component.draw(num_clients, num_classes, rng())
    counts: np.ndarray = blocks.T.astype(int) @ classes.astype(int)
    return counts


# --- who has what ---


def test_clients_have_all_examples_of_their_classes() -> None:
    strata = np.array([0, 1, 2, 0, 1, 2, 0])
    component = AssignedBlocks(2, [[0], [0, 1]], [[0, 2], [1, 2]])
    assert [part.tolist() for part in component.split(strata, None, 2, rng())] == [[0, 2, 3, 5, 6], [1, 2, 4, 5]]
    assert component.owned(strata, 2, rng()).tolist() == [[True, False], [True, True]]


FIG_11C = [  # of each class: how many clients have a block, for the blocks that three or four have and for the others
    ("3333", "12221222"),
    ("33433", "2212122"),
    ("3333", "12221222"),
    ("434343333", "222"),
    ("33433343", "1212"),
    ("3433334333", "22"),
    ("3333344", "22212"),
    ("3333", "21222122"),
    ("3333434", "21222"),
    ("3333", "22212221"),
]


def test_the_default_assignment_is_that_of_table_2_and_fig_11c() -> None:
    """9 clients, 6 to 8 of 12 blocks, 5 of 10 classes; in each class the counts of the figure, whose text has the large
    ones and the small ones by themselves, in the order of the blocks.
    """
    component = build(composed("partition=assigned_blocks", "num_clients=9")).partition
    sizes = [len(mine) for mine in component.blocks]
    assert (len(sizes), min(sizes), max(sizes)) == (9, 6, 8) and {len(mine) for mine in component.classes} == {5}
    counts = cells(component, 9, 10)
    of_classes = [["".join(str(n) for n in column if (n < 3) == few) for few in (False, True)] for column in counts.T]
    assert [tuple(each) for each in of_classes] == FIG_11C
    assert np.bincount(counts.ravel()).tolist() == [0, 14, 44, 50, 12]


@pytest.mark.parametrize(
    ("experiment", "num_clients", "num_classes", "unused"),
    [
        ("fig4_modelnet40_1", 4, 40, 0),
        ("fig4_modelnet40_2", 8, 40, 58),
        ("c1_modelnet40", 6, 40, 11),
        ("c1_cifar10", 6, 10, 0),
        ("c1_eurosat", 6, 10, 0),
        ("herigraph", 6, 9, None),
    ],
)
def test_the_published_assignments(experiment: str, num_clients: int, num_classes: int, unused: int | None) -> None:
    """12.08 % of ModelNet40:2 and 6.88 % of C.1's views of classes are nobody's; elsewhere all are somebody's."""
    component = build(composed(f"experiment=hyfem/{experiment}", small=False)).partition
    counts = cells(component, num_clients, num_classes)
    assert unused is None or (counts == 0).sum() == unused
    assert (counts.sum(1) > 0).all(), "every block is held"
    if experiment == "fig4_modelnet40_1":
        assert (
            counts.tolist() == [[1] * 20 + [2] * 10 + [1] * 10, [1] * 10 + [2] * 20 + [1] * 10] or counts.sum() == 240
        )
    if experiment.startswith("c1"):
        assert common_blocks(component.draw(num_clients, num_classes, rng()).blocks) == [0, 2]


def test_random_blocks_come_from_the_experiments_seed_or_their_own() -> None:
    strata = np.arange(60) % 10
    drawn, fixed = RandomBlocks(6, 3, 4, None), RandomBlocks(6, 3, 4, 7)
    for component in (drawn, fixed):
        owned, split = component.owned(strata, 8, rng(1)), component.split(strata, None, 8, rng(1))
        assert owned.sum(1).tolist() == [3] * 8 and [len(set(strata[part])) for part in split] == [4] * 8
        again = component.split(strata, None, 8, rng(1))
        assert all(np.array_equal(a, b) for a, b in zip(split, again, strict=True))
        assert np.array_equal(owned, component.owned(strata, 8, rng(2))) == (component is fixed)


def dealt(component: Any, num_clients: int) -> Any:
    return component.split(np.arange(3), None, num_clients, rng())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AssignedBlocks(0, [[0]], [[0]]), "^num_blocks must be >= 1, got 0"),
        (lambda: AssignedBlocks(2, [[0], [1]], [[0]]), "^classes must have a list for each of the 2 clients .* got 1"),
        (lambda: AssignedBlocks(2, [[0], [2]], [[0], [0]]), "^blocks must be different numbers from 0 to 1 .* for 1"),
        (lambda: AssignedBlocks(2, [[0], []], [[0], [0]]), "^blocks must be different numbers .* for 1"),
        (lambda: AssignedBlocks(2, [[0], [1]], [[0], [1, 1]]), "^classes must be different numbers for each client"),
        (lambda: AssignedBlocks(2, [[0], [1]], [[], [1]]), "^classes must be different numbers .* for 0"),
        (lambda: RandomBlocks(2, 3, 1, None), "^blocks_per_client must be at most num_blocks 2, got 3"),
        (lambda: RandomBlocks(2, 0, 1, None), "^blocks_per_client must be >= 1, got 0"),
        (lambda: RandomBlocks(2, 1, 0, None), "^classes_per_client must be >= 1, got 0"),
        (lambda: RandomBlocks(2, 1, 1, -1), "^draw_seed must be >= 0, got -1"),
        (lambda: dealt(AssignedBlocks(2, [[0]], [[0]]), 2), "^num_clients must be 1 as in partition.blocks, got 2"),
        (lambda: dealt(AssignedBlocks(1, [[0]], [[3]]), 1), "^classes must be at most 2, the data set's last, got 3"),
        (lambda: dealt(RandomBlocks(1, 1, 4, 0), 1), "^classes_per_client must be at most 3, the data set's classes"),
        (lambda: dealt(AssignedBlocks(3, [[0]], [[0]]), 1), "^partition gives feature block 1, 2 to no client: give"),
        (
            lambda: dealt(RandomBlocks(9, 1, 1, 0), 2),
            "^partition gives feature block .* to no client: give it to a client",
        ),
    ],
)
def test_bad_assignments_are_refused_in_one_line(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_examples_without_a_clients_blocks_are_left_out() -> None:
    owned = np.array([[True, False], [True, True]])
    present = torch.tensor([[1, 1], [1, 0], [0, 1], [1, 1]], dtype=torch.bool)
    everyone = [np.arange(4), np.arange(4)]
    assert [part.tolist() for part in with_their_blocks(everyone, owned, present)] == [[0, 1, 3], [0, 3]]
    assert with_their_blocks(everyone, owned, None)[0].tolist() == [0, 1, 2, 3]
    with pytest.raises(UserError, match=r"^partition leaves client 1 without an example of its classes"):
        with_their_blocks([np.array([1]), np.array([1, 2])], owned, present)
    with pytest.raises(
        UserError, match=r"^partition has 2 feature blocks and the data set 1: set partition.num_blocks=1"
    ):
        with_their_blocks(everyone, owned, present[:, :1])


def test_clients_with_the_same_blocks_go_together() -> None:
    groups = by_blocks(np.array([[1, 0], [0, 1], [1, 0], [1, 1]], dtype=bool))
    assert [(blocks, rows.tolist()) for blocks, rows in groups] == [((0,), [0, 2]), ((1,), [1]), ((0, 1), [3])]


# --- cutting ---


def test_quadrants_and_colours_are_cut_in_the_papers_order() -> None:
    """Block 3 * quadrant + channel; quadrants top left, top right, bottom left, bottom right."""
    images = torch.arange(3 * 4 * 4).view(1, 3, 4, 4)
    parts = Grid(3, 4, 2, 2, 1, None)(images)
    assert len(parts) == 12 and all(part.shape == (1, 1, 2, 2) for part in parts)
    corners = [int(images[0, b % 3, 2 * (b // 3 // 2), 2 * (b // 3 % 2)]) for b in range(12)]
    assert [int(part[0, 0, 0, 0]) for part in parts] == corners
    whole = Grid(3, 4, 2, 2, None, [3, 0])(images)
    assert torch.equal(whole[0], images[:, :, 2:, 2:]) and torch.equal(whole[1], images[:, :, :2, :2])
    views = Grid(12, 4, 1, 1, 3, None)(torch.arange(12 * 16).view(1, 12, 4, 4))
    assert [int(view[0, 0, 0, 0]) for view in views] == [0, 48, 96, 144]


def test_an_extractor_of_zeros_gives_zero_and_unused_neurons_are_zero() -> None:
    torch.manual_seed(0)
    models = [
        BlocksCNN(None, None, 2, 2, 1, None, [4], [5], [9]).build(3, 8, 4),
        BlocksResNet(None, None, 18, "imagenet", 1, 1, 1, None, [5], [9]).build(1, 33, 4),
        BlocksMLP(None, None, [3, 4], None, [4], [5], [9]).build(7, 1, 4),
    ]
    for model in models:
        assert isinstance(model, BlockNetwork)
        first, last = model.classifier[0], model.classifier[-1]
        assert not first.weight[5:].any() and not first.bias[5:].any() and not last.weight[:, 5:].any()
        assert first.weight[:5].all() and last.weight[:, :5].all()
        extract = model.extractors[0].eval()
        for tensor in [*extract.parameters(), *extract.buffers()]:
            tensor.data.zero_()
        shape = {BlocksCNN: (2, 1, 4, 4)}.get(type(model), (2, 1, 33, 33) if model is models[1] else (2, 3))
        inputs = torch.rand(2, 1, 4, 4) if model is models[0] else torch.rand(*shape)
        assert not extract(inputs).any()


@pytest.mark.parametrize("block_channels", [1, 3])
def test_extractors_side_by_side_compute_what_each_does(block_channels: int) -> None:
    """Features, gradients and counted operations; and under vmap, with models of their own."""
    torch.manual_seed(0)
    model = cnn(block_channels=block_channels, widths=[4, 6]).double()
    inputs = torch.rand(5, 3, 8, 8, dtype=torch.float64)
    read = [3, 0, 2]
    extractors, parts = [model.extractors[b] for b in read], [model._split(inputs)[b] for b in read]
    results = []
    for extract in (extract_each, extract_grouped):
        with FlopCounter() as counter:
            features = torch.cat(list(extract(extractors, parts)), 1)
            forward = counter.total
            gradients = torch.autograd.grad(features.square().sum(), [p for e in extractors for p in e.parameters()])
        results.append((features, gradients, forward, counter.total))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-12)
    assert results[0][0].shape == (5, 18) and results[0][2] > 0

    values = {name: torch.stack([p, 2 * p]) for name, p in model.named_parameters()}
    both = torch.func.vmap(lambda own: torch.func.functional_call(model, own, (inputs,)))(values)
    for i in (0, 1):
        one = torch.func.functional_call(model, {name: own[i] for name, own in values.items()}, (inputs,))
        torch.testing.assert_close(both[i], one, rtol=0, atol=1e-10)


def cnn(channels: int = 3, **changes: Any) -> Any:
    """A model of single-channel quadrants, built for images of 8 pixels."""
    fields = {"rows": 2, "columns": 2, "block_channels": 1, "blocks": None, "widths": [4], "hidden": [5]}
    return BlocksCNN(None, None, **(fields | {"server_hidden": None} | changes)).build(channels, 8, 4)


def resnet(depth: int, stem: str) -> Any:
    return BlocksResNet(None, None, depth, stem, 1, 1, 1, None, [5], None)


def perceptron(sizes: list[int], blocks: list[int] | None = None) -> Any:
    return BlocksMLP(None, None, sizes, blocks, [4], [5], None).build(7, 1, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cnn(rows=3), "^rows must divide the image's 8 pixels into blocks, got 3"),
        (lambda: cnn(columns=3), "^columns must divide the image's 8 pixels into blocks, got 3"),
        (lambda: cnn(block_channels=2), "^block_channels must divide the image's 3 channels, got 2"),
        (lambda: cnn(blocks=[12]), r"^blocks must be null or different numbers from 0 to 11, got \[12\]"),
        (lambda: cnn(blocks=[]), r"^blocks must be null or different numbers from 0 to 11, got \[\]"),
        (lambda: cnn(widths=[4, 4, 4]), "^widths must be fewer for blocks of 4 pixels"),
        (lambda: cnn(rows=0), "^rows must be >= 1, got 0"),
        (lambda: cnn(widths=[]), "^widths must be a list of one or more numbers >= 1"),
        (lambda: cnn(hidden=[0]), "^hidden must be a list of one or more numbers >= 1"),
        (lambda: cnn(hidden=[], server_hidden=[4]), r"^server_hidden must be null or widths of at least hidden \[\]"),
        (lambda: cnn(server_hidden=[4]), r"^server_hidden must be null or widths of at least hidden \[5\], got \[4\]"),
        (lambda: cnn(server_hidden=[5, 5]), "^server_hidden must be null or widths of at least hidden"),
        (lambda: resnet(50, "small"), "^depth must be one of 18, 34, got 50"),
        (lambda: resnet(18, "tiny"), "^stem must be one of small, imagenet, got tiny"),
        (lambda: perceptron([3]), "^sizes must sum to the 7 values of an example, got 3"),
        (lambda: perceptron([]), "^sizes must be a list of one or more numbers >= 1"),
        (lambda: perceptron([3, 4], [2]), r"^blocks must be null or different numbers from 0 to 1, got \[2\]"),
    ],
)
def test_blocks_that_do_not_tile_the_example_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_run_is_refused_in_one_line_where_model_and_partition_do_not_fit() -> None:
    common = (
        "dataset=synthetic",
        "server_data=none",
        "model=blocks_mlp",
        "num_clients=9",
        "participation.cohort_size=9",
    )
    cases = {
        "^model must read all of the partition's 12 feature blocks, got 4": (),
        "^algorithm=fedavg has one model for all clients, .* there are none": ("algorithm=fedavg",),
        "^model must have an extractor for each of the partition's 12 feature blocks, got Seq": ("model=mlp",),
        "^num_clients must be 9 as in partition.blocks, got 8": ("num_clients=8", "participation.cohort_size=8"),
        "^partition.classes must be at most 3, the data set's last, got 9": ("dataset.num_classes=4",),
    }
    for message, changes in cases.items():
        cfg = composed("algorithm=hyfem", "partition=assigned_blocks", *common, *changes, small=False)
        with pytest.raises(UserError, match=message):
            prepare(build(cfg))


# --- the heat map ---


def test_the_table_counts_clients_by_block_and_class(tmp_path: Path) -> None:
    labels, split = np.array([0, 1, 1, 2]), [np.array([0, 1]), np.array([1, 2, 3])]
    columns, rows = block_table(np.array([[1, 0], [1, 1]], dtype=bool), split, labels, ("a", "b", "c"))
    assert columns == ["block", "a", "b", "c"] and rows == [[0, 1, 2, 1], [1, 0, 1, 1]]
    plot_blocks(tmp_path / "plots/blocks.png", columns, rows, "a run")
    with Image.open(tmp_path / "plots/blocks.png") as drawn:
        assert drawn.size[0] > 300


# --- data sets in blocks ---


def picture(path: Path, value: int, size: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size, size, 3), value, np.uint8)).save(path)


def refusal(load: Any) -> str:
    with pytest.raises(UserError) as caught:
        load()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def load_eurosat(root: Path, seed: int = 0) -> Data:
    return EuroSAT(str(root), 4, 0.2, [0.3] * 3, [0.2] * 3).load(seed)


def write_eurosat(root: Path) -> None:
    for label, name in enumerate(eurosat.CLASSES):
        for i in range(5):
            picture(root / f"eurosat/2750/{name}/{name}_{i + 1}.jpg", 20 * label + i)


def test_eurosat_gives_a_fifth_of_each_class_to_the_test_set(tmp_path: Path) -> None:
    write_eurosat(tmp_path)
    data = load_eurosat(tmp_path)
    assert data.train.targets.bincount().tolist() == [4] * 10 and data.test.targets.bincount().tolist() == [1] * 10
    assert data.train.inputs.shape == (40, 3, 4, 4) and data.class_names == eurosat.CLASSES
    assert torch.equal((data.train.inputs[:, 0, 0, 0] + 2) // 20, data.train.targets)
    assert not torch.equal(load_eurosat(tmp_path, 1).train.inputs, data.train.inputs)
    next((tmp_path / "eurosat/2750/River").glob("*.jpg")).write_bytes(b"no image")
    assert "River_" in (said := refusal(lambda: load_eurosat(tmp_path))) and "is not an image" in said
    for path in (tmp_path / "eurosat/2750/River").iterdir():
        path.unlink()
    assert "River is missing or has no .jpg; set dataset.root" in refusal(lambda: load_eurosat(tmp_path))


def write_views(root: Path, views: int = 12) -> None:
    for name, numbers in (("chair", (1, 2)), ("airplane", (3,))):
        for part in ("train", "test"):
            for number in numbers:
                for view in range(1, views + 1):
                    file = f"{name}/{part}/{name}_{number:04d}.obj.shaded_v{view:03d}.png"
                    picture(root / modelnet40_views.FOLDER / file, 60 * number + view)


def load_views(root: Path, *views: int) -> Data:
    return ModelNet40Views(str(root), list(views), 4, [0.5, 0.4, 0.3], [0.2] * 3).load(0)


def test_the_views_of_an_object_lie_behind_each_other(tmp_path: Path) -> None:
    write_views(tmp_path)
    data = load_views(tmp_path, 0, 9, 3)
    assert data.class_names == ("airplane", "chair") and data.train.targets.tolist() == [0, 1, 1]
    assert data.train.inputs.shape == (3, 9, 4, 4) and data.mean == (0.5, 0.4, 0.3) * 3
    assert data.test.inputs[:, ::3, 0, 0].tolist() == [[181, 190, 184], [61, 70, 64], [121, 130, 124]]


def test_a_missing_view_is_named_with_its_object(tmp_path: Path) -> None:
    assert "is missing or has no folders of classes" in refusal(lambda: load_views(tmp_path, 0))
    write_views(tmp_path)
    (tmp_path / modelnet40_views.FOLDER / "chair/test/chair_0002.obj.shaded_v004.png").unlink()
    said = refusal(lambda: load_views(tmp_path, 0, 3))
    assert "chair/test/chair_0002 has no view 3 (counted from 0), of dataset.views [0, 3]" in said
    assert len(load_views(tmp_path, 0, 6).test.targets) == 3, "other views do"
    assert "has no view 12" in refusal(lambda: load_views(tmp_path, 12))
    for views in ([], [0, 0], [-1]):
        with pytest.raises(ValueError, match=r"^views must be different numbers >= 0, got"):
            load_views(tmp_path, *views)


def write_table(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def write_herigraph(folder: Path, posts: int = 27) -> None:
    """Post i is of class i % 9; every third has no text, and posts of class 8 are not sure."""
    draw = np.random.default_rng(0)
    names = [f"p{i}" for i in range(posts)]
    image = [f"{p}{i}" for _, p, size in herigraph.BLOCKS[1:] for i in range(size)]
    values = 5 + 2 * draw.normal(size=(posts, len(image)))
    write_table(
        folder / "Visual_Features.csv",
        ["ID", "IO_Type", *image],
        [[n, "indoor", *v] for n, v in zip(names, values, strict=True)],
    )
    text = [f"BERT_{i}" for i in range(768)]
    write_table(
        folder / "Textual_Features.csv",
        ["index", "text_bool", "revised_text", *text],
        [[n, i % 3 != 0, "a, b\nc", *draw.normal(size=768)] for i, n in enumerate(names)],
    )
    classes = [f"class {c}" for c in range(9)]
    rows = [[n, *np.eye(9)[i % 9], i % 9 != 8] for i, n in enumerate(names)]
    write_table(folder / "Attribute_Labels.csv", ["ID", *classes, "labelled"], rows)


def load_herigraph(root: Path, cities: list[str], labelled: bool = True) -> Data:
    return HeriGraph(str(root), cities, labelled, 0.34).load(0)


def test_herigraph_is_four_blocks_of_which_some_are_missing(tmp_path: Path) -> None:
    for city in ("here", "there"):
        write_herigraph(tmp_path / "herigraph" / city)
    data = load_herigraph(tmp_path, ["here"])
    train, test = data.train, data.test
    assert train.targets.bincount().tolist() == [2] * 8 and test.targets.bincount().tolist() == [1] * 8
    assert data.class_names == tuple(f"class {c}" for c in range(9)) and train.inputs.shape == (16, 1747)
    assert train.present is not None and test.present is not None
    for part in (train, test):
        assert part.present is not None and part.present[:, 1:].all()
        text = part.inputs[:, :768]
        assert not text[~part.present[:, 0]].any() and text[part.present[:, 0]].abs().sum(1).min() > 0
    assert int((~torch.cat([train.present, test.present])).sum()) == 9, "of the 24 sure posts"
    assert train.inputs[:, 768:].mean(0).abs().max() < 1e-4
    assert train.inputs[train.present[:, 0], :768].mean(0).abs().max() < 1e-4, "of the posts that have the block"
    torch.testing.assert_close(train.inputs[:, 768:].std(0, correction=0), torch.ones(979), rtol=0, atol=1e-3)
    both = load_herigraph(tmp_path, ["here", "there"], labelled=False)
    assert len(both.train.targets) + len(both.test.targets) == 54 and both.train.targets.max() == 8
    kept = train.select(torch.tensor([0, 3]))
    assert kept.present is not None and torch.equal(kept.present, train.present[[0, 3]])


def test_herigraph_files_that_are_not_right_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "herigraph/here"
    said = refusal(lambda: load_herigraph(tmp_path, ["here"]))
    assert said.startswith(f"{folder}/Attribute_Labels.csv is missing; set dataset.root")
    write_herigraph(folder)
    text = folder / "Textual_Features.csv"
    whole = text.read_text()
    text.write_text(whole.replace("BERT_7,", "Bert_7,", 1))
    assert "Textual_Features.csv has 767 columns BERT_*, not 768" in refusal(lambda: load_herigraph(tmp_path, ["here"]))
    text.write_text(whole.replace("text_bool", "text"))
    assert "Textual_Features.csv has no column text_bool" in refusal(lambda: load_herigraph(tmp_path, ["here"]))
    text.write_text(whole.replace("index", "post", 1))
    assert "is not a table whose first column is index" in refusal(lambda: load_herigraph(tmp_path, ["here"]))
    text.write_text(whole)
    labels = folder / "Attribute_Labels.csv"
    labels.write_text(labels.read_text().replace("p1,0.0", "p1,x", 1))
    assert "Attribute_Labels.csv has a value that is no number in the row of p1" in refusal(
        lambda: load_herigraph(tmp_path, ["here"])
    )
    with pytest.raises(ValueError, match=r"^cities must be a list of one or more folders"):
        HeriGraph(str(tmp_path), [], True, 0.2)
