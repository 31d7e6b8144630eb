"""Simulated studies: chains whose autocorrelation is known, and chains that never mix."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.signal

from rayfbnn.arrays import Array
from rayfbnn.study.agreement import agreement, plain_nested_rhat
from rayfbnn.study.rule import Judged, Rule, judge, reasons


@dataclass(frozen=True)
class Simulated:
    """Studies of one quantity whose stationary distribution is standard normal.

    rho     autocorrelation of successive draws
    spread  standard deviation of the places where superchains start, and in them all their chains
    common  the middle of these places
    apart   distance of two modes, in one of which each chain stays for ever; 0 for one mode
    is_stationary  True if each chain starts at an exact draw, in place of the above
    """

    rho: float
    spread: float = 3.0
    common: float = 0.0
    apart: float = 0.0
    is_stationary: bool = False
    members: int = 20
    chains: int = 4
    looks: tuple[int, ...] = (100, 200, 400, 800)

    def draw(self, generator: np.random.Generator, *, members: int | None = None) -> Array:
        """Draw one study, (members, chains, draws)."""
        shape = (members or self.members, self.chains, self.looks[-1])
        noise = generator.standard_normal(shape) * np.sqrt(1 - self.rho**2)
        places = self.common + self.spread * generator.standard_normal((shape[0], 1, 1))
        start = np.broadcast_to(places, (*shape[:2], 1))
        if self.is_stationary:
            start = generator.standard_normal((*shape[:2], 1))
        values, _ = scipy.signal.lfilter([1.0], [1.0, -self.rho], noise, axis=2, zi=self.rho * start)
        return np.asarray(values + self.apart * generator.integers(0, 2, (*shape[:2], 1)))

    def true_rhat(self, draws: int) -> float:
        """Nested R-hat of so many draws, from two thousand superchains, so that little is left of chance."""
        many = self.draw(np.random.default_rng(1), members=2000)
        return plain_nested_rhat(many[:, :, :draws])

    def bias(self, draws: int) -> float:
        """Expected error of the mean of so many draws, in standard deviations: that of a geometric series."""
        powers = self.rho ** np.arange(1, draws + 1)
        return float(self.common * powers.mean())

    def stops_at(self, generator: np.random.Generator, rule: Rule) -> int | None:
        """The number of draws at which the rule stops a study; None if it never does."""
        return self.both_stops(generator, rule)[1]

    def both_stops(self, generator: np.random.Generator, rule: Rule) -> tuple[int | None, int | None]:
        """The number of draws at which a study would stop by the agreement of members, and by the rule."""
        values, seeds = self.draw(generator), tuple(range(self.members))
        by_agreement = None
        for draws in self.looks:
            seen = values[:, :, :draws]
            if _spread_of_means(seen) > 1.01 * rule.max_mcse:  # not ok, without the time for ranks
                continue
            if by_agreement is not None and _drifts(seen, rule):
                continue
            judged = judge(seen, seeds, rule)
            if by_agreement is None and members_agree(judged, rule):
                by_agreement = draws
            if not reasons({"quantity": judged}, draws, {}, rule):
                return by_agreement, draws
        return by_agreement, None


def _spread_of_means(values: Array) -> float:
    return float(values.mean(axis=(1, 2)).std(ddof=1) / math.sqrt(len(values)) / values.std())


def _drifts(values: Array, rule: Rule) -> bool:
    """Whether the values themselves drift, so that the study is not ok whatever their ranks do."""
    drift = agreement(values, (values, values)).drift
    return drift.late > 0 or drift.shift > 1.01 * rule.max_mcse


def members_agree(judged: Judged, rule: Rule) -> bool:
    """Whether members agree on a quantity, however all of them move."""
    rhat, mcse = (math.inf if number is None else number for number in (judged.rhat, judged.mcse))
    return rhat <= rule.max_rhat and mcse <= rule.max_mcse
