"""FEMNIST and CelebA: LEAF's files as published, users, classes and parts as asked for, faults in one line."""

import json
import string
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from fedlab_runner.datasets.celeba import CelebA
from fedlab_runner.datasets.examples import Data
from fedlab_runner.datasets.femnist import FEMNIST, _decode
from fedlab_runner.partitions.natural import Natural
from fedlab_runner.utils.errors import UserError
from tests.helpers.leaf_files import characters, write_image, write_leaf, write_npz
from tests.helpers.paths import ROOT

FEMNIST_FIELDS: dict[str, Any] = {
    "num_classes": 40,
    "min_samples": 2,
    "num_users": None,
    "test_fraction": 0.1,
    "unseen_users": False,
    "mean": [0.96],
    "std": [0.16],
}
CELEBA_FIELDS: dict[str, Any] = {
    "image_size": 16,
    "min_samples": 5,
    "num_users": None,
    "test_fraction": 0.1,
    "mean": [0.5] * 3,
    "std": [0.2] * 3,
}


def femnist(root: Path, seed: int = 0, **changes: Any) -> Data:
    return FEMNIST(**{"root": str(root), **FEMNIST_FIELDS, **changes}).load(seed)


def celeba(root: Path, seed: int = 0, **changes: Any) -> Data:
    return CelebA(**{"root": str(root), **CELEBA_FIELDS, **changes}).load(seed)


