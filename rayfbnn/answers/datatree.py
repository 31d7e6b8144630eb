"""The groups of a store as one xarray DataTree, read from disk or computed on request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from rayfbnn.arrays import Array
from rayfbnn.draws.outputs import activation_bytes, output_blocks
from rayfbnn.draws.quantities import functions_at
from rayfbnn.draws.subsets import check_same_posterior, chosen, hold, spread
from rayfbnn.draws.view import Draws, committed
from rayfbnn.errors import ConfigError
from rayfbnn.mcmc.operation import total_steps
from rayfbnn.model import prior
from rayfbnn.numerals import compared
from rayfbnn.store.store import stepsizes_of_draws
from rayfbnn.streams import Streams

if TYPE_CHECKING:
    from rayfbnn.store.store import Store


_OF_PRIOR = {"posterior": "prior", "sample_stats": "sample_stats_prior"}  # names for draws from the prior


def stored_tree(store: Store) -> xr.DataTree:
    """Return the stored groups by ArviZ's names; parameters and data are read when they are used."""
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
    needed = len(groups) * 8 * run.n_chains * n_draws * run.data.n_cases * run.data.n_targets
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


_BLOCK_BYTES = 64e6
_LEADING = ("chain", "draw")


def log_likelihood(run: Draws, numbers: Array) -> xr.Dataset:
    """Return the log density of each target of each training case in every draw, as `targets`.

    It is on the data file's scale, (chain, draw, case, target) float64. If targets are missing, the last two
    axes become one, `observation`, over the observed targets, each with its case and target.
    """
    data, model = run.data, run.spec.data_model
    targets, log_jacobian = data.standardized_targets, data.target_units.log_jacobian(data.targets)
    values = np.empty((run.n_chains, run.n_draws, data.n_cases, data.n_targets))
    for place, outputs, noise, _ in _each_draw(run, numbers):
        density = model.log_density_by_target(outputs, targets[place[-1]], noise)
        values[place] = density.swapaxes(1, 2) - log_jacobian[place[-1]]
    coordinates = {"target": list(data.target_names), **_coordinates(run, numbers)}
    pointwise = xr.Dataset({"targets": ((*_LEADING, "case", "target"), values)}, coordinates)
    is_observed = ~np.isnan(data.targets)
    if is_observed.all():
        return pointwise
    case, target = np.nonzero(is_observed)
    names = np.array(data.target_names, dtype=object)[target]
    observed = values[:, :, case, target]
    coordinates = {"case": ("observation", case), "target": ("observation", names)}
    coordinates |= _coordinates(run, numbers)
    return xr.Dataset({"targets": ((*_LEADING, "observation"), observed)}, coordinates)


def posterior_predictive(run: Draws, numbers: Array) -> xr.Dataset:
    """Return targets drawn from the model at the training inputs in every draw, noise included, as `targets`.

    They are as in the data file, (chain, draw, case, target) float64; survival times are never censored. They
    depend only on the run's seed, the chain, and the number of the draw.
    """
    data, model = run.data, run.spec.data_model
    values = np.empty((run.n_chains, len(numbers), data.n_cases, data.n_targets))
    for place, outputs, noise, streams in _each_draw(run, numbers, all_cases=True):
        flat = outputs.reshape(len(outputs), 1, -1) if model.n_cells > 1 else outputs.swapaxes(1, 2)
        drawn = model.draw(flat.astype(np.float64), noise, streams).swapaxes(1, 2)
        values[place] = data.target_units.to_file(drawn)
    coordinates = {"target": list(data.target_names), **_coordinates(run, numbers)}
    return xr.Dataset({"targets": ((*_LEADING, "case", "target"), values)}, coordinates)


def log_prior(run: Draws, numbers: Array) -> xr.Dataset:
    """Return the log prior density of every draw in two parts, (chain, draw) float64 each.

    weights  of all weights, biases and offsets given the sigmas
    sigmas   of the free hyperparameters, as a density in the precisions
    """
    parameters, layout = run.parameter_layout, run.precision_layout
    weights, sigmas = (np.empty((run.n_chains, len(numbers))) for _ in range(2))
    for chains, draws in run.chunks():
        positions, precisions = run.positions(chains, draws), run.precisions(chains, draws)
        flat = precisions.reshape(-1, layout.n_precisions)
        of_weights = prior.log_density_of_parameters(
            positions.reshape(len(flat), -1).astype(np.float64), flat, parameters, layout
        )
        weights[chains, draws] = of_weights.reshape(len(positions), -1)
        sigmas[chains, draws] = prior.log_density_of_precisions(flat, layout).reshape(len(positions), -1)
    parts = {"weights": (_LEADING, weights), "sigmas": (_LEADING, sigmas)}
    return xr.Dataset(parts, _coordinates(run, numbers))


