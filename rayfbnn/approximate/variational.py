"""Bayes by Backprop: the factorised Gaussian closest to the posterior in Kullback-Leibler divergence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from rayfbnn.approximate.adam import adam, cosine_rate
from rayfbnn.approximate.gaussian import draw_diagonal, log_density_diagonal, pruned
from rayfbnn.arrays import Array, array_namespace
from rayfbnn.state import ApproximatedTarget, CaseBatches, Target
from rayfbnn.streams import Purpose, Streams

State: TypeAlias = Mapping[str, Array]

_FRESH = 16  # draws for the expected residuals at an update of the precisions
_MEMORY = 0.8  # of expected residuals, which are noisy
_AT_A_TIME = 100  # draws for the bound at once
_TOGETHER, _MOST_TOGETHER = 32, 1024  # steps in a call of compiled code
_PRODUCTS = 2**30  # of parameters and cases in a call of more steps than 32: it takes about a second


@dataclass(frozen=True)
class VariationalSettings:
    """The settings of a fit.

    steps       number of steps in all
    samples     number of draws of the parameters in a step
    batch       number of cases in a batch; None for all cases
    rate        of the optimiser; Adam's falls to zero along a cosine
    optimizer   "adam" or "sgd", plain gradient descent at a constant rate
    antithetic  whether draws come in pairs mean + sigma e and mean - sigma e; needs an even `samples`
    precisions  "expected": those of variables are replaced by their means under q(tau), every `refresh` steps
                after the first quarter; "fixed": they stay at their prior means
    refresh     number of steps between updates of the precisions
    initial_sd  standard deviation of every parameter at the start
    prune       share of the parameters that draws have at zero
    """

    steps: int = 8000
    samples: int = 2
    batch: int | None = None
    rate: float = 0.01
    optimizer: Literal["adam", "sgd"] = "adam"
    antithetic: bool = True
    precisions: Literal["expected", "fixed"] = "expected"
    refresh: int = 50
    initial_sd: float = 0.02
    prune: float = 0.0

    def __post_init__(self) -> None:
        """Check the settings."""
        for key in ("steps", "samples", "refresh"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}: must be at least 1, got {getattr(self, key)}")
        if self.antithetic and self.samples % 2:
            raise ValueError(f"samples: must be even where draws come in pairs, got {self.samples}")
        if self.batch is not None and self.batch < 1:
            raise ValueError(f"batch: must be at least 1, got {self.batch}")
        for key in ("rate", "initial_sd"):
            if not (getattr(self, key) > 0 and math.isfinite(getattr(self, key))):
                raise ValueError(f"{key}: must be a positive number, got {getattr(self, key)}")
        if not 0 <= self.prune < 1:
            raise ValueError(f"prune: must be at least 0 and below 1, got {self.prune}")


@dataclass(frozen=True)
class StepInfo:
    """Information on one step.

    objective  (n_starts,) the estimate of the bound from the draws of the step; a batch makes it noisier
    """

    objective: Array


class CompiledSteps(Protocol):
    """Takes steps of Adam in place of array code; it draws the same random numbers, to rounding."""

    def __call__(
        self,
        target: Target,
        state: State,
        streams: Streams,
        *,
        settings: VariationalSettings,
        n_steps: int,
        batches: CaseBatches | None,
    ) -> tuple[dict[str, Array], Array]:
        """Return mean, rho and moments after the steps, and the objective (n_steps, n_starts) of each.

        batches  step k of all has number k - 1 of these; None for all cases
        """
        ...


@runtime_checkable
class HasVariationalSteps(Protocol):
    """Code for trajectories that takes steps of Bayes by Backprop too, for some targets."""

    def variational_steps(self, target: Target, batch: int | None) -> CompiledSteps | None:
        """Return the code for batches of at most so many cases (None: all), or None if there is none."""
        ...


def rate_of_step(settings: VariationalSettings, number: int) -> float:
    """Return the rate of Adam in step `number`, counted from 1."""
    return cosine_rate(settings.rate, number=number, steps=settings.steps)


@dataclass(frozen=True)
class Variational:
    """A fit by Bayes by Backprop; the chain axis is that of starts.

    compiled  takes steps by Adam, or None for array code

    The state has mean and rho (n_starts, n_parameters), sigma = log(1 + exp(rho)); first and second
    (n_starts, 2 n_parameters), the moments of Adam; precisions, shape, rate (n_starts, n_precisions); bound
    (n_starts,), what the precisions add to the bound; and residuals (n_starts, n_targets).
    """

    target: ApproximatedTarget
    settings: VariationalSettings
    compiled: CompiledSteps | None = None
    # The batches of the starts that took the last step, by their streams: each pass has one permutation.
    _batches: dict[Any, tuple[Array, CaseBatches]] = field(default_factory=dict, compare=False)

    def initial(self, streams: Streams) -> State:
        """Return the state at the start: random means, and small standard deviations."""
        xp = array_namespace(streams.chains)
        position, precisions = self.target.start(streams)
        mean = position.astype(xp.float64)
        rho = math.log(math.expm1(self.settings.initial_sd))
        moments = xp.zeros((len(mean), 2 * mean.shape[1]))
        nothing = xp.full_like(precisions, xp.nan)
        squares = self.target.residual_squares(position)
        return {
            "mean": mean,
            "rho": xp.full_like(mean, rho),
            "first": moments,
            "second": moments.copy(),
            "precisions": precisions,
            "shape": nothing,
            "rate": nothing.copy(),
            "bound": xp.zeros(len(mean)),
            "residuals": xp.zeros((len(mean), 0)) if squares is None else xp.full(squares.shape, xp.nan),
        }

    def step(self, state: State, streams: Streams) -> tuple[State, StepInfo]:
        """Take step streams.iteration, counted from 1, of all starts."""
        state, objectives = self.steps(state, streams, 1)
        return state, StepInfo(objectives[0])

    def steps(self, state: State, streams: Streams, most: int) -> tuple[State, Array]:
        """Take up to `most` steps from number streams.iteration on, and return the objective of each.

        Compiled code takes many at once, up to an update of the precisions; array code takes one. The
        objectives are (n_steps, n_starts). How many steps are taken at once makes no difference to any.

        With sigma = log(1 + exp(rho)), w = mean + sigma e and g = dE/dw, the gradients of the divergence
        F = KL(q, prior) - E log L are means over the draws e; Gelbaum (2019), with its misprints corrected:

            dF/dmean = g        dF/drho = (g e - 1/sigma)/(1 + exp(-rho))
        """
        settings, first = self.settings, streams.iteration
        compiled = self.compiled if settings.optimizer == "adam" else None
        n_steps = 1 if compiled is None else self._n_together(first, most)
        batches = self._batches_of(streams)
        if compiled is not None:
            changed, objectives = compiled(
                self.target, state, streams, settings=settings, n_steps=n_steps, batches=batches
            )
        else:
            cases = None if batches is None else batches.batch(first - 1)
            changed, objectives = self._step(state, streams, cases)
        last = first + n_steps - 1
        changed = {**state, **changed}
        is_due = last > settings.steps // 4 and last % settings.refresh == 0
        if settings.precisions == "expected" and is_due:
            changed |= self._updated_precisions(changed, streams.at(iteration=last))
        return changed, objectives

    def _n_together(self, first: int, most: int) -> int:
        """Return how many steps to take at once from step `first` on."""
        refresh, cases = self.settings.refresh, self.settings.batch or self.target.n_cases
        cheap = _PRODUCTS // (cases * self.target.n_parameters)
        together = min(most, max(_TOGETHER, min(cheap, _MOST_TOGETHER)))
        if self.settings.precisions == "expected":
            return min(together, refresh - (first - 1) % refresh)
        return together

    def _batches_of(self, streams: Streams) -> CaseBatches | None:
        """Return the batches of the starts of these streams; None for all cases."""
        if self.settings.batch is None:
            return None
        key = streams.seed, streams.operation, id(streams.chains)
        if key not in self._batches:
            self._batches.clear()
            self._batches[key] = streams.chains, self.target.batches(streams, self.settings.batch)
        return self._batches[key][1]

    def _step(self, state: State, streams: Streams, cases: Array | None) -> tuple[dict[str, Array], Array]:
        """Return what a step by array code changes, and its objective (1, n_starts)."""
        xp, settings, number = array_namespace(state["mean"]), self.settings, streams.iteration
        n = state["mean"].shape[1]
        slope, energy = self._slope(state, streams, cases)
        changed = {}
        if settings.optimizer == "adam":
            direction, changed["first"], changed["second"] = adam(
                slope, state["first"], state["second"], number=number
            )
            move = rate_of_step(settings, number) * direction
        else:
            move = settings.rate * slope
        changed["mean"], changed["rho"] = state["mean"] - move[:, :n], state["rho"] - move[:, n:]
        log_widths = xp.log(sigma(state["rho"])).sum(axis=1)
        return changed, (log_widths + n / 2 - energy.mean(axis=1))[None]

    def is_complete(self, state: State) -> bool:
        """Return False: a fit takes all its steps, along which the rate falls to zero."""
        return False

    def draws(self, state: State, streams: Streams, n: int) -> tuple[Array, Array, Array]:
        """Draw n parameter vectors and precisions of every start.

        Returns positions (n_starts, n, n_parameters), precisions (n_starts, n, n_precisions), each from its
        q(tau), and the log density (n_starts, n) of the positions.
        """
        mean, sd = pruned(state["mean"], sigma(state["rho"]), self.settings.prune)
        positions = draw_diagonal(mean, sd, streams, n, purpose=Purpose.APPROXIMATE_DRAW)
        precisions = draw_gamma(state["precisions"], state["shape"], state["rate"], streams, n)
        return positions, precisions, log_density_diagonal(positions, mean, sd)

    def bound(self, state: State, streams: Streams, *, n: int = 1000) -> tuple[Array, Array]:
        """Return the evidence lower bound of every start from n fresh draws, and its standard error.

        E_q[log L + log prior] + sum log sigma + (P/2) log(2 pi e), and what the precisions add; (n_starts,)
        each. The same streams give every start the same draws of e only if their chains are equal.
        """
        xp = array_namespace(state["mean"])
        mean, sd = state["mean"], sigma(state["rho"])
        values = []
        for index, first in enumerate(range(0, n, _AT_A_TIME)):
            count = min(_AT_A_TIME, n - first)
            normal = streams.normal(Purpose.VARIATIONAL, (count, mean.shape[1]), index=index + 2)
            position = mean[:, None] + sd[:, None] * normal
            log_joint = self.target.log_joint(*self._flat(position, state["precisions"]))
            values.append(log_joint.reshape(len(mean), count))
        joint = xp.concatenate(values, axis=1)
        entropy = xp.log(sd).sum(axis=1) + mean.shape[1] / 2 * math.log(2 * math.pi * math.e)
        return joint.mean(axis=1) + entropy + state["bound"], joint.std(axis=1) / math.sqrt(n)

    def _normal(self, streams: Streams, n_parameters: int) -> Array:
        """Draw e for a step, (n_starts, samples, n_parameters)."""
        xp, n = array_namespace(streams.chains), self.settings.samples
        if not self.settings.antithetic:
            return streams.single_normal(Purpose.VARIATIONAL, (n, n_parameters)).astype(xp.float64)
        half = streams.single_normal(Purpose.VARIATIONAL, (n // 2, n_parameters)).astype(xp.float64)
        return xp.concatenate([half, -half], axis=1)

    def _slope(self, state: State, streams: Streams, cases: Array | None) -> tuple[Array, Array]:
        """Return dF/dmean and dF/drho (n_starts, 2 n_parameters), and the energies (n_starts, samples)."""
        xp, mean, rho = array_namespace(state["mean"]), state["mean"], state["rho"]
        sd = sigma(rho)
        normal = self._normal(streams, mean.shape[1])
        energy, gradient = self._energy_and_gradient(mean[:, None] + sd[:, None] * normal, state, cases)
        by_mean = gradient.mean(axis=1)
        by_rho = ((gradient * normal).mean(axis=1) - 1 / sd) / (1 + xp.exp(-rho))
        return xp.concatenate([by_mean, by_rho], axis=1), energy

    def _energy_and_gradient(self, position: Array, state: State, cases: Array | None) -> tuple[Array, Array]:
        """Return energies (n_starts, samples) and gradients (n_starts, samples, n_parameters) on a batch."""
        n_starts, samples, _ = position.shape
        target: Target = self.target
        if cases is not None:
            each = array_namespace(cases).repeat(cases, samples, axis=0)
            target = self.target.of_cases(each, self.target.n_cases / cases.shape[1])
        energy, gradient = target.potential_and_gradient(*self._flat(position, state["precisions"]))
        return energy.reshape(n_starts, samples), gradient.reshape(position.shape)

    def _flat(self, position: Array, precisions: Array) -> tuple[Array, Array]:
        """Return positions (n_starts, n, n_parameters) and the starts' precisions as chains of one batch."""
        xp = array_namespace(position)
        n = position.shape[1]
        dtype = self.target.dtype
        return position.reshape(-1, position.shape[2]).astype(dtype), xp.repeat(precisions, n, axis=0)

    def _updated_precisions(self, state: State, streams: Streams) -> dict[str, Array]:
        """Return what an update of q(tau) changes."""
        xp = array_namespace(state["mean"])
        mean, sd = state["mean"], sigma(state["rho"])
        half = streams.normal(Purpose.VARIATIONAL, (_FRESH // 2, mean.shape[1]), index=1)
        normal = xp.concatenate([half, -half], axis=1)
        position, _ = self._flat(mean[:, None] + sd[:, None] * normal, state["precisions"])
        squares, residuals = self.target.residual_squares(position), state["residuals"]
        if squares is not None:
            fresh = squares.reshape(len(mean), _FRESH, -1).mean(axis=1)
            residuals = xp.where(xp.isnan(residuals), fresh, _MEMORY * residuals + (1 - _MEMORY) * fresh)
        q = self.target.expected_precisions(
            state["precisions"], mean**2 + sd**2, None if squares is None else residuals
        )
        return {
            "precisions": q.mean,
            "shape": q.shape,
            "rate": q.rate,
            "bound": q.bound,
            "residuals": residuals,
        }


def sigma(rho: Array) -> Array:
    """Return log(1 + exp(rho)), which is positive wherever exp(rho) is, also in float32."""
    return array_namespace(rho).logaddexp(0, rho)


def draw_gamma(mean: Array, shape: Array, rate: Array, streams: Streams, n: int) -> Array:
    """Draw n precisions, (n_starts, n, n_precisions), of Gamma distributions, or `mean` where there is none.

    mean, shape, rate  (n_starts, n_precisions); shape and rate are NaN where there is no distribution
    """
    xp = array_namespace(mean)
    is_gamma = xp.isfinite(shape)[:, None]
    shapes = xp.broadcast_to(xp.where(is_gamma, shape[:, None], 1.0), (len(mean), n, mean.shape[1]))
    with np.errstate(invalid="ignore"):
        drawn = streams.log_gamma(shapes, Purpose.APPROXIMATE_DRAW, (n, mean.shape[1]), index=1)
        return xp.where(is_gamma, xp.exp(drawn) / rate[:, None], mean[:, None])
