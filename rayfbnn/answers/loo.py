"""Leave-one-out cross-validation by Pareto-smoothed importance sampling, and comparisons by it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.answers.judging.words import as_json
from rayfbnn.arrays import Array
from rayfbnn.data.dataset import order_of_cases
from rayfbnn.draws.view import Draws
from rayfbnn.errors import ConfigError
from rayfbnn.memory import bytes_text, memory_of_machine
from rayfbnn.output.facts import Answer, TableFact
from rayfbnn.reduce.importance import is_unreliable, leave_out_tile, tile_jobs
from rayfbnn.reduce.passes import TaskExecutor, TasksInProcess

if TYPE_CHECKING:
    import pandas as pd
    from arviz_stats import ELPDData


_BYTES_OF_DRAW = 72  # of one case: its density, and eight copies while the weights are smoothed, as measured
LEAST_DRAWS = 25  # arviz-stats fits the largest fifth of the weights, and needs five of them


@dataclass(frozen=True)
class LeftOut:
    """What the draws say about each training case when it is left out, (n_cases,) float64 each.

    The cases are in the order of their table. A case without an observed target has NaN.

    elpd      log density of the case's targets given all other cases, per unit of the data file
    p         log density given all cases minus elpd; the sum over cases is the effective number of parameters
    pareto_k  shape of the distribution of the largest importance weights; infinite if it cannot be estimated,
              and minus infinity if all weights are nearly equal
    n_draws   number of draws of all chains together
    """

    elpd: Array
    p: Array
    pareto_k: Array
    n_draws: int

    def table(self) -> pd.DataFrame:
        """Return a row for each case, with the columns elpd, p and k."""
        import pandas as pd

        return pd.DataFrame({"elpd": self.elpd, "p": self.p, "k": self.pareto_k})


def leave_out(
    run: Draws,
    *,
    executor: TaskExecutor | None = None,
    memory_bytes: float = 256e6,
    on_progress: Callable[[float], None] = lambda share: None,
) -> LeftOut:
    """Leave out each training case in turn, without fitting again.

    Given all other cases, a case's targets have the density 1 / mean(1 / p_d), where p_d is their density in
    draw d: draws of the whole posterior with the weights 1 / p_d are draws of the posterior without the case.
    The largest weights are replaced by quantiles of a Pareto distribution that is fitted to them.
    Vehtari, Gelman and Gabry, Statistics and Computing 27 (2017); Vehtari, Simpson, Gelman, Yao and Gabry,
    JMLR 25 (2024).

    A case is a row of the table, and its density the joint one of its observed targets.

    The cases are processed in tiles, which depend on the run and `memory_bytes` but not on the executor.
    Memory grows with the number of draws only by the needs of one case, some 72 bytes a draw, and with the
    number of cases by the result. The draws are read once if a process can keep them all, else once for each
    tile.

    executor : TaskExecutor     who computes the tiles; None for this process
    memory_bytes : float    approximate memory to use at once in each process, besides the draws that it keeps
    on_progress : callable  called with the share of the cases that are done

    ConfigError if the draws are not from the posterior itself, fewer than LEAST_DRAWS, or too many for the
    memory; StoreError if outputs of networks are not finite.
    """
    check_draws(run)
    data, done = run.data, 0
    jobs = tile_jobs([run], data.standardized_inputs, data.standardized_targets, memory_bytes=memory_bytes)
    results = np.empty((3, data.n_cases))
    for result in (executor or TasksInProcess()).map(leave_out_tile, [run], jobs):
        results[:, done : done + result.shape[1]] = result
        done += result.shape[1]
        on_progress(done / data.n_cases)
    results[0] -= data.target_units.log_jacobian(data.targets).sum(axis=1)
    results[:, np.isnan(data.targets).all(axis=1)] = np.nan
    if run.spec.data.shuffle:  # the cases are in another order in the store
        of_store, results = results, np.empty_like(results)
        results[:, order_of_cases(data.n_cases)] = of_store
    elpd, p, k = results
    return LeftOut(elpd, p, k, run.total)


def elpd_data(left_out: LeftOut) -> ELPDData:
    """Return ArviZ's object of the cases with an observed target.

    `elpd_i` and `pareto_k` have one axis, `case`, with the rows of the cases in their table, counted from 0.
    `log_weights` is None, because the weights of all draws at all cases are never held.
    """
    import xarray as xr
    from arviz_stats import ELPDData, base

    statistics: Any = base.array_stats  # type: ignore[attr-defined]
    case = np.flatnonzero(~np.isnan(left_out.elpd))
    elpd_i, pareto_k = (
        xr.DataArray(values[case], dims="case", coords={"case": case}, name=name)
        for name, values in (("elpd_i", left_out.elpd), ("pareto_k", left_out.pareto_k))
    )
    with np.errstate(invalid="ignore"):  # infinite elpd
        elpd, se, p, _ = map(float, statistics.loo_summary(elpd_i.values, left_out.p[case]))
    good_k = min(1 - 1 / math.log10(left_out.n_draws), 0.7)
    return ELPDData(
        kind="loo",
        elpd=elpd,
        se=se,
        p=p,
        n_samples=left_out.n_draws,
        n_data_points=len(case),
        scale="log",
        warning=bool(is_unreliable(left_out.pareto_k[case], good_k).any()),
        good_k=good_k,
        elpd_i=elpd_i,
        pareto_k=pareto_k,
    )


def check_draws(run: Draws) -> None:
    """Raise ConfigError unless there are enough draws, from the posterior itself, and memory for one case."""
    of_what = {"prior": "the prior", "approximate": "an approximation"}
    if run.kind in of_what:
        raise ConfigError(
            f"path: the draws of {run.path} are from {of_what[run.kind]}, but the importance weights of loo"
            " are for draws from the posterior; give a store that `sample` or `reject` made"
        )
    if run.spec.temperature != 1:
        raise ConfigError(
            f"path: the draws of {run.path} are from the posterior at temperature {run.spec.temperature:g},"
            " but loo needs draws at temperature 1"
        )
    if run.total < LEAST_DRAWS:
        raise ConfigError(
            f"path: {run.path} has {run.total} draws of all chains together, but loo needs at least"
            f" {LEAST_DRAWS}; lengthen the run with `resume`, or skip fewer draws"
        )
    needed, memory = _BYTES_OF_DRAW * run.total, memory_of_machine()
    if needed > memory:
        raise ConfigError(
            f"path: {run.path} has {run.total:,} draws of all chains together; a single case then takes"
            f" {bytes_text(needed)} of memory, and this machine has {bytes_text(memory)}; skip more draws"
        )


@dataclass(frozen=True)
class LooComparison(Answer):
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

    def facts(self) -> list[TableFact]:
        """Return the table."""
        return [TableFact.from_frame(self.table, "store")]

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
        "elpd": as_json(elpd.elpd),
        "elpd_se": as_json(elpd.se),
        "p": as_json(elpd.p),
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
