"""A run folder comes back as PyTorch modules that are what the run has evaluated."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from fedlab_runner import load
from fedlab_runner.experiment.export import save_models
from fedlab_runner.experiment.loading import Loaded
from fedlab_runner.experiment.run import run_in, run_whole
from fedlab_runner.models.logistic import Logistic
from fedlab_runner.models.pretrained import Pretrained
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.run_files import MODEL_FILE
from tests.helpers import pictures
from tests.helpers.composed import composed
from tests.helpers.own_files import write_images

TRAINED = ("rounds=2", "evaluation.every=1", "executor=loop", "threads=1", "server_data=none")
FEDAVG = (*TRAINED, "algorithm=fedavg", "delay=none")


@pytest.fixture(scope="module", autouse=True)
def _without_pictures() -> None:
    patch = pytest.MonkeyPatch()
    pictures.leave_out(patch.setattr)
    yield
    patch.undo()


def accuracy(loaded: Loaded) -> float:
    """As a user would compute it."""
    assert isinstance(loaded.test, torch.utils.data.Dataset)
    hits = [
        (loaded.module(inputs).argmax(1) == targets).double()
        for inputs, targets in DataLoader(loaded.test, batch_size=64)  # type: ignore[arg-type]
    ]
    return float(torch.cat(hits).mean())


@pytest.mark.parametrize(
    "overrides",
    [
        ("algorithm=fedavg", "logger.save_model=true"),
        ("algorithm=fedavg", "delay=none"),
        ("algorithm=fedavg", "delay=none", "model=preact_resnet", "model.widths=[4,6]", "model.image_size=9"),
        ("precision=float64", "algorithm=fedbuff", "delay=constant"),
        ("dataset=synthetic", "dataset.features=7", "algorithm=scaffold", "delay=none"),
    ],
    ids=" ".join,
)
def test_the_module_scores_what_the_run_scored(overrides: tuple[str, ...], tmp_path: Path) -> None:
    run_in(tmp_path, composed(*TRAINED, *overrides))
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    loaded = load(tmp_path)
    assert accuracy(loaded) == pytest.approx(loaded.metrics[-1]["test/accuracy"], abs=1e-9)
    assert [row["round"] for row in loaded.metrics] == [0, 1, 2] and loaded.round == 2
    assert not loaded.module.training and loaded.config.rounds == 2 and len(loaded.class_names) == 10
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("place", ["device", "disk"])
def test_each_client_has_a_module(place: str, tmp_path: Path) -> None:
    ring = ("algorithm=dec_fedavg", f"algorithm.store_on={place}", "topology=ring", "logger.save_model=true")
    outcome = run_whole(tmp_path, composed(*TRAINED, *ring))
    wanted = [family.state_dict(w) for family, w in outcome.simulation.evaluated(outcome.state)]
    for with_file in (True, False):
        if not with_file:
            (tmp_path / MODEL_FILE).unlink()
        loaded = load(tmp_path)
        assert len(loaded.modules) == len(wanted) == 12
        assert loaded.client_module(5) is loaded.modules[5]
        for module, values in zip(loaded.modules, wanted, strict=True):
            assert all(torch.equal(module.state_dict()[name], value) for name, value in values.items())
        with pytest.raises(UserError, match=r"holds 12 models, one of each client: take modules\[<client>\]$"):
            _ = loaded.module
    (rows,) = (tmp_path / "client_state").iterdir()
    rows.chmod(0o400)
    load(tmp_path)
    for harm in (rows.unlink, lambda: rows.write_bytes(b"")):
        harm()
        with pytest.raises(UserError, match=r"lacks a client's rows: [^\n]*rows_\d+_float32\.bin") as caught:
            load(tmp_path)
        assert "\n" not in str(caught.value)


PERSONAL = (
    ("algorithm=fedavg", "home=head", "home.store_on=disk"),
    ("algorithm=ditto", "algorithm.store_on=disk", "delay.std=1", "logger.save_model=true"),
    ("algorithm=perfedavg", "delay=none", "augment=crop_flip"),  # whose views depend on the round
)


@pytest.mark.parametrize("overrides", PERSONAL, ids=" ".join)
def test_a_client_has_the_model_that_it_uses_itself(overrides: tuple[str, ...], tmp_path: Path) -> None:
    outcome = run_whole(tmp_path, composed(*TRAINED, *overrides))
    fed, algorithm = outcome.simulation.fed, outcome.simulation.algorithm
    wanted = algorithm.client_models(outcome.state, fed, np.arange(fed.num_clients))
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    loaded = load(tmp_path)
    for client in (0, 3, 11):
        with torch.no_grad():  # as programs test it
            values = loaded.client_module(client).state_dict()
        expected = fed.family.state_dict(wanted[client])
        for name, value in expected.items():
            torch.testing.assert_close(values[name], value, rtol=0, atol=1e-6)
    assert not torch.equal(wanted, wanted[:1].expand_as(wanted)), "clients differ"
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before
    with pytest.raises(UserError, match=r"has the clients 0 to 11, got 12$"):
        loaded.client_module(12)
    if "logger.save_model=true" in overrides:
        shutil.rmtree(tmp_path / "checkpoints")
        with pytest.raises(UserError, match=r"lacks the checkpoint after round 2, which alone has the clients' own"):
            load(tmp_path).client_module(0)


def test_the_newer_of_file_and_checkpoint_counts(tmp_path: Path) -> None:
    run_in(tmp_path, composed(*FEDAVG, "logger.save_model=true"))
    shutil.copytree(tmp_path, tmp_path / "copy")
    run_in(tmp_path / "copy", composed(*FEDAVG, "rounds=3"))
    longer = load(tmp_path / "copy")
    assert longer.round == 3 and accuracy(longer) == pytest.approx(longer.metrics[-1]["test/accuracy"])


def test_faults_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no run: it has no config\.yaml$"):
        load(tmp_path)
    run_in(tmp_path, composed(*FEDAVG, "rounds=1", "logger.save_model=true"))
    whole = (tmp_path / MODEL_FILE).read_bytes()
    for content in (b"", whole[:-7], b"\xff" * 100, whole.replace(b"models", b"wodels")):
        (tmp_path / MODEL_FILE).write_bytes(content)
        with pytest.raises(UserError, match=r"model\.safetensors cannot be read \(.*\): delete it") as caught:
            load(tmp_path)
        assert "\n" not in str(caught.value)
    (tmp_path / MODEL_FILE).unlink()
    assert load(tmp_path).round == 1  # the checkpoint has them too
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(
        UserError, match=r"has no weights, neither .* give its command again, with logger\.save_model=true$"
    ):
        load(tmp_path)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    outcome = run_whole(tmp_path / "a", composed(*FEDAVG, "rounds=0", "model=mlp"))
    run_in(tmp_path / "b", composed(*FEDAVG, "rounds=0"))
    save_models(tmp_path / "b" / MODEL_FILE, outcome.simulation.evaluated(outcome.state), 0)
    with pytest.raises(UserError, match=r"has weights of another model than its config\.yaml says: .*") as caught:
        load(tmp_path / "b")
    assert "\n" not in str(caught.value)


class Extended(nn.Sequential):
    """A network whose state dict has more than floats: a state of Python and complex numbers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.register_buffer("turns", torch.full((3,), 1j))

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 1}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state == {"version": 1}


