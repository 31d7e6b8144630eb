"""The verbs that take draws out of a store: load, export, open, to_datatree, and function_values."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rayfbnn.data import Source, read_cases
from rayfbnn.errors import ConfigError
from rayfbnn.store.store import Store
from rayfbnn.verbs.arguments import (
    check_choice,
    check_counts,
    check_folder,
    check_output,
    check_thinning,
    chosen_draws,
    draws_for_predictions,
    draws_weighed,
    input_files,
    output_path,
    warn_of_equal_weights,
)

if TYPE_CHECKING:
    import xarray

    from rayfbnn.answers.predictor import Predictor, Thinning
    from rayfbnn.arrays import Array
    from rayfbnn.draws.view import Draws


_MODEL, _TABLES, _GROUPS = ".npz", (".csv", ".parquet"), ".nc"
_MAX_MCSE = 0.05  # of a model

_log = logging.getLogger(__name__)


def load(
    path: str | Path,
    *,
    draws: int | None = None,
    max_mcse: float = 0.05,
    skip: int = 0,
    last: int | None = None,
    chains: Sequence[int] | None = None,
    max_memory: float = 256e6,
    set: Sequence[str] = (),
) -> Predictor:
    """Load draws of a run into memory, as a predictor that answers in milliseconds.

    The predictor takes as few draws as keep the Monte Carlo error small, evenly spaced in every chain. With
    all draws (`max_mcse=0`) its predictions are those of `predict`. For a run that has kept no draw yet, it
    takes all states of the latest earlier phase, with a warning, and its `early_phase` is the number of that
    phase. If phases of ladders remain, they are weighed as in `predict`, and `max_mcse` does not apply.

    Parameters
    ----------
    path
        The store.
    draws, max_mcse
        See `export`.
    skip, last, chains
        See `predict`.
    max_memory
        About how many bytes a prediction may use at once, besides the draws and the table that it returns.
    set
        See `predict`; the predictor then reads all cases in this way.

    Returns
    -------
    Predictor
        Its method `predict` takes an array of inputs or a file.
    """
    from rayfbnn.answers.predictor import Predictor

    check_thinning(draws, max_mcse)
    if not max_memory > 0:
        raise ConfigError(f"max_memory: must be a number of bytes above 0, such as 256e6, got {max_memory}")
    store = Store.open(path)
    spec = store.spec.for_new_cases(set)
    every = draws_for_predictions(store, skip, last, chains)
    (run,) = draws_weighed([every])
    if run.early_phase is not None or run is not every:
        max_mcse = 0  # only draws of the posterior have a Monte Carlo error, and not across phases of ladders
    return Predictor(run, _thinning(run, draws, max_mcse), max_memory=max_memory, spec=spec)


def export(
    path: str | Path,
    *,
    out: str | Path,
    draws: int | None = None,
    max_mcse: float | None = None,
    skip: int = 0,
    last: int | None = None,
    chains: Sequence[int] | None = None,
    variables: str | Sequence[str] = (),
    groups: str | Sequence[str] = (),
) -> Path:
    """Write draws of a run to a file, for prediction by NumPy alone or for other programs.

    The ending of the file chooses what is written:

    - .npz: a model. docs/serving.md has the page of code that predicts from it. It has as few draws as keep
      the Monte Carlo error small, evenly spaced in every chain.
    - .csv, .parquet: a table with a row for each draw. Its columns are chain, draw, each sigma, each weight,
      and each statistic, named as in the store.
    - .nc: the groups for ArviZ in a file of NetCDF, which `arviz.from_netcdf` reads.

    Tables and groups have all draws unless others are chosen. If phases of ladders remain, a model weighs
    them as `predict` does. In tables and groups all ladders count alike, and a warning says so.

    Parameters
    ----------
    path
        The store of the run.
    out
        The file to write, which must end in .npz, .csv, .parquet or .nc; replaced if it exists.
    draws
        Number of draws to take over all chains. The default for a model is as many as `max_mcse` needs.
    max_mcse
        Largest Monte Carlo standard error of a predictive mean, in predictive standard deviations; 0 takes
        all draws. The default is 0.05 for a model.
    skip, last, chains
        See `predict`.
    variables
        The variables of a table, separated by commas: names such as lp or ih0, or patterns such as sigma_*.
        The default is all of them. From Python it may be a list.
    groups
        The groups of a .nc file, separated by commas, as for `to_datatree`. The default is the stored ones.
        From Python it may be a list.

    Returns
    -------
    Path
        The file.
    """
    from rayfbnn.answers.datatree import groups_of_draws, stored_tree
    from rayfbnn.answers.datatree import to_datatree as tree_of
    from rayfbnn.answers.draw_files import export as export_draws
    from rayfbnn.answers.draw_files import variables_of, write_draw_table, write_netcdf
    from rayfbnn.draws.subsets import chosen
    from rayfbnn.draws.view import committed
    from rayfbnn.run.progress import show_share

    out = output_path(out)
    check_thinning(draws, 0 if max_mcse is None else max_mcse)
    check_choice(skip, last, chains)
    _check_export(out, variables=variables, groups=groups)
    store = Store.open(path)
    check_output(out, inputs=input_files(store))
    with show_share("export") as on_progress:
        if out.suffix == _MODEL:
            every = chosen_draws(store, skip, last, chains)
            (run,) = draws_weighed([every])
            if max_mcse is None and run is not every:
                max_mcse = 0  # the Monte Carlo error of weighed phases cannot be estimated
            thinning = _thinning(run, draws, _MAX_MCSE if max_mcse is None else max_mcse)
            export_draws(run, thinning.numbers, out, on_progress)
        else:
            run = chosen(committed(store), skip=skip, last=last, chains=chains)
            warn_of_equal_weights(run)
            numbers = run.skipped + _numbers(run, draws, max_mcse)
            if out.suffix == _GROUPS:
                names = _names(groups) or list(stored_tree(store).children)
                write_netcdf(tree_of(store, names, numbers=numbers, chains=chains), out, on_progress)
            else:
                tree = tree_of(store, groups_of_draws(store), numbers=numbers, chains=chains)
                write_draw_table(variables_of(tree, _names(variables)), out, on_progress)
    return out


def open(path: str | Path) -> xarray.DataTree:
    """Open the draws of a store as an xarray DataTree, which ArviZ takes.

    It has the draws that are committed so far, and the groups stored with them, by ArviZ's names. Parameters
    are read from the disk when they are used. `to_datatree` adds the groups that have to be computed, such as
    the pointwise log likelihoods.

    Parameters
    ----------
    path
        The store.
    """
    from rayfbnn.answers.datatree import stored_tree

    return stored_tree(Store.open(path))


def to_datatree(
    path: str | Path,
    *,
    groups: Sequence[str] | None = None,
    skip: int = 0,
    draws: int | None = None,
    prior: str | Path | None = None,
    max_memory: float = 2e9,
) -> xarray.DataTree:
    """Return the draws of a store as an xarray DataTree with every group that ArviZ can use.

    Stored are posterior, sample_stats, observed_data and constant_data, and, if phases were kept as warm-up,
    warmup_posterior and warmup_sample_stats. Computed are posterior_predictive (targets drawn at the training
    inputs), log_likelihood (of each training case and target) and log_prior. A store of draws from the prior
    has prior, prior_predictive and sample_stats_prior.

    Parameters
    ----------
    path
        The store.
    groups
        Names of the groups to return. The default is all groups of the store.
    skip
        See `predict`.
    draws
        Number of draws of each chain to take, evenly spaced. The default is all of them.
    prior
        A store that `prior` made from the same configuration and data, to add its groups.
    max_memory
        Largest size in bytes of the computed groups together.

    Returns
    -------
    DataTree
        The groups. Targets and their log likelihoods are on the data file's scale. If phases of ladders
        remain, all ladders count alike, and a warning says so.
    """
    from rayfbnn.answers.datatree import to_datatree as tree_of
    from rayfbnn.draws.view import committed

    check_counts(least=0, skip=skip)
    if draws is not None:
        check_counts(least=1, draws=draws)
    if not max_memory > 0:
        raise ConfigError(f"max_memory: must be a number of bytes above 0, such as 2e9, got {max_memory}")
    drawn_from_prior, store = None if prior is None else Store.open(prior), Store.open(path)
    if store.committed_draws:
        warn_of_equal_weights(committed(store))
    return tree_of(
        store,
        groups,
        skip=skip,
        draws=draws,
        prior=drawn_from_prior,
        max_memory=max_memory,
    )


def function_values(
    path: str | Path,
    *,
    data: Source,
    draws: int | None = None,
    skip: int = 0,
    last: int | None = None,
    chains: Sequence[int] | None = None,
) -> xarray.DataArray:
    """Return the function values of each draw's network at some cases, to average or to take quantiles of.

    The values are without the noise of targets: the mean for real targets, the probabilities of labels, the
    log rate of counts, the log hazard of survival times, and the mean and the log precision of
    heteroscedastic targets. Values of real and heteroscedastic targets are on the scale of the data file.

    Parameters
    ----------
    path
        The store, of a run or of draws from the prior.
    data
        The cases: a CSV or Parquet file with the columns of the inputs, a DataFrame, or an array.
    draws
        The most draws of each chain to take, evenly spaced. The default is all of them.
    skip, last, chains
        See `predict`.

    Returns
    -------
    xarray.DataArray
        Dimensions chain, draw, case and function. `values.quantile([0.05, 0.95], dim=("chain", "draw"))`
        gives a band of 90 % around each function.
    """
    from rayfbnn.answers.datatree import labelled_functions
    from rayfbnn.draws.subsets import thinned

    if draws is not None:
        check_counts(least=1, draws=draws)
    store = Store.open(path)
    inputs, _ = read_cases(data, store.spec, store.data)
    run = chosen_draws(store, skip, last, chains)
    return labelled_functions(run if draws is None else thinned(run, draws), inputs)


def _check_export(out: Path, *, variables: str | Sequence[str], groups: str | Sequence[str]) -> None:
    if out.suffix not in (_MODEL, *_TABLES, _GROUPS):
        raise ConfigError(f"out: must end in .npz, .csv, .parquet or .nc, got {out}")
    if os.path.isdir(out):
        raise ConfigError(f"out: {out} is a folder; give the path of a {out.suffix} file")
    if variables and out.suffix not in _TABLES:
        raise ConfigError(f"variables: only tables (.csv, .parquet) have a choice of variables, got {out}")
    if groups and out.suffix != _GROUPS:
        raise ConfigError(f"groups: only a .nc file has groups, got {out}")
    if out.suffix == _GROUPS:
        from rayfbnn.answers.draw_files import check_netcdf

        check_netcdf()
    check_folder(out)


def _names(text: str | Sequence[str]) -> list[str]:
    parts = text.split(",") if isinstance(text, str) else list(text)
    return [part.strip() for part in parts if part.strip()]


def _numbers(run: Draws, draws: int | None, max_mcse: float | None) -> Array:
    """Return the numbers of the draws of each chain for a table or groups, among those of the run."""
    from rayfbnn.draws.subsets import spread

    if max_mcse is not None:
        return _thinning(run, draws, max_mcse).numbers
    if draws is not None and draws < run.n_chains:
        raise ConfigError(f"draws: must be at least {run.n_chains}, one for each chain, got {draws}")
    wanted = run.n_draws if draws is None else min(draws // run.n_chains, run.n_draws)
    return spread(run.n_draws, wanted)


def _thinning(run: Draws, draws: int | None, max_mcse: float) -> Thinning:
    """Return the draws to take, with a warning if even all draws leave an error above max_mcse."""
    from rayfbnn.answers.predictor import thin

    thinning = thin(run, draws=draws, max_mcse=max_mcse)
    if draws is None and max_mcse > 0 and not thinning.mcse_of_all <= max_mcse:
        _log.warning(
            "%s: the Monte Carlo error of the predictive mean is %.3g predictive standard deviations with all"
            " draws, above %.3g; resume with more iterations",
            run.path,
            thinning.mcse_of_all,
            max_mcse,
        )
    return thinning