def _each_draw(
    run: Draws, numbers: Array, *, all_cases: bool = False
) -> Iterator[tuple[tuple[slice, int, slice], Array, Array, Streams]]:
    """Yield each draw of some chains at some training cases, in bounded memory.

    These are its place in the result (chains, draw, cases), outputs (n_chains, n_cases, n_outputs), noise
    precisions, and random numbers.

    all_cases  True for all cases together, as needed if random numbers are drawn for all at once
    """
    data, layout = run.data, run.precision_layout
    per_case = activation_bytes(run.spec.network, run.spec.dtype) * run.spec.data_model.n_cells
    at_once = data.n_cases if all_cases else max(1, int(_BLOCK_BYTES / 4 / per_case))
    for first in range(0, data.n_cases, at_once):
        cases = slice(first, min(first + at_once, data.n_cases))
        inputs = data.standardized(data.inputs[cases])
        for chains, draws, outputs in output_blocks(run, inputs, memory_bytes=_BLOCK_BYTES):
            precisions = run.precisions(chains, draws)
            streams = Streams(run.spec.seed, np.array(run.chain_numbers[chains], dtype=np.uint64))
            for place, draw in enumerate(range(draws.start, draws.stop)):
                # Iteration 0 belongs to draws from the prior.
                random = streams.at(iteration=int(numbers[draw]) + 1)
                noise = prior.noise_precisions(precisions[:, place], layout)
                yield (chains, draw, cases), outputs[:, place], noise, random


def _coordinates(run: Draws, numbers: Array) -> dict[str, Array]:
    return {"chain": np.array(run.chain_numbers), "draw": numbers}


def labelled_functions(run: Draws, inputs: Array) -> xr.DataArray:
    """Return the functions that a run is judged by, with dimensions chain, draw, case and function.

    inputs  (n_cases, n_inputs) as in the data file
    """
    names = run.spec.data_model.function_names(run.data.modelled_names)
    return xr.DataArray(
        functions_at(run, inputs), dims=("chain", "draw", "case", "function"), coords={"function": names}
    )


_RENAMED = {"accepted": "acceptance_rate", "energy_change": "energy_error"}
_OF_TRAJECTORIES = ("accepted", "energy", "energy_change", "diverged")


def sample_stats(store: Store, stored: xr.Dataset, *, is_warmup: bool = False) -> xr.Dataset:
    """Return the stored statistics with ArviZ's names, and statistics derived from them.

    lp               log density of parameters and precisions given the data, up to a constant: log_prior
                     plus log_likelihood_total, the latter times the inverse temperature
    diverging        whether a trajectory of the iteration diverged
    acceptance_rate  share of the iteration's proposals that were accepted
    energy_error     change of the energy along the last trajectory
    n_steps          steps of all trajectories of an iteration, if this number is fixed or tuned
    step_size        factor on the heuristic stepsizes, with its jitter, of the trajectory of energy_error

    Draws without trajectories, such as those by rejection or from the prior, have only the log densities. The
    warm-up lacks n_steps and step_size, because they may change there.
    """
    total = stored["log_likelihood_total"]
    lp = total / store.spec.temperature + stored["log_prior"]
    stats = stored.assign(lp=lp)
    if store.kind != "mcmc":
        return stats.drop_vars(_OF_TRAJECTORIES)
    stats = stats.assign(diverging=stored["diverged"] > 0).drop_vars("diverged").rename(_RENAMED)
    if is_warmup:
        return stats
    shape = stored.sizes["chain"], stored.sizes["draw"]
    n_steps = _n_steps(store, shape[1])
    if np.isfinite(n_steps).all():
        stats["n_steps"] = ("chain", "draw"), np.broadcast_to(n_steps.astype(np.int64), shape)
    stepsizes = stepsizes_of_draws(store, slice(0, shape[0]), slice(0, shape[1]))
    if np.isfinite(stepsizes).all():
        stats["step_size"] = ("chain", "draw"), stepsizes
    return stats


def _n_steps(store: Store, n_draws: int) -> Array:
    """Return the number of steps before each of the first draws of a chain, (n_draws,); NaN if unknown."""
    if store.spec.ladder is not None:
        rounds = store.tuning.ladder_rounds()
        return np.full(n_draws, rounds[-1].settings.steps[-1] if rounds else np.nan)
    n_steps, first = [np.empty(0)], 1
    for phase in store.spec.phase:
        if phase.keep is True and sum(map(len, n_steps)) < n_draws:
            steps = total_steps(phase.operations, store.tuning.at(first))
            n_steps.append(np.full(phase.iterations, steps))
        first += phase.iterations
    return np.concatenate(n_steps)[:n_draws]


_COMPUTED = {
    "posterior_predictive": posterior_predictive,
    "log_likelihood": log_likelihood,
    "log_prior": log_prior,
}