def test_what_a_state_dict_has_besides_floats_comes_back_or_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Logistic.build
    monkeypatch.setattr(Logistic, "build", lambda *own: Extended(build(*own)))
    run_in(tmp_path / "a", composed(*FEDAVG, "logger.save_model=true"))
    loaded, names = load(tmp_path / "a"), {"0.1.weight", "0.1.bias", "turns", "_extra_state"}
    assert accuracy(loaded) == pytest.approx(loaded.metrics[-1]["test/accuracy"], abs=1e-9)
    assert set(loaded.module.state_dict()) == names
    begun = Pretrained(1, 8, Logistic(1, 8, False), str(tmp_path / "a" / MODEL_FILE)).build(1, 8, 10)
    assert torch.equal(begun.state_dict()["0.1.weight"], loaded.module.state_dict()["0.1.weight"])
    double = ("precision=float64", "rounds=0")
    with pytest.raises(UserError, match=r"^logger\.save_model must be false for the model's turns of complex128"):
        run_in(tmp_path / "b", composed(*FEDAVG, *double, "logger.save_model=true"))
    run_in(tmp_path / "b", composed(*FEDAVG, *double))
    assert load(tmp_path / "b").module.state_dict()["turns"].dtype == torch.complex128


def test_a_run_whose_first_weights_are_gone_is_loaded_with_its_own(tmp_path: Path) -> None:
    run_in(tmp_path / "first", composed(*FEDAVG, "logger.save_model=true"))
    weights, own = tmp_path / "first" / MODEL_FILE, tmp_path / "second" / MODEL_FILE
    begun = ("model=pretrained", "model@model.base=logistic", f"model.weights={weights}")
    run_in(tmp_path / "second", composed(*FEDAVG, "logger.save_model=true", *begun))
    wanted = load(tmp_path / "second")
    weights.unlink()
    with pytest.raises(UserError, match=r"^model\.weights must be a local .*; load\(folder, \"model\.weights=...\"\)"):
        load(tmp_path / "second")
    assert accuracy(load(tmp_path / "second", f"model.weights={own}")) == accuracy(wanted)


