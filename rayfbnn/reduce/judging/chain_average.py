"""The Monte Carlo error of predictions that are averages over chains, with the chains as replicates.

docs/diagnostics.md derives the formulas and states their rates of error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.reduce.draws import Draws, output_blocks
from rayfbnn.reduce.quantities import noise_sigmas
from rayfbnn.reduce.thinning import evenly_spaced, thinned

MIN_CHAINS = 4  # with three the confidence bound is 4.4 times the estimate, with two 16 times
MAX_ERROR = 0.2  # of the predictive standard deviation: costs 0.02 nats of log probability
MISS_RATE = 0.05  # probability that an error which is too large is not seen
_DRIFT_RATE = 0.01  # probability that a drift is reported where there is none
_CASES = 50
_DRAWS, _LEAST_DRAWS = 4_000, 50  # of all chains together, and of each; the chains tell the error
_MEMORY_BYTES = 64e6


@dataclass(frozen=True)
class AverageError:
    """The error of an average over chains, in units of the predictive standard deviation.

    mean        standard error of the predictive mean, root mean square over cases and targets
    mean_bound  upper confidence bound of `mean`, 95 %
    sd          relative standard error of the predictive standard deviation, likewise; NaN for labels,
                whose probabilities say everything
    sd_bound    upper confidence bound of `sd`, 95 %
    drift       change of the predictive mean from the first to the second half of the draws, root mean square
    has_drift   whether the drift is larger than chance allows, and larger than the limit
    chains, cases  how many were looked at
    """

    mean: float
    mean_bound: float
    sd: float
    sd_bound: float
    drift: float
    has_drift: bool
    chains: int
    cases: int

    @property
    def is_known(self) -> bool:
        """True if there are chains enough, and finite numbers, to tell the error."""
        return self.chains >= MIN_CHAINS and math.isfinite(self.mean_bound)

    @property
    def is_small(self) -> bool:
        """True if the error is within the limits, with 95 % confidence."""
        sd_is_small = math.isnan(self.sd_bound) or self.sd_bound <= MAX_ERROR / math.sqrt(2)
        return self.is_known and self.mean_bound <= MAX_ERROR and sd_is_small and not self.has_drift

    @property
    def chains_that_would_do(self) -> int | None:
        """The number of chains with which the error would be within the limits; None if very many."""
        share = max(self.mean, 0.0 if math.isnan(self.sd) else math.sqrt(2) * self.sd)
        for chains in range(max(self.chains, MIN_CHAINS), 10_000):
            if share * math.sqrt(self.chains / chains) * bound_factor(chains) <= MAX_ERROR:
                return chains
        return None


@cache
def bound_factor(n_chains: int) -> float:
    """Upper 95 % confidence bound of a standard error of `n_chains` replicates, as a multiple of it.

    (C - 1) s**2 / sigma**2 has a chi-square distribution on C - 1 degrees of freedom.
    """
    from scipy.stats import chi2

    return math.sqrt((n_chains - 1) / chi2.ppf(MISS_RATE, n_chains - 1))


def average_error(runs: Sequence[Draws], *, inputs: Array | None = None) -> AverageError:
    """Return the error of predictions that average all chains of one or several runs equally.

    Parameters
    ----------
    inputs : (n_cases, n_inputs)   as on file, the training cases unless given; at most 50 of the cases and
                                   about 4,000 of the draws are looked at
    """
    data = runs[0].store.data
    inputs = data.inputs if inputs is None else np.asarray(inputs, dtype=np.float64)
    chosen = inputs[evenly_spaced(len(inputs), _CASES)]
    at_most = max(_LEAST_DRAWS, _DRAWS // sum(run.n_chains for run in runs))
    moments = [_chain_moments(thinned(run, at_most), chosen) for run in runs]
    halves = np.concatenate([means for means, _ in moments], axis=1)
    variances = np.concatenate([variances for _, variances in moments], axis=0)
    model = runs[0].store.spec.data_model
    labels = len(model.probability_columns(data.target_names)) // len(data.target_names)
    return error_of_moments(halves, variances, n_cases=len(chosen), labels=labels)


def error_of_moments(halves: Array, variances: Array, *, n_cases: int, labels: int = 0) -> AverageError:
    """Return the error of averages over chains, given what each chain says of some values.

    Parameters
    ----------
    halves : (2, n_chains, n_values)     predictive means in the first and in the second half of each chain
    variances : (n_chains, n_values)     predictive variances by each chain
    labels : int                         how many probabilities a target has: 0 for a number, 1 if the
                                         values are the probability of one of two labels
    """
    n_chains = variances.shape[0]
    if n_chains < 2 or not (np.isfinite(halves).all() and np.isfinite(variances).all()):
        unknown = math.nan
        return AverageError(unknown, unknown, unknown, unknown, unknown, False, n_chains, n_cases)
    means = halves.mean(axis=0)
    # About the mean of all chains: the average's variance is the mean of these.
    variances = variances + (means - means.mean(axis=0)) ** 2
    # In the log probability an error d of one of K probabilities costs d**2 / 2p, and their costs add up.
    scale = means.mean(axis=0) / labels if labels > 1 else variances.mean(axis=0)  # (n_values,)
    mean = _root_mean_square(_squared_error(means), scale)
    sd = _root_mean_square(_squared_error(variances) / 4, scale**2) if labels == 0 else math.nan
    changes = halves[1] - halves[0]
    drift = _root_mean_square(changes.mean(axis=0) ** 2, scale)
    chance = _root_mean_square(_squared_error(changes), scale)
    factor = bound_factor(n_chains)
    has_drift = drift > MAX_ERROR and drift > chance * _drift_factor(n_chains)
    return AverageError(mean, factor * mean, sd, factor * sd, drift, has_drift, n_chains, n_cases)


def _squared_error(values: Array) -> Array:
    """Squared standard error of the mean over independent chains, (n_values,)."""
    return np.asarray(values.var(axis=0, ddof=1) / len(values))


def _root_mean_square(squares: Array, scale: Array) -> float:
    """Root of the mean of squares / scale; a value that never varies has no error."""
    return float(np.sqrt(np.divide(squares, scale, out=np.zeros_like(scale), where=scale > 0).mean()))


@cache
def _drift_factor(n_chains: int) -> float:
    """How many standard errors a drift by chance stays below: Student's t on C - 1 degrees of freedom."""
    from scipy.stats import t

    return float(t.ppf(1 - _DRIFT_RATE / 2, n_chains - 1))


