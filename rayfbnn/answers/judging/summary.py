"""The statistics of quantities, computed from one quantity at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.reduce.effective import MIN_DRAWS, Convergence, convergence

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Summary:
    """What is known of quantities when their values are forgotten.

    table       one row for each quantity: mean, sd, rhat, ess_bulk, ess_tail and mcse of the mean
    not_finite  names of the quantities with values that are not finite
    stuck       the chains in which a quantity never changes, by the name of the quantity
    """

    table: pd.DataFrame
    not_finite: tuple[str, ...]
    stuck: dict[str, list[int]]

    def of(self, names: Sequence[str]) -> Summary:
        """Return what is known of some quantities, in their order."""
        return Summary(
            self.table.loc[list(names)],
            tuple(name for name in names if name in self.not_finite),
            {name: self.stuck[name] for name in names if name in self.stuck},
        )


def summarize(judged: Iterable[tuple[str, Array]]) -> Summary:
    """Return the summary of quantities, given by name and values (n_chains, n_draws)."""
    import pandas as pd

    rows, not_finite, stuck = {}, [], {}
    for name, values in judged:
        is_finite = bool(np.isfinite(values).all())
        rows[name] = _statistics(values, is_finite=is_finite)
        if not is_finite:
            not_finite.append(name)
        with np.errstate(invalid="ignore"):
            constant = np.flatnonzero(np.ptp(values, axis=1) == 0)
        if len(constant):
            stuck[name] = constant.tolist()
    return Summary(pd.DataFrame.from_dict(rows, orient="index"), tuple(not_finite), stuck)


def _statistics(values: Array, *, is_finite: bool) -> dict[str, float]:
    """Return a row of the table; only the mean and sd of values that are too few or never change."""
    with np.errstate(invalid="ignore"):  # values may be infinite
        sd = float(values.std(ddof=1)) if values.size > 1 else math.nan
        row = {"mean": float(values.mean()), "sd": sd}
    is_usable = is_finite and values.shape[1] >= MIN_DRAWS and np.ptp(values) > 0
    unknown = Convergence(math.nan, math.nan, math.nan, math.nan)
    return row | (convergence(values) if is_usable else unknown)._asdict()
