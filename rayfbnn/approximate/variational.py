"""Bayes by Backprop: the factorised Gaussian closest to the posterior in Kullback-Leibler divergence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from rayfbnn.approximate.approximation import (
    COUNT,
    LOG_EVIDENCE,
    POSITIVE,
    SHARE,
    Fit,
    Limits,
    State,
    Timing,
    WithMembers,
    key,
)
from rayfbnn.approximate.descent import adam, cosine_rate
from rayfbnn.approximate.distributions import Factorised, pruned
from rayfbnn.approximate.target_protocols import FitTarget
from rayfbnn.arrays import Array, array_namespace
from rayfbnn.state import Advance, CaseBatches, Target
from rayfbnn.streams import Purpose, Streams

_SAMPLES = Limits("a whole number of at least 1, even where antithetic = true", COUNT.least, COUNT.most)
_BATCH = Limits("a whole number of at least 1, or left out for all cases", COUNT.least, COUNT.most)
_DRAWS_FOR_BOUND = 1000  # draws of each start for the bound at the end
_FRESH = 16  # draws for the expected residuals at an update of the precisions
_MEMORY = 0.8  # share of the old expected residuals, which are noisy, in the new ones
_AT_A_TIME = 100  # draws for the bound that are evaluated at once
_TOGETHER, _MOST_TOGETHER = 32, 1024  # steps in a call of compiled code
_PRODUCTS = 2**30  # parameters times cases in a call of more than 32 steps, which takes about a second


@dataclass(frozen=True)
class Variational(WithMembers):
    """Bayes by Backprop: factorised Gaussians of least divergence to the posterior.

    members     number of starts that predictions use: those of the greatest bound; None for all
    steps       number of steps
    samples     number of draws of the parameters in a step
    batch       number of cases in a batch; None for all cases
    rate        rate of the optimiser; Adam's falls to zero along a cosine
    optimizer   "adam", or "sgd" for plain gradient descent at a constant rate
    antithetic  True if draws come in pairs mean + sigma e and mean - sigma e, which needs an even `samples`
    precisions  "expected": they are set to their means under q(tau), every `refresh` steps after the first
                quarter; "fixed": they stay at their prior means
    refresh     number of steps between updates of the precisions
    initial_sd  standard deviation of every parameter at the start
    prune       share of the parameters that are zero in draws
    """

    steps: int = key(8000, COUNT)
    samples: int = key(2, _SAMPLES)
    batch: int | None = key(None, _BATCH)
    rate: float = key(0.01, POSITIVE)
    optimizer: Literal["adam", "sgd"] = "adam"
    antithetic: bool = True
    precisions: Literal["expected", "fixed"] = "expected"
    refresh: int = key(50, COUNT)
    initial_sd: float = key(0.02, POSITIVE)
    prune: float = key(0.0, SHARE)

    name: ClassVar[str] = "bbb"
    title: ClassVar[str] = "Bayes by Backprop, a factorised Gaussian of least divergence"
    objective: ClassVar[str] = "bound on the log evidence"
    is_objective_evidence: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.antithetic and self.samples % 2:
            raise self.wrong(
                "samples",
                f"must be even where draws come in pairs, got {self.samples}; give an even number, or"
                " antithetic = false",
            )

    @property
    def n_steps(self) -> int:
        return self.steps

    def check_covers(self, target: FitTarget, *, n_together: int) -> None:
        """Refuse batches larger than the data, and precisions that vary but have no distribution."""
        if self.batch is not None and self.batch > target.n_cases:
            raise self.wrong(
                "batch",
                f"must be at most {target.n_cases}, the number of training cases, got {self.batch}; leave it"
                " out for all cases",
            )
        self.refuse(target.why_not_expected if self.precisions == "expected" else None)

    def build(self, target: FitTarget, advance: Callable[[], Advance]) -> VariationalFit:
        """Build the fit, with compiled steps where the code for trajectories has some for this posterior."""
        steps = getattr(advance(), "variational_steps", None)
        return VariationalFit(target, self, None if steps is None else steps(target, self.batch))

    def timing(self) -> Timing:
        """Measure all steps, and the log likelihoods of the draws that estimate the bound."""
        return Timing(self, self.steps, n_densities=_DRAWS_FOR_BOUND)

    def gradients(self, state: State, *, n_cases: int, n_outputs: int) -> float:
        """Count each draw of a step as its batch's share of the cases."""
        n_starts = len(state[LOG_EVIDENCE])
        share = 1.0 if self.batch is None else min(1.0, self.batch / n_cases)
        return float(n_starts * self.steps * self.samples * share)


CompiledSteps: TypeAlias = Callable[..., tuple[dict[str, Array], Array]]
"""Code for steps of Adam, called with target, state, streams, settings, n_steps, and batches.

It returns mean, rho and moments after the steps, and the objectives (n_steps, n_starts). It draws the random
numbers of array code, up to rounding. Step k of the fit has batch number k - 1; None stands for all cases.
"""


