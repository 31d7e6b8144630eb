"""MacKay's Gaussian approximation: modes found by Gauss-Newton steps, precisions by the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from rayfbnn.approximate.gaussian import draw_by_precision, log_density_by_precision
from rayfbnn.arrays import Array, array_namespace
from rayfbnn.state import CurvedTarget
from rayfbnn.streams import Purpose, Streams

State: TypeAlias = Mapping[str, Array]

MOST_PARAMETERS = 5000  # above, the matrices are too large: 200 MB each
_FIRST_DAMPING = 1e-2
_LEAST_DAMPING = 1e-9
_TRIES = 12  # of larger dampings in one Gauss-Newton step
_SETTLED = 1e-3  # the largest change of a log precision at which the fixed point counts as reached


@dataclass(frozen=True)
class LaplaceSettings:
    """The settings of a fit.

    steps       the most updates of the precisions; a start ends earlier when they change by less than 1e-3
    first       number of Gauss-Newton steps before the first update and after the last
    between     number of Gauss-Newton steps between updates
    precisions  "evidence": they maximise the evidence; "integrated": those of parameters are integrated out
                of the density whose mode is found, which at times is drastically wrong; "fixed": they stay at
                their prior means
    curvature   of draws and evidence: "gauss-newton", or "exact", the Hessian by differences
    prediction  "linear": outputs of draws are linear about the mode; "sampled": those of their own networks,
                which are nonsense where the network is not nearly linear over the posterior
    """

    steps: int = 200
    first: int = 60
    between: int = 6
    precisions: Literal["evidence", "integrated", "fixed"] = "evidence"
    curvature: Literal["gauss-newton", "exact"] = "gauss-newton"
    prediction: Literal["linear", "sampled"] = "linear"

    def __post_init__(self) -> None:
        """Check the settings."""
        for key in ("steps", "first", "between"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}: must be at least 1, got {getattr(self, key)}")


@dataclass(frozen=True)
class StepInfo:
    """Information on one step: the energy (n_starts,), and the largest change of a log precision."""

    objective: Array
    change: Array


@dataclass(frozen=True)
class Modes:
    """The Gaussian approximations at the modes of all starts.

    mode              (n_starts, n_parameters)
    precisions        (n_starts, n_precisions)
    factor            (n_starts, n_parameters, n_parameters), lower triangular: A = factor factor'; NaN where
                      A is not positive definite
    log_evidence      (n_starts,) with the precisions integrated over by the width of their peak; -inf where
                      A is not positive definite
    least_eigenvalue  (n_starts,) of the exact Hessian, which below zero marks a point that is no mode
    """

    mode: Array
    precisions: Array
    factor: Array
    log_evidence: Array
    least_eigenvalue: Array


@dataclass(frozen=True)
class Laplace:
    """A fit of Gaussian approximations; the chain axis is that of starts.

    The state has position (n_starts, n_parameters), precisions (n_starts, n_precisions), damping (n_starts,)
    of Levenberg, change (n_starts,), that of the log precisions at their last update, and how many gradients
    and curvatures of all cases were computed so far, both (n_starts,).
    """

    target: CurvedTarget
    settings: LaplaceSettings

    def initial(self, streams: Streams) -> State:
        """Return the state at the start."""
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

    def step(self, state: State, streams: Streams) -> tuple[State, StepInfo]:
        """Take some Gauss-Newton steps and update the precisions; step streams.iteration, counted from 1.

        The first step takes more, and so does the one in which a start settles. A start that has settled
        stays as it is.
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
        return changed, StepInfo(energy, changed["change"])

    def is_complete(self, state: State) -> bool:
        """Return True if all starts have settled."""
        return bool((state["change"] < _SETTLED).all())

    def modes(self, state: State) -> Modes:
        """Return the Gaussian approximations, and the log evidence.

        log p(D | tau) = -E + (1/2) sum log T - (1/2) log|A| with E the potential, which has the likelihood's
        normalisers, and A the curvature. The integral over the log precisions adds their prior density times
        the width of their peak, for each free one.
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

    def draws(
        self, state: State, streams: Streams, n: int, *, modes: Modes | None = None
    ) -> tuple[Array, Array, Array]:
        """Draw n parameter vectors of every start; `modes` are those of the state where they are known.

        Returns positions (n_starts, n, n_parameters), precisions (n_starts, n, n_precisions), which are those
        of the mode, and the log density (n_starts, n) of the positions.
        """
        xp = array_namespace(state["position"])
        modes = self.modes(state) if modes is None else modes
        positions = draw_by_precision(modes.mode, modes.factor, streams, n, purpose=Purpose.APPROXIMATE_DRAW)
        precisions = xp.repeat(modes.precisions[:, None], n, axis=1)
        return positions, precisions, log_density_by_precision(positions, modes.mode, modes.factor)

    def _descend(self, state: State, n_steps: int) -> State:
        """Take Gauss-Newton steps with Levenberg's damping: (G + T + mu diag(G + T)) d = grad E.

        mu is divided by 5 where a step lowers the energy, and else multiplied by 4, for another try.
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
        """Return the next precisions, and what the integral over them adds to the log evidence."""
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


def member_weights(
    log_evidence: Array,
    least_eigenvalue: Array,
    members: int,
    how: Literal["equal", "evidence"] = "equal",
) -> Array:
    """Return the weight of each start, (n_starts,): those of greatest evidence, equal or by their evidence.

    Starts whose exact Hessian has a negative eigenvalue come after all others, since they are no modes. The
    first two arguments are those of `Modes`.
    """
    xp = array_namespace(log_evidence)
    is_mode = least_eigenvalue >= 0
    lowest = xp.where(xp.isfinite(log_evidence), log_evidence, -1e300).min()
    rank = xp.lexsort(xp.stack([-log_evidence, ~is_mode]))
    chosen = xp.zeros(len(rank), dtype=bool)
    chosen[rank[:members]] = True
    if how == "equal":
        return chosen / chosen.sum()
    shifted = xp.where(chosen, log_evidence, lowest)
    weights = xp.where(chosen, xp.exp(shifted - shifted[chosen].max()), 0.0)
    return weights / weights.sum()


def _diagonal(values: Array) -> Array:
    """Return diagonal matrices (n_chains, n, n) of values (n_chains, n)."""
    return values[:, :, None] * array_namespace(values).eye(values.shape[1])


def _cholesky(matrices: Array) -> Array:
    """Return the lower triangular factors, NaN where a matrix is not positive definite."""
    xp = array_namespace(matrices)
    factors = xp.full_like(matrices, xp.nan)
    least = xp.linalg.eigvalsh(matrices)[:, 0]
    for chain in range(len(matrices)):
        if float(least[chain]) > 0:
            factors[chain] = xp.linalg.cholesky(matrices[chain])
    return factors
