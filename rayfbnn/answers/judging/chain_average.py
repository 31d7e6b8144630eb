"""The Monte Carlo error of predictions averaged over chains, with the chains as replicates.

docs/diagnostics.md derives the formulas and states their error rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.draws.outputs import output_blocks
from rayfbnn.draws.quantities import noise_sigmas
from rayfbnn.draws.subsets import evenly_spaced, thinned
from rayfbnn.draws.view import Draws

PARTS = 8  # of each chain; their means show whether the chain travels
_FALSE_ALARMS = 0.01  # rate of each test if chains do not drift
_FREQUENCIES = 4
_MOST_TREND = 0.5  # the trend of a long chain is 0.25, of a random walk 0.7, of a steady drift 1


def change_of(parts: Array, scale: Array) -> tuple[float, bool]:
    """Return the change between two parts (2, n_chains, n_values), and whether chance explains it."""
    changes = parts[1] - parts[0]
    change = root_mean_square(changes.mean(axis=0) ** 2, scale)
    chance = root_mean_square(squared_error(changes), scale)
    return change, change <= chance * quantile_of_t(1 - _FALSE_ALARMS / 2, len(changes) - 1)


def is_on_its_way(parts: Array, scale: Array, max_error: float) -> bool:
    """Return True if chains still travel, so their agreement does not show where they will end.

    Chains travel if one of three tests says so:

    * The average over chains still moves: it changes from the third quarter of the draws to the last. If
      later changes shrink at the same rate as the changes so far, its error is above the limit.
    * Single chains move like a random walk: the slowest cosine makes up most of a chain's movement between
      eighths of its draws.
    * The chains move apart.

    parts : (8, n_chains, n_values)   means in eighths of each chain
    scale : (n_values,)               variances of predictions
    max_error : float                 limit of the error, in predictive standard deviations
    """
    quarters = parts.reshape(4, 2, *parts.shape[1:]).mean(axis=1)
    late, is_chance = change_of(quarters[2:], scale)
    if not is_chance and late > 0:
        early, _ = change_of(quarters[:2], scale)
        if _error_at_rate(late, early) > max_error:
            return True
    first, second = quarters.reshape(2, 2, *parts.shape[1:]).mean(axis=1)
    sd = np.sqrt(scale)
    if move_apart(_over(first, sd), _over(second, sd), _FALSE_ALARMS):
        return True
    return _trend(parts, scale) > _MOST_TREND


def move_apart(first: Array, second: Array, rate: float) -> bool:
    """Return True if chains differ more in the second half of their draws than in the first.

    Chains that diffuse away from a common place move apart. The halves of a chain are correlated, so the test
    is that of Pitman (1939), "A note on normal correlation": two variances are equal if the sums and the
    differences of the pairs are uncorrelated. The sums run over all values.

    first, second : (n_chains, n_values)   means of each half of each chain
    rate : float                           probability of a false alarm for chains without drift
    """
    n_chains = len(first)
    if n_chains < 3:
        return False
    first, second = first - first.mean(axis=0), second - second.mean(axis=0)
    sums, differences = ((first + second) ** 2).sum(), ((second - first) ** 2).sum()
    with np.errstate(all="ignore"):  # NaN if chains never move or all move alike
        correlation = (second**2 - first**2).sum() / np.sqrt(sums * differences)
        t = correlation * np.sqrt((n_chains - 2) / (1 - correlation**2))
    return bool(t > quantile_of_t(1 - rate, n_chains - 2))


def _over(values: Array, scale: Array) -> Array:
    """Return values / scale; 0 where the scale is zero, for a value that never varies."""
    return np.asarray(np.divide(values, scale, out=np.zeros_like(values), where=scale > 0))


def _error_at_rate(late: float, early: float) -> float:
    """Return the error of the mean over four quarters if the last two quarters differ by `late`.

    The distance from the final value is assumed to fall by a factor r from quarter to quarter, so the first
    two quarters differ by `early` = `late` / r**2. The error is infinite if the changes do not shrink.
    """
    if late >= early:
        return math.inf
    r = math.sqrt(late / early)
    last = late * r / (1 - r)  # distance of the last quarter
    return last * (1 + 1 / r + 1 / r**2 + 1 / r**3) / 4


def _trend(parts: Array, scale: Array) -> float:
    """Return the share of the slowest cosine in the movement of a chain, averaged over chains.

    With four frequencies the share is 1/4 for independent parts. The powers of a random walk fall with the
    square of the frequency, so its share is 1 / (1 + 1/4 + 1/9 + 1/16) = 0.7. The share of a chain that does
    not move is 0.
    """
    places = (np.arange(PARTS) + 0.5) / PARTS
    cosines = np.cos(np.pi * np.arange(1, _FREQUENCIES + 1)[:, None] * places)
    powers = np.tensordot(cosines, parts, axes=1) ** 2  # (n_frequencies, n_chains, n_values)
    by_chain = _over(powers, scale).sum(axis=2)
    return float(_over(by_chain[0], by_chain.sum(axis=0)).mean())


def squared_error(values: Array) -> Array:
    """Return the squared standard error of the mean over independent chains, (n_values,)."""
    return np.asarray(values.var(axis=0, ddof=1) / len(values))


def root_mean_square(squares: Array, scale: Array) -> float:
    """Return the root of the mean of squares / scale; a value that never varies counts as 0."""
    return float(np.sqrt(_over(squares, scale).mean()))


@cache
def quantile_of_t(probability: float, degrees: int) -> float:
    """Return a quantile of Student's t distribution: the most standard errors that chance explains."""
    return float(scipy.special.stdtrit(degrees, probability))


