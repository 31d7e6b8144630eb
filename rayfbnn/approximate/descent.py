"""Descent to a maximum of the posterior density of the parameters: networks without uncertainty."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from rayfbnn.approximate.approximation import (
    COUNT,
    DRAWS,
    POSITIVE,
    SHARE,
    STARTS,
    Approximation,
    Fit,
    Limits,
    State,
    Timing,
    key,
)
from rayfbnn.approximate.distributions import Points
from rayfbnn.approximate.target_protocols import FitTarget
from rayfbnn.arrays import Array, array_namespace, to_host
from rayfbnn.state import Advance, Target
from rayfbnn.streams import Purpose, Streams

_VALIDATION = Limits("a number of at least 0 and below 1, such as 0.2", least=0, below=1)
_SETTLED = 1e-3  # rounds of "lbfgs" end when no log precision changes by more


@dataclass(frozen=True)
class Descent(Approximation):
    """Single networks at maxima of the posterior density, which predict together with equal shares.

    draws        number of times that each network is stored
    steps        number of steps of the optimiser; for "lbfgs" the most in each round
    optimizer    "leapfrog": leapfrog steps of `rate` times the heuristic stepsizes, with a momentum that
                 decays; "adam": Adam with a rate that falls to zero along a cosine; "lbfgs": SciPy's L-BFGS,
                 for small problems
    rate         rate of "leapfrog" and "adam"
    first_decay, last_decay  factor of the momentum after the first and the last step of "leapfrog"; one
                 minus it falls along a geometric sequence
    validation   share of the cases that each start holds out at random; the network with the least error on
                 them is kept. With 0 the last network is kept
    precisions   "expected": they are set to their means given the parameters, every `refresh` steps after the
                 first quarter, or after each round of "lbfgs"; the precision of the noise follows from all
                 cases. "fixed": they stay at their prior means
    refresh      number of steps between updates of the precisions, and between tests on held-out cases
    rounds       the most rounds of "lbfgs"; the precisions are updated after each
    """

    starts: int = key(1, STARTS)
    draws: int = key(1, DRAWS)
    steps: int = key(5000, COUNT)
    optimizer: Literal["leapfrog", "adam", "lbfgs"] = "leapfrog"
    rate: float = key(0.1, POSITIVE)
    first_decay: float = key(0.9, SHARE)
    last_decay: float = key(0.999, SHARE)
    validation: float = key(0.0, _VALIDATION)
    precisions: Literal["expected", "fixed"] = "expected"
    refresh: int = key(50, COUNT)
    rounds: int = key(50, COUNT)

    name: ClassVar[str] = "map"
    title: ClassVar[str] = (
        "descent to a maximum of the posterior density: single networks without uncertainty"
    )
    objective: ClassVar[str] = "log density"
    has_density: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.validation and self.optimizer == "lbfgs":
            raise self.wrong(
                "validation",
                'is for "leapfrog" and "adam", which can be stopped early, got'
                f" {self.validation:g}; leave it out",
            )

    @property
    def n_steps(self) -> int:
        return self.rounds if self.optimizer == "lbfgs" else self.steps

    def check_covers(self, target: FitTarget, *, n_together: int) -> None:
        """Refuse to hold out the only case, and precisions that vary but have no distribution."""
        if self.validation and target.n_cases < 2:
            raise self.wrong("validation", "needs at least 2 training cases, and there is 1")
        self.refuse(target.why_not_expected if self.precisions == "expected" else None)

    def build(self, target: FitTarget, advance: Callable[[], Advance]) -> DescentFit:
        return DescentFit(target, self)

    def timing(self) -> Timing:
        """Measure all steps, although "lbfgs" may be complete before the last round."""
        return Timing(self, self.n_steps, is_most=True)

    def gradients(self, state: State, *, n_cases: int, n_outputs: int) -> float:
        """Return the number of gradients that the fit counted, as shares of all cases."""
        return float(state["gradients"].sum()) * (1 - self.validation)


@dataclass(frozen=True)
class DescentFit(Fit):
    """The fit of one network for each start; the chain axis is that of starts.

    The state has these arrays:

    position, best               (n_starts, n_parameters), the current network and the one that is kept
    precisions, best_precisions  (n_starts, n_precisions), the precisions of the two networks
    held_out                     (n_starts,), the least energy of the held-out cases
    first, second                (n_starts, n_parameters), for "leapfrog" the momentum and the gradient, and
                                 for "adam" its moments
    change                       (n_starts,), the largest change of a log precision at their last update
    gradients                    (n_starts,), the number of gradients that were computed so far
    """

    target: FitTarget
    settings: Descent

    def initial(self, streams: Streams) -> State:
        xp = array_namespace(streams.chains)
        position, precisions = self.target.start(streams)
        position = position.astype(xp.float64)
        second = xp.zeros_like(position)
        if self.settings.optimizer == "leapfrog":
            second = self._energy_and_gradient(position, precisions, streams)[1]
        return {
            "position": position,
            "best": position.copy(),
            "precisions": precisions,
            "best_precisions": precisions.copy(),
            "held_out": xp.full(len(position), xp.inf),
            "first": xp.zeros_like(position),
            "second": second,
            "change": xp.full(len(position), xp.inf),
            "gradients": xp.full(len(position), float(self.settings.optimizer == "leapfrog")),
        }

    def step(self, state: State, streams: Streams) -> tuple[State, Array]:
        """Take step streams.iteration, counted from 1, of all starts.

        The objective is the log density of the parameters given the precisions, without held-out cases.
        A step of "leapfrog" is p -= r s/2 g ; q += r s p ; p -= r s/2 g ; p *= decay, with rate r, heuristic
        stepsizes s, and gradient g of the potential without held-out cases: Neal (1996), sec. 4.2.
        """
        settings, number = self.settings, streams.iteration
        if settings.optimizer == "lbfgs":
            return self._round(state)
        is_due = number % settings.refresh == 0
        changed = dict(state)
        if settings.precisions == "expected" and is_due and number > settings.steps // 4:
            changed |= self._updated_precisions(changed)
            if settings.optimizer == "leapfrog":
                position, precisions = changed["position"], changed["precisions"]
                changed["second"] = self._energy_and_gradient(position, precisions, streams)[1]
                changed["gradients"] = changed["gradients"] + 1
        changed["gradients"] = changed["gradients"] + 1
        if settings.optimizer == "leapfrog":
            energy = self._leap(changed, streams)
        else:
            energy = self._follow(changed, streams)
        if is_due or number == settings.steps or not settings.validation:
            self._keep_best(changed, streams)
        return changed, -energy

    def is_complete(self, state: State) -> bool:
        """Return True if the precisions have settled after a round of "lbfgs"."""
        return self.settings.optimizer == "lbfgs" and bool((state["change"] < _SETTLED).all())

    def distribution(self, state: State) -> Points:
        return Points(state["best"], state["best_precisions"])

    def _leap(self, changed: dict[str, Array], streams: Streams) -> Array:
        """Take a leapfrog step and reduce the momentum, in place; return the energy after the step."""
        settings = self.settings
        precisions = changed["precisions"]
        scaled = settings.rate * self.target.stepsizes(precisions)
        momentum = changed["first"] - scaled / 2 * changed["second"]
        changed["position"] = changed["position"] + scaled * momentum
        energy, changed["second"] = self._energy_and_gradient(changed["position"], precisions, streams)
        share = (streams.iteration - 1) / max(1, settings.steps - 1)
        lost = (1 - settings.first_decay) ** (1 - share) * (1 - settings.last_decay) ** share
        changed["first"] = (1 - lost) * (momentum - scaled / 2 * changed["second"])
        return energy

    def _follow(self, changed: dict[str, Array], streams: Streams) -> Array:
        """Take a step of Adam, in place; return the energy before the step."""
        settings, number = self.settings, streams.iteration
        energy, gradient = self._energy_and_gradient(changed["position"], changed["precisions"], streams)
        direction, changed["first"], changed["second"] = adam(
            gradient, changed["first"], changed["second"], number=number
        )
        rate = cosine_rate(settings.rate, number=number, steps=settings.steps)
        changed["position"] = changed["position"] - rate * direction
        return energy

    def _round(self, state: State) -> tuple[State, Array]:
        """Minimise the potential from every start by L-BFGS, and update the precisions."""
        # Every process of a run imports this file, and scipy.optimize takes 40 MB.
        from scipy.optimize import minimize

        xp = array_namespace(state["position"])
        precisions, minima = state["precisions"], []
        for start, position in enumerate(to_host(state["position"])):
            of_start = precisions[start : start + 1]

            def potential(w: Array, of_start: Array = of_start) -> tuple[float, Array]:
                at = xp.asarray(w)[None].astype(self.target.dtype)
                energy, gradient = self.target.potential_and_gradient(at, of_start)
                return float(energy[0]), to_host(gradient[0]).astype(np.float64)

            most = self.settings.steps
            options: Any = {"maxiter": most, "maxfun": 2 * most, "gtol": 1e-8, "ftol": 0}
            found = minimize(potential, position, jac=True, method="L-BFGS-B", options=options)
            minima.append((found.x, found.fun, found.nfev))
        ends, energies, n_gradients = zip(*minima, strict=True)
        changed = dict(state)
        changed["position"] = xp.asarray(np.stack(ends))
        changed["gradients"] = state["gradients"] + xp.asarray(n_gradients)
        if self.settings.precisions == "expected":
            changed |= self._updated_precisions(changed)
        else:
            changed["change"] = xp.zeros_like(state["change"])
        changed |= {"best": changed["position"], "best_precisions": precisions}
        return changed, -xp.asarray(energies)

    def _keep_best(self, changed: dict[str, Array], streams: Streams) -> None:
        """Keep networks that are better than all earlier ones, in place; without held-out cases, the last."""
        xp = array_namespace(changed["position"])
        is_better = xp.ones(len(changed["position"]), dtype=bool)
        if self.settings.validation:
            _, held_out = self._divided(streams)
            energy = self._data_energy(held_out, changed["position"], changed["precisions"])
            is_better = energy < changed["held_out"]
            changed["held_out"] = xp.where(is_better, energy, changed["held_out"])
        for kept, now in (("best", "position"), ("best_precisions", "precisions")):
            changed[kept] = xp.where(is_better[:, None], changed[now], changed[kept])

    def _energy_and_gradient(
        self, position: Array, precisions: Array, streams: Streams
    ) -> tuple[Array, Array]:
        """Return the energy (n_starts,) and its gradient, without held-out cases."""
        target: Target = self.target
        if self.settings.validation:
            target = self.target.of_cases(self._divided(streams)[0], 1.0)
        energy, gradient = target.potential_and_gradient(position.astype(self.target.dtype), precisions)
        return energy, gradient.astype(position.dtype)

    def _data_energy(self, cases: Array, position: Array, precisions: Array) -> Array:
        """Return minus the log likelihood of some cases, (n_starts,)."""
        xp = array_namespace(position)
        at = position.astype(self.target.dtype)
        weighted = [self.target.of_cases(cases, weight) for weight in (1.0, 0.0)]
        whole, prior = (target.potential_and_gradient(at, precisions)[0] for target in weighted)
        difference = whole - prior
        return xp.where(xp.isfinite(difference), difference, xp.inf)

    def _divided(self, streams: Streams) -> tuple[Array, Array]:
        """Return the cases to fit and the held-out cases, (n_starts, n) each, the same at every step."""
        n_cases = self.target.n_cases
        order = streams.at(iteration=0).permutation(n_cases, Purpose.START)
        n_held_out = min(max(1, round(self.settings.validation * n_cases)), n_cases - 1)
        return order[:, n_held_out:], order[:, :n_held_out]

    def _updated_precisions(self, state: State) -> dict[str, Array]:
        """Return the means of the precisions given the parameters, and the largest change of a logarithm."""
        xp = array_namespace(state["position"])
        position, precisions = state["position"], state["precisions"]
        residuals = self.target.residual_squares(position.astype(self.target.dtype))
        q = self.target.expected_precisions(precisions, position**2, residuals)
        return {"precisions": q.mean, "change": xp.abs(xp.log(q.mean / precisions)).max(axis=1)}


FIRST_DECAY, SECOND_DECAY, SMALL = 0.9, 0.999, 1e-8


def adam(gradient: Array, first: Array, second: Array, *, number: int) -> tuple[Array, Array, Array]:
    """Return the direction of step `number`, counted from 1, and the two moments after it.

    Kingma and Ba (2015), with decays 0.9 and 0.999. `first` and `second` are zeros before the first step. All
    arrays have the shape of the gradient. The new position is the old one minus the rate times the direction.
    """
    xp = array_namespace(gradient)
    first = FIRST_DECAY * first + (1 - FIRST_DECAY) * gradient
    second = SECOND_DECAY * second + (1 - SECOND_DECAY) * gradient**2
    scale = xp.sqrt(second / (1 - SECOND_DECAY**number)) + SMALL
    return first / (1 - FIRST_DECAY**number) / scale, first, second


def cosine_rate(rate: float, *, number: int, steps: int) -> float:
    """Return the rate of step `number`, counted from 1, which falls from `rate` to zero along a cosine."""
    return rate * (1 + math.cos(math.pi * (number - 1) / steps)) / 2
