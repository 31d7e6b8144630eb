"""The digest of training cases, which may be read and added piece by piece."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from rayfbnn.arrays import Array


class CasesDigest:
    """SHA-256 of what cases are: names, shape and values in order, not of the file they came from.

    All inputs are added before all targets, each (n_cases, ...) in any number of pieces.
    """

    def __init__(self, input_names: Sequence[str], target_names: Sequence[str], n_cases: int) -> None:
        """Begin with the names, and with the number of the cases to come."""
        names = {"inputs": list(input_names), "targets": list(target_names), "cases": n_cases}
        self._digest = hashlib.sha256(json.dumps(names, sort_keys=True).encode())

    def add(self, values: Array) -> None:
        """Add the values of some cases, (n, n_inputs) or (n, n_targets) float64."""
        values = np.where(np.isnan(values), np.nan, values + 0.0)  # one NaN of many; + 0.0: -0 becomes 0
        self._digest.update(np.ascontiguousarray(values, dtype="<f8").data)

    def hexdigest(self) -> str:
        """Return the digest of all that was added, 64 hexadecimal digits."""
        return self._digest.hexdigest()
