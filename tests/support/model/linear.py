"""Linear models whose posterior, evidence, predictions, or left-out densities have closed forms."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.special
import scipy.stats
from scipy.stats import norm

import rayfbnn
from rayfbnn.answers.judging.fit_evidence import PREDICTED_SPREAD, REPLICATES, FitEvidence, JudgedTarget
from rayfbnn.answers.judging.fit_tests import PREDICTED_VALUE, NumberCases, has_order
from rayfbnn.arrays import Array
from rayfbnn.model.approximated_posterior import ApproximatedPosterior
from rayfbnn.model.architecture import ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.store.store import Store
from rayfbnn.streams import Purpose, Streams
from tests.support.problems import streams
from tests.support.small import write_train

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


RUN_NOISE = 0.8
RUN_CASES = 30


def linear_run(folder: Path) -> Path:
    """Sample 8 chains of 400 draws into run.zarr in the folder, and return its path."""
    write_train(folder, n_cases=RUN_CASES)
    operations = [{"op": "heatbath"}, {"op": "hybrid", "steps": 8, "stepsize": 0.3}]
    spec = {
        "chains": 8,
        "draws_per_block": 400,
        "dtype": "float64",
        "data": {"train": str(folder / "train.csv"), "inputs": ["x1", "x2"], "targets": ["y"]},
        "model": {"kind": "real", "noise": str(RUN_NOISE)},
        "network": {"hidden": [], "priors": {"io": "1", "bo": "1"}},
        "phase": [
            {"iterations": 20, "keep": False, "operations": operations},
            {"iterations": 400, "operations": operations},
        ],
    }
    rayfbnn.sample(spec, folder / "run.zarr", workers=0, progress=False)
    return folder / "run.zarr"


def loo_of_linear(path: Path, *, leaves_out: bool = True) -> np.ndarray:
    """log p(y_i | all other cases) of the Gaussian regression, in closed form, (30,).

    leaves_out  False for log p(y_i | all cases)
    """
    store = Store.open(path)
    x = np.column_stack([store.data.inputs, np.ones(RUN_CASES)])
    y = store.data.targets[:, 0]
    densities = np.empty(RUN_CASES)
    for case in range(RUN_CASES):
        others = (np.arange(RUN_CASES) != case) | (not leaves_out)
        covariance = np.linalg.inv(np.eye(3) + x[others].T @ x[others] / RUN_NOISE**2)
        mean = covariance @ x[others].T @ y[others] / RUN_NOISE**2
        sd = np.sqrt(RUN_NOISE**2 + x[case] @ covariance @ x[case])
        densities[case] = norm.logpdf(y[case], x[case] @ mean, sd)
    return densities


EXACT_CASES, EXACT_NOISE = 60, 0.02


def linear_data() -> tuple[Array, Array]:
    """Inputs (n_cases, 3) and targets (n_cases,)."""
    numbers = Streams(3, np.arange(EXACT_CASES, dtype=np.uint64)).normal(Purpose.TARGET_VALUE, (4,))
    return numbers[:, :3], numbers[:, :3] @ [1.0, -2.0, 0.5] + 0.5 + EXACT_NOISE * numbers[:, 3]


def linear_spec(*, chains: int, iterations: int, stepsize: float) -> dict[str, Any]:
    """Tables of a configuration without warm-up, whose chains all start with parameters of zero."""
    operations = [{"op": "heatbath"}, {"op": "hybrid", "steps": 1, "stepsize": stepsize}]
    return {
        "chains": chains,
        "data": {"inputs": ["x1", "x2", "x3"], "targets": ["y"]},
        "model": {"kind": "real", "noise": str(EXACT_NOISE)},
        "network": {"hidden": [], "priors": {"io": "1", "bo": "1"}},
        "phase": [{"iterations": iterations, "operations": operations}],
    }


def exact_outputs() -> tuple[Array, Array]:
    """Posterior mean and standard deviation of the output at each case, (n_cases,) each."""
    inputs, targets = linear_data()
    design = np.column_stack([inputs, np.ones(EXACT_CASES)])
    covariance = np.linalg.inv(design.T @ design / EXACT_NOISE**2 + np.eye(4))
    mean = design @ covariance @ design.T @ targets / EXACT_NOISE**2
    return mean, np.sqrt(np.einsum("ij,jk,ik->i", design, covariance, design))


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
        return FitEvidence(pull > 0, len(y), len(y), 0, 0, (JudgedTarget("y", "", cases),))