MIN_CHAINS = 4  # with three the confidence bound is 4.4 times the estimate, with two 16 times
MAX_ERROR = 0.2  # of the predictive standard deviation: costs 0.02 nats of log probability
MISS_RATE = 0.05  # probability of missing an error that is too large
_CASES = 50
_DRAWS, _LEAST_DRAWS = 4_000, 50  # of all chains together, and of each; the error is the spread of chains
_MEMORY_BYTES = 64e6


@dataclass(frozen=True)
class AverageError:
    """The error of an average over chains, in units of the predictive standard deviation.

    mean        standard error of the predictive mean, root mean square over cases and targets
    mean_bound  upper confidence bound of `mean`, 95 %
    sd          relative standard error of the predictive standard deviation, likewise; NaN for labels, which
                are described by their probabilities alone
    sd_bound    upper confidence bound of `sd`, 95 %
    drift       change of the predictive mean from the first to the second half of the draws, root mean square
    has_drift   whether the drift is larger than chance allows, and larger than the limit
    chains, cases  number of chains and cases used
    is_on_its_way  whether the chains still travel, so their agreement does not show where they will end
    """

    mean: float
    mean_bound: float
    sd: float
    sd_bound: float
    drift: float
    has_drift: bool
    chains: int
    cases: int
    is_on_its_way: bool = False

    @property
    def is_known(self) -> bool:
        """True if there are enough chains, and finite numbers, to estimate the error."""
        return self.chains >= MIN_CHAINS and math.isfinite(self.mean_bound)

    @property
    def is_small(self) -> bool:
        """True if the error is within the limits, with 95 % confidence."""
        sd_is_small = math.isnan(self.sd_bound) or self.sd_bound <= MAX_ERROR / math.sqrt(2)
        return self.is_known and self.mean_bound <= MAX_ERROR and sd_is_small and not self.is_moving

    @property
    def is_moving(self) -> bool:
        """True if the chains still move; more chains would not help then."""
        return self.has_drift or self.is_on_its_way

    @property
    def chains_that_would_do(self) -> int | None:
        """An even number of chains that would bring the error within the limits; None for 10,000 or more.

        It is even because ladders come in pairs.
        """
        least = max(self.chains, MIN_CHAINS)
        share = max(self.mean, 0.0 if math.isnan(self.sd) else math.sqrt(2) * self.sd)
        for chains in range(least + least % 2, 10_000, 2):
            if share * math.sqrt(self.chains / chains) * bound_factor(chains) <= MAX_ERROR:
                return chains
        return None


@cache
def bound_factor(n_chains: int) -> float:
    """Return the upper 95 % confidence bound of a standard error of `n_chains` replicates, relative to it.

    (C - 1) s**2 / sigma**2 has a chi-square distribution on C - 1 degrees of freedom.
    """
    degrees = n_chains - 1
    quantile = 2 * float(scipy.special.gammaincinv(degrees / 2, MISS_RATE))
    return math.sqrt(degrees / quantile)


