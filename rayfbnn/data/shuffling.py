"""The random order of the training cases, which makes parts of them similar."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.dataset import Dataset
from rayfbnn.streams import SHARED, Purpose, Streams


@lru_cache(maxsize=1)
def order_of_cases(n_cases: int) -> Array:
    """Return each case's row in the table, counted from 0: a random permutation, (n_cases,) int64.

    The order depends on the number of cases alone, so runs with the same cases and other seeds have the same
    order. The array is read-only, because it is cached for the next call.
    """
    streams = Streams(0, np.array([SHARED], dtype=np.uint64))
    order: Array = streams.permutation(n_cases, Purpose.SHUFFLE)[0]
    order.flags.writeable = False
    return order


def shuffled(dataset: Dataset) -> Dataset:
    """Return the cases of a table in the order of `order_of_cases`."""
    return _taken(dataset, order_of_cases(dataset.n_cases))


def unshuffled(dataset: Dataset) -> Dataset:
    """Return shuffled cases in the original order of their table."""
    return _taken(dataset, np.argsort(order_of_cases(dataset.n_cases)))


def _taken(dataset: Dataset, rows: Array) -> Dataset:
    return replace(dataset, inputs=dataset.inputs[rows], targets=dataset.targets[rows])
