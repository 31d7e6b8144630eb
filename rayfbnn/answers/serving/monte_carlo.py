"""The choice of as few draws as keep the Monte Carlo error of predictive means small enough."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
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
_FEW = 1 / 8  # of all draws
_BLOCK_BYTES = 64e6
_CASES_BYTES = 128e6  # of outputs at some cases


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
    n_draws = run.n_draws
    if draws is not None:
        if draws < run.n_chains:
            raise ConfigError(f"draws: must be at least {run.n_chains}, one for each chain, got {draws}")
        wanted = min(draws // run.n_chains, n_draws)
        errors = _errors(run, [wanted, n_draws])
        return Thinning(spread(n_draws, wanted), errors[wanted], errors[n_draws])
    numbers = [] if max_mcse == 0 else _numbers_to_try(run)
    # The errors of few draws take little time compared with that of all draws, and few are often enough.
    n_few = bisect_right(numbers, n_draws * _FEW)
    errors = _errors(run, [*numbers[:n_few], n_draws])
    of_all = errors[n_draws]
    for wanted in numbers:
        if wanted not in errors:
            errors |= _errors(run, numbers[n_few:])
        if errors[wanted] <= max(max_mcse, _LITTLE_MORE * of_all):
            return Thinning(spread(n_draws, wanted), errors[wanted], of_all)
    return Thinning(spread(n_draws, n_draws), of_all, of_all)


def _numbers_to_try(run: Draws) -> list[int]:
    """Return the numbers of draws of each chain that may be enough, below that of all draws."""
    numbers, wanted = [], max(MIN_DRAWS, -(-_LEAST_DRAWS // run.n_chains))
    while wanted < run.n_draws:
        numbers.append(wanted)
        wanted = math.ceil(wanted * _GROWTH)
    return numbers


def _errors(run: Draws, numbers: list[int]) -> dict[int, float]:
    """Return the largest error with each number of evenly spaced draws, NaN if there are too few."""
    largest, noise = dict.fromkeys(numbers, 0.0), noise_sigmas(run).reshape(1, -1, run.total)
    for outputs in _outputs_of_cases(run):
        means, variances = run.spec.data_model.moments(outputs, noise)
        sd = np.sqrt(variances.mean(axis=2) + means.var(axis=2))
        of_chains = means.reshape(*means.shape[:2], run.n_chains, run.n_draws)
        for number in numbers:
            chosen = of_chains if number == run.n_draws else of_chains[..., spread(run.n_draws, number)]
            largest[number] = max(_largest_share(chosen, sd), largest[number])  # NaN stays
    return largest


def _outputs_of_cases(run: Draws) -> Iterator[Array]:
    """Yield the outputs of every draw at one training case after another, (1, n_outputs, n_draws) float64.

    The networks are evaluated at a few cases together, so the draws are not read for each case.
    """
    data = run.data
    inputs = data.standardized(data.inputs[evenly_spaced(data.n_cases, _N_CASES)])
    bytes_of_case = np.dtype(run.spec.dtype).itemsize * run.total * run.spec.network.outputs
    at_once = max(1, int(_CASES_BYTES / bytes_of_case))
    for first in range(0, len(inputs), at_once):
        together = outputs_by_case(run, inputs[first : first + at_once], memory_bytes=_BLOCK_BYTES)
        for case in range(len(together)):
            yield together[case : case + 1].reshape(1, together.shape[1], -1).astype(np.float64)
        del together  # before the next cases


def _largest_share(means: Array, sd: Array) -> float:
    """Return the largest error of means, as a share of the predictive standard deviations."""
    if means.shape[-1] < MIN_DRAWS:
        return math.nan
    is_spread = sd > 0
    error = np.nan_to_num(mcse_mean(means))
    return float(np.where(is_spread, error / np.where(is_spread, sd, 1.0), 0.0).max())
