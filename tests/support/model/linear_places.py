"""Exact places of targets in the predictive distributions of linear models, and problems that these miss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.special

from rayfbnn.answers.judging.fit_evidence import PREDICTED_SPREAD, REPLICATES, FitEvidence, JudgedTarget
from rayfbnn.answers.judging.fit_tests import PREDICTED_VALUE, NumberCases, has_order
from rayfbnn.arrays import Array

MISSED = {"nothing": 0.0, "curve": 0.5, "product": 0.5, "trend": 1.0, "spread": 1.4, "zeros": 0.05}
"""The size of what is missed, by its name; `problem` says what it means."""


def problem(
    missed: str, n_cases: int, rng: np.random.Generator, *, n_inputs: int = 2, size: float | None = None
) -> tuple[Array, Array]:
    """Return normal inputs (2 n_cases, n_inputs) and targets (2 n_cases,) of training and test cases.

    The targets are y = 1 + x1 - x2 / 2 + e with standard normal noise e, and besides
      curve    size * x1^2
      product  size * x1 * x2
      trend    a straight line over the training cases, and over the test cases, from -size / 2 to size / 2
      spread   noise that is larger by the factor size where x1 is above zero
      zeros    counts of mean exp(1 + x1 / 2 - x2 / 4) instead, of which a share of size is replaced by zeros

    size  that of MISSED if it is None
    """
    size = MISSED[missed] if size is None else size
    x, noise = rng.normal(size=(2 * n_cases, n_inputs)), rng.normal(size=2 * n_cases)
    linear = x[:, 0] - x[:, 1] / 2
    if missed == "zeros":
        counts = rng.poisson(np.exp(1 + linear / 2))
        return x, np.where(rng.uniform(size=len(x)) < size, 0.0, counts)
    besides = {
        "curve": x[:, 0] ** 2,
        "product": x[:, 0] * x[:, 1],
        "trend": np.tile(np.linspace(-0.5, 0.5, n_cases), 2),
    }
    if missed == "spread":
        noise = np.where(x[:, 0] > 0, size, 1) * noise
    return x, 1 + linear + size * besides.get(missed, 0.0) + noise


@dataclass(frozen=True)
class LinearModel:
    """The posterior of a regression with Gaussian weights and noise of unknown size, in closed form.

    Given the variance s^2 of the noise, the targets have the covariance s^2 (width^2 X X' + I), where X has
    the inputs and a one; log s is uniform.

    x  (n_cases, n_inputs)
    y  (n_cases,)
    """

    x: Array
    y: Array
    width: float = 1.0

    def left_out(self, rng: np.random.Generator) -> FitEvidence:
        """Return the evidence of the training cases, each placed by the others alone."""
        n, prior = len(self.y), self._prior(self.x, self.x)
        inverse = np.linalg.inv(prior + np.eye(n))
        pulled, precision = inverse @ self.y, np.diag(inverse)
        others = (self.y @ pulled - pulled**2 / precision) / (n - 1)
        place = scipy.special.stdtr(n - 1, pulled / np.sqrt(precision * others))
        hat = prior @ inverse
        mean, noise = hat @ self.y, np.sqrt(self.y @ pulled / n)
        rows = np.concatenate([place[None], rng.uniform(size=(REPLICATES, n))])
        pull = np.trace(hat) * noise / (mean.std() * np.sqrt(n))
        return self._evidence(rows, self.x, self.y, mean, noise * np.sqrt(1 + np.diag(hat)), pull)

    def at(self, x: Array, y: Array, rng: np.random.Generator) -> FitEvidence:
        """Return the evidence of other cases, with replicates."""
        n = len(self.y)
        inverse = np.linalg.inv(self._prior(self.x, self.x) + np.eye(n))
        cross = self._prior(x, self.x)
        mean = cross @ inverse @ self.y
        of_mean = self._prior(x, x) - cross @ inverse @ cross.T
        square = self.y @ inverse @ self.y
        spread = np.sqrt(square / n * (1 + np.diag(of_mean)))
        noise = np.sqrt(square / rng.chisquare(n, size=(REPLICATES, 1)))
        values, vectors = np.linalg.eigh(of_mean)
        root = vectors * np.sqrt(np.maximum(values, 0))
        shared = rng.normal(size=(REPLICATES, len(y))) @ root.T
        replicates = mean + noise * (shared + rng.normal(size=shared.shape))
        place = scipy.special.stdtr(n, (np.concatenate([y[None], replicates]) - mean) / spread)
        return self._evidence(place, x, y, mean, spread, 0.0)

    def _prior(self, x: Array, other: Array) -> Array:
        return np.asarray(self.width**2 * (1 + x @ other.T))

    def _evidence(
        self, place: Array, x: Array, y: Array, mean: Array, spread: Array, pull: float
    ) -> FitEvidence:
        inputs = {f"x{number}": column for number, column in enumerate(x.T, 1)}
        covariates = {PREDICTED_VALUE: mean, PREDICTED_SPREAD: spread} | inputs
        cases = NumberCases(place, place, place, covariates, frozenset(inputs), has_order(y), pull)
        return FitEvidence(pull > 0, len(y), len(y), 1, 0, 0, (JudgedTarget("y", "", cases),))
