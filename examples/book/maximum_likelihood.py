"""Maximum likelihood learning of a network with one hidden layer, for figure 4.4."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from scipy.optimize import least_squares
from summaries import rounded

from rayfbnn.arrays import Array

# Iterations between the errors that are kept: dense at first, when errors change most.
_LOOKS = tuple(round(10 ** (k / 8)) for k in range(25))  # 1 to 1,000
_N_STARTS = 8
# The book's priors have a standard deviation of 1000, which keeps the maximum from lying at infinity. The
# penalty is in units of the noise, which is close to 0.05.
_PENALTY = 0.05 / 1000


@dataclass(frozen=True)
class Cases:
    """Inputs (n_cases, n_inputs) and targets (n_cases, n_targets)."""

    inputs: Array
    targets: Array

    def residuals(self, parameters: Array, n_hidden: int) -> Array:
        """Return outputs less targets, (n_cases, n_targets)."""
        n_in, n_out = self.inputs.shape[1], self.targets.shape[1]
        sizes = (n_in * n_hidden, n_hidden, n_hidden * n_out)
        ih, bh, ho, bo = np.split(parameters, list(accumulate(sizes)))
        hidden = np.tanh(self.inputs @ ih.reshape(n_in, n_hidden) + bh)
        return hidden @ ho.reshape(n_hidden, n_out) + bo - self.targets

    def squared_error(self, parameters: Array, n_hidden: int) -> float:
        """Return the squared error, summed over targets and averaged over cases."""
        return float((self.residuals(parameters, n_hidden) ** 2).sum(axis=1).mean())


def learn(train: Cases, test: Cases, n_hidden: int, *, seed: int, length: float = 1.0) -> dict[str, Any]:
    """Minimise the squared error on the training cases from several starts.

    Returns
    -------
    dict
        looks: the numbers of iterations; train_errors and test_errors: those of each start at these
        numbers, (n_starts, n_looks); train_error and squared_error: those of the start with the least error
        on the training cases, at the end.
    """
    looks = sorted({max(1, round(look * length)) for look in _LOOKS})
    errors = [_descend(train, test, n_hidden, looks, seed=seed, start=start) for start in range(_N_STARTS)]
    train_errors, test_errors = np.swapaxes(errors, 0, 2).swapaxes(1, 2)
    best = int(np.argmin(train_errors[:, -1]))
    return {
        "looks": looks,
        "train_errors": rounded(train_errors),
        "test_errors": rounded(test_errors),
        "train_error": float(train_errors[best, -1]),
        "squared_error": float(test_errors[best, -1]),
    }


def _descend(
    train: Cases, test: Cases, n_hidden: int, looks: list[int], *, seed: int, start: int
) -> list[tuple[float, float]]:
    """Return the errors on training and test cases at each look, from a random start."""
    n_in, n_out = train.inputs.shape[1], train.targets.shape[1]
    n_parameters = (n_in + 1) * n_hidden + (n_hidden + 1) * n_out
    parameters = np.random.default_rng((seed, start)).normal(0.0, 0.5, n_parameters)

    def residuals(parameters: Array) -> Array:
        return np.concatenate([train.residuals(parameters, n_hidden).ravel(), _PENALTY * parameters])

    found = []
    for before, look in pairwise([0, *looks]):
        # The first evaluation is that of the start, and takes no step.
        parameters = least_squares(residuals, parameters, max_nfev=look - before + 1).x
        found.append((train.squared_error(parameters, n_hidden), test.squared_error(parameters, n_hidden)))
    return found
