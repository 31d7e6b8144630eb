"""MacKay's Gaussian approximation: modes found by Gauss-Newton steps, precisions by the evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from rayfbnn.approximate.approximation import (
    COUNT,
    LOG_EVIDENCE,
    STARTS,
    Dtype,
    Fit,
    State,
    Timing,
    WithMembers,
    key,
    member_weights,
)
from rayfbnn.approximate.distributions import draw_by_precision, log_density_by_precision
from rayfbnn.approximate.target_protocols import FitTarget
from rayfbnn.arrays import Array, array_namespace, to_host
from rayfbnn.memory import check_memory
from rayfbnn.state import Advance
from rayfbnn.streams import Purpose, Streams

_LEAST_EIGENVALUE = "least_eigenvalue"
_MOST_PARAMETERS = 5000  # above, the matrices are too large: 200 MB each
_COPIES_OF_MATRIX = 4  # held at once in a Gauss-Newton step: the curvature, its parts, and the damped system
_USUAL_UPDATES = 50  # updates of the precisions; starts of the robot arm settled after 23 to 80
_FIRST_DAMPING = 1e-2
_LEAST_DAMPING = 1e-9
_TRIES = 12  # dampings that one Gauss-Newton step tries
_SETTLED = 1e-3  # a start has settled if no log precision changes by more


@dataclass(frozen=True)
class Laplace(WithMembers):
    """MacKay's Gaussian approximation: a Gaussian about the mode that each start leads to.

    members     number of starts that predictions use: those of the greatest evidence; None for all
    weights     "equal", or "evidence" for weights of the members in proportion to their evidence
    steps       the most updates of the precisions; a start ends earlier when they change by less than 1e-3
    first       number of Gauss-Newton steps before the first update and after the last
    between     number of Gauss-Newton steps between updates
    precisions  "evidence": they maximise the evidence; "integrated": those of parameters are integrated out
                before the search for the mode, which at times is drastically wrong; "fixed": they stay at
                their prior means
    curvature   of draws and evidence: "gauss-newton", or "exact", the Hessian by differences
    prediction  "linear": outputs of draws are linear about the mode; "sampled": draws predict by their own
                networks, which are nonsense where the network is not nearly linear over the posterior
    """

    starts: int = key(12, STARTS)
    weights: Literal["equal", "evidence"] = "equal"
    steps: int = key(200, COUNT)
    first: int = key(60, COUNT)
    between: int = key(6, COUNT)
    precisions: Literal["evidence", "integrated", "fixed"] = "evidence"
    curvature: Literal["gauss-newton", "exact"] = "gauss-newton"
    prediction: Literal["linear", "sampled"] = "linear"

    name: ClassVar[str] = "laplace"
    title: ClassVar[str] = "MacKay's Gaussian approximation about modes"
    objective: ClassVar[str] = "energy at the mode"
    dtype: ClassVar[Dtype | None] = "float64"  # Hessians by differences need it
    setting_for_networks: ClassVar[str] = 'methods.laplace.prediction = "sampled"'

    @property
    def n_steps(self) -> int:
        return self.steps

    def check_covers(self, target: FitTarget, *, n_together: int) -> None:
        """Refuse too many parameters, too little memory, and posteriors without a known curvature."""
        n = target.n_parameters
        if n > _MOST_PARAMETERS:
            self.refuse(
                f"covers at most {_MOST_PARAMETERS} parameters, whose curvature is a matrix, and the network"
                f" has {n}; use bbb"
            )
        check_memory("methods.laplace.starts", n_together, 8 * _COPIES_OF_MATRIX * n**2)
        self.refuse(target.why_not_curved)

    def build(self, target: FitTarget, advance: Callable[[], Advance]) -> LaplaceFit:
        return LaplaceFit(target, self)

    def timing(self) -> Timing:
        """Measure a Gauss-Newton step of one start, because a step has many, and a batch saves no time."""
        if self.precisions == "fixed":  # the fit settles at its first step, which ends with the last descent
            n_steps = 2 * self.first
        else:
            n_steps = self.first + self.between * (min(self.steps, _USUAL_UPDATES) - 1)
        return Timing(replace(self, first=1, between=1), n_steps, is_together=False)

    def gradients(self, state: State, *, n_cases: int, n_outputs: int) -> float:
        """Count the derivatives of each output by all parameters as one gradient; a curvature needs them."""
        n_of_hessian = 2 * state["position"].size  # by differences, after the last step
        return float(state["gradients"].sum() + n_outputs * state["curvatures"].sum() + n_of_hessian)

    def why_unusable(self, state: State) -> str | None:
        """Return the reason if no start has a Gaussian approximation."""
        if np.isfinite(state[LOG_EVIDENCE]).any():
            return None
        return (
            "at no start is the curvature positive definite, so that there is no Gaussian approximation; fit"
            " again with other priors or more starts"
        )

    def shares(self, state: State) -> Array:
        """Return the weights of the members among starts with a positive definite curvature."""
        log_evidence = state[LOG_EVIDENCE]
        usable = np.flatnonzero(np.isfinite(log_evidence))
        n_members = min(self.members or len(log_evidence), len(usable))
        shares = np.zeros(len(log_evidence))
        least_eigenvalue = state[_LEAST_EIGENVALUE][usable]
        shares[usable] = member_weights(log_evidence[usable], least_eigenvalue, n_members, self.weights)
        return shares

    @property
    def linear_about(self) -> str | None:
        """The modes, if predictions are linear."""
        return "position" if self.prediction == "linear" else None


@dataclass(frozen=True)
class LaplaceFit(Fit):
    """The search for the modes; the chain axis is that of starts.

    The state has these arrays:

    position               (n_starts, n_parameters)
    precisions             (n_starts, n_precisions)
    damping                (n_starts,) Levenberg's damping
    change                 (n_starts,) largest change of a log precision at their last update
    gradients, curvatures  (n_starts,) number of each, of all cases, that were computed so far
    """

    target: FitTarget
    settings: Laplace
    results: ClassVar[tuple[str, ...]] = (LOG_EVIDENCE, _LEAST_EIGENVALUE)

    def initial(self, streams: Streams) -> State:
        xp = array_namespace(streams.chains)
        position, precisions = self.target.start(streams)
        return {
            "position": position.astype(xp.float64),
            "precisions": precisions,
            "damping": xp.full(len(position), _FIRST_DAMPING),
            "change": xp.full(len(position), xp.inf),
            "gradients": xp.zeros(len(position)),
            "curvatures": xp.zeros(len(position)),
        }

    def step(self, state: State, streams: Streams) -> tuple[State, Array]:
        """Take some Gauss-Newton steps and update the precisions; step streams.iteration, counted from 1.

        The first step takes more Gauss-Newton steps than others, and so does the last step of each start,
        when it settles. A start that has settled does not change any more.
        """
        xp, settings = array_namespace(state["position"]), self.settings
        is_first = streams.iteration == 1
        is_settled = state["change"] < _SETTLED
        moved = self._descend(state, settings.first if is_first else settings.between)
        changed = dict(moved)
        if settings.precisions == "fixed":
            changed["change"] = xp.zeros_like(moved["change"])
        else:
            changed["precisions"] = self._reestimated(moved)[0]
            ratio = xp.log(changed["precisions"] / moved["precisions"])
            changed["change"] = xp.abs(ratio).max(axis=1)
            changed["curvatures"] = changed["curvatures"] + 1
        settles = (changed["change"] < _SETTLED) & ~is_settled
        if bool(settles.any()):
            final = self._descend(changed, settings.first)
            for name in ("position", "gradients", "curvatures"):
                does = settles.reshape(-1, *(1,) * (final[name].ndim - 1))
                changed[name] = xp.where(does, final[name], changed[name])
        for name, before in state.items():
            stays = is_settled.reshape(-1, *(1,) * (before.ndim - 1))
            changed[name] = xp.where(stays, before, changed[name])
        energy = self.target.potential(changed["position"], changed["precisions"])
        return changed, energy

    def is_complete(self, state: State) -> bool:
        return bool((state["change"] < _SETTLED).all())

    def result(self, state: State, streams: Streams) -> dict[str, Array]:
        """Return the log evidence of every start, and the least eigenvalue of its exact Hessian."""
        modes = self.distribution(state)
        return {LOG_EVIDENCE: modes.log_evidence, _LEAST_EIGENVALUE: modes.least_eigenvalue}

    def distribution(self, state: State) -> Modes:
        """Return the Gaussian approximations, and the log evidence.

        log p(D | tau) = -E + (1/2) sum log T - (1/2) log|A|, where E is the potential with the likelihood's
        normalisers, T the prior's precisions, and A the curvature. The integral over the log precisions adds
        the prior density of each free one times the width of its peak.
        """
        xp = array_namespace(state["position"])
        position, precisions = state["position"], state["precisions"]
        prior = self.target.prior_precisions(precisions)
        curvature = self.target.gauss_newton(position, precisions).sum(axis=1) + _diagonal(prior)
        hessian = self.target.hessian(position, precisions)
        least = xp.linalg.eigvalsh(hessian)[:, 0]
        if self.settings.curvature == "exact":
            curvature = hessian
        factor = _cholesky(curvature)
        with np.errstate(invalid="ignore"):
            log_root = xp.log(xp.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
        energy = self.target.potential(position, precisions)
        log_evidence = 0.5 * xp.log(prior).sum(axis=1) - energy - log_root
        if self.settings.precisions != "fixed":
            log_evidence = log_evidence + self._reestimated(state)[1]
        log_evidence = xp.where(xp.isfinite(log_evidence), log_evidence, -xp.inf)
        return Modes(position, precisions, factor, log_evidence, least)

    def _descend(self, state: State, n_steps: int) -> State:
        """Take Gauss-Newton steps with Levenberg's damping: (G + T + mu diag(G + T)) d = grad E.

        mu is divided by 5 if a step lowers the energy, and otherwise multiplied by 4 for another try.
        """
        xp, target = array_namespace(state["position"]), self.target
        position, precisions, damping = state["position"], state["precisions"], state["damping"]
        prior = target.prior_precisions(precisions)
        energy = target.potential(position, precisions)
        is_active, n_taken = xp.ones(len(position), dtype=bool), xp.zeros(len(position))
        for _ in range(n_steps):
            n_taken += is_active
            _, gradient = target.potential_and_gradient(position, precisions)
            curvature = target.gauss_newton(position, precisions).sum(axis=1) + _diagonal(prior)
            scale = _diagonal(xp.diagonal(curvature, axis1=1, axis2=2))
            is_open = is_active.copy()
            start = energy
            for _ in range(_TRIES):
                damped = curvature + damping[:, None, None] * scale
                proposal = position - xp.linalg.solve(damped, gradient[:, :, None])[:, :, 0]
                there = target.potential(proposal, precisions)
                is_better = is_open & (there < energy)
                position = xp.where(is_better[:, None], proposal, position)
                energy = xp.where(is_better, there, energy)
                smaller = xp.maximum(damping / 5, _LEAST_DAMPING)
                damping = xp.where(is_better, smaller, xp.where(is_open, damping * 4, damping))
                is_open &= ~is_better
                if not bool(is_open.any()):
                    break
            is_active &= start - energy > 1e-9 * (1 + xp.abs(energy))
            if not bool(is_active.any()):
                break
        damping = xp.clip(damping, _LEAST_DAMPING, 1.0)
        counts = {name: state[name] + n_taken for name in ("gradients", "curvatures")}
        return {**state, "position": position, "damping": damping, **counts}

    def _reestimated(self, state: State) -> tuple[Array, Array]:
        """Return the next precisions, and the term of the log evidence for the integral over them."""
        xp = array_namespace(state["position"])
        position, precisions = state["position"], state["precisions"]
        parts = self.target.gauss_newton(position, precisions)
        curvature = parts.sum(axis=1) + _diagonal(self.target.prior_precisions(precisions))
        inverse = xp.linalg.inv(curvature)
        traces = xp.diagonal(inverse, axis1=1, axis2=2)
        determined = (inverse[:, None] * parts).sum(axis=(2, 3))
        update = self.target.reestimated(
            position,
            precisions,
            traces,
            determined,
            is_integrated=self.settings.precisions == "integrated",
        )
        return update.precisions, update.log_width


@dataclass(frozen=True)
class Modes:
    """The Gaussian approximations at the modes of all starts.

    mode              (n_starts, n_parameters)
    precisions        (n_starts, n_precisions)
    factor            (n_starts, n_parameters, n_parameters), lower triangular, with A = factor factor'; NaN
                      if A is not positive definite
    log_evidence      (n_starts,), with the integral over the precisions; -inf if A is not positive definite
    least_eigenvalue  (n_starts,) of the exact Hessian; a point where it is negative is no mode
    """

    mode: Array
    precisions: Array
    factor: Array
    log_evidence: Array
    least_eigenvalue: Array

    def draws(self, streams: Streams, n: int) -> tuple[Array, Array, Array]:
        """Draw n parameter vectors of every start, with the mode's precisions; see `Distribution`."""
        xp = array_namespace(self.mode)
        positions = draw_by_precision(self.mode, self.factor, streams, n, purpose=Purpose.APPROXIMATE_DRAW)
        precisions = xp.repeat(self.precisions[:, None], n, axis=1)
        return positions, precisions, to_host(log_density_by_precision(positions, self.mode, self.factor))


def _diagonal(values: Array) -> Array:
    """Return diagonal matrices (n_chains, n, n) of values (n_chains, n)."""
    return values[:, :, None] * array_namespace(values).eye(values.shape[1])


def _cholesky(matrices: Array) -> Array:
    """Return the lower triangular factors; NaN for a matrix that is not positive definite."""
    xp = array_namespace(matrices)
    factors = xp.full_like(matrices, xp.nan)
    least = xp.linalg.eigvalsh(matrices)[:, 0]
    for chain in range(len(matrices)):
        if float(least[chain]) > 0:
            factors[chain] = xp.linalg.cholesky(matrices[chain])
    return factors
