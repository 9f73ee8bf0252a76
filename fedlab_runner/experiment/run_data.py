"""The examples of a run: the data set's, the server's, and the test examples that remain."""

import logging
import re

from fedlab_runner.config.component_faults import faults, model_faults
from fedlab_runner.config.components import Components
from fedlab_runner.config.run_id import SERVER_DATA
from fedlab_runner.core.server_data import ServerData
from fedlab_runner.datasets.checks import loaded
from fedlab_runner.datasets.examples import Data
from fedlab_runner.models.base import Architecture
from fedlab_runner.models.mix import Mix
from fedlab_runner.server_data.checks import reserved
from fedlab_runner.utils.errors import UserError

_log = logging.getLogger("fedlab_runner")


def run_data(c: Components) -> tuple[Data, dict[str, ServerData | None]]:
    """The training and test examples as the model reads them, without those that the server takes; and the server's
    sets of examples by config node. Raises UserError if the config does not fit the data.
    """
    with faults("dataset", c.dataset):
        stored = loaded(c.dataset, c.seed).thinned(c.train_fraction, c.seed)
    with model_faults(c.model, stored):
        data = _fitted(stored, c.model)
    server_data, rest = _server_data(c, data, stored)
    del stored  # frees its memory
    with faults("evaluation", c.evaluation):
        return _tested(c.evaluation.held_out, data, rest, c.seed), server_data


def _fitted(data: Data, model: Architecture | Mix) -> Data:
    """The data in the form that the model reads. A log line says where images lose channels or pixels by it."""
    fitted = data.fit(model.channels, model.image_size)
    before, after = data.train.inputs.shape[1:], fitted.train.inputs.shape[1:]
    if any(new < old for new, old in zip(after, before, strict=True)):
        _log.info(
            "images of %s are converted to %s, as model.channels and model.image_size say (null: no conversion)",
            *("x".join(map(str, shape)) for shape in (before, after)),
        )
    return fitted


def _server_data(c: Components, data: Data, stored: Data) -> tuple[dict[str, ServerData | None], Data]:
    """The server's sets of examples by config node, and the data without the examples taken from it; `stored` is the
    data before `_fitted`. Two sets of out-of-domain images may have images in common.
    """
    found: dict[str, ServerData | None] = {}
    for node in SERVER_DATA:
        source = getattr(c, node)
        try:
            with faults(node, source):
                found[node], data = reserved(source, data, stored, c.seed)
        except UserError as error:  # the source names the usual config node, not this one
            raise UserError(re.sub(r"\bserver_data\b", node, str(error))) from error
    return found, data


def _tested(held_out: int, data: Data, rest: Data, seed: int) -> Data:
    """The rest that the server left of the data, without as many more test examples as `held_out` examples lack."""
    size = len(data.test.targets)
    if held_out >= size:
        raise ValueError(f"held_out must be less than the test set's {size} examples, got {held_out}")
    more = held_out - (size - len(rest.test.targets))
    return rest.hold_out(more, seed)[1] if more > 0 else rest
