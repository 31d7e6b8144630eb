"""Expectation propagation with probabilistic backpropagation, and assumed-density filtering."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from rayfbnn.approximate.approximation import (
    COUNT,
    LOG_EVIDENCE,
    OBJECTIVE,
    Fit,
    Limits,
    State,
    Timing,
    WithMembers,
    key,
)
from rayfbnn.approximate.distributions import Factorised
from rayfbnn.approximate.target_protocols import FitTarget
from rayfbnn.arrays import Array, array_namespace
from rayfbnn.memory import check_memory
from rayfbnn.state import Advance
from rayfbnn.streams import Purpose, Streams

_DAMPING = Limits("a number above 0 and at most 1", above=0, most=1)
_SPREAD = Limits("a number of at least 0", least=0)
_TOLERANCE = Limits("a positive number, such as 1e-6", above=0)
_COPIES_OF_SITES = 3  # counted by the check of the memory
_MOST_VARIANCE = 1e6


@dataclass(frozen=True)
class Propagation(WithMembers):
    """Variational expectation propagation with probabilistic backpropagation.

    members  number of starts that predictions use: those of the greatest evidence; None for all
    sweeps   the most sweeps over all cases
    damping  share of each site that is replaced; the first sweep replaces all of it
    mode     "sites": each case has a site, which each sweep replaces; "adf": assumed-density filtering
             without sites, which counts the data `sweeps` times
    spread   standard deviation of the random means in the first sweep, in prior sds; with 0, units that are
             alike stay alike
    precisions  "expected": they are set to their means under q(tau) after each sweep; "fixed": they stay at
                their prior means
    tolerance   a start is complete when no mean moves by more than this
    """

    sweeps: int = key(100, COUNT)
    damping: float = key(0.3, _DAMPING)
    mode: Literal["sites", "adf"] = "sites"
    spread: float = key(0.3, _SPREAD)
    precisions: Literal["expected", "fixed"] = "expected"
    tolerance: float = key(1e-6, _TOLERANCE)

    name: ClassVar[str] = "vep"
    title: ClassVar[str] = "variational expectation propagation with probabilistic backpropagation"
    objective: ClassVar[str] = "sum of log normalisers"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.members is not None and self.mode == "adf":
            raise self.wrong(
                "members",
                'needs the evidence of each start, which mode = "adf" does not give, got'
                f' {self.members}; leave it out, or have mode = "sites"',
            )

    @property
    def n_steps(self) -> int:
        return self.sweeps

    def check_covers(self, target: FitTarget, *, n_together: int) -> None:
        """Refuse too little memory for the sites, and models that cannot propagate moments."""
        if self.mode == "sites":
            sites = _bytes_of_sites(target.n_cases, target.n_parameters)
            check_memory("methods.vep.starts", n_together, _COPIES_OF_SITES * sites)
        self.refuse(target.why_not_propagated)

    def build(self, target: FitTarget, advance: Callable[[], Advance]) -> PropagationFit:
        return PropagationFit(target, self)

    def timing(self) -> Timing:
        """Measure all sweeps, although the fit may be complete before the last one."""
        return Timing(self, self.sweeps, is_most=True)

    def gradients(self, state: State, *, n_cases: int, n_outputs: int) -> float:
        """Count a sweep as one gradient: it finds the derivatives of log Z by all moments for each case."""
        objective = state[OBJECTIVE]  # by bins of sweeps, NaN after the last sweep
        return float(np.isfinite(objective).sum() * self.sweeps / objective.shape[1])


@dataclass(frozen=True)
class PropagationFit(Fit):
    """The fit by expectation propagation; the chain axis is that of starts.

    The state has these arrays; n_sites is the number of cases, or 0 for assumed-density filtering:

    precision, shift            (n_starts, n_parameters); shift is precision times mean
    prior                       (n_starts, n_parameters), the precisions of the prior's sites
    site_precision, site_shift  (n_starts, n_sites, n_parameters)
    precisions, shape, rate     (n_starts, n_precisions), the means and parameters of q(tau)
    bound                       (n_starts,), the term of the log evidence for the precisions
    change                      (n_starts,), the largest change of a mean in the last sweep
    """

    target: FitTarget
    settings: Propagation

    def initial(self, streams: Streams) -> State:
        """Return the prior, without any site."""
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

    def step(self, state: State, streams: Streams) -> tuple[State, Array]:
        """Take sweep streams.iteration, counted from 1, over all cases in a random order of each start.

        Dividing by a case's site leaves the cavity. The factor of the case changes its moments m and v, and
        the new site is the Gaussian with the new moments divided by the cavity: Olobatuyi, eqs. 3, 54-58.

            m' = m + v d/dm log Z ,  v' = v - v^2 ((d/dm log Z)^2 - 2 d/dv log Z)

        The objective is the sum of log Z of all cases when they were visited. A case whose cavity is no
        Gaussian is skipped.
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
        objective = xp.zeros(len(before))
        damping = 1.0 if is_first else self.settings.damping
        visit = self._visit if self.settings.mode == "sites" else self._filter
        with np.errstate(all="ignore"):
            for number in range(self.target.n_cases):
                log_z, is_skipped = visit(q, order[:, number], state["precisions"], damping)
                objective += xp.where(is_skipped, 0.0, log_z)
        if self.settings.mode == "sites":
            q["shift"] -= push
        changed = {**state, **q}
        if self.settings.precisions == "expected":
            changed |= self._updated_precisions(changed)
        mean = changed["shift"] / changed["precision"]
        changed["change"] = xp.abs(mean - before).max(axis=1)
        return changed, objective

    def is_complete(self, state: State) -> bool:
        """Return True if no mean of any start moved by more than the tolerance in the last sweep."""
        return self.settings.mode == "sites" and bool((state["change"] < self.settings.tolerance).all())

    def result(self, state: State, streams: Streams) -> dict[str, Array]:
        """Return the log evidence of every start; assumed-density filtering has none."""
        return {LOG_EVIDENCE: self.log_evidence(state)} if self.settings.mode == "sites" else {}

    def distribution(self, state: State) -> Factorised:
        xp, precision = array_namespace(state["precision"]), state["precision"]
        mean, sd = state["shift"] / precision, 1 / xp.sqrt(precision)
        return Factorised(mean, sd, state["precisions"], state["shape"], state["rate"])

    def log_evidence(self, state: State) -> Array:
        """Return the approximate log evidence of each start, (n_starts,), from the sites' normalisers.

        With Phi the log of a Gaussian's integral, it is Phi(q) - Phi(prior) + sum over cases of
        (log Z_i + Phi(cavity_i) - Phi(q)). For binary targets the factors are bounds, and the sum is a lower
        bound for a network without hidden units.
        """
        xp = array_namespace(state["precision"])
        precision, shift = state["precision"], state["shift"]
        whole = _log_integral(precision, shift)
        total = whole - _log_integral(state["prior"], xp.zeros_like(shift))
        for case in range(self.target.n_cases):
            left = precision - state["site_precision"][:, case]
            shift_left = shift - state["site_shift"][:, case]
            cases = xp.full(len(left), case)
            log_z, _, _ = self.target.case_update(shift_left / left, 1 / left, state["precisions"], cases)
            total = total + log_z + _log_integral(left, shift_left) - whole
        return total + state["bound"]

    def _visit(
        self, q: dict[str, Array], cases: Array, precisions: Array, damping: float
    ) -> tuple[Array, Array]:
        """Replace the site of one case of each start; return log Z, and True for starts that skipped it."""
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
        """Return log Z, the moments after the case's factor, and True where they are possible."""
        xp = array_namespace(mean)
        log_z, by_mean, by_variance = self.target.case_update(mean, variance, precisions, cases)
        moved = mean + variance * by_mean
        narrowed = variance - variance**2 * (by_mean**2 - 2 * by_variance)
        is_good = (narrowed > 0) & (narrowed < _MOST_VARIANCE) & xp.isfinite(moved)
        return log_z, moved, xp.where(is_good, narrowed, 1.0), is_good

    def _updated_precisions(self, state: State) -> dict[str, Array]:
        """Update q(tau) and the prior's sites given the moments of the parameters; return what changes."""
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


def _bytes_of_sites(n_cases: int, n_parameters: int) -> int:
    """Return the memory of the sites of one start: two numbers for each case and parameter."""
    return 16 * n_cases * n_parameters


def _log_integral(precision: Array, shift: Array) -> Array:
    """Return log of the integral of exp(shift w - precision w^2/2), (n_chains,)."""
    xp = array_namespace(precision)
    return 0.5 * (np.log(2 * np.pi) - xp.log(precision) + shift**2 / precision).sum(axis=1)
