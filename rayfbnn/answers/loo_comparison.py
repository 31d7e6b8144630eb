"""The comparison of models of the same targets by leave-one-out cross-validation, as ArviZ makes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.answers.wording import known
from rayfbnn.reduce.importance import is_unreliable

if TYPE_CHECKING:
    import pandas as pd
    from arviz_stats import ELPDData


@dataclass(frozen=True)
class LooComparison:
    """Several stores compared by leave-one-out cross-validation.

    Attributes
    ----------
    table
        ArviZ's comparison, a row for each store, the best first: elpd, the effective number of parameters p,
        the difference elpd_diff from the best and its standard error dse, and weights for averaging
        predictions (stacking).
    elpds
        ArviZ's ELPDData of each store, by its path.
    """

    table: pd.DataFrame
    elpds: Mapping[str, ELPDData]

    def to_json(self) -> str:
        """Return the table and the results of each store as one JSON object; unknown values are null."""
        rows = json.loads(
            self.table.reset_index(names="store").to_json(orient="records", double_precision=15)
        )
        stores = {name: elpd_dict(elpd) for name, elpd in self.elpds.items()}
        return json.dumps({"comparison": rows, "stores": stores})


def elpd_dict(elpd: ELPDData) -> dict[str, Any]:
    """Return the numbers of a store for JSON: cases, draws, estimates, and the cases with a large k."""
    return {
        "cases": elpd.n_data_points,
        "draws": elpd.n_samples,
        "elpd": known(elpd.elpd),
        "elpd_se": known(elpd.se),
        "p": known(elpd.p),
        "good_k": elpd.good_k,
        "cases_above_good_k": n_unreliable(elpd),
    }


def n_unreliable(elpd: ELPDData) -> int:
    """Return the number of cases whose Pareto k is too large, or unknown, for their density to be trusted."""
    return int(is_unreliable(elpd.pareto_k.values, elpd.good_k).sum())


def compare_elpds(elpds: Mapping[str, ELPDData]) -> LooComparison:
    """Return ArviZ's comparison of stores that `check_same_targets` accepts."""
    import arviz_stats

    statistics: Any = arviz_stats
    with np.errstate(all="ignore"):  # infinite elpds
        return LooComparison(statistics.compare(dict(elpds)), elpds)
