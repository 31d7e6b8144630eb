"""Simple baselines for the tables, by scikit-learn: the mean log probability of the test cases.

Real targets have Gaussian noise whose standard deviation comes from residuals in five-fold cross-validation;
settings are chosen by cross-validation too. Several targets are taken one by one, and a target with a
transform on the scale of its logarithms. Counts and times have parametric models instead: Poisson and
negative binomial regressions, and an exponential regression with censored times.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import optimize, special, stats
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LogisticRegressionCV, PoissonRegressor, RidgeCV
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler
from table_problems import Table

from rayfbnn.arrays import Array

N_NETWORKS = 10
MLP_GRID = {"alpha": [0.01, 0.1, 1.0, 10.0]}
TREE_GRID = {"n_estimators": [30, 100, 300], "max_depth": [1, 3]}
ARD_INPUTS = 30  # with more inputs the Gaussian process has one length scale
LEAST_PROBABILITY = 1e-12


def log_probabilities(table: Table) -> dict[str, float]:
    """Return the mean log probability of the test cases by each baseline."""
    scaler = StandardScaler().fit(table.inputs)
    inputs, test_inputs = scaler.transform(table.inputs), scaler.transform(table.test_inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if table.kind in ("class", "binary"):
            return _of_labels(inputs, table.targets[:, 0], test_inputs, table.test_targets[:, 0])
        if table.kind == "count":
            return _of_counts(inputs, test_inputs, table)
        if table.kind == "survival":
            return {"exponential regression": _exponential(inputs, table.targets[:, 0], test_inputs, table)}
        if "transform" in table.data:
            logs, test_logs = np.log(table.targets[:, 0]), np.log(table.test_targets[:, 0])
            found = _of_real(inputs, logs, test_inputs, test_logs)
            return {name: value - float(test_logs.mean()) for name, value in found.items()}
        parts = [
            _of_real(inputs, targets, test_inputs, test_targets)
            for targets, test_targets in zip(table.targets.T, table.test_targets.T, strict=True)
        ]
    return {name: sum(part[name] for part in parts) for name in parts[0]}


def _of_real(inputs: Array, targets: Array, test_inputs: Array, test_targets: Array) -> dict[str, float]:
    center, scale = targets.mean(), targets.std()
    targets, test_targets = (targets - center) / scale, (test_targets - center) / scale
    data = (inputs, targets, test_inputs, test_targets)
    models: dict[str, Callable[..., Array]] = {
        "ridge": _ridge,
        "10 networks": _networks,
        "Gaussian process": _gaussian_process,
        "boosting": _boosting,
    }
    return {name: float(model(*data).mean() - np.log(scale)) for name, model in models.items()}


def _with_residual_noise(model: Any, *data: Array) -> Array:
    """Return the test targets' log densities, with noise as large as the residuals of unseen cases."""
    inputs, targets, test_inputs, test_targets = data
    residuals = targets - cross_val_predict(model, inputs, targets, cv=5)
    mean = model.fit(inputs, targets).predict(test_inputs)
    return np.asarray(stats.norm.logpdf(test_targets, mean, np.sqrt((residuals**2).mean())))


def _ridge(*data: Array) -> Array:
    return _with_residual_noise(RidgeCV(np.logspace(-3, 3, 13)), *data)


def _boosting(*data: Array) -> Array:
    search = GridSearchCV(GradientBoostingRegressor(random_state=0), TREE_GRID, cv=5)
    return _with_residual_noise(search.fit(data[0], data[1]).best_estimator_, *data)


def _networks(*data: Array) -> Array:
    """An equal mixture of networks, each with the same Gaussian noise around its output."""
    inputs, targets, test_inputs, test_targets = data
    plain = MLPRegressor(
        hidden_layer_sizes=(20,), activation="tanh", solver="lbfgs", max_iter=500, random_state=0
    )
    best = GridSearchCV(plain, MLP_GRID, cv=5).fit(inputs, targets).best_estimator_
    residuals = targets - cross_val_predict(best, inputs, targets, cv=5)
    sigma = np.sqrt((residuals**2).mean())
    densities = []
    for seed in range(N_NETWORKS):
        mean = best.set_params(random_state=seed).fit(inputs, targets).predict(test_inputs)
        densities.append(stats.norm.logpdf(test_targets, mean, sigma))
    return np.asarray(special.logsumexp(densities, axis=0) - np.log(N_NETWORKS))


def _gaussian_process(*data: Array) -> Array:
    inputs, targets, test_inputs, test_targets = data
    lengths = np.full(inputs.shape[1], 2.0)
    kernel = ConstantKernel(1.0) * RBF(lengths, (0.05, 1e3)) + WhiteKernel(0.1, (1e-5, 10.0))
    process = GaussianProcessRegressor(kernel, n_restarts_optimizer=2, random_state=0).fit(inputs, targets)
    mean, sd = process.predict(test_inputs, return_std=True)
    return np.asarray(stats.norm.logpdf(test_targets, mean, sd))


