"""The verb for leave-one-out cross-validation: loo."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, overload

from rayfbnn.errors import ConfigError
from rayfbnn.store.store import Store
from rayfbnn.verbs.arguments import check_reducing, chosen_draws, draws_weighed, output_path, reducing
from rayfbnn.verbs.tables import check_table_path, input_files, write_table

if TYPE_CHECKING:
    from arviz_stats import ELPDData

    from rayfbnn.answers.loo import LeftOut
    from rayfbnn.answers.loo_comparison import LooComparison
    from rayfbnn.draws.view import Draws
    from rayfbnn.reduce.executors import Executor

_log = logging.getLogger(__name__)


@overload
def loo(  # type: ignore[overload-overlap]  # a str is a sequence too
    path: str | Path,
    *,
    out: str | Path | None = None,
    skip: int = 0,
    last: int | None = None,
    chains: Sequence[int] | None = None,
    workers: int | None = None,
    address: str | None = None,
) -> ELPDData: ...


@overload
def loo(
    path: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    skip: int = 0,
    last: int | None = None,
    chains: Sequence[int] | None = None,
    workers: int | None = None,
    address: str | None = None,
) -> LooComparison: ...


def loo(
    path: str | Path | Sequence[str | Path],
    *,
    out: str | Path | None = None,
    skip: int = 0,
    last: int | None = None,
    chains: Sequence[int] | None = None,
    workers: int | None = None,
    address: str | None = None,
) -> ELPDData | LooComparison:
    """Estimate how well a run would predict each training case without it, or compare several runs by this.

    The result is ArviZ's leave-one-out cross-validation by Pareto-smoothed importance sampling. Nothing is
    fitted again. elpd is the sum over cases of the log density of a case's targets given all other cases;
    higher is better. p is the effective number of parameters. The Pareto k of each case says how reliable its
    density is. A case is a row of the training cases with all its targets.

    Several stores are compared, not pooled. They must have the same targets of the same training cases, and
    may differ in everything else, such as inputs, network and priors.

    A warning on standard error gives the number of cases with a large k, whose densities are unreliable. If
    phases of ladders remain, their draws are weighed as in `predict`, and a warning says so.

    Parameters
    ----------
    path
        The store, or several stores to compare, made by `sample` or `reject`.
    out
        File for a table, .csv or .parquet, one row for each training case in the order of their file, with
        the columns elpd, p and k; replaced if it exists. If there are several stores, their tables follow
        each other, and a first column names the store.
    skip, last, chains
        See `predict`.
    workers
        Number of worker processes on this machine, for many draws and cases. The default is none: this
        process. The results are the same to the last bit.
    address
        See `predict`.

    Returns
    -------
    ELPDData or LooComparison
        ArviZ's object for a single path; its elpd_i and pareto_k are by case, and it has no log_weights. For
        a sequence of paths the comparison, with one such object for each store.
    """
    from rayfbnn.answers.loo import check_draws, elpd_data
    from rayfbnn.answers.loo_comparison import compare_elpds
    from rayfbnn.draws.same_posterior import check_distinct, check_same_targets

    check_reducing(workers, address)
    paths = [path] if isinstance(path, str | Path) else path
    stores = [Store.open(path_of_one) for path_of_one in paths]
    if not stores:
        raise ConfigError("path: no store given; give one or several")
    check_distinct(stores)
    if out is not None:
        check_table_path(output_path(out), [file for store in stores for file in input_files(store)])
    _check_installed()
    runs = {str(store.path): draws_weighed(chosen_draws(store, skip, last, chains)) for store in stores}
    for run in runs.values():
        check_draws(run)
    check_same_targets(list(runs.values()))
    with reducing(workers, address) as executor:
        left_out = {
            name: _left_out(run, name if len(runs) > 1 else "", executor) for name, run in runs.items()
        }
    elpds = {name: elpd_data(of_run) for name, of_run in left_out.items()}
    for name, elpd in elpds.items():
        _warn_of_large_k(name, elpd)
    if out is not None:
        _write(left_out, Path(out))
    return next(iter(elpds.values())) if isinstance(path, str | Path) else compare_elpds(elpds)


def _check_installed() -> None:
    for name in ("arviz_base", "xarray_einstats"):
        if find_spec(name) is None:
            raise ConfigError(f'loo: {name} is not installed; pip install "rayfbnn[loo]"')


def _left_out(run: Draws, name: str, executor: Executor) -> LeftOut:
    """Leave out each case; if it takes long, lines on a terminal say how far it is."""
    from rayfbnn.answers.loo import leave_out
    from rayfbnn.run.progress import show_share

    with show_share(name or "loo") as on_progress:
        return leave_out(run, executor=executor, on_progress=on_progress)


def _warn_of_large_k(name: str, elpd: ELPDData) -> None:
    from rayfbnn.answers.loo_comparison import n_unreliable

    if n := n_unreliable(elpd):
        _log.warning(
            "%s: %d of %d cases have a Pareto k above %.2g%s, so elpd is unreliable; what to do: find them by"
            " column k of the table (out), fit again without them and predict them, or use a model in which"
            " single cases matter less (t noise, narrower priors)",
            name,
            n,
            elpd.n_data_points,
            elpd.good_k,
            "" if elpd.good_k >= 0.7 else f" (the limit for {elpd.n_samples} draws; more draws help)",
        )


def _write(left_out: dict[str, LeftOut], path: Path) -> None:
    """Write the table of each store, with a first column for its name if there are several."""
    import pandas as pd

    tables = {name: of_run.table() for name, of_run in left_out.items()}
    if len(tables) > 1:
        for name, table in tables.items():
            table.insert(0, "store", name)
    write_table(pd.concat(tables.values(), ignore_index=True), path)
