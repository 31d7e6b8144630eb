"""The random order of the training cases, which makes parts of them alike."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.dataset import Dataset
from rayfbnn.streams import SHARED, Purpose, Streams


@lru_cache(maxsize=1)
def order_of_cases(n_cases: int) -> Array:
    """Return the row of the table that each case is, counted from 0: a random permutation, (n_cases,) int64.

    It is a function of the number of cases alone, so that runs of the same cases with other seeds have them
    in the same order. The array cannot be written to, because it is kept for the next call.
    """
    streams = Streams(0, np.array([SHARED], dtype=np.uint64))
    order: Array = streams.permutation(n_cases, Purpose.SHUFFLE)[0]
    order.flags.writeable = False
    return order


def shuffled(dataset: Dataset) -> Dataset:
    """Return the cases of a table in the order of `order_of_cases`."""
    return _taken(dataset, order_of_cases(dataset.n_cases))


def unshuffled(dataset: Dataset) -> Dataset:
    """Return shuffled cases in the order of their table."""
    return _taken(dataset, np.argsort(order_of_cases(dataset.n_cases)))


def _taken(dataset: Dataset, rows: Array) -> Dataset:
    return replace(dataset, inputs=dataset.inputs[rows], targets=dataset.targets[rows])