def refusal(load, root: Path, **changes: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(root, **changes)
    message = str(caught.value)
    assert "\n" not in message and "dataset.root (environment FEDLAB_DATA)" in message
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return message


def users(examples: Any) -> dict[int, int]:
    """How many samples each user has."""
    ids, counts = examples.users.unique(return_counts=True)
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


def write_femnist(root: Path, sizes: dict[str, int]) -> None:
    """All data in two files; every user's labels count up from 0, so that a user of 50 has ten classes too many."""
    items = [(name, characters([i % 62 for i in range(n)], mark)) for mark, (name, n) in enumerate(sizes.items())]
    for number, part in enumerate((items[::2], items[1::2])):
        write_leaf(root / f"all_data/all_data_{number}.json", dict(part))


# FEMNIST.


def test_all_data_is_split_user_by_user(tmp_path):
    """Sizes after the filter to 40 classes; users of one sample go; 90 % of each user rounded down, at least one."""
    write_femnist(tmp_path / "femnist", {"f3": 50, "f1": 10, "f0": 1, "f2": 2, "f4": 19})
    data = femnist(tmp_path)
    assert users(data.train) == {1: 9, 2: 1, 3: 36, 4: 17}  # users by name: f0, f1, ...
    assert users(data.test) == {1: 1, 2: 1, 3: 4, 4: 2}
    both = torch.cat([data.train.inputs, data.test.inputs])
    assert both.shape == (71, 1, 28, 28) and both.dtype == torch.uint8 and both.is_contiguous()
    assert users(femnist(tmp_path, test_fraction=0.8).train) == {1: 2, 2: 1, 3: 8, 4: 3}, "0.2 * 10 is less in floats"
    assert len(both[:, 0, 0, :2].unique(dim=0)) == 71, "train and test share no sample"
    assert (both[:, 0, 1] == 0).all() and (both[:, 0, 2] == 255).all()
    grey = np.arange(784) % 256
    assert _decode([np.round(grey / 255, 6).tolist()]).ravel().tolist() == grey.tolist(), "to the nearest"
    for examples in (data.train, data.test):
        assert torch.equal(examples.inputs[:, 0, 0, 1].long() % 62, examples.targets)  # label i belongs to sample i
        assert torch.equal(examples.strata, examples.targets) and examples.targets.dtype == torch.int64
    assert data.class_names == tuple(string.digits + string.ascii_uppercase + "abcd")


def test_the_split_depends_on_the_seed_alone(tmp_path):
    write_femnist(tmp_path / "femnist", {"a": 30, "b": 40})
    first, same, other = femnist(tmp_path, 1), femnist(tmp_path, 1), femnist(tmp_path, 2)
    assert torch.equal(first.test.inputs, same.test.inputs) and torch.equal(first.train.users, same.train.users)
    assert not torch.equal(first.test.inputs, other.test.inputs)


@pytest.mark.parametrize("inner", ["femnist", "femnist/data"])
def test_the_given_parts_are_kept(tmp_path, inner):
    base = tmp_path / inner
    write_leaf(base / "train/a_train_9.json", {"w": characters([0, 1, 45], 7), "v": characters([2], 8)})
    write_leaf(base / "train/b_train_9.json", {"u": characters([50, 51], 9)})
    write_leaf(
        base / "test/a_test_9.json", {"w": characters([3], 7), "v": characters([60], 8), "x": characters([4, 5], 6)}
    )
    write_leaf(base / "all_data/all_data.json", {"ignored": characters([1, 2, 3], 1)})
    data = femnist(tmp_path)
    assert users(data.train) == {2: 2} and users(data.test) == {
        2: 1
    }  # v has one sample left, u none, x no training part
    assert data.train.targets.tolist() == [0, 1] and data.test.targets.tolist() == [3]
    unseen = femnist(tmp_path, unseen_users=True)
    assert users(unseen.train) == {2: 2} and users(unseen.test) == {2: 1, 3: 2}
    whole = femnist(tmp_path, num_classes=62)
    assert users(whole.train) == {0: 2, 1: 1, 2: 3} and users(whole.test) == {1: 1, 2: 1}
    assert len(whole.class_names) == 62
    assert users(femnist(tmp_path, min_samples=1).train) == {1: 1, 2: 2}


def test_the_npz_has_its_own_parts(tmp_path):
    labels, writer, split = [1, 50, 2, 3, 4, 5, 6, 7, 8], [2, 2, 2, 0, 0, 0, 1, 1, 3], [0, 0, 1, 0, 0, 1, 2, 2, 0]
    images = write_npz(tmp_path / "femnist/femnist-leaf-sf05.npz", labels, writer, split)
    data = femnist(tmp_path)
    assert users(data.train) == {0: 2, 2: 1} and users(data.test) == {0: 1, 2: 1}  # writer 3 has one sample
    assert data.train.targets.tolist() == [3, 4, 1] and data.test.targets.tolist() == [5, 2]
    np.testing.assert_array_equal(data.train.inputs[:, 0], images[[3, 4, 0]])
    assert users(femnist(tmp_path, unseen_users=True).test) == {0: 1, 1: 2, 2: 1}


@pytest.mark.parametrize("count", [1, 20])
def test_drawn_users_are_the_clients_and_the_test_set_is_theirs(tmp_path, count):
    write_femnist(tmp_path / "femnist", {f"user {i}": 3 + i % 5 for i in range(30)})
    data, other = femnist(tmp_path, num_users=count), femnist(tmp_path, 1, num_users=count)
    assert len(users(data.train)) == count and users(data.train).keys() == users(data.test).keys()
    assert users(data.train) != users(other.train)
    split = Natural(1).split(data.train.strata.numpy(), data.train.users.numpy(), count, np.random.default_rng(0))
    assert sorted(np.concatenate(split).tolist()) == list(range(len(data.train.targets)))
    assert [len(part) for part in split] == list(users(data.train).values())


def test_a_thousand_of_many_users(tmp_path):
    rng = np.random.default_rng(0)
    writer = np.repeat(np.arange(1300), rng.integers(1, 6, 1300))
    split = rng.integers(0, 2, len(writer))
    write_npz(tmp_path / "femnist/femnist-leaf-sf05.npz", rng.integers(0, 40, len(writer)), writer, split)
    trained = np.bincount(writer[split == 0], minlength=1300)
    eligible = int(((np.bincount(writer) >= 2) & (trained > 0)).sum())
    data = femnist(tmp_path, num_users=eligible)
    parts = Natural(1).split(data.train.strata.numpy(), data.train.users.numpy(), eligible, rng)
    assert len(parts) == eligible and sum(map(len, parts)) == len(data.train.targets)
    with pytest.raises(ValueError, match=rf"^num_users must be null or at most {eligible}, .* got {eligible + 1}$"):
        femnist(tmp_path, num_users=eligible + 1)


def test_missing_femnist(tmp_path):
    assert f"{tmp_path}/femnist/train and all_data hold no .json file" in refusal(femnist, tmp_path)
    write_leaf(tmp_path / "femnist/train/a.json", {"w": characters([0, 1], 7)})
    assert f"{tmp_path}/femnist/test holds no .json file" in refusal(femnist, tmp_path)


GOOD = characters([0, 1], 3)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not a json file of LEAF"),
        (b"<html>404</html>", "is not a json file of LEAF"),
        (b"\xff\xfe\x00", "is not a json file of LEAF"),
        (b"[1, 2]", "no user_data with x and y"),
        (b'{"users": []}', "no user_data with x and y"),
        (b'{"user_data": {"w": {"x": []}}}', "no user_data with x and y"),
        (b'{"user_data": {}}', "holds no samples"),
        ({"w": {"x": GOOD[0], "y": [0]}}, "has a user w with 1 labels for 2 samples"),
        ({"w": {"x": GOOD[0], "y": [0, 62]}}, "has a user w with labels outside 0..61"),
        ({"w": {"x": GOOD[0], "y": [0, -1]}}, "has a user w with labels outside 0..61"),
        ({"w": {"x": GOOD[0], "y": ["a", "b"]}}, "has a user w with 2 labels for 2 samples"),
        ({"w": {"x": [row[:-1] for row in GOOD[0]], "y": [0, 1]}}, "is not a list of images of 784 values"),
        ({"w": {"x": [[2.0] * 784] * 2, "y": [0, 1]}}, "is not a list of images of 784 values"),
        ({"w": {"x": [[float("nan")] * 784] * 2, "y": [0, 1]}}, "is not a list of images of 784 values"),
        ({"w": {"x": [GOOD[0][0], [0.5]], "y": [0, 1]}}, "has a user w with x that"),
        ({"w": {"x": 3, "y": [0, 1]}}, "has a user w with x that"),
    ],
)
def test_damaged_json(tmp_path, content, reason):
    path = tmp_path / "femnist/all_data/all_data_0.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps({"user_data": content}).encode())
    message = refusal(femnist, tmp_path)
    assert reason in message and str(path if reason != "holds no samples" else path.parents[1]) in message


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content["user_data"].pop("v"), "lacks the data of 1 of its 2 users, such as v"),
        (lambda content: content["users"].pop(), "has data of 2 users, but lists 1"),
        (lambda content: content["users"].append("w"), "has data of 2 users, but lists 3"),
        (lambda content: content.update(users="wv"), "has users that are not a list of names"),
        (lambda content: content["num_samples"].pop(), "has no num_samples for each of its 2 users"),
        (lambda content: content.update(num_samples=[2, 3]), "has 2 samples of the user v, but lists 3"),
        (lambda content: content["user_data"].update(v={"x": [], "y": []}), "has 0 samples of the user v, but lists 2"),
    ],
)
def test_a_json_that_is_unlike_its_own_lists(tmp_path, change, reason):
    path = tmp_path / "femnist/all_data/all_data_0.json"
    write_leaf(path, {"w": GOOD, "v": GOOD})
    assert len(femnist(tmp_path).train.targets) == 2
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    message = refusal(femnist, tmp_path)
    assert reason in message and str(path) in message


