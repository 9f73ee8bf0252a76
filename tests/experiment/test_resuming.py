"""What a continued run must have in common with its beginning."""

from pathlib import Path

import pytest

from fedlab_runner.experiment.run import run_in
from fedlab_runner.utils.errors import UserError
from tests.helpers.composed import composed

SMALL = ("dataset=synthetic", "dataset.num_train=60", "dataset.num_test=10", "num_clients=4", "executor=loop")


@pytest.mark.parametrize(
    ("choices", "key", "first", "other"),
    [
        (("algorithm=fedbuff", "delay=from_file"), "delay.path", "0\n1\n2\n0\n", "0\n1\n2\n1\n"),
        (("algorithm=dec_fedavg", "topology=edge_list"), "topology.path", "0 1\n1 2\n2 3\n", "0 1\n1 2\n1 3\n"),
    ],
)
def test_a_run_does_not_go_on_with_other_delays_or_another_graph(
    choices: tuple[str, ...], key: str, first: str, other: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "given.txt"

    def run(rounds: int, text: str, *overrides: str) -> None:
        file.write_text(text)
        run_in(tmp_path / "run", composed(*SMALL, *choices, f"{key}={file}", f"rounds={rounds}", *overrides))

    run(1, first)
    run(2, f"# the same\n{first}")
    with pytest.raises(
        UserError, match=r"^the examples, .* delays, or their links, are not those that the run began"
    ) as error:
        run(3, other)
    assert key in str(error.value) and "\n" not in str(error.value)
    run(3, other, "checkpoint.same_data=false")
    assert "the run continues with these" in caplog.text
