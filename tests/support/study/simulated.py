"""Simulated studies, chains of known autocorrelation, and tables of when the rule stops them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.signal

from rayfbnn.arrays import Array
from rayfbnn.study.rule import Judged, Rule, agreement, judge, plain_nested_rhat, reasons

STUDIES = 200
MOST_RHAT = 1.02  # true nested R-hat, twice the allowed excess: above, a stop is false
MOST_BIAS = 0.1  # of the mean in standard deviations, twice the allowed error: above, a stop is false
SIZES = ((20, 4), (10, 8), (8, 2))  # members and chains of each
COMMON_RHOS = (0.9, 0.98, 0.99, 0.995, 0.999, 0.9999)
SPREAD_RHOS = (0.5, 0.9, 0.95, 0.98, 0.99, 0.995)
STATIONARY_RHOS = (0.0, 0.5, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class Stops:
    """How many of some studies stop, by the agreement of members and by the rule.

    false        at a look whose draws are off by more than is stated
    first, last  at the first look, and at any
    """

    false: tuple[int, int]
    first: tuple[int, int]
    last: tuple[int, int]


def stops(studies: Simulated, count: int) -> Stops:
    """Simulate studies and count those that stop."""
    generator, rule = np.random.default_rng(11), Rule()
    is_off = {
        draws: abs(studies.bias(draws)) > MOST_BIAS
        or (studies.spread > 0 and studies.true_rhat(draws) > MOST_RHAT)
        for draws in studies.looks
    }
    both = list(zip(*(studies.both_stops(generator, rule) for _ in range(count)), strict=True))
    false, first, last = (
        tuple(sum(test(draws) for draws in one if draws is not None) for one in both)
        for test in (is_off.__getitem__, lambda draws: draws == studies.looks[0], lambda draws: True)
    )
    return Stops(false, first, last)  # type: ignore[arg-type]


def common(rho: float, distance: float, members: int, chains: int) -> Simulated:
    """Studies whose chains all start at one place."""
    return Simulated(rho, spread=0.0, common=distance, members=members, chains=chains)


def stationary(rho: float, members: int, chains: int) -> Simulated:
    """Studies whose chains start at exact draws."""
    return Simulated(rho, spread=0.0, is_stationary=True, members=members, chains=chains)


def lines() -> Iterator[str]:
    """Yield the lines of the tables as they are in the page."""
    yield from _table(
        "common start",
        COMMON_RHOS,
        {
            f"{members} x {chains}, {distance} sd off": [
                stops(common(rho, distance, members, chains), STUDIES).false for rho in COMMON_RHOS
            ]
            for members, chains in SIZES
            for distance in (3, 10)
        },
    )
    yield ""
    yield from _table(
        "spread starts",
        SPREAD_RHOS,
        {
            f"{members} x {chains}": [
                stops(Simulated(rho, members=members, chains=chains), STUDIES).false for rho in SPREAD_RHOS
            ]
            for members, chains in SIZES
        },
    )
    yield ""
    rows: dict[str, list[tuple[int, int]]] = {}
    for members, chains in SIZES:
        row = [stops(stationary(rho, members, chains), STUDIES) for rho in STATIONARY_RHOS]
        rows[f"{members} x {chains}, at the first look"] = [one.first for one in row]
        rows[f"{members} x {chains}, by the last"] = [one.last for one in row]
    yield from _table("stationary", STATIONARY_RHOS, rows)


def _table(title: str, rhos: tuple[float, ...], rows: dict[str, list[tuple[int, int]]]) -> Iterator[str]:
    yield f"| {title} | " + " | ".join(f"{rho:g}" for rho in rhos) + " |"
    yield "|---|" + "---|" * len(rhos)
    for name, cells in rows.items():
        yield f"| {name} | " + " | ".join(f"{one}, {other}" for one, other in cells) + " |"


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


if __name__ == "__main__":
    for line in lines():
        print(line, flush=True)