@dataclass(frozen=True)
class VariationalFit(Fit):
    """The fit by Bayes by Backprop; the chain axis is that of starts.

    compiled  takes steps by Adam; None for array code

    The state has these arrays:

    mean, rho                (n_starts, n_parameters); sigma = log(1 + exp(rho))
    first, second            (n_starts, 2 n_parameters), the moments of Adam
    precisions, shape, rate  (n_starts, n_precisions), the means and parameters of q(tau)
    bound                    (n_starts,), the term of the bound for the precisions
    residuals                (n_starts, n_targets), the expected squared residuals
    """

    target: FitTarget
    settings: Variational
    compiled: CompiledSteps | None = None
    # The batches of the starts that took the last step, by their streams. Each pass has one permutation.
    _batches: dict[Any, tuple[Array, CaseBatches]] = field(default_factory=dict, compare=False)

    def initial(self, streams: Streams) -> State:
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

    def step(self, state: State, streams: Streams) -> tuple[State, Array]:
        """Take step streams.iteration, counted from 1, of all starts.

        The objective is an estimate of the bound from the draws of the step; batches make it noisier.
        """
        state, objectives = self.steps(state, streams, 1)
        return state, objectives[0]

    def steps(self, state: State, streams: Streams, most: int) -> tuple[State, Array]:
        """Take up to `most` steps from number streams.iteration on; see `Fit.steps`.

        Compiled code takes many steps at once, up to an update of the precisions, and array code takes one.

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

    def result(self, state: State, streams: Streams) -> dict[str, Array]:
        """Return the bound of every start as its log evidence."""
        return {LOG_EVIDENCE: self.bound(state, streams)[0]}

    def distribution(self, state: State) -> Factorised:
        """Return the factorised Gaussians, without the parameters that are pruned, and q(tau)."""
        mean, sd = pruned(state["mean"], sigma(state["rho"]), self.settings.prune)
        return Factorised(mean, sd, state["precisions"], state["shape"], state["rate"])

    def bound(self, state: State, streams: Streams, *, n: int = _DRAWS_FOR_BOUND) -> tuple[Array, Array]:
        """Return the evidence lower bound of every start from n fresh draws, and its standard error.

        Both are (n_starts,). The bound is E_q[log L + log prior] + sum log sigma + (P/2) log(2 pi e), plus a
        term for the precisions. Two starts have the same draws of e only if their chains are equal.
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

    def _n_together(self, first: int, most: int) -> int:
        """Return the number of steps to take at once from step `first` on."""
        refresh, cases = self.settings.refresh, self.settings.batch or self.target.n_cases
        cheap = _PRODUCTS // (cases * self.target.n_parameters)
        together = min(most, max(_TOGETHER, min(cheap, _MOST_TOGETHER)))
        if self.settings.precisions == "expected":
            return min(together, refresh - (first - 1) % refresh)
        return together

    def _batches_of(self, streams: Streams) -> CaseBatches | None:
        """Return the batches of the starts that these streams belong to; None for all cases."""
        if self.settings.batch is None:
            return None
        place = streams.seed, streams.operation, id(streams.chains)
        if place not in self._batches:
            self._batches.clear()
            self._batches[place] = streams.chains, self.target.batches(streams, self.settings.batch)
        return self._batches[place][1]

    def _step(self, state: State, streams: Streams, cases: Array | None) -> tuple[dict[str, Array], Array]:
        """Take a step by array code; return the arrays that change, and the objective (1, n_starts)."""
        xp, settings, number = array_namespace(state["mean"]), self.settings, streams.iteration
        n = state["mean"].shape[1]
        slope, energy = self._slope(state, streams, cases)
        changed = {}
        if settings.optimizer == "adam":
            direction, changed["first"], changed["second"] = adam(
                slope, state["first"], state["second"], number=number
            )
            move = cosine_rate(settings.rate, number=number, steps=settings.steps) * direction
        else:
            move = settings.rate * slope
        changed["mean"], changed["rho"] = state["mean"] - move[:, :n], state["rho"] - move[:, n:]
        log_widths = xp.log(sigma(state["rho"])).sum(axis=1)
        return changed, (log_widths + n / 2 - energy.mean(axis=1))[None]

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
        """Return energies (n_starts, samples) and gradients (n_starts, samples, n_parameters) of a batch."""
        n_starts, samples, _ = position.shape
        target: Target = self.target
        if cases is not None:
            each = array_namespace(cases).repeat(cases, samples, axis=0)
            target = self.target.of_cases(each, self.target.n_cases / cases.shape[1])
        energy, gradient = target.potential_and_gradient(*self._flat(position, state["precisions"]))
        return energy.reshape(n_starts, samples), gradient.reshape(position.shape)

    def _flat(self, position: Array, precisions: Array) -> tuple[Array, Array]:
        """Return positions (n_starts, n, n_parameters) and precisions as n_starts * n chains."""
        xp = array_namespace(position)
        n = position.shape[1]
        dtype = self.target.dtype
        return position.reshape(-1, position.shape[2]).astype(dtype), xp.repeat(precisions, n, axis=0)

    def _updated_precisions(self, state: State, streams: Streams) -> dict[str, Array]:
        """Update q(tau); return the arrays that change."""
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
