"""Holds what a source of server data gives against its contract."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from fedlab_runner.core.server_data import ServerData
from fedlab_runner.datasets.checks import check_labels
from fedlab_runner.datasets.examples import Data
from fedlab_runner.server_data._images import shape_of
from fedlab_runner.server_data.base import ServerDataSource
from fedlab_runner.utils.contract import in_words, require
from fedlab_runner.utils.errors import UserError

MAX_SHARED = 0.01  # of out-of-domain examples that the clients' data may have too


def reserved(source: ServerDataSource, data: Data, stored: Data, seed: int) -> tuple[ServerData | None, Data]:
    """The server's examples, and the remaining data; `stored` is the data before their conversion for the model.

    Raises UserError where the examples break the contract of `ServerDataSource.reserve`, and where out-of-domain
    examples are the clients' own. A source decodes its images straight to the model's form, so that after a conversion
    the same image has other pixels than the clients'. The check compares a sample in the form of `stored` then.
    """
    taken, rest = source.reserve(data, seed)
    if taken is not None:
        like = data.train.inputs
        same = taken.inputs.dtype == like.dtype and taken.inputs.shape[1:] == like.shape[1:]
        require(same, source, "reserve", f"inputs [n, ...] as the clients', {in_words(like)}", taken.inputs)
        check_labels(source, "reserve", "targets", taken.targets, len(taken.inputs), taken.num_classes)
        if not taken.in_domain and like.ndim > 2:  # a table's rows may well be equal
            if taken.sample is None or stored.train.inputs.shape[1:] == like.shape[1:]:
                _check_shared(taken.inputs, data)
            else:
                _check_shared(taken.sample(shape_of(stored)), stored)
        taken = replace(taken, sample=None)
    return taken, rest


def _check_shared(images: Tensor, data: Data) -> None:
    known = {*_digests(data.train.inputs), *_digests(data.test.inputs)}
    shared = sum(each in known for each in _digests(images))
    if shared > MAX_SHARED * len(images):
        raise UserError(
            f"server_data: {shared} of {len(images)} compared examples are training or test examples of the clients, "
            "and the server's must be others: choose another data set or folder"
        )


def _digests(images: Tensor) -> Iterator[bytes]:
    return (hashlib.blake2b(image.contiguous().numpy(), digest_size=16).digest() for image in images)
