"""Labelled arrays computed for ArviZ: statistics, functions, pointwise log likelihoods, log priors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from rayfbnn.arrays import Array
from rayfbnn.draws.outputs import activation_bytes, output_blocks
from rayfbnn.draws.quantities import functions_at
from rayfbnn.draws.view import Draws
from rayfbnn.mcmc.trajectories import total_steps
from rayfbnn.model import prior
from rayfbnn.store.stepsizes import stepsizes_of_draws
from rayfbnn.streams import Streams

if TYPE_CHECKING:
    import xarray as xr

    from rayfbnn.draws.view import Draws
    from rayfbnn.store.store import Store

_BLOCK_BYTES = 64e6
_LEADING = ("chain", "draw")


def log_likelihood(run: Draws, numbers: Array) -> xr.Dataset:
    """Return the log density of each target of each training case in every draw, as `targets`.

    It is on the data file's scale, (chain, draw, case, target) float64. If targets are missing, the last two
    axes become one, `observation`, over the observed targets, each with its case and target.
    """
    import xarray as xr

    data, model = run.data, run.spec.data_model
    targets, log_jacobian = data.standardized_targets, data.target_units.log_jacobian(data.targets)
    values = _empty(run)
    for block in _blocks(run):
        for place, outputs, noise, _ in block.draws(numbers):
            density = model.log_density_by_target(outputs, targets[block.cases], noise)
            values[place] = density.swapaxes(1, 2) - log_jacobian[block.cases]
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
    import xarray as xr

    data, model = run.data, run.spec.data_model
    values = np.empty((run.n_chains, len(numbers), data.n_cases, data.n_targets))
    for block in _blocks(run, all_cases=True):
        for place, outputs, noise, streams in block.draws(numbers):
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
    import xarray as xr

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


def computed_bytes(run: Draws, n_draws: int) -> int:
    """Return the size in bytes of a group with a value for each draw, case and target."""
    return 8 * run.n_chains * n_draws * run.data.n_cases * run.data.n_targets


@dataclass(frozen=True)
class _Block:
    """Outputs of some chains and draws, (n_chains, n_draws, n_cases, n_outputs), at some cases."""

    run: Draws
    chains: slice
    first: int
    cases: slice
    outputs: Array
    precisions: Array

    def draws(self, numbers: Array) -> Iterator[tuple[tuple[slice, int, slice], Array, Array, Streams]]:
        """Yield for each draw its place in the result, outputs, noise precisions, and random numbers."""
        chains = np.array(self.run.chain_numbers[self.chains], dtype=np.uint64)
        streams = Streams(self.run.spec.seed, chains)
        for place in range(self.outputs.shape[1]):
            draw = self.first + place
            noise = prior.noise_precisions(self.precisions[:, place], self.run.precision_layout)
            where = self.chains, draw, self.cases
            # Iteration 0 belongs to draws from the prior.
            yield where, self.outputs[:, place], noise, streams.at(iteration=int(numbers[draw]) + 1)


def _blocks(run: Draws, *, all_cases: bool = False) -> Iterator[_Block]:
    """Yield the outputs at the training cases in blocks of bounded size.

    all_cases  True for blocks that have all cases, as needed if random numbers are drawn for all at once
    """
    data = run.data
    per_case = activation_bytes(run.spec.network, run.spec.dtype) * run.spec.data_model.n_cells
    at_once = data.n_cases if all_cases else max(1, int(_BLOCK_BYTES / 4 / per_case))
    for first in range(0, data.n_cases, at_once):
        cases = slice(first, min(first + at_once, data.n_cases))
        inputs = data.standardized(data.inputs[cases])
        for chains, draws, outputs, precisions in output_blocks(run, inputs, memory_bytes=_BLOCK_BYTES):
            yield _Block(run, chains, draws.start, cases, outputs, precisions)


def _empty(run: Draws) -> Array:
    shape = run.n_chains, run.n_draws, run.data.n_cases, run.data.n_targets
    return np.empty(shape)


def _coordinates(run: Draws, numbers: Array) -> dict[str, Array]:
    return {"chain": np.array(run.chain_numbers), "draw": numbers}


def labelled_functions(run: Draws, inputs: Array) -> xr.DataArray:
    """Return the functions that a run is judged by, with dimensions chain, draw, case and function.

    inputs  (n_cases, n_inputs) as in the data file
    """
    names = run.spec.data_model.function_names(run.data.modelled_names)
    return xr.DataArray(
        functions_at(run, inputs),
        dims=("chain", "draw", "case", "function"),
        coords={"function": names},
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
        rounds = store.tuning.latest_ladder_rounds()
        return np.full(n_draws, rounds[-1].settings.steps[-1] if rounds else np.nan)
    n_steps, first = [np.empty(0)], 1
    for phase in store.spec.phase:
        if phase.keep is True and sum(map(len, n_steps)) < n_draws:
            steps = total_steps(phase.operations, store.tuning.at(first))
            n_steps.append(np.full(phase.iterations, steps))
        first += phase.iterations
    return np.concatenate(n_steps)[:n_draws]