def _chain_moments(run: Draws, inputs: Array) -> tuple[Array, Array]:
    """Return the means of both halves (2, n_chains, n_values), and variances (n_chains, n_values), by chain.

    A value is a target, or the probability of a label, at a case; all are on the network's scale.
    """
    data, model = run.store.data, run.store.spec.data_model
    standardized = (inputs - data.input_center) / data.input_scale
    sigmas = noise_sigmas(run)  # (n_targets, n_chains, n_draws)
    sums: Array = None
    for chains, draws, outputs, _ in output_blocks(run, standardized, memory_bytes=_MEMORY_BYTES):
        shape = outputs.shape[:2]
        flat = np.moveaxis(outputs.reshape(-1, *outputs.shape[2:]), 0, -1)
        sigma = sigmas[:, chains, draws].reshape(1, len(sigmas), shape[0] * shape[1])
        with np.errstate(over="ignore", invalid="ignore"):  # error_of_moments looks for what is not finite
            means, variances = (
                np.asarray(moment, dtype=np.float64).reshape(-1, *shape)
                for moment in model.moments(flat, sigma)
            )
            if sums is None:
                sums = np.zeros((3, run.n_chains, len(means)))
            is_late = np.arange(run.n_draws)[draws] >= run.n_draws // 2
            sums[0, chains] += means[..., ~is_late].sum(axis=2).T
            sums[1, chains] += means[..., is_late].sum(axis=2).T
            sums[2, chains] += (means**2 + variances).sum(axis=2).T
    n_first = run.n_draws // 2
    with np.errstate(divide="ignore", invalid="ignore"):
        halves = sums[:2] / np.array([n_first, run.n_draws - n_first])[:, None, None]
        mean = sums[:2].sum(axis=0) / run.n_draws
        return halves, np.maximum(sums[2] / run.n_draws - mean**2, 0)
