"""The verbs that score predictions: predict for new cases, and loo for cases left out; and their tables."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from rayfbnn.data import Source, read_cases
from rayfbnn.errors import ConfigError
from rayfbnn.output.whole_file import whole_file, without_formulas
from rayfbnn.store.storage.places import as_typed
from rayfbnn.verbs.arguments import (
    check_folder,
    check_output,
    check_reducing,
    check_some_draws,
    chosen_draws,
    draws_for_predictions,
    draws_weighed,
    input_files,
    output_path,
    reducing,
    stores_given,
)

if TYPE_CHECKING:
    from arviz_stats import ELPDData

    from rayfbnn.answers.loo import LeftOut, LooComparison
    from rayfbnn.answers.predict import Prediction
    from rayfbnn.draws.view import Draws


_log = logging.getLogger(__name__)


def predict(
    path: str | Path | Sequence[str | Path],
    *,
    data: Source,
    set: Sequence[str] = (),
    out: str | Path | None = None,
    contributions: bool = False,
    draws: int | None = None,
    max_mcse: float = 0.0,
    skip: int = 0,
    last: int | None = None,
    chains: Sequence[int] | None = None,
    workers: int | None = None,
    address: str | None = None,
    device: str = "cpu",
) -> Prediction:
    """Predict the targets of new cases from the draws of one store, or of several of the same posterior.

    For each case there are the mean, median and quantiles of its targets, or their probabilities. Labels and
    counts also have the error rate that the predictions themselves expect. If the file has the targets too,
    there are errors and log probabilities. A warning on standard error says if the chains are too few, or
    disagree too much, for these predictions, or if the predictions do not describe the targets.

    A run that has kept no draw yet is predicted from the states of its latest earlier phase, which are not
    draws from the posterior. A warning says so, and the table and the summary have `early_phase`, the number
    of the phase. This is only possible for a single store.

    Parameters
    ----------
    path
        The store, or several stores to pool.
    data
        The cases to predict: a CSV or Parquet file with the columns of the inputs. From Python also a
        DataFrame (of pandas, Polars or Arrow), an array of the inputs, or a pair (X, y).
    set
        Other keys of [data] for reading the cases than those of the store, as "key.path=value":
        data.unknown=ignore predicts rows with levels that no training case had, and data.separator,
        data.header, data.skip_rows, data.decimal and data.missing_marks say how the file is written.
    out
        File for the table of predictions, .csv or .parquet, one row for each case; replaced if it exists.
    contributions
        Add to the table what each hidden layer, the inputs and the biases contribute to the outputs of the
        networks, as mean and standard deviation over draws. Their columns, such as y_from_h0_mean, are in
        units of the data file for real targets, and on the scale of log odds or logarithms for others.
    draws
        Use only so many draws of all chains and stores together, evenly spaced. The default is all.
    max_mcse
        Use only as many draws as keep the Monte Carlo error of the predictive means at some training cases
        below this share of the predictive standard deviation, such as 0.01. The default of 0 uses all. The
        summary then has `of_draws`, the number there would be.
    skip
        Number of draws to leave out at the start of each chain.
    last
        Use only so many draws at the end of each chain, instead of `skip`.
    chains
        Use only these chains of each store, by their numbers from 0, such as 0,2. From Python a sequence of
        numbers. Leaving out a chain because of its predictions biases the average, unless something is known
        to be wrong with the chain.
    workers
        Number of worker processes on this machine, for many draws and cases. The default is none: this
        process. The predictions are the same to the last bit.
    address
        Address of a Ray cluster to use instead, such as "auto" or "host:port". The stores must then be on
        storage that all nodes share.
    device
        "gpu" computes sums over draws on a GPU. Networks that only array code covers are left to the CPU.
        The last digits differ from those of "cpu".

    Returns
    -------
    Prediction
        The table, a summary of the errors with their standard errors, the stores and draws that were used,
        and the verdict of `diagnose` on predictions, for these cases and from some of the draws. If the cases
        have targets and are not the training cases, `fit` is the verdict on whether their predictive
        distributions describe them. An earlier phase has no verdicts.
    """
    from rayfbnn.answers.judging.fit import verdict_on_fit_at
    from rayfbnn.answers.judging.words import BESIDE
    from rayfbnn.answers.predict import UsedDraws, first_infinity, predict_from_draws, verdict_on_predictions
    from rayfbnn.draws.subsets import check_given_once
    from rayfbnn.run.progress import show_share

    check_reducing(workers, address, device)
    check_some_draws(draws, max_mcse)
    stores = stores_given(path)
    check_given_once([store.path for store in stores])
    if out is not None:
        check_table_path(output_path(out), [path for store in stores for path in input_files(store, data)])
    inputs, targets = read_cases(data, stores[0].spec.for_new_cases(set), stores[0].data)
    of_store = draws_for_predictions if len(stores) == 1 else chosen_draws
    runs = [of_store(store, skip, last, chains) for store in stores]
    weighed_runs = draws_weighed(runs, beside=BESIDE)
    used = _some_draws(weighed_runs, draws, max_mcse)
    advice = "" if used is not weighed_runs else "max_mcse = 0.01 takes only as many draws as are needed"
    with reducing(workers, address, device) as executor, show_share("predict", advice=advice) as on_progress:
        prediction = predict_from_draws(
            used,
            inputs,
            targets,
            contributions=contributions,
            executor=executor,
            on_progress=on_progress,
        )
        if weighed_runs is not runs:
            equal = predict_from_draws(_some_draws(runs, draws, max_mcse), inputs, targets, executor=executor)
            prediction = replace(prediction, equal_weights=equal)
        verdict = verdict_on_predictions(runs, inputs)
        fit = verdict_on_fit_at(weighed_runs, inputs, targets, predictions=verdict, executor=executor)
    if used is not weighed_runs:
        prediction.summary["of_draws"] = sum(run.total for run in weighed_runs)
    # Several weighed stores are a single chain, which has at most all draws of each ladder.
    used_of_each = used if len(used) == len(runs) else used * len(runs)
    stores_used = tuple(
        UsedDraws(
            str(run.path),
            run.n_chains,
            run.n_draws + run.skipped,
            min(some.n_draws, run.n_draws),
            run.skipped,
            None if chains is None else run.chain_numbers,
        )
        for run, some in zip(runs, used_of_each, strict=True)
    )
    prediction = replace(prediction, verdict=verdict, stores=stores_used, fit=fit)
    _warn(prediction, runs[0])
    if out is not None:
        if place := first_infinity(prediction.table):
            _log.warning("%s: row %d: %s is infinite", out, place[0] + 1, place[1])
        write_table(prediction.table, Path(out))
    return prediction


def _warn(prediction: Prediction, run: Draws) -> None:
    """Log a warning for targets without a mean, for predictions that cannot be used, and for a misfit."""
    for name in run.data.log_targets:
        if not run.spec.data_model.has_exponential_moments:
            _log.warning(
                "%s has t noise on a log scale and so no mean: its prediction is %s_median, also in RMSE and"
                " squared errors",
                name,
                name,
            )
    if prediction.verdict is not None and not prediction.verdict.ok:
        _log.warning(
            "%s; what to do: rayfbnn diagnose %s --for predictions",
            prediction.verdict.warning,
            as_typed(run.path),
        )
    if (fit := prediction.fit) is not None and fit.grade == "misfit":
        _log.warning("%s; what to do: %s", fit.warning, fit.advice[0])


def _some_draws(runs: list[Draws], draws: int | None, max_mcse: float) -> list[Draws]:
    """Return the runs with some of their draws, evenly spaced; the runs themselves if all are wanted.

    The errors of independent runs are averaged. Each may therefore be larger by the root of their number.
    """
    if draws is None and max_mcse == 0:
        return runs
    from rayfbnn.answers.predictor import thin
    from rayfbnn.draws.subsets import hold

    total = sum(run.total for run in runs)
    some = []
    for run in runs:
        share = None if draws is None else max(draws * run.total // total, 1)
        if share is not None and share < run.n_chains:
            least = -(-run.n_chains * total // run.total)
            raise ConfigError(f"draws: must be at least {least}, one for each chain, got {draws}")
        chosen = thin(run, draws=share, max_mcse=max_mcse * math.sqrt(len(runs)))
        some.append(hold(run, chosen.numbers))
    return some


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
    from rayfbnn.answers.loo import check_draws, compare_elpds, elpd_data, leave_out
    from rayfbnn.draws.subsets import check_distinct, check_same_targets
    from rayfbnn.run.progress import show_share

    check_reducing(workers, address)
    stores = stores_given(path)
    check_distinct(stores)
    if out is not None:
        check_table_path(output_path(out), [file for store in stores for file in input_files(store)])
    for name in ("arviz_base", "xarray_einstats"):
        if find_spec(name) is None:
            raise ConfigError(f'loo: {name} is not installed; pip install "rayfbnn[loo]"')
    runs = {str(store.path): draws_weighed([chosen_draws(store, skip, last, chains)])[0] for store in stores}
    for run in runs.values():
        check_draws(run)
    check_same_targets(list(runs.values()))
    with reducing(workers, address) as executor:
        left_out = {}
        for name, run in runs.items():  # if it takes long, lines on a terminal say how far it is
            with show_share(name if len(runs) > 1 else "loo") as on_progress:
                left_out[name] = leave_out(run, executor=executor, on_progress=on_progress)
    elpds = {name: elpd_data(of_run) for name, of_run in left_out.items()}
    for name, elpd in elpds.items():
        _warn_of_large_k(name, elpd)
    if out is not None:
        _write_left_out(left_out, Path(out))
    return next(iter(elpds.values())) if isinstance(path, str | Path) else compare_elpds(elpds)


def _warn_of_large_k(name: str, elpd: ELPDData) -> None:
    from rayfbnn.answers.loo import n_unreliable

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


def _write_left_out(left_out: dict[str, LeftOut], path: Path) -> None:
    import pandas as pd

    tables = {name: of_run.table() for name, of_run in left_out.items()}
    if len(tables) > 1:
        for name, table in tables.items():
            table.insert(0, "store", name)
    write_table(pd.concat(tables.values(), ignore_index=True), path)


def check_table_path(path: Path, inputs: list[Path]) -> None:
    """Raise ConfigError unless a table can be written to a path, which must not be one of the inputs."""
    if path.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"out: must end in .csv or .parquet, got {path}")
    if os.path.isdir(path):
        raise ConfigError(f"out: {path} is a folder; give the path of a .csv or .parquet file")
    check_folder(path)
    check_output(path, inputs=inputs)


def write_table(table: Any, path: Path) -> None:
    """Write a table as CSV or Parquet, as the end of the path says."""
    with whole_file(path) as file:
        if path.suffix == ".csv":
            without_formulas(table).to_csv(file, index=False)
        else:
            table.to_parquet(file, index=False)
