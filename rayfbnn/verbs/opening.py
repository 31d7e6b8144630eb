"""The verbs that give the draws of a store to ArviZ: open and to_datatree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rayfbnn.errors import ConfigError
from rayfbnn.store.store import Store
from rayfbnn.verbs.arguments import check_counts, warn_of_equal_weights

if TYPE_CHECKING:
    import xarray


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
    from rayfbnn.answers.arviz.tree import stored_tree

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
    from rayfbnn.answers.arviz.tree import to_datatree as tree_of
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
