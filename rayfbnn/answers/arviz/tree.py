"""The groups of a store as one xarray DataTree, read from disk or computed on request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.arviz import computed
from rayfbnn.answers.arviz.computed import sample_stats
from rayfbnn.arrays import Array
from rayfbnn.draws.held import hold
from rayfbnn.draws.same_posterior import check_same_posterior
from rayfbnn.draws.subsets import chosen, spread
from rayfbnn.draws.view import Draws, committed
from rayfbnn.errors import ConfigError
from rayfbnn.numerals import compared

if TYPE_CHECKING:
    import xarray as xr

    from rayfbnn.store.store import Store

_COMPUTED = {
    "posterior_predictive": computed.posterior_predictive,
    "log_likelihood": computed.log_likelihood,
    "log_prior": computed.log_prior,
}
_OF_PRIOR = {"posterior": "prior", "sample_stats": "sample_stats_prior"}  # names for draws from the prior


def stored_tree(store: Store) -> xr.DataTree:
    """Return the stored groups by ArviZ's names; parameters and data are read when they are used."""
    import xarray as xr

    whole = store.datatree()
    parts: dict[str, xr.Dataset] = {}
    for name, node in whole.children.items():
        part = node.to_dataset()
        if name.endswith("sample_stats"):
            part = sample_stats(store, part, is_warmup=name.startswith("warmup"))
        parts[_OF_PRIOR.get(name, name) if store.kind == "prior" else name] = part
    return xr.DataTree.from_dict(parts, name=whole.name)


def groups_of_draws(store: Store) -> list[str]:
    """Return the names of the groups with the parameters of each draw and with its statistics."""
    return list(_OF_PRIOR.values() if store.kind == "prior" else _OF_PRIOR)


def to_datatree(
    store: Store,
    groups: Sequence[str] | None = None,
    *,
    skip: int = 0,
    draws: int | None = None,
    prior: Store | None = None,
    max_memory: float = 2e9,
    numbers: Array | None = None,
    chains: Sequence[int] | None = None,
) -> xr.DataTree:
    """Return the requested groups, or all of them; see `rayfbnn.to_datatree`.

    numbers  increasing numbers of the draws of each chain, instead of `skip` and `draws`
    chains   numbers of the chains; None for all
    """
    import xarray as xr

    run = chosen(committed(store), chains=chains)
    numbers = chosen_draws(run, skip, draws) if numbers is None else numbers
    tree = stored_tree(store)
    stored = {
        name: _some(name, node.to_dataset(), numbers, run.chain_numbers)
        for name, node in tree.children.items()
    }
    if prior is not None:
        check_prior(run, committed(prior))
        of_prior = stored_tree(prior).children.items()
        stored |= {name: node.to_dataset() for name, node in of_prior if "prior" in name}
    groups = _chosen_groups(store, list(stored), groups)
    large = [name for name in groups if name in _COMPUTED]
    check_memory(run, [name for name in large if name != "log_prior"], len(numbers), max_memory)
    source = hold(run, numbers) if large and len(numbers) < run.n_draws else run
    parts = {name: _COMPUTED[name](source, numbers) if name in _COMPUTED else stored[name] for name in groups}
    return xr.DataTree.from_dict(parts, name=tree.name)


def _some(name: str, group: xr.Dataset, numbers: Array, chains: Sequence[int]) -> xr.Dataset:
    """Return the chosen chains and draws of a stored group; the warm-up keeps all its draws."""
    group = group.isel(chain=list(chains), missing_dims="ignore")
    if name.startswith("warmup_"):
        return group
    return group.isel(draw=numbers, missing_dims="ignore")


def check_prior(run: Draws, prior: Draws) -> None:
    """Raise an error unless `prior` has draws from the prior, and `run` draws from its posterior."""
    if run.kind == "prior" or prior.kind != "prior":
        raise ConfigError(
            "prior: expected a store made by `rayfbnn prior`; the first argument must be a run; got"
            f" {prior.path} ({prior.kind}) as prior and {run.path} ({run.kind}) as first argument"
        )
    check_same_posterior([run, prior], is_prior_allowed=True)


def _chosen_groups(store: Store, stored: list[str], groups: Sequence[str] | None) -> list[str]:
    """Return the requested groups in ArviZ's order; raise ConfigError for a group that does not exist."""
    is_tempered = store.spec.temperature != 1
    possible = list(stored)
    if store.kind != "prior":
        possible += [name for name in _COMPUTED if not (is_tempered and name.startswith("log_"))]
    if groups is None:
        return possible
    if isinstance(groups, str):
        groups = [groups]
    for name in groups:
        if is_tempered and name in ("log_likelihood", "log_prior"):
            raise ConfigError(
                f"groups: {name} is not available at temperature {store.spec.temperature:g}, because ArviZ"
                " would take it for that of draws from the posterior itself; leave it out"
            )
        if name not in possible:
            raise ConfigError(f"groups: {store.path} has no group {name}; it has {', '.join(possible)}")
    return [name for name in possible if name in groups]


def chosen_draws(run: Draws, skip: int, draws: int | None) -> Array:
    """Return the numbers of the chosen draws of each chain, increasing."""
    n_draws = run.n_draws
    if skip >= n_draws:
        raise ConfigError(f"skip: must be below {n_draws}, the draws per chain in {run.path}, got {skip}")
    n_left = n_draws - skip
    if draws is None or draws >= n_left:
        return np.arange(skip, n_draws)
    return skip + spread(n_left, draws)


def check_memory(run: Draws, groups: Sequence[str], n_draws: int, max_memory: float) -> None:
    """Raise ConfigError if the groups with a value for each draw, case and target take too much memory."""
    needed = len(groups) * computed.computed_bytes(run, n_draws)
    if needed <= max_memory:
        return
    enough = int(n_draws * max_memory / needed)
    fewer = f"take fewer draws (draws = {enough}), " if enough else ""
    (gigabytes,), most = compared([needed / 1e9], max_memory / 1e9, ".3g", ".3g")
    raise ConfigError(
        f"max_memory: {' and '.join(groups)} of {run.n_chains} chains of {n_draws} draws at"
        f" {run.data.n_cases} cases take {gigabytes} GB, above {most} GB;"
        f" {fewer}request other groups, or raise max_memory"
    )
