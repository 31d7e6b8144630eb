"""The latest results of a function of one array, so that updates of few chains need not repeat it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from rayfbnn.arrays import Array

_MOST_BYTES = 2**16  # of an array; the function of a larger one takes much longer than the calls around it
T = TypeVar("T")


class Remembered(Generic[T]):
    """The results for the latest small arrays on the host, found by their contents."""

    def __init__(self, n: int) -> None:
        """Remember the results for the last `n` different arrays."""
        self._n = n
        self._results: dict[tuple[int, bytes], T] = {}

    def get(self, array: Array, compute: Callable[[Array], T]) -> T:
        """Return compute(array), computed now or before. The caller must not change it.

        The function must be the same in every call, and all arrays must have one dtype and as many columns.
        """
        if type(array) is not np.ndarray or array.nbytes > _MOST_BYTES:
            return compute(array)
        key = len(array), array.tobytes()
        result = self._results.pop(key, None)
        if result is None:
            result = compute(array)
            if len(self._results) == self._n:
                del self._results[next(iter(self._results))]
        self._results[key] = result
        return result
