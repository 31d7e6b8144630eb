"""Linear regressions, whose posteriors and evidence have closed forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats

from rayfbnn.arrays import Array
from rayfbnn.model.approximated_posterior import ApproximatedPosterior
from rayfbnn.model.architecture import ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.streams import Purpose
from tests.support.problems import streams

NOISE = 0.4
N = 25


@dataclass(frozen=True)
class Linear:
    """A regression on three inputs, two of them correlated, and a bias; parameters are io and then bo."""

    target: Any
    design: Array  # (n_cases, 4)
    y: Array
    prior: Array  # precisions of the parameters
    beta: float

    @property
    def a(self) -> Array:
        """Precision matrix of the posterior."""
        return self.beta * self.design.T @ self.design + np.diag(self.prior)

    @property
    def mean(self) -> Array:
        return np.linalg.solve(self.a, self.beta * self.design.T @ self.y)

    @property
    def log_evidence(self) -> float:
        covariance = self.design / self.prior @ self.design.T + np.eye(len(self.y)) / self.beta
        return float(scipy.stats.multivariate_normal.logpdf(self.y, np.zeros(len(self.y)), covariance))

    def at(self, prior: Array, beta: float) -> Linear:
        """Return the regression with other precisions."""
        return Linear(self.target, self.design, self.y, prior, beta)


def data(correlation: float = 0.8) -> tuple[Array, Array]:
    """Inputs (n_cases, 3), of which the second follows the first, and targets (n_cases, 1)."""
    random = streams("linear regression", 1)
    inputs = random.normal(Purpose.PROPOSAL, (N, 3))[0]
    inputs[:, 1] += correlation * inputs[:, 0]
    noise = random.normal(Purpose.TARGET_VALUE, (N, 1))[0]
    return inputs, inputs @ np.array([[1.0], [-0.5], [0.0]]) + 0.3 + NOISE * noise


def linear(*, io: str = "1", bo: str = "1", noise: str = str(NOISE), correlation: float = 0.8) -> Linear:
    """The regression with priors in FBM's notation; precisions are the priors' means."""
    inputs, targets = data(correlation)
    priors = {
        "io": PriorSpec.parse(io, key="io"),
        "bo": PriorSpec.parse(bo, key="bo", two_levels=True),
    }
    spec = NetworkSpec(3, 1, (), priors)
    prior_of_noise = PriorSpec.parse(noise, key="noise")
    target = ApproximatedPosterior.from_spec(spec, ModelSpec("real", prior_of_noise), inputs, targets)
    design = np.concatenate([inputs, np.ones((N, 1))], axis=1)
    precisions = np.array([*[priors["io"].width ** -2] * 3, priors["bo"].width ** -2])
    return Linear(target, design, targets[:, 0], precisions, prior_of_noise.width**-2)


def one_weight(precision: float) -> Any:
    """A logistic regression of one weight without bias on six cases, with known approximations."""
    inputs = np.array([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0])[:, None]
    targets = np.array([0.0, 0.0, 1.0, 0.0, 1.0, 1.0])[:, None]
    spec = NetworkSpec(1, 1, (), {"io": PriorSpec(precision**-0.5)})
    return ApproximatedPosterior.from_spec(spec, ModelSpec("binary"), inputs, targets)
