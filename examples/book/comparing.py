"""Paired comparisons of rows on the same test cases, and means over the folds of cross-validation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

Results = dict[str, dict[str, Any]]
_PAIRS = [
    *(
        (f"4.2-{s}-6-{p}", f"4.2-{s}-{h}-{p}")
        for s in "ABC"
        for p in ("gaussian", "cauchy")
        for h in (8, 16, 32)
    ),
    *((f"4.6-{k}-24-{h}-no", f"4.6-{k}-24-{h}-ard") for k in (1, 2, 3) for h in (0, 8)),
    ("4.8-none", "4.8-one"),
    ("4.8-one", "4.8-two"),
    ("4.8-two", "4.8-only-two-inputs"),
    ("4.10-none", "4.10-6+6"),
]


def comparisons(results: Results, folder: Path) -> Results:
    """Return lines for the pairs and folds whose rows are all there, by name.

    Each has differences of the measures, first row minus second, with the standard error over paired cases.
    """
    found: Results = {}
    for first, second in _PAIRS:
        if first in results and second in results:
            name = f"{first} - {second}"
            found[name] = {"comparison": name} | _differences(results[first], results[second], folder)
    for kind in ("none", "6+6"):
        folds = [f"4.11-{kind}-{fold}" for fold in range(10)]
        if all(name in results for name in folds):
            name = f"4.11-{kind}"
            found[name] = {"comparison": name} | _over_folds([results[fold] for fold in folds], folder)
    return found


def _cases(line: dict[str, Any], folder: Path) -> dict[str, Any]:
    with np.load(folder / f"{line['row']}-{line['key']}.npz") as arrays:
        return dict(arrays)


def _differences(first: dict[str, Any], second: dict[str, Any], folder: Path) -> dict[str, float]:
    of_first, of_second = _cases(first, folder), _cases(second, folder)
    found = {}
    for name in of_first:
        difference = of_first[name] - of_second[name]
        found[name] = float(difference.mean())
        found[f"{name}_se"] = float(difference.std(ddof=1) / math.sqrt(len(difference)))
    return found


def _over_folds(lines: list[dict[str, Any]], folder: Path) -> dict[str, float]:
    """Return means and standard errors over all cases of all folds."""
    found = {}
    every = [_cases(line, folder) for line in lines]
    for name in every[0]:
        values = np.concatenate([arrays[name] for arrays in every])
        found[name] = float(values.mean())
        found[f"{name}_se"] = float(values.std(ddof=1) / math.sqrt(len(values)))
    return found
