"""Annealed importance sampling, which moves exact prior draws to the posterior and weights them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.errors import SamplingError
from rayfbnn.mcmc import leapfrog, schedule
from rayfbnn.mcmc.energy import finite_or_infinite
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.tempering.inner import ANNEALING, at_stage, taken
from rayfbnn.state import Advance, ChainState, TemperedTarget
from rayfbnn.streams import Streams


def inverse_temperatures(n: int, *, power: float) -> tuple[float, ...]:
    """Return 0 = b_0 < b_1 < ... < b_n = 1 with b_j = (j/n)**power.

    Under vague priors, the likelihood of prior draws varies over many orders of magnitude. A high power then
    makes the first steps small.
    """
    return tuple(((np.arange(n + 1) / n) ** power).tolist())


def annealed_log_weights(
    state: ChainState,
    streams: Streams,
    *,
    target: TemperedTarget,
    operations: tuple[Operation, ...],
    inverse_temperatures: Sequence[float],
    advance: Advance = leapfrog.advance,
    on_progress: Callable[[int], None] | None = None,
) -> Array:
    """Return the log importance weights at every inverse temperature, (n_temperatures, n_chains) float64.

    log w_j = log w_{j-1} + (b_j - b_{j-1}) log L(x_{j-1})

    Here x_j is x_{j-1} after updates that leave prior * L**b_j invariant. Neal (2001), "Annealed importance
    sampling", eqs. 3 to 5. The mean of w_j over chains has the expectation Z_j = integral of prior * L**b_j,
    for any updates and temperatures.

    Parameters
    ----------
    state : exact draws of parameters and precisions from the prior, and a momentum
    target : the posterior; its potential is the energy of the prior plus data_energy = -log L
    operations : exact updates, run once at each temperature
    inverse_temperatures : ascending numbers that begin with 0
    advance : runs trajectories at every temperature
    on_progress : called with the number of temperatures that are complete
    """
    xp = array_namespace(state.position)
    log_weights = xp.zeros((len(inverse_temperatures), streams.n_chains))
    places = xp.arange(streams.n_chains)  # the chains with a weight above zero
    for number in range(1, len(inverse_temperatures)):
        before, b = inverse_temperatures[number - 1], inverse_temperatures[number]
        with np.errstate(all="ignore"):
            energy = finite_or_infinite(target.data_energy(state.position, state.precisions))
        log_weights[number] = -xp.inf
        log_weights[number, places] = log_weights[number - 1, places] - (b - before) * energy
        # A weight of zero stays zero. A state with a weight of zero, such as a prior draw that overflows,
        # cannot move. These chains are dropped.
        is_alive = xp.isfinite(energy)
        if not bool(is_alive.all()):
            places = places[is_alive]
            state, streams = taken(state, streams, is_alive)
        if len(places) == 0:
            log_weights[number:] = -xp.inf
            break
        if number + 1 < len(inverse_temperatures):
            tempered = target.tempered(b)
            iteration = schedule.build_iteration(
                operations, target=tempered, updates=tempered.updates, advance=advance
            )
            random = at_stage(streams.at(iteration=number), ANNEALING, first_operation=0)
            state, _ = iteration(state, random)
        if on_progress is not None:
            on_progress(number)
    return log_weights


@dataclass(frozen=True)
class Normaliser:
    """An estimate of a normalising constant from importance weights.

    log_value       log of the mean weight
    standard_error  standard error of log_value: the standard error of the mean weight, divided by that mean
    effective_runs  (sum w)**2 / sum w**2, the number of equal weights that would be as informative; if it
                    is small, the standard error is unreliable
    """

    log_value: float
    standard_error: float
    effective_runs: float


def normaliser(log_weights: Array) -> Normaliser:
    """Estimate the normalising constant from log weights (n_runs,) of at least two runs.

    Raises SamplingError if all weights are zero.
    """
    largest = float(log_weights.max())
    if largest == -np.inf:
        raise SamplingError(
            "evidence: the likelihood of every draw from the prior underflows to zero; use dtype float64,"
            " less vague priors, or more chains"
        )
    weights = np.exp(log_weights - largest)
    mean = float(weights.mean())
    return Normaliser(
        log_value=largest + float(np.log(mean)),
        standard_error=float(weights.std(ddof=1)) / mean / float(np.sqrt(len(weights))),
        effective_runs=float(weights.sum() ** 2 / (weights**2).sum()),
    )
