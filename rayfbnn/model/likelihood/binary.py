"""Binary targets: each output is the log odds that its target is 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace, special_functions
from rayfbnn.model.architecture import ModelSpec
from rayfbnn.model.likelihood.data_model import DataModel, GaussianTargets, TargetRange, error_rate
from rayfbnn.model.updates.hyperbolic import no_proposal_accepted
from rayfbnn.streams import Purpose, RejectingStreams, Streams

_LOGIT_SQUARE = 4.0  # outputs of 2 and -2 are probabilities of 0.88 and 0.12


@dataclass(frozen=True)
class BinaryTargets(DataModel):
    """Targets of 0 or 1, P(y = 1) = 1 / (1 + exp(-v)).

    labels  for each target its two labels, or () if it is a number; empty if no target is text
    """

    kind = "binary"
    has_labels = True
    n_labels = 2
    compiled_name = "binary"
    # hybrid-marginal can integrate a common sigma out, but not the sigmas of inputs (docs/decisions/0017).
    usual_relevance = math.inf

    labels: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def from_spec(cls, model: ModelSpec) -> BinaryTargets:
        return cls(model.labels)

    def target_range(self, targets: Array) -> TargetRange:
        return TargetRange((targets == 0) | (targets == 1), "0 or 1")

    def terms_and_gradient(self, outputs: Array, rows: Array, noise: Array) -> tuple[Array, Array]:
        """Return log P(y | v), never positive, and its derivative; Neal (2022) eqs. 11, 39."""
        xp = array_namespace(outputs)
        v = outputs.astype(xp.float64)
        log_one = -xp.logaddexp(0.0, -v)  # log P(y = 1)
        return xp.where(rows > 0.5, log_one, log_one - v), rows - xp.exp(log_one)

    def draw(self, outputs: Array, noise: Array, streams: Streams) -> Array:
        xp = array_namespace(outputs)
        uniform = streams.uniform(Purpose.TARGET_VALUE, outputs.shape[1:])
        return (uniform < xp.exp(-xp.logaddexp(0.0, -outputs))).astype(xp.float64)

    def output_curvature(self, outputs: Array, rows: Array, noise: Array) -> Array:
        p = self.probabilities(outputs)
        return p * (1 - p)

    def why_outputs_stay(self, *, is_tempered: bool) -> str | None:
        if not is_tempered:
            return None
        # Powers of a logistic likelihood are mixtures over PG(b, v), but polya_gamma cannot draw from these.
        return 'model.kind = "binary" needs temperature 1; use over = ["precisions"] or hybrid'

    def gaussian_targets(
        self, outputs: Callable[[], Array], rows: Array, noise: Array, weights: Array, streams: Streams
    ) -> GaussianTargets:
        """Draw T = omega ~ PG(1, output), and return (y - 1/2)/omega as the targets (polya_gamma.py)."""
        omega = polya_gamma(outputs(), streams, purpose=Purpose.POLYA_GAMMA)
        return GaussianTargets(weights * omega, (rows - 0.5) / omega)

    def typical_output_square(self, rows: Array, observed: Array | None) -> Array:
        return array_namespace(rows).full(1, _LOGIT_SQUARE)

    def output_columns(self, target_names: Sequence[str]) -> list[str]:
        """Return a name for each log odds of 1, or of the second label."""
        ones = self._ones(target_names)
        return [f"log_odds_{name}" if label is None else f"log_odds_{name}_{label}" for name, label in ones]

    def functions(self, outputs: Array, center: Array, scale: Array) -> Array:
        return self.probabilities(outputs)

    def function_names(self, target_names: Sequence[str]) -> list[str]:
        ones = self._ones(target_names)
        return [f"p_{name}" if label is None else f"p_{name}={label}" for name, label in ones]

    def probabilities(self, outputs: Array) -> Array:
        """Return P(y = 1) of each target, (..., n_targets) float64."""
        outputs = outputs.astype(np.float64)
        return special_functions(outputs).expit(outputs)

    def expected_errors(self, probabilities: Array) -> Array:
        return np.minimum(probabilities, 1 - probabilities)

    def probability_columns(self, target_names: Sequence[str]) -> list[str]:
        ones = self._ones(target_names)
        return [f"{name}_p" if label is None else f"{name}_p_{label}" for name, label in ones]

    def label_columns(self, probabilities: dict[str, Array], target_names: Sequence[str]) -> dict[str, Array]:
        columns = {}
        for name, labels, p in zip(target_names, self.labels, probabilities.values(), strict=False):
            if labels:
                columns[f"{name}_label"] = np.array(labels, dtype=object)[(p > 0.5).astype(np.int64)]
        return columns

    def probability_words(self, target_names: Sequence[str]) -> list[str]:
        ones = self._ones(target_names)
        return [f"P({name} = {1 if label is None else label})" for name, label in ones]

    def _ones(self, target_names: Sequence[str]) -> list[tuple[str, str | None]]:
        """Return each target with its label for 1, or None if it is a number."""
        labels = self.labels or ((),) * len(target_names)
        return [(name, pair[1] if pair else None) for name, pair in zip(target_names, labels, strict=True)]

    def labelled_cases(self, targets: Array) -> list[tuple[Array, Array | None]]:
        return [(column == 1, column == 0) for column in targets.T]  # both are False for a missing target

    def errors(
        self, columns: dict[str, Array], targets: Array, target_names: Sequence[str]
    ) -> dict[str, Array]:
        """Return the share of targets that differ from the more probable label."""
        p = np.stack(list(columns.values()), axis=1)
        return {"error_rate": error_rate((p > 0.5) != (targets > 0.5), targets)}


_MAX_ATTEMPTS = 64  # of a rejection loop that accepts 0.72 or more
# The point between the two series of the density. Any point is exact; near this one rejection is smallest.
_T = 0.64
_N_TERMS = 4  # the next term is below 1e-25 of the first, for every x


def polya_gamma(z: Array, streams: Streams, *, purpose: Purpose, index: int = 0) -> Array:
    """Draw omega ~ PG(1, z), float64, in the shape of z (n_chains, ...).

    Polson, Scott and Windle (2013), "Bayesian inference for logistic models using Polya-Gamma latent
    variables", theorem 1: for y of 0 or 1

        exp(y v) / (1 + exp(v))  =  the mean over omega ~ PG(1, 0) of exp((y - 1/2) v - omega v**2/2) / 2

    It follows that omega | v ~ PG(1, v). Given omega, y has the likelihood of a Gaussian target
    (y - 1/2)/omega with precision omega. The algorithm is in their sec. 4.1, after Devroye (2009), "On exact
    simulation algorithms for some distributions related to Jacobi theta functions". X = 4 omega has the
    density

        cosh(c) exp(-c**2 x/2) sum over n of (-1)**n a_n(x),       c = |z|/2
        a_n(x) = pi (n + 1/2) (2/(pi x))**(3/2) exp(-2 (n + 1/2)**2 / x)       x <= t
                 pi (n + 1/2) exp(-(n + 1/2)**2 pi**2 x/2)                     x > t

    The first term is an upper bound, and proposals come from it. Above t the proposal is an exponential
    variable. Below t it is the inverse square of a normal variable for c < 1/t, accepted with probability
    exp(-c**2 x/2), and otherwise an inverse Gaussian variable, accepted if it is below t. The side of t is
    chosen by the mass of these proposals, and so a single decision makes all corrections.

    Raises SamplingError if an output is not finite.
    """
    if isinstance(streams, RejectingStreams):
        return streams.polya_gamma(z, purpose, index=index)
    xp, special = array_namespace(z), special_functions(z)
    c = abs(z.astype(xp.float64)) / 2
    is_small = c < 1 / _T
    rate = math.pi**2 / 8 + c**2 / 2
    log_right = xp.log(math.pi / (2 * rate)) - rate * _T
    tail = math.erfc(1 / math.sqrt(2 * _T)) / 2  # of a normal variable beyond 1/sqrt(t)
    log_left = xp.where(is_small, math.log(4 * tail), math.log(2) - c)
    right_share = special.expit(log_right - log_left)
    mean = 1 / xp.where(is_small, 1.0, c)
    result = xp.zeros_like(c)
    pending = xp.ones(c.shape, dtype=bool)
    for attempt in range(_MAX_ATTEMPTS):
        u = streams.uniform(purpose, (*c.shape[1:], 4), index=index, attempt=attempt)
        in_right = u[..., 0] < right_share
        beyond = _T - xp.log(u[..., 1]) / rate
        inverse_square = special.ndtri(tail * u[..., 1]) ** -2
        below = xp.where(is_small, inverse_square, _inverse_gaussian(mean, u[..., 1], u[..., 2]))
        x = xp.where(in_right, beyond, below)
        log_accept = xp.where(is_small, -(c**2) * x / 2, xp.where(x < _T, 0.0, -xp.inf))
        log_accept = xp.where(in_right, 0.0, log_accept)
        accepted = u[..., 3] < xp.exp(log_accept) * _series(x)
        result = xp.where(pending & accepted, x, result)
        pending &= ~accepted
        if not bool(pending.any()):
            return result / 4
    raise no_proposal_accepted(pending, streams, what="Polya-Gamma variable", cause="an output")


def _series(x: Array) -> Array:
    """Return the alternating sum of a_n(x), divided by a_0(x): between 0.994 and 1, accurate to float64."""
    xp = array_namespace(x)
    exponent = xp.where(x > _T, math.pi**2 / 2 * x, 2 / x)
    return 1 + sum((-1) ** n * (2 * n + 1) * xp.exp(-n * (n + 1) * exponent) for n in range(1, _N_TERMS))


def _inverse_gaussian(mean: Array, u: Array, v: Array) -> Array:
    """Return inverse Gaussian variables with this mean and shape 1, given uniform variables.

    Michael, Schucany and Haas (1976): let n be normal, w = mean n**2/2, and x the smaller root of
    (x - mean)**2 = n**2 mean**2 x. Return x with probability mean/(mean + x), and otherwise mean**2/x.
    """
    xp, special = array_namespace(mean), special_functions(mean)
    w = mean * special.ndtri(u) ** 2 / 2
    ratio = 1 / (1 + w + xp.sqrt(w * (2 + w)))  # x / mean without cancellation
    return mean * xp.where(v * (1 + ratio) < 1, ratio, 1 / ratio)