def test_a_json_that_is_there_twice(tmp_path):
    for name in ("all_data_0.json", "all_data_0 (1).json"):
        write_leaf(tmp_path / "femnist/all_data" / name, {"w": GOOD})
    assert "all_data_0.json has the user w, whom all_data_0 (1).json has too" in refusal(femnist, tmp_path)


def test_a_json_elsewhere_does_not_hide_the_npz(tmp_path):
    path = tmp_path / "femnist/femnist-leaf-sf05.npz"
    write_npz(path, [0, 1, 2, 3], [0, 0, 1, 1], [0, 1, 0, 1])
    (path.parent / "notes").mkdir()
    (path.parent / "notes/about.json").write_text("{}")
    assert len(femnist(tmp_path).train.targets) == 2


def test_damaged_npz(tmp_path):
    path = tmp_path / "femnist/femnist-leaf-sf05.npz"
    write_npz(path, [0, 1, 2, 3], [0, 0, 1, 1], [0, 1, 0, 1])
    with zipfile.ZipFile(path.with_name("text.npz"), "w") as archive:
        for name in ("images", "labels", "writer", "split"):
            archive.writestr(f"{name}.npy", b"hello")
    path.with_name("text.npz").replace(path)
    assert f"{path} is damaged (images is no array of numpy)" in refusal(femnist, tmp_path)
    write_npz(path, [0, 1, 2, 3], [0, 0, 1, 1], [0, 1, 0, 1])
    good, arrays = path.read_bytes(), dict(np.load(path))
    flipped = bytearray(good)
    flipped[200] ^= 255
    for content in (b"", b"<html>", good[:-200], good[:500], bytes(flipped)):
        path.write_bytes(content)
        message = refusal(femnist, tmp_path)
        assert f"{path} is damaged (" in message
    for name, array, reason in (
        ("images", arrays["images"][:, :27], "no array images of n 28x28"),
        ("images", arrays["images"].astype(float), "no array images of n 28x28"),
        ("labels", arrays["labels"][:3], "no array labels of 4 whole numbers below 62"),
        ("labels", arrays["labels"] + 60, "no array labels"),
        ("writer", arrays["writer"] / 2, "no array writer"),
        ("split", arrays["split"] + 2, "no array split of 4 whole numbers below 3"),
        ("writer", None, "is damaged ("),
        ("labels", np.array([{}] * 4), "is damaged ("),  # a pickle, which is not opened
    ):
        changed = {**arrays, name: array}
        np.savez(path, **{key: value for key, value in changed.items() if value is not None})
        message = refusal(femnist, tmp_path)
        assert str(path) in message and reason in message


