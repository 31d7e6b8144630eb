"""The digest of training cases, computed piece by piece."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from rayfbnn.arrays import Array


class CasesDigest:
    """SHA-256 of names, shape and values in order, independent of the file they came from.

    All inputs must be added before all targets, each (n_cases, ...) in any number of pieces.
    """

    def __init__(self, input_names: Sequence[str], target_names: Sequence[str], n_cases: int) -> None:
        """Begin with the names and the total number of cases."""
        names = {"inputs": list(input_names), "targets": list(target_names), "cases": n_cases}
        self._digest = hashlib.sha256(json.dumps(names, sort_keys=True).encode())

    def add(self, values: Array) -> None:
        """Add the values of some cases, (n, n_inputs) or (n, n_targets) float64."""
        values = np.where(np.isnan(values), np.nan, values + 0.0)  # one NaN of many; + 0.0 turns -0 into 0
        self._digest.update(np.ascontiguousarray(values, dtype="<f8").data)

    def hexdigest(self) -> str:
        """Return the digest of all values added so far, as 64 hexadecimal digits."""
        return self._digest.hexdigest()
