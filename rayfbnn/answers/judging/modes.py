"""R-hat and effective sample sizes of a run's quantities, and the modes that its chains sit in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import scipy.special

from rayfbnn.answers.judging.words import numbered
from rayfbnn.arrays import Array
from rayfbnn.reduce.effective import MIN_DRAWS, Convergence, convergence, mcse_mean

if TYPE_CHECKING:
    import pandas as pd


_FALSE_ALARM_RATE = 0.01
# Two normal densities of equal spread and weight have two peaks if their means differ by more than this.
_LEAST_GAP = 2.0  # standard deviations within a chain
_MOST_COMPARED = 100  # chains; the range of more is hardly larger
_PRECISION = 1e-9
_CHAINS = 64  # enough to estimate the standard error of a chain's mean


@dataclass(frozen=True)
class Mode:
    """A group of chains with similar log likelihoods, separated from those of all other chains.

    Attributes
    ----------
    chains
        Numbers of the chains, from 0.
    log_likelihood
        Mean over the draws of these chains.
    """

    chains: tuple[int, ...]
    log_likelihood: float


def modes(log_likelihood: Array, numbers: Sequence[int] | None = None) -> tuple[Mode, ...]:
    """Group the chains by gaps between their mean log likelihoods; the draws are (n_chains, n_draws).

    numbers  the numbers that the chains have; 0, 1, ... unless given

    The largest mode comes first. The result is empty if there are fewer than two chains, too few draws, or
    values that are not finite.

    Neighbouring means belong to different modes if they differ by more than two standard deviations within
    chains, and by more than chance allows: among C chains with one mean, no two means differ by more than the
    studentised range times a mean's standard error, with a probability of 99 %. A chain's standard error
    allows for its autocorrelation. Modes of equal log likelihood are not distinguished.
    """
    n_chains, n_draws = log_likelihood.shape
    if n_chains < 2 or n_draws < MIN_DRAWS or not np.isfinite(log_likelihood).all():
        return ()
    means = log_likelihood.mean(axis=1)
    within = math.sqrt(float(log_likelihood.var(axis=1, ddof=1).mean()))
    some = log_likelihood[:: -(-n_chains // _CHAINS)]
    errors = np.array([float(mcse_mean(chain[None])) for chain in some])
    # A chain that never changes has no standard error; its mean is exact.
    error = math.sqrt(float(np.square(np.nan_to_num(errors)).mean()))
    order = np.argsort(means)
    least_gap = max(_LEAST_GAP * within, _studentized_range(n_chains) * error)
    splits = np.flatnonzero(np.diff(means[order]) > least_gap) + 1
    groups = [np.sort(group) for group in np.split(order, splits)]
    names = range(n_chains) if numbers is None else numbers
    by_likelihood = [
        Mode(tuple(names[chain] for chain in group), float(means[group].mean())) for group in groups
    ]
    return tuple(sorted(by_likelihood, key=lambda mode: (-len(mode.chains), -mode.log_likelihood)))


@cache
def _studentized_range(n_chains: int) -> float:
    """Return the 99 % quantile of the range of `n_chains` standard normal variables.

    The range is at most q with probability n * integral of phi(z) (Phi(z) - Phi(z - q))**(n - 1) over the
    largest value z. SciPy takes a second to import its function, and longer to compute it.
    """
    n = min(n_chains, _MOST_COMPARED)
    z, step = np.linspace(-9, 9, 2001, retstep=True)
    density, below = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi), scipy.special.ndtr(z)

    def probability(q: float) -> float:
        return float(n * step * (density * (below - scipy.special.ndtr(z - q)) ** (n - 1)).sum())

    low, high = 0.0, 18.0
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if probability(middle) < 1 - _FALSE_ALARM_RATE else (low, middle)
    return high


def mode_sentences(of_chains: tuple[Mode, ...], word: str = "chain") -> list[str]:
    """Return a sentence for each mode except the largest, with the numbers of its chains or ladders."""
    if len(of_chains) < 2:
        return []
    largest, *others = of_chains
    return [
        f"{numbered(mode.chains, word)} sit{'s' if len(mode.chains) == 1 else ''} in a mode of"
        f" {'lower' if mode.log_likelihood < largest.log_likelihood else 'higher'} log likelihood"
        f" ({mode.log_likelihood:.4g} against {largest.log_likelihood:.4g})"
        for mode in sorted(others, key=lambda mode: mode.log_likelihood)
    ]


@dataclass(frozen=True)
class Summary:
    """What is known of quantities when their values are forgotten.

    table       one row for each quantity: mean, sd, rhat, ess_bulk, ess_tail and mcse of the mean
    not_finite  names of the quantities with values that are not finite
    stuck       the chains in which a quantity never changes, by the name of the quantity
    """

    table: pd.DataFrame
    not_finite: tuple[str, ...]
    stuck: dict[str, list[int]]

    def of(self, names: Sequence[str]) -> Summary:
        """Return what is known of some quantities, in their order."""
        return Summary(
            self.table.loc[list(names)],
            tuple(name for name in names if name in self.not_finite),
            {name: self.stuck[name] for name in names if name in self.stuck},
        )


def summarize(judged: Iterable[tuple[str, Array]]) -> Summary:
    """Return the summary of quantities, given by name and values (n_chains, n_draws)."""
    import pandas as pd

    rows, not_finite, stuck = {}, [], {}
    for name, values in judged:
        is_finite = bool(np.isfinite(values).all())
        rows[name] = _statistics(values, is_finite=is_finite)
        if not is_finite:
            not_finite.append(name)
        with np.errstate(invalid="ignore"):
            constant = np.flatnonzero(np.ptp(values, axis=1) == 0)
        if len(constant):
            stuck[name] = constant.tolist()
    return Summary(pd.DataFrame.from_dict(rows, orient="index"), tuple(not_finite), stuck)


def _statistics(values: Array, *, is_finite: bool) -> dict[str, float]:
    """Return a row of the table; only the mean and sd of values that are too few or never change."""
    with np.errstate(invalid="ignore"):  # values may be infinite
        sd = float(values.std(ddof=1)) if values.size > 1 else math.nan
        row = {"mean": float(values.mean()), "sd": sd}
    is_usable = is_finite and values.shape[1] >= MIN_DRAWS and np.ptp(values) > 0
    unknown = Convergence(math.nan, math.nan, math.nan, math.nan)
    return row | (convergence(values) if is_usable else unknown)._asdict()
