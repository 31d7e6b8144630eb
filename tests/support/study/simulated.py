"""Simulated studies: chains whose autocorrelation is known, and chains that never mix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.signal

from rayfbnn.arrays import Array
from rayfbnn.study.nested import plain_nested_rhat
from rayfbnn.study.rule import Rule, judge, reasons


@dataclass(frozen=True)
class Simulated:
    """Studies of one quantity.

    rho     autocorrelation of successive draws; stationary variance is 1
    spread  standard deviation of the places where superchains start, and in them all their chains
    apart   distance of two modes, in one of which each chain stays for ever; 0 for one mode
    """

    rho: float
    spread: float = 3.0
    apart: float = 0.0
    members: int = 20
    chains: int = 4
    looks: tuple[int, ...] = (100, 200, 400, 800)

    def draw(self, generator: np.random.Generator, *, members: int | None = None) -> Array:
        """Draw one study, (members, chains, draws)."""
        shape = (members or self.members, self.chains, self.looks[-1])
        noise = generator.standard_normal(shape) * np.sqrt(1 - self.rho**2)
        start = np.broadcast_to(self.spread * generator.standard_normal((shape[0], 1, 1)), (*shape[:2], 1))
        values, _ = scipy.signal.lfilter([1.0], [1.0, -self.rho], noise, axis=2, zi=self.rho * start)
        return np.asarray(values + self.apart * generator.integers(0, 2, (*shape[:2], 1)))

    def true_rhat(self, draws: int) -> float:
        """Nested R-hat of so many draws, from two thousand superchains, so that little is left of chance."""
        many = self.draw(np.random.default_rng(1), members=2000)
        return plain_nested_rhat(many[:, :, :draws])

    def stops_at(self, generator: np.random.Generator, rule: Rule) -> int | None:
        """The number of draws at which the rule stops a study; None if it never does."""
        values, seeds = self.draw(generator), tuple(range(self.members))
        for draws in self.looks:
            seen = {"quantity": judge(values[:, :, :draws], seeds, rule)}
            if not reasons(seen, draws, {}, rule):
                return draws
        return None