def average_error(runs: Sequence[Draws], *, inputs: Array | None = None) -> AverageError:
    """Return the error of predictions that average all chains of one or several runs equally.

    inputs : (n_cases, n_inputs)   as in the data file; the training inputs by default. At most 50 cases and
                                   about 4,000 draws are used
    """
    data = runs[0].data
    inputs = data.inputs if inputs is None else np.asarray(inputs, dtype=np.float64)
    chosen = inputs[evenly_spaced(len(inputs), _CASES)]
    at_most = max(_LEAST_DRAWS, _DRAWS // sum(run.n_chains for run in runs))
    moments = [_chain_moments(thinned(run, at_most), chosen) for run in runs]
    halves = np.concatenate([one[0] for one in moments], axis=1)
    # A run of fewer than eight draws has halves instead of eighths; then no parts are compared.
    has_equal_parts = len({len(one[1]) for one in moments}) == 1
    parts = np.concatenate([one[1] for one in moments], axis=1) if has_equal_parts else None
    variances = np.concatenate([one[2] for one in moments], axis=0)
    model = runs[0].spec.data_model
    labels = len(model.probability_columns(data.target_names)) // len(data.target_names)
    return error_of_moments(halves, variances, n_cases=len(chosen), labels=labels, parts=parts)


def error_of_moments(
    halves: Array, variances: Array, *, n_cases: int, labels: int = 0, parts: Array | None = None
) -> AverageError:
    """Return the error of averages over chains from the predictive moments of each chain.

    halves : (2, n_chains, n_values)     predictive means in the first and in the second half of each chain
    variances : (n_chains, n_values)     predictive variances by each chain
    labels : int                         number of probabilities of a target: 0 for a number, 1 if the values
                                         are the probability of one of two labels
    parts : (8, n_chains, n_values)      predictive means in eighths of each chain; without them, no test is
                                         made of whether chains still travel
    """
    n_chains = variances.shape[0]
    if n_chains < 2 or not (np.isfinite(halves).all() and np.isfinite(variances).all()):
        unknown = math.nan
        return AverageError(unknown, unknown, unknown, unknown, unknown, False, n_chains, n_cases)
    means = halves.mean(axis=0)
    # Variances about the mean of all chains; their mean is the variance of the averaged prediction.
    variances = variances + (means - means.mean(axis=0)) ** 2
    # An error d of one of K probabilities costs d**2 / 2p in log probability; the costs of all K add up.
    scale = means.mean(axis=0) / labels if labels > 1 else variances.mean(axis=0)  # (n_values,)
    mean = root_mean_square(squared_error(means), scale)
    sd = root_mean_square(squared_error(variances) / 4, scale**2) if labels == 0 else math.nan
    drift, is_chance = change_of(halves, scale)
    factor = bound_factor(n_chains)
    return AverageError(
        mean,
        factor * mean,
        sd,
        factor * sd,
        drift,
        drift > MAX_ERROR and not is_chance,
        n_chains,
        n_cases,
        parts is not None and len(parts) == PARTS and is_on_its_way(parts, scale, MAX_ERROR),
    )


def _chain_moments(run: Draws, inputs: Array) -> tuple[Array, Array, Array]:
    """Return each chain's predictive means in both halves, means in parts, and variances.

    A value is a target, or the probability of a label, at a case; all are on the network's scale. The parts
    are quarters of each half, or the halves themselves if there are fewer than eight draws. The shapes are
    (2, n_chains, n_values), (n_parts, n_chains, n_values) and (n_chains, n_values).
    """
    data, model = run.data, run.spec.data_model
    standardized = (inputs - data.input_center) / data.input_scale
    sigmas = noise_sigmas(run)  # (n_targets, n_chains, n_draws)
    part_of_draw = _parts(run.n_draws)
    n_parts = int(part_of_draw[-1]) + 1
    sums: Array = None
    for chains, draws, outputs in output_blocks(run, standardized, memory_bytes=_MEMORY_BYTES):
        shape = outputs.shape[:2]
        flat = np.moveaxis(outputs.reshape(-1, *outputs.shape[2:]), 0, -1)
        sigma = sigmas[:, chains, draws].reshape(1, len(sigmas), shape[0] * shape[1])
        with np.errstate(over="ignore", invalid="ignore"):  # error_of_moments tests for non-finite values
            means, variances = (
                np.asarray(moment, dtype=np.float64).reshape(-1, *shape)
                for moment in model.moments(flat, sigma)
            )
            if sums is None:
                sums = np.zeros((n_parts + 1, run.n_chains, len(means)))
            for part in np.unique(part_of_draw[draws]):
                sums[part, chains] += means[..., part_of_draw[draws] == part].sum(axis=2).T
            sums[-1, chains] += (means**2 + variances).sum(axis=2).T
    counts = np.bincount(part_of_draw, minlength=n_parts)
    of_halves, n_first = sums[:-1].reshape(2, -1, *sums.shape[1:]).sum(axis=1), run.n_draws // 2
    with np.errstate(divide="ignore", invalid="ignore"):
        halves = of_halves / np.array([n_first, run.n_draws - n_first])[:, None, None]
        parts = sums[:-1] / counts[:, None, None]
        mean = of_halves.sum(axis=0) / run.n_draws
        return halves, parts, np.maximum(sums[-1] / run.n_draws - mean**2, 0)


def _parts(n_draws: int) -> Array:
    """Return the number of the part that contains each draw, (n_draws,)."""
    n_first, of_half = n_draws // 2, PARTS // 2 if n_draws >= PARTS else 1
    first = np.arange(n_first) * of_half // max(n_first, 1)
    second = np.arange(n_draws - n_first) * of_half // max(n_draws - n_first, 1)
    return np.concatenate([first, of_half + second])