def test_a_key_may_differ_on_this_machine(tmp_path: Path) -> None:
    """The folder is of a machine with other data paths and a GPU."""
    run_in(tmp_path, composed(*FEDAVG, "dataset=synthetic", "rounds=1"))
    path = tmp_path / "config.yaml"
    path.write_text(path.read_text().replace("device: cpu", "device: cuda:7"))
    assert load(tmp_path).round == 1
    fewer = load(tmp_path, "dataset.num_test=77")
    assert len(fewer.test) == 77 and fewer.config.dataset.num_test == 77
    with pytest.raises(UserError, match=r"^dataset\.roott is not a key"):
        load(tmp_path, "dataset.roott=x")


@pytest.mark.parametrize("key", ["dataset.path", "dataset.test_path"])
def test_data_that_lie_elsewhere_are_named_with_their_key(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is of the folder in which the user is, as in a command."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "b.csv"):
        Path(name).write_text("x,y\n" + "1,a\n2,b\n" * 9)
    table = ("dataset=csv", "dataset.path=a.csv", "dataset.test_path=b.csv", "dataset.target=y", "num_clients=2")
    run_in(
        tmp_path / "run", composed(*FEDAVG, *table, "partition=iid", "participation.cohort_size=2", "model=logistic")
    )
    Path("b.csv" if key == "dataset.test_path" else "a.csv").rename("c.csv")
    with pytest.raises(
        UserError, match=rf' is missing; set {key} to .*; load\(folder, "{key}=..."\) takes another one$'
    ):
        load("run")
    assert len(load("run", f"{key}=c.csv").test) == 18


def test_loading_leaves_no_file(tmp_path: Path) -> None:
    """Nor in the cache that the config names, where a user gives none."""
    write_images(tmp_path / "images", "abc", (12, 12, 12))
    own, cache = ("dataset=image_folder", f"dataset.root={tmp_path}/images"), tmp_path / "cache"
    run_in(tmp_path / "run", composed(*FEDAVG, *own, f"dataset.cache={cache}", "num_clients=3", "rounds=0"))
    shutil.rmtree(cache)
    before = sorted(tmp_path.rglob("*"))
    wanted = [inputs for inputs, _ in load(tmp_path / "run").test]
    assert sorted(tmp_path.rglob("*")) == before
    again = [inputs for inputs, _ in load(tmp_path / "run", f"dataset.cache={cache}").test]
    assert cache.exists() and len(again) and all(map(torch.equal, wanted, again))


def test_loading_leaves_torch_as_it_was(tmp_path: Path) -> None:
    run_in(tmp_path, composed(*FEDAVG, "rounds=0"))
    torch.set_num_threads(2)
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    load(tmp_path)
    assert torch.get_num_threads() == 2 and torch.equal(torch.rand(3), wanted)
    torch.set_num_threads(1)


def test_metrics_are_a_frame_in_one_line(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    run_in(tmp_path, composed(*FEDAVG))
    frame = pandas.DataFrame(load(tmp_path).metrics).set_index("round")
    assert list(frame.index) == [0, 1, 2] and 0 < frame["test/accuracy"].iloc[-1] <= 1