def test_the_real_npz():
    """Where FEDLAB_DATA (or data/) has LEAF's 5 % sample: its known counts, and the mean and std in the YAML."""
    cfg = OmegaConf.load(ROOT / "conf/dataset/femnist.yaml")
    fields = {key: value for key, value in OmegaConf.to_container(cfg, resolve=True).items() if key != "_target_"}
    try:
        data = FEMNIST(**fields).load(0)
    except UserError as error:
        if "hold no .json file" not in str(error):  # files that are there and refused are a failure
            raise
        pytest.skip(str(error))
    if len(users(data.train)) != 105:
        pytest.skip("the files are another sample of FEMNIST, whose mean and std differ from the YAML's")
    pixels = data.train.inputs.double() / 255
    assert data.mean == pytest.approx([pixels.mean().item()], abs=1e-4)
    assert data.std == pytest.approx([pixels.std().item()], abs=1e-4)
    assert pixels[:, :, 0].mean() > 0.95, "black on white"
    whole = FEMNIST(**{**fields, "num_classes": 62}).load(0)
    assert (len(whole.train.targets), len(whole.test.targets)) == (14_708, 1_685)
    assert len(FEMNIST(**{**fields, "num_classes": 62, "unseen_users": True}).load(0).test.targets) == 1_685 + 2_402
    assert set(data.train.targets.tolist()) == set(range(40)) and set(users(data.test)) <= set(users(data.train))


# CelebA.


def write_celeba(base: Path, images: str, sizes: dict[str, int]) -> None:
    """Photograph i has the colour (i, 200, 100) and smiles if i is even."""
    i, people = 0, {}
    for name, n in sizes.items():
        people[name] = ([f"{j:06}.jpg" for j in range(i, i + n)], [int(j % 2 == 0) for j in range(i, i + n)])
        i += n
    for j in range(i):
        write_image(base / images / f"{j:06}.jpg", (j, 200, 100))
    write_leaf(base / "data/all_data/all_data.json", people)


@pytest.mark.parametrize("images", ["data/raw/img_align_celeba", "raw/img_align_celeba", "img_align_celeba"])
def test_celeba(tmp_path, images):
    write_celeba(tmp_path / "celeba", images, {"30": 20, "4": 4, "12": 5})
    data = celeba(tmp_path)
    assert users(data.train) == {0: 4, 1: 18} and users(data.test) == {0: 1, 1: 2}  # names sort as text: 12, 30, 4
    both = torch.cat([data.train.inputs, data.test.inputs])
    assert both.shape == (25, 3, 16, 16) and both.dtype == torch.uint8
    reds = both[:, 0, 8, 8].long()
    numbers = [*range(20), *range(24, 29)]
    assert sorted(reds.tolist()) == pytest.approx(numbers, abs=2)  # JPEG
    for examples in (data.train, data.test):
        assert set(examples.targets.tolist()) <= {0, 1} and torch.equal(examples.strata, examples.targets)
        assert (examples.inputs[:, 1].float() - 200).abs().max() <= 3
    assert data.class_names == ("not smiling", "smiling") and data.train.targets.bincount().min() > 3


