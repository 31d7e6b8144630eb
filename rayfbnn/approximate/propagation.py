"""Expectation propagation with probabilistic backpropagation, and assumed-density filtering."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from rayfbnn.approximate.gaussian import draw_diagonal, log_density_diagonal
from rayfbnn.approximate.variational import draw_gamma
from rayfbnn.arrays import Array, array_namespace
from rayfbnn.state import PropagatedTarget
from rayfbnn.streams import Purpose, Streams

State: TypeAlias = Mapping[str, Array]

_MOST_VARIANCE = 1e6


@dataclass(frozen=True)
class PropagationSettings:
    """The settings of a fit.

    sweeps   the most sweeps over all cases
    damping  share of each site that is replaced; in the first sweep all of it
    mode     "sites": each case has a site that is replaced in each sweep; "adf": assumed-density filtering,
             which has none, so that `sweeps` passes count the data `sweeps` times
    spread   standard deviation of the random means in the first sweep, in prior sds; without any, units that
             are alike stay alike
    precisions  "expected": those that vary are at their means under q(tau), after each sweep; "fixed": they
                stay at their prior means
    tolerance   a start ends when no mean moves by more than this
    """

    sweeps: int = 100
    damping: float = 0.3
    mode: Literal["sites", "adf"] = "sites"
    spread: float = 0.3
    precisions: Literal["expected", "fixed"] = "expected"
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.sweeps < 1:
            raise ValueError(f"sweeps: must be at least 1, got {self.sweeps}")
        if not 0 < self.damping <= 1:
            raise ValueError(f"damping: must be above 0 and at most 1, got {self.damping}")
        if not self.spread >= 0:
            raise ValueError(f"spread: must be at least 0, got {self.spread}")


@dataclass(frozen=True)
class SweepInfo:
    """Information on one sweep, (n_starts,) each.

    objective  sum of the log normalisers of all cases as they were met
    change     the largest change of a mean
    skipped    number of cases that were skipped, since what is left without their site is no Gaussian
    is_symmetric  whether the hidden units are still all alike, which no further sweep changes
    """

    objective: Array
    change: Array
    skipped: Array
    is_symmetric: Array


@dataclass(frozen=True)
class Propagation:
    """A fit by expectation propagation; the chain axis is that of starts.

    The state has natural parameters: precision and shift (n_starts, n_parameters), where shift is precision
    times mean; prior (n_starts, n_parameters), the precisions of the prior's sites; with sites also
    site_precision and site_shift (n_starts, n_cases, n_parameters); precisions, shape, rate (n_starts,
    n_precisions); and bound, change (n_starts,).
    """

    target: PropagatedTarget
    settings: PropagationSettings

    def initial(self, streams: Streams) -> State:
        """Return the state at the start: the prior, without any site."""
        xp = array_namespace(streams.chains)
        _, precisions = self.target.start(streams)
        prior = self.target.prior_precisions(precisions)
        n_sites = self.target.n_cases if self.settings.mode == "sites" else 0
        sites = xp.zeros((len(prior), n_sites, prior.shape[1]))
        nothing = xp.full_like(precisions, xp.nan)
        return {
            "precision": prior.copy(),
            "shift": xp.zeros_like(prior),
            "prior": prior,
            "site_precision": sites,
            "site_shift": sites.copy(),
            "precisions": precisions,
            "shape": nothing,
            "rate": nothing.copy(),
            "bound": xp.zeros(len(prior)),
            "change": xp.full(len(prior), xp.inf),
        }

    def step(self, state: State, streams: Streams) -> tuple[State, SweepInfo]:
        """Take sweep streams.iteration, counted from 1, over all cases, in an order that each start draws.

        A site's part is taken out (the cavity), the case's factor moves the moments that are left, and the
        new site is what leads from one to the other: Olobatuyi, eqs. 3, 54-58.

            m' = m + v d/dm log Z ,  v' = v - v^2 ((d/dm log Z)^2 - 2 d/dv log Z)
        """
        xp = array_namespace(state["precision"])
        is_first = streams.iteration == 1
        q = {name: state[name].copy() for name in ("precision", "shift", "site_precision", "site_shift")}
        before = q["shift"] / q["precision"]
        push = xp.zeros_like(before)
        if is_first and self.settings.spread > 0:
            normal = streams.normal(Purpose.START, before.shape[1:], index=1)
            push = self.settings.spread * normal * xp.sqrt(q["precision"])
            q["shift"] += push
        order = streams.permutation(self.target.n_cases, Purpose.CASE_ORDER)
        objective, skipped = xp.zeros(len(before)), xp.zeros(len(before))
        damping = 1.0 if is_first else self.settings.damping
        visit = self._visit if self.settings.mode == "sites" else self._filter
        with np.errstate(all="ignore"):
            for number in range(self.target.n_cases):
                log_z, is_skipped = visit(q, order[:, number], state["precisions"], damping)
                objective += xp.where(is_skipped, 0.0, log_z)
                skipped += is_skipped
        if self.settings.mode == "sites":
            q["shift"] -= push
        changed = {**state, **q}
        if self.settings.precisions == "expected":
            changed |= self._updated_precisions(changed)
        mean = changed["shift"] / changed["precision"]
        changed["change"] = xp.abs(mean - before).max(axis=1)
        is_symmetric = self.target.units_are_alike(mean)
        return changed, SweepInfo(objective, changed["change"], skipped, is_symmetric)

    def is_complete(self, state: State) -> bool:
        """Return True if no mean of any start moved by more than the tolerance in the last sweep."""
        return self.settings.mode == "sites" and bool((state["change"] < self.settings.tolerance).all())

    def log_evidence(self, state: State) -> Array:
        """Return the approximate log evidence of each start, (n_starts,), from the sites' normalisers.

        With Phi the log of a Gaussian's integral, Phi(q) - Phi(prior) + sum over cases of
        (log Z_i + Phi(cavity_i) - Phi(q)). For binary targets the factors are bounds, so that without hidden
        units it is a lower bound.
        """
        xp = array_namespace(state["precision"])
        precision, shift = state["precision"], state["shift"]
        whole = _log_integral(precision, shift)
        total = whole - _log_integral(state["prior"], xp.zeros_like(shift))
        for case in range(self.target.n_cases):
            left, shift_left = (
                precision - state["site_precision"][:, case],
                shift - state["site_shift"][:, case],
            )
            cases = xp.full(len(left), case)
            log_z, _, _ = self.target.case_update(shift_left / left, 1 / left, state["precisions"], cases)
            total = total + log_z + _log_integral(left, shift_left) - whole
        return total + state["bound"]

    def draws(self, state: State, streams: Streams, n: int) -> tuple[Array, Array, Array]:
        """Draw n parameter vectors and precisions of every start.

        Returns positions (n_starts, n, n_parameters), precisions (n_starts, n, n_precisions), each from its
        q(tau), and the log density (n_starts, n) of the positions.
        """
        xp = array_namespace(state["precision"])
        mean, sd = state["shift"] / state["precision"], 1 / xp.sqrt(state["precision"])
        positions = draw_diagonal(mean, sd, streams, n, purpose=Purpose.APPROXIMATE_DRAW)
        precisions = draw_gamma(state["precisions"], state["shape"], state["rate"], streams, n)
        return positions, precisions, log_density_diagonal(positions, mean, sd)

    def _visit(
        self, q: dict[str, Array], cases: Array, precisions: Array, damping: float
    ) -> tuple[Array, Array]:
        """Replace the sites of one case of each start; return log Z, and which starts skipped it."""
        xp = array_namespace(cases)
        starts = xp.arange(len(cases))
        site, site_shift = q["site_precision"][starts, cases], q["site_shift"][starts, cases]
        left, shift_left = q["precision"] - site, q["shift"] - site_shift
        is_open = (left > 0).all(axis=1)
        safe = xp.where(is_open[:, None], left, 1.0)
        log_z, mean, variance, is_good = self._moved(shift_left / safe, 1 / safe, precisions, cases)
        new = xp.where(is_good, 1 / variance - left, site)
        new_shift = xp.where(is_good, mean / variance - shift_left, site_shift)
        new = (1 - damping) * site + damping * new
        new_shift = (1 - damping) * site_shift + damping * new_shift
        is_open &= (left + new > 0).all(axis=1)
        rows = is_open[:, None]
        q["precision"] = xp.where(rows, left + new, q["precision"])
        q["shift"] = xp.where(rows, shift_left + new_shift, q["shift"])
        q["site_precision"][starts, cases] = xp.where(rows, new, site)
        q["site_shift"][starts, cases] = xp.where(rows, new_shift, site_shift)
        return log_z, ~is_open

    def _filter(
        self, q: dict[str, Array], cases: Array, precisions: Array, damping: float
    ) -> tuple[Array, Array]:
        """Move the whole approximation by one case of each start; none is skipped."""
        xp = array_namespace(cases)
        before, variance_before = q["shift"] / q["precision"], 1 / q["precision"]
        log_z, mean, variance, is_good = self._moved(before, variance_before, precisions, cases)
        mean, variance = xp.where(is_good, mean, before), xp.where(is_good, variance, variance_before)
        q["precision"], q["shift"] = 1 / variance, mean / variance
        return log_z, xp.zeros(len(cases), dtype=bool)

    def _moved(
        self, mean: Array, variance: Array, precisions: Array, cases: Array
    ) -> tuple[Array, Array, Array, Array]:
        """Return log Z, the moments after the case's factor, and where they are possible ones."""
        xp = array_namespace(mean)
        log_z, by_mean, by_variance = self.target.case_update(mean, variance, precisions, cases)
        moved = mean + variance * by_mean
        narrowed = variance - variance**2 * (by_mean**2 - 2 * by_variance)
        is_good = (narrowed > 0) & (narrowed < _MOST_VARIANCE) & xp.isfinite(moved)
        return log_z, moved, xp.where(is_good, narrowed, 1.0), is_good

    def _updated_precisions(self, state: State) -> dict[str, Array]:
        """Return the precisions given the moments of the parameters, in the prior's sites."""
        precision, shift = state["precision"], state["shift"]
        mean, variance = shift / precision, 1 / precision
        residuals = self.target.expected_residual_squares(mean, variance)
        q = self.target.expected_precisions(state["precisions"], mean**2 + variance, residuals)
        prior = self.target.prior_precisions(q.mean)
        return {
            "precisions": q.mean,
            "shape": q.shape,
            "rate": q.rate,
            "bound": q.bound,
            "prior": prior,
            "precision": precision + prior - state["prior"],
        }


def bytes_of_sites(n_cases: int, n_parameters: int) -> int:
    """Return the memory of the sites of one start: two numbers for each case and parameter."""
    return 16 * n_cases * n_parameters


def _log_integral(precision: Array, shift: Array) -> Array:
    """Return log of the integral of exp(shift w - precision w^2/2), (n_chains,)."""
    xp = array_namespace(precision)
    return 0.5 * (np.log(2 * np.pi) - xp.log(precision) + shift**2 / precision).sum(axis=1)
