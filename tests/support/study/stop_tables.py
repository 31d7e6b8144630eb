"""Tables of simulated studies in docs/studies.md: `python -m tests.support.study.stop_tables` prints them.

A cell has two numbers: of the studies that would stop where members agree, and of those that the rule stops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rayfbnn.study.rule import Rule
from tests.support.study.simulated import Simulated

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


if __name__ == "__main__":
    for line in lines():
        print(line, flush=True)
