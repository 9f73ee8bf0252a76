"""Fed-Heart-Disease: UCI's four files, FLamby's split and standardisation, faults in one line."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.model_selection import train_test_split

from fedlab_runner.datasets import fed_heart
from fedlab_runner.datasets.examples import Data
from fedlab_runner.datasets.fed_heart import HOSPITALS, FedHeart
from fedlab_runner.utils.errors import UserError
from tests.helpers.heart_files import SIZES, write_heart

LINE = "63.0,1.0,4.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0"


def load(root: Path, seed: int = 0) -> Data:
    return FedHeart(str(root)).load(seed)


def test_each_hospital_is_split_by_class_and_standardised_by_its_own(tmp_path):
    write_heart(tmp_path)
    data = load(tmp_path)
    train, test = data.train, data.test
    assert data.mean is data.std is None and data.class_names == ("healthy", "ill")
    assert train.inputs.shape[1:] == test.inputs.shape[1:] == (13,) and train.inputs.dtype == torch.float32
    for hospital, size in enumerate(SIZES):
        mine, others = train.inputs[train.users == hospital], test.users == hospital
        assert (len(mine), int(others.sum())) == (int(0.66 * size), -int(-0.34 * size // 1)), "FLamby's sizes"
        torch.testing.assert_close(mine.mean(0), torch.zeros(13), atol=1e-5, rtol=0)
        deviations = mine.std(0)
        assert ((deviations - 1).abs().lt(1e-4) | (deviations == 0)).all(), "a constant feature stays zero"
        shares = [float(part.float().mean()) for part in (train.targets[train.users == hospital], test.targets[others])]
        assert abs(shares[0] - shares[1]) < 0.1 or hospital == 2, "by class"
    assert (train.inputs[train.users == 1][:, 3] == 0).all(), "one hospital's cholesterol is constant"


def test_test_examples_are_standardised_by_all_training_examples(tmp_path):
    """One transformation for all hospitals: two sexes among the tested, and two for each hospital in training."""
    write_heart(tmp_path)
    data = load(tmp_path)
    assert len(data.test.inputs[:, 1].unique()) == 2 and len(data.train.inputs[:, 1].unique()) == 8
    ages = torch.stack([data.test.inputs[data.test.users == hospital][:, 0].mean() for hospital in range(4)])
    assert ages.max() - ages.min() > 0.5, "older patients stay older"
    trained, tested, states = [], [], []
    for path in (tmp_path / "fed_heart" / f"processed.{name}.data" for name in HOSPITALS):
        features, ill = fed_heart._read(path)
        by_class = {"stratify": None if "switzerland" in path.name else ill, "random_state": 43}  # as in FLamby
        rows = train_test_split(np.arange(len(ill)), train_size=0.66, test_size=1 - 0.66, **by_class)
        trained.append(features[np.sort(rows[0])])
        tested.append(features[np.sort(rows[1])])
        states += [int(path.read_text().splitlines()[row].rpartition(",")[2]) for row in np.sort(rows[1])]
    pooled, raw = np.concatenate(trained), np.concatenate(tested)
    np.testing.assert_allclose(data.test.inputs, (raw - pooled.mean(0)) / pooled.std(0, ddof=1), atol=1e-5)
    assert data.test.targets.tolist() == [int(state > 0) for state in states] and {1, 2} < set(states)


def test_patients_with_a_missing_value_are_left_out_and_three_columns_dropped(tmp_path):
    write_heart(tmp_path)
    before = load(tmp_path)
    path = tmp_path / "fed_heart/processed.va.data"
    fields = LINE.split(",")
    gaps = [",".join([*fields[:i], "?", *fields[i + 1 :]]) for i in range(10)]
    path.write_text(path.read_text() + "\n".join(gaps) + "\n\n")
    after = load(tmp_path)
    assert all(torch.equal(first, second) for first, second in zip(before.train[:3], after.train[:3], strict=True))
    path.write_text(path.read_text().replace(",7.0,", ",?,"))  # columns 11 to 13 alone have this number
    assert torch.equal(load(tmp_path).train.inputs, before.train.inputs)


def test_categories_are_one_hot_without_the_first(tmp_path):
    write_heart(tmp_path)
    inputs = load(tmp_path).test.inputs
    for columns in (inputs[:, 8:11], inputs[:, 11:13]):
        low = columns.min(0).values
        assert all(len(column.unique()) == 2 for column in columns.T)
        assert ((columns > low).sum(1) <= 1).all() and (columns == low).all(1).any()


def test_the_split_is_the_same_for_all_seeds(tmp_path):
    write_heart(tmp_path)
    assert torch.equal(load(tmp_path, 1).train.inputs, load(tmp_path, 2).train.inputs)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "is missing"),
        ("", "has fewer than 3 patients"),
        ("<html>404</html>", "has a line 1 that is not 14 numbers or ?"),
        (LINE + "\n" + LINE[:-2], "has a line 2 that is not 14 numbers or ?"),
        (LINE + ",1", "has a line 1 that is not 14 numbers or ?"),
        (LINE.replace("145.0", "nan"), "has a line 1 that is not 14 numbers or ?"),
        (LINE.replace("4.0", "5.0", 1), "has 5.0 in column 3 of line 1"),
        (LINE[:-1] + "7", "has no state 0 to 4 at the end of line 1"),
        ("\n".join([LINE] * 2), "has fewer than 3 patients"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(content, reason, tmp_path):
    write_heart(tmp_path)
    path = tmp_path / f"fed_heart/processed.{HOSPITALS[2]}.data"
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(UserError) as caught:
        load(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{path} {reason}") and "\n" not in message
    assert "dataset.root (environment FEDLAB_DATA)" in message
