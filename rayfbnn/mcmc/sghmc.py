"""Stochastic gradient Hamiltonian Monte Carlo: dynamics with friction, using gradients on batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias, cast

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc.heatbath import heatbath
from rayfbnn.mcmc.hybrid import Hybrid
from rayfbnn.mcmc.operation import AUTO, Auto, BuildContext, Operation, Tunable, Tuning, check_scaling
from rayfbnn.mcmc.stepsizes import check_stepsize, describe_stepsize, of_coordinates
from rayfbnn.state import (
    Advance,
    ChainState,
    MinibatchTarget,
    Target,
    Trajectory,
    UncorrectedInfo,
    Update,
)
from rayfbnn.streams import Purpose, Streams

GradientNoise: TypeAlias = Literal["none", "estimate"]

# A share of the stepsize at which trajectories are accepted often. Nothing rejects a chain where steps are
# unstable: with the whole stepsize, one of eight chains ran away in 4000 iterations.
_SHARE = 0.5
_JITTER = -0.2  # of the trajectories that tune, in decades, as in default schedules
_MOST_STEPS = 2**18  # each step has its own random numbers, by the index of streams.py


@dataclass(frozen=True)
class Sghmc(Operation):
    """Dynamics with friction, using gradients on batches of cases. Nothing is rejected; draws are biased.

    steps       number of steps, each with the gradient on one batch
    stepsize    factor on the heuristic stepsizes, or "auto". The tuning phases then run `hybrid` with as many
                steps, from a new momentum, and half of the stepsize that they find is used
    batch       number of cases in a batch; absent: all cases
    friction    C, the rate of decay of the momentum, per unit of time (steps times stepsize)
    noise       "estimate": estimate the noise of the gradient, and add that much less noise; "none": do not
    integrator  "splitting", "euler" (Chen, Fox and Guestrin 2014, eq. 15), or "langevin", which has no
                momentum and no friction
    scaling     "auto": tuning also finds a factor on the stepsizes of each group, as for `hybrid`
    """

    steps: int
    stepsize: float | Auto
    batch: int | None = None
    friction: float = 1.0
    noise: GradientNoise = "none"
    integrator: Integration = "splitting"
    scaling: Auto | None = None
    op: ClassVar[str] = "sghmc"
    is_exact: ClassVar[bool] = False
    has_energy_change: ClassVar[bool] = True
    bias: ClassVar[str] = "draws are approximate: biased by its steps and by the noise of a batch's gradient"
    undivided: ClassVar[str] = "draws its batches from all cases; leave out data.parts, or use hybrid"

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= _MOST_STEPS:
            raise ValueError(f"steps: must be from 1 to {_MOST_STEPS}, got {self.steps}")
        check_stepsize(1.0 if self.stepsize == AUTO else self.stepsize)
        check_scaling(self.scaling, self.stepsize)
        if self.batch is not None and self.batch < 1:
            raise ValueError(f"batch: must be at least 1, got {self.batch}")
        if not (self.friction >= 0 and math.isfinite(self.friction)):
            raise ValueError(f"friction: must be at least 0, got {self.friction}")
        if self.noise == "estimate":
            if self.integrator == "langevin":
                raise ValueError(
                    'noise: cannot be estimated with integrator = "langevin", got "estimate"; use "none"'
                )
            if self.batch is None or self.batch < 2:
                raise ValueError(
                    'noise: an estimate halves each batch and needs batch of at least 2, got "estimate"'
                )
        is_euler = self.integrator == "euler"
        if is_euler and self.stepsize != AUTO and self.friction * self.stepsize >= 2:
            raise ValueError(
                f"friction: friction times stepsize must be below 2 for euler, got {self.friction}"
            )

    @property
    def tuned(self) -> Tunable | None:
        """The `hybrid` that takes the place of the dynamics in tuning phases, if the stepsize is "auto"."""
        if self.stepsize != AUTO:
            return None
        return Hybrid(steps=self.steps, stepsize=AUTO, stepsize_jitter=_JITTER, scaling=self.scaling)

    def build(self, context: BuildContext) -> Update:
        """Bind `sghmc` to the target and its settings; in a tuning phase, bind the tuned `hybrid` instead."""
        settings = vars(self) | {"scales": ()}
        tuned = self.tuned
        if tuned is not None:
            if context.tuning is None or tuned not in context.tuning.settings:
                raise AssertionError("sghmc has not been tuned")
            if context.tuning.is_measured:
                return partial(_exactly, tuned.build(context))
            found = context.tuning.settings[tuned]
            settings |= {"stepsize": _SHARE * found.stepsize, "scales": found.scales}
        del settings["scaling"]
        return partial(sghmc, target=context.target, advance=context.advance, **settings)

    def gradients(self, tuning: Tuning | None = None) -> int:
        """Count each step as one gradient, although a batch has only some of the cases."""
        return self.steps

    def description(self) -> str:
        cases = "all cases" if self.batch is None else f"batches of at most {self.batch} cases"
        parts = [
            f"sghmc: {self.steps} steps ({self.integrator}) on gradients of {cases}",
            describe_stepsize(self.stepsize, None),
        ]
        if self.stepsize == AUTO:
            parts[-1] += f" (tuning runs hybrid instead, and {_SHARE:g} of its stepsize is used)"
        if self.scaling == AUTO:
            parts.append("automatic scales of groups")
        if self.integrator != "langevin":
            parts.append(f"friction {self.friction:g}")
        if self.noise == "estimate":
            parts.append("gradient noise estimated")
        return ", ".join([*parts, "never rejected"])


def _exactly(trajectory: Update, state: ChainState, streams: Streams) -> tuple[ChainState, Any]:
    """Draw a new momentum and follow a trajectory that is accepted or rejected."""
    return trajectory(heatbath(state, streams)[0], streams)


def sghmc(
    state: ChainState,
    streams: Streams,
    *,
    target: Target,
    advance: Advance | None = None,
    steps: int,
    stepsize: float,
    batch: int | None = None,
    friction: float = 1.0,
    noise: GradientNoise = "none",
    integrator: Integration = "splitting",
    scales: tuple[float, ...] = (),
) -> tuple[ChainState, UncorrectedInfo]:
    """Follow dynamics with friction for `steps` steps; Chen, Fox and Guestrin (2014).

    Coordinates are scaled by the stepsizes s and have unit mass. Let eps be the factor `stepsize`, C the
    friction, c = exp(-C eps), n standard normal, and g the gradient of E on a batch of cases:

        splitting   q += (eps/2) s p ;  p = c p + sqrt(1 - c^2 - c eps^2 V) n ;  q += (eps/2) s p ;
                    p -= eps s g(q)
        euler       q += eps s p ;  p = (1 - eps C) p - eps s g(q) + sqrt(2 (C - B) eps) n ,  B = eps V/2
        langevin    q += -(eps^2/2) s^2 g(q) + eps s n

    V is the variance of a component of s g that results from the choice of the batch. With noise = "none" it
    is 0. Otherwise each batch gives an estimate from its two halves, and V is the mean of the estimates over
    the steps of this update and one batch before them. The root of a negative number counts as 0. Momentum
    persists: a heatbath before the update would undo the last kick.

    The data's part of the gradient is multiplied by n_cases over the number of cases in the batch; the
    prior's part is not. Batches continue from one iteration to the next, see `MinibatchTarget.batches`. A
    chain that blows up stays where it was. The energy change in the info is NaN, because no full energy is
    computed.

    advance  may have compiled code for the first two integrators without an estimate of the noise
    scales   a further factor on s for each group of coordinates, see stepsizes.py; or empty
    """
    s = target.stepsizes(state.precisions)
    if scales:
        s = s * array_namespace(s).asarray(of_coordinates(scales, target))
    s = s.astype(state.position.dtype)
    take_steps = friction_steps_of(advance, target, batch)
    if take_steps is not None and noise == "none" and integrator != "langevin":
        start = Trajectory(state.position, state.momentum, state.precisions, s)
        factors = factors_of(integrator, stepsize, friction)
        batches = None if batch is None else cast(MinibatchTarget, target).batches(streams, batch)
        moved = take_steps(target, start, factors=factors, streams=streams, n_steps=steps, batches=batches)
        return _checked(state, *moved)
    gradient_of = _gradients(target, state.precisions, streams, batch=batch, steps=steps)
    step = {"splitting": splitting, "euler": euler, "langevin": langevin}[integrator]
    settings = UpdateConstants(stepsize, friction, s, noise == "estimate")
    position, momentum = state.position, state.momentum
    with np.errstate(all="ignore"):
        noise_of_gradient = NoiseEstimate()
        if settings.is_estimated:
            noise_of_gradient.add(gradient_of(0, position, is_halved=True)[1], s)
        for number in range(steps):
            normal = streams.single_normal(Purpose.FRICTION, position.shape[1:], index=number)
            position, momentum = step(
                position,
                momentum,
                normal.astype(position.dtype),
                settings=settings,
                gradient=partial(gradient_of, number, is_halved=settings.is_estimated),
                noise=noise_of_gradient,
            )
    return _checked(state, position, momentum)


def _checked(state: ChainState, position: Array, momentum: Array) -> tuple[ChainState, UncorrectedInfo]:
    """Return the state after an update; chains that blew up stay where they were."""
    xp = array_namespace(position)
    with np.errstate(all="ignore"):
        diverged = ~xp.isfinite(position + momentum).all(axis=1)
    position = xp.where(diverged[:, None], state.position, position)
    momentum = xp.where(diverged[:, None], state.momentum, momentum)
    after = replace(state, position=position, momentum=momentum)
    return after, UncorrectedInfo(xp.full(len(position), xp.nan), diverged)


@dataclass(frozen=True)
class UpdateConstants:
    """The constants of an update: eps, C, stepsizes s (n_chains, n_parameters), and whether to estimate V."""

    eps: float
    friction: float
    scales: Array
    is_estimated: bool


class NoiseEstimate:
    """V, the variance of each component of s g, as a mean over the gradients so far; 0 before the first."""

    def __init__(self) -> None:
        self.variance: Array | float = 0.0
        self._n = 0

    def add(self, variance: Array | None, scales: Array) -> None:
        """Include an estimate of the variance of g in the mean."""
        if variance is not None:
            self._n += 1
            self.variance = self.variance + (scales**2 * variance - self.variance) / self._n


def splitting(
    q: Array, p: Array, normal: Array, *, settings: UpdateConstants, gradient: Any, noise: NoiseEstimate
) -> tuple[Array, Array]:
    """Take a half drift, friction and noise, a half drift, and a kick."""
    eps, s = settings.eps, settings.scales
    c = math.exp(-settings.friction * eps)
    q = q + eps / 2 * s * p
    p = c * p + _root(1 - c**2 - c * eps**2 * noise.variance, normal)
    q = q + eps / 2 * s * p
    g, variance = gradient(q)
    noise.add(variance, s)
    return q, p - eps * s * g


def euler(
    q: Array, p: Array, normal: Array, *, settings: UpdateConstants, gradient: Any, noise: NoiseEstimate
) -> tuple[Array, Array]:
    """Take a step of Chen, Fox and Guestrin (2014), eq. 15."""
    eps, s, friction = settings.eps, settings.scales, settings.friction
    q = q + eps * s * p
    g, variance = gradient(q)
    noise.add(variance, s)
    added = _root(2 * (friction - eps * noise.variance / 2) * eps, normal)
    return q, p - eps * s * g - eps * friction * p + added


def langevin(
    q: Array, p: Array, normal: Array, *, settings: UpdateConstants, gradient: Any, noise: NoiseEstimate
) -> tuple[Array, Array]:
    """Take a step of Langevin dynamics, which does not change the momentum."""
    eps, s = settings.eps, settings.scales
    g, _ = gradient(q)
    return q - eps**2 / 2 * s**2 * g + eps * s * normal, p


def _root(variance: Array | float, normal: Array) -> Array:
    """Scale standard normal numbers to this variance; a negative variance counts as 0."""
    if isinstance(variance, float):
        return math.sqrt(max(variance, 0.0)) * normal
    xp = array_namespace(normal)
    return xp.sqrt(xp.maximum(variance, 0)).astype(normal.dtype) * normal


def _gradients(target: Target, precisions: Array, streams: Streams, *, batch: int | None, steps: int) -> Any:
    """Return a function of step, position and is_halved that gives the gradient of a batch, and its variance.

    The variance is None if it is not estimated.
    """

    def of_all(number: int, position: Array, *, is_halved: bool) -> tuple[Array, None]:
        return target.potential_and_gradient(position, precisions)[1], None

    if batch is None:
        return of_all
    whole = cast(MinibatchTarget, target)
    cases_of = whole.batches(streams, batch).batch
    first = (streams.iteration - 1) * steps

    def of_batch(number: int, position: Array, *, is_halved: bool) -> tuple[Array, Array | None]:
        cases = cases_of(first + number)
        if is_halved and cases.shape[1] > 1:
            return gradient_and_variance(whole, position, precisions, cases)
        return gradient_of_cases(whole, position, precisions, cases), None

    return of_batch


def gradient_of_cases(target: MinibatchTarget, position: Array, precisions: Array, cases: Array) -> Array:
    """Return the gradient on a batch of cases (n_chains, n); its expectation is the full gradient."""
    weight = target.n_cases / cases.shape[1]
    return target.of_cases(cases, weight).potential_and_gradient(position, precisions)[1]


def gradient_and_variance(
    target: MinibatchTarget, position: Array, precisions: Array, cases: Array
) -> tuple[Array, Array]:
    """Return the gradient on a batch, and an unbiased estimate of its variance over the choice of batch.

    The n = a + b cases of the batch are drawn from N without replacement. Let g1 and g2 be the gradients on
    its two halves of a and b cases:

        g = (a g1 + b g2)/n ,   V = (1 - n/N) a b (g1 - g2)^2/n^2
    """
    n = cases.shape[1]
    a = n // 2
    first, second = (
        gradient_of_cases(target, position, precisions, half) for half in (cases[:, :a], cases[:, a:])
    )
    b = n - a
    share = 1 - n / target.n_cases
    return (a * first + b * second) / n, share * (a * b / n**2) * (first - second) ** 2


Integration: TypeAlias = Literal["splitting", "euler", "langevin"]


@dataclass(frozen=True)
class Factors:
    """The factors of a step q += first s p; p = persistence p + noise n; q += second s p; p -= kick s g."""

    first: float
    second: float
    persistence: float
    noise: float
    kick: float


def factors_of(integrator: Integration, eps: float, friction: float) -> Factors:
    """Return the factors of a "splitting" or "euler" step, without an estimate of the gradient's noise."""
    if integrator == "splitting":
        c = math.exp(-friction * eps)
        return Factors(eps / 2, eps / 2, c, math.sqrt(1 - c**2), eps)
    return Factors(eps, 0.0, 1 - eps * friction, math.sqrt(2 * friction * eps), eps)


FrictionSteps: TypeAlias = Callable[..., tuple[Array, Array]]
"""Code for the steps of all chains, called with target, trajectory, factors, streams, n_steps, and batches.

It returns the position and momentum after all n_steps steps of this iteration. Its random numbers equal those
of array code, to rounding. `batches` has one batch for each step, and an iteration continues where the one
before it ended; None for all cases.
"""


def friction_steps_of(advance: Advance | None, target: Target, batch: int | None) -> FrictionSteps | None:
    """Return compiled code for batches of at most `batch` cases (None: all cases), or None without any."""
    steps = getattr(advance, "friction_steps", None)
    return None if steps is None else steps(target, batch)
