"""The choice of as few draws as keep the Monte Carlo error of predictive means small enough."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.outputs import outputs_by_case
from rayfbnn.draws.quantities import noise_sigmas
from rayfbnn.draws.subsets import evenly_spaced, spread
from rayfbnn.errors import ConfigError
from rayfbnn.reduce.effective import MIN_DRAWS, mcse_mean

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws

_LEAST_DRAWS = 100  # of all chains together, because quantiles and standard deviations need draws too
_N_CASES = 20  # evenly spaced training cases for estimates of the error
_GROWTH = 1.25  # factor from one number of draws tried to the next
_LITTLE_MORE = 1.05  # times the error of all draws
_BLOCK_BYTES = 64e6


@dataclass(frozen=True)
class Thinning:
    """Chosen draws and their Monte Carlo error.

    numbers      numbers of the chosen draws of each chain, increasing
    mcse         largest Monte Carlo standard error of a predictive mean at some training cases, as a share of
                 the predictive standard deviation; NaN if there are fewer than four draws of each chain
    mcse_of_all  the same error with all draws
    """

    numbers: Array
    mcse: float
    mcse_of_all: float


def thin(run: Draws, *, draws: int | None, max_mcse: float) -> Thinning:
    """Choose evenly spaced draws of each chain: `draws` of all chains together, or as few as are enough.

    max_mcse  largest acceptable error; 0 takes all draws

    If even all draws have a larger error, the draws chosen have at most 5 % more than that: if chains
    disagree, most of the error remains however many draws each chain has. ConfigError if `draws` is less than
    the number of chains.
    """
    errors = _Errors(run)
    if draws is not None:
        if draws < run.n_chains:
            raise ConfigError(f"draws: must be at least {run.n_chains}, one for each chain, got {draws}")
        return errors.thinning(min(draws // run.n_chains, run.n_draws))
    everything = errors.thinning(run.n_draws)
    if max_mcse == 0:
        return everything
    limit = max(max_mcse, _LITTLE_MORE * everything.mcse)
    wanted = max(MIN_DRAWS, -(-_LEAST_DRAWS // run.n_chains))
    while wanted < run.n_draws:
        thinning = errors.thinning(wanted)
        if thinning.mcse <= limit:
            return thinning
        wanted = math.ceil(wanted * _GROWTH)
    return everything


class _Errors:
    """The predictive means of every draw at some training cases, and the predictive standard deviations."""

    def __init__(self, run: Draws) -> None:
        data = run.data
        inputs = data.standardized(data.inputs[evenly_spaced(data.n_cases, _N_CASES)])
        values = outputs_by_case(run, inputs, memory_bytes=_BLOCK_BYTES).astype(np.float64)
        flat = values.reshape(*values.shape[:2], -1)  # (n_cases, n_outputs, n_draws of all chains)
        sigmas = noise_sigmas(run).reshape(1, -1, run.total)
        means, variances = run.spec.data_model.moments(flat, sigmas)
        self.n_draws = run.n_draws
        self.means = means.reshape(*means.shape[:2], run.n_chains, run.n_draws)
        self.sd = np.sqrt(variances.mean(axis=2) + means.var(axis=2))

    def thinning(self, n_wanted: int) -> Thinning:
        """Return `n_wanted` evenly spaced draws of each chain, with their error."""
        numbers = spread(self.n_draws, n_wanted)
        return Thinning(numbers, self._mcse(numbers), self.of_all)

    @cached_property
    def of_all(self) -> float:
        """The error with all draws."""
        return self._mcse(np.arange(self.n_draws))

    def _mcse(self, numbers: Array) -> float:
        """Return the largest error with the given draws of each chain, NaN if there are too few."""
        if len(numbers) < MIN_DRAWS:
            return math.nan
        error = mcse_mean(self.means[..., numbers])
        is_spread = self.sd > 0
        shares = np.where(is_spread, np.nan_to_num(error) / np.where(is_spread, self.sd, 1.0), 0.0)
        return float(shares.max())