def _of_labels(inputs: Array, labels: Array, test_inputs: Array, test_labels: Array) -> dict[str, float]:
    labels, test_labels = labels.astype(int), test_labels.astype(int)
    n_classes = int(labels.max()) + 1
    lengths = np.full(inputs.shape[1], 2.0) if inputs.shape[1] <= ARD_INPUTS and n_classes <= 4 else 2.0
    plain = MLPClassifier(
        hidden_layer_sizes=(20,), activation="tanh", solver="lbfgs", max_iter=500, random_state=0
    )
    scoring = "neg_log_loss"
    best = GridSearchCV(plain, MLP_GRID, cv=5, scoring=scoring).fit(inputs, labels).best_estimator_
    boosting = GridSearchCV(GradientBoostingClassifier(random_state=0), TREE_GRID, cv=5, scoring=scoring)
    linear = LogisticRegressionCV(l1_ratios=(0,), scoring=scoring, max_iter=1000, use_legacy_attributes=False)
    process = GaussianProcessClassifier(ConstantKernel(4.0) * RBF(lengths, (0.05, 1e3)), random_state=0)
    shares = {
        "logistic": linear.fit(inputs, labels).predict_proba(test_inputs),
        "Gaussian process": process.fit(inputs, labels).predict_proba(test_inputs),
        "boosting": boosting.fit(inputs, labels).predict_proba(test_inputs),
    }
    found = {name: _of_shares(share, test_labels) for name, share in shares.items()}
    by_network = [
        best.set_params(random_state=seed).fit(inputs, labels).predict_proba(test_inputs)
        for seed in range(N_NETWORKS)
    ]
    return found | {"10 networks": _of_shares(np.mean(by_network, axis=0), test_labels)}


def _of_shares(shares: Array, labels: Array) -> float:
    chosen = shares[np.arange(len(labels)), labels]
    return float(np.log(np.maximum(chosen, LEAST_PROBABILITY)).mean())


def _of_counts(inputs: Array, test_inputs: Array, table: Table) -> dict[str, float]:
    counts, test_counts = table.targets[:, 0], table.test_targets[:, 0]
    lengths = [np.ones(len(counts)), np.ones(len(test_counts))]
    if table.exposures is not None:
        lengths = [exposures[:, 0] for exposures in table.exposures]
    poisson = PoissonRegressor(alpha=0.01, max_iter=1000)
    poisson.fit(inputs, counts / lengths[0], sample_weight=lengths[0])
    rates = poisson.predict(test_inputs) * lengths[1]
    means, shape = _negative_binomial(inputs, counts, np.log(lengths[0]), test_inputs)
    means *= lengths[1]
    return {
        "Poisson regression": float(stats.poisson.logpmf(test_counts, rates).mean()),
        "negative binomial regression": float(
            stats.nbinom.logpmf(test_counts, shape, shape / (shape + means)).mean()
        ),
    }


def _negative_binomial(
    inputs: Array, counts: Array, offsets: Array, test_inputs: Array
) -> tuple[Array, float]:
    """Return the means of test cases and the shape, for a log mean that is linear in inputs."""
    design = np.column_stack([np.ones(len(inputs)), inputs])

    def loss(values: Array) -> float:
        shape, log_means = np.exp(values[0]), design @ values[1:] + offsets
        return -float(stats.nbinom.logpmf(counts, shape, shape / (shape + np.exp(log_means))).sum())

    start = np.zeros(design.shape[1] + 1)
    start[1] = np.log(counts.sum() / np.exp(offsets).sum())
    values = optimize.minimize(loss, start).x
    test_design = np.column_stack([np.ones(len(test_inputs)), test_inputs])
    return np.exp(test_design @ values[1:]), float(np.exp(values[0]))


def _exponential(inputs: Array, times: Array, test_inputs: Array, table: Table) -> float:
    """Maximum likelihood of a log hazard that is linear in the inputs; negative times are censored."""
    design = np.column_stack([np.ones(len(inputs)), inputs])
    events, lengths = times > 0, np.abs(times)

    def loss(weights: Array) -> tuple[float, Array]:
        log_hazard = design @ weights
        cumulative = np.exp(log_hazard) * lengths
        value = cumulative.sum() - log_hazard[events].sum()
        return float(value), design.T @ (cumulative - events)

    weights = optimize.minimize(loss, np.zeros(design.shape[1]), jac=True).x
    log_hazard = np.column_stack([np.ones(len(test_inputs)), test_inputs]) @ weights
    test_times = table.test_targets[:, 0]
    return float((log_hazard * (test_times > 0) - np.exp(log_hazard) * np.abs(test_times)).mean())