def test_only_the_photographs_of_drawn_identities_are_read(tmp_path):
    write_celeba(tmp_path / "celeba", "img_align_celeba", {f"{i}": 6 for i in range(8)})
    data = celeba(tmp_path, num_users=3)
    assert len(users(data.train)) == 3 == len(users(data.test))
    (chosen,) = [int(name) for name in users(celeba(tmp_path, num_users=1).train)]
    for j in range(48):
        if j // 6 != chosen:
            (tmp_path / f"celeba/img_align_celeba/{j:06}.jpg").unlink()
    assert len(celeba(tmp_path, num_users=1).train.targets) == 5


def test_smiles_belong_to_their_photographs(tmp_path):
    base = tmp_path / "celeba"
    for name, red in (("a.jpg", 250), ("b.jpg", 10)):
        write_image(base / "img_align_celeba" / name, (red, 0, 0))
    for part in ("train", "test"):
        write_leaf(base / f"{part}/{part}.json", {"7": (["a.jpg", "b.jpg", "a.jpg"], [1, 0, 1])})
    for examples in (celeba(tmp_path).train, celeba(tmp_path).test):
        assert ((examples.inputs[:, 0, 0, 0] > 128).long() == examples.targets).all() and len(examples.targets) == 3


def test_missing_and_damaged_celeba(tmp_path):
    assert "celeba/train and all_data hold no .json file" in refusal(celeba, tmp_path)
    base = tmp_path / "celeba"
    write_leaf(base / "all_data/all_data.json", {"7": ([f"{j}.jpg" for j in range(5)], [0, 1, 0, 1, 1])})
    assert f"{base}/img_align_celeba is missing" in refusal(celeba, tmp_path)
    for j in range(5):
        write_image(base / f"img_align_celeba/{j}.jpg", (j, 0, 0))
    assert len(celeba(tmp_path).train.targets) == 4
    photograph = base / "img_align_celeba/3.jpg"
    good = photograph.read_bytes()
    for content in (b"", b"<html>", good[: len(good) // 2]):
        photograph.write_bytes(content)
        assert f"{photograph} is not an image that can be read (" in refusal(celeba, tmp_path)
    photograph.unlink()
    assert f"{photograph} is missing" in refusal(celeba, tmp_path)
    for names in (["../img_align_celeba/1.jpg"] * 5, [1] * 5, [""] * 5):
        write_leaf(base / "all_data/all_data.json", {"7": (names, [0, 1, 0, 1, 1])})
        assert "has a user 7 with x that is not a list of file names" in refusal(celeba, tmp_path)
    write_leaf(base / "all_data/all_data.json", {"7": ([f"{j}.jpg" for j in range(5)], [0, 2, 0, 1, 1])})
    assert "labels outside 0..1" in refusal(celeba, tmp_path)


# Fields.


@pytest.mark.parametrize("load", [femnist, celeba])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_samples": 0}, "min_samples must be >= 1, got 0"),
        ({"num_users": 0}, "num_users must be >= 1, got 0"),
        ({"test_fraction": 0.0}, r"test_fraction must be in \(0, 1\), got 0.0"),
        ({"test_fraction": 1.0}, r"test_fraction must be in \(0, 1\), got 1.0"),
    ],
)
def test_fields_out_of_range(load, changes, message, tmp_path):
    with pytest.raises(ValueError, match=f"^{message}$"):
        load(tmp_path, **changes)


def test_more_fields_out_of_range(tmp_path):
    with pytest.raises(ValueError, match=r"^num_classes must be in \[2, 62\], got 63$"):
        femnist(tmp_path, num_classes=63)
    with pytest.raises(ValueError, match=r"^image_size must be >= 1, got 0$"):
        celeba(tmp_path, image_size=0)
