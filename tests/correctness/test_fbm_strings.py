"""Posteriors given in FBM's prior strings, sampled by `sample`, agree with importance sampling written here.

The network, the prior, the data models and the weights below are written out from their formulas, and share
nothing with the package but its random numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special

from rayfbnn import api
from rayfbnn.draws.quantities import quantities
from rayfbnn.draws.view import committed
from rayfbnn.store.store import Store
from rayfbnn.streams import Purpose, Streams
from tests.support.fbm import statistics

N_PER_ROUND, SMALLEST = 200_000, 1e-9  # number of proposals; the smallest relative weight that is kept
TARGETS = {"real": "y1", "binary": "y1", "class": "label", "survival": "time"}


@dataclass(frozen=True)
class Problem:
    """Data and FBM's net-spec and model-spec for them: number of hidden units, and priors.

    steps, stepsize, times  trajectories, and how many of them make a draw
    rounds   number of rounds of N_PER_ROUND proposals from the prior
    """

    inputs: tuple[tuple[float, ...], ...]
    targets: tuple[float, ...]
    units: int
    priors: dict[str, str]
    model: dict[str, Any]
    steps: int = 10
    stepsize: float = 0.4
    times: int = 10
    draws: int = 60
    rounds: int = 2


X2 = ((-1.2, 0.4), (-0.5, -1.0), (0.1, 0.9), (0.6, -0.3), (1.1, 0.7), (1.6, -0.8))
X3 = tuple((*x, z) for x, z in zip(X2, (0.2, -1.1, 0.7, 1.3, -0.4, -0.9), strict=True))
PROBLEMS = {
    "t noise with ARD": Problem(
        X3[:5], (0.9, 0.4, -0.2, 1.4, -0.8), 3,
        {"ih": "0.5:2:2", "bh": "0.5:2", "ho": "x1:2", "bo": "1"},
        {"kind": "real", "noise": "0.4:3::4"}, draws=160, rounds=10,
    ),
    "classes with t weights": Problem(
        X2, (0, 1, 2, 1, 2, 1), 2,
        {"ih": "0.5:3::3", "bh": "0.5::4", "ho": "x0.8:::4", "bo": "0.5:3:4"},
        {"kind": "class", "classes": 3},
    ),
    "regression with two modes": Problem(
        ((-1.5,), (-0.5,), (0.5,), (1.5,)), (-1.0, 0.9, -0.9, 1.0), 1,
        {"ih": "3", "bh": "3", "ho": "1", "bo": "-"},
        {"kind": "real", "noise": "0.25"}, steps=20, times=20, draws=200,
    ),
    "binary": Problem(
        X2, (0, 0, 1, 0, 1, 1), 3,
        {"th": "0.5", "ih": "x0.7:4:3", "bh": "0.5:4", "ho": "x1:3::5", "io": "0.5::3", "bo": "1:4"},
        {"kind": "binary"},
    ),
    "three classes": Problem(
        X2, (0, 1, 2, 1, 2, 0), 3,
        {"ih": "0.7:4:3", "bh": "0.7:4", "ho": "x1:3", "io": "-", "bo": "0.5:3"},
        {"kind": "class", "classes": 3},
    ),
    "survival": Problem(
        X2, (0.4, 1.6, -0.9, 0.3, -2.5, 0.8), 2,
        {"ih": "0.5:3:3", "bh": "0.5:3", "ho": "x0.7:3", "bo": "0.7"},
        {"kind": "survival", "hazard": "constant"}, draws=30,
    ),
    "survival with a hazard of pieces": Problem(
        X2, (0.4, 1.6, -0.9, 0.3, -2.5, 0.8), 2,
        {"ih": "0.5:3:3", "bh": "0.5:3", "ho": "x0.7:3", "bo": "0.7"},
        {"kind": "survival", "hazard": "piecewise", "time_points": [0.5, 1.5]},
    ),
}  # fmt: skip


def sampled(problem: Problem, folder: Path) -> dict[str, np.ndarray]:
    """Quantities (n_chains, n_draws) of a run like a user's, with logarithms of the sigmas."""
    names = [f"x{number}" for number in range(1, len(problem.inputs[0]) + 1)]
    target = TARGETS[problem.model["kind"]]
    rows = [",".join([*names, target])]
    rows += [",".join(map(str, (*x, y))) for x, y in zip(problem.inputs, problem.targets, strict=True)]
    (folder / "train.csv").write_text("\n".join(rows) + "\n")
    trajectory = {
        "op": "hybrid",
        "steps": problem.steps,
        "window": 2,
        "stepsize": problem.stepsize,
        "stepsize_jitter": -0.8,
    }
    operations = [{"op": "sample-sigmas"}, {"op": "heatbath"}, trajectory]
    iteration = [{"op": "repeat", "times": problem.times, "operations": operations}]
    spec = {
        "seed": 5,
        "chains": 128,
        "chains_per_batch": 128,
        "dtype": "float64",
        "data": {"train": str(folder / "train.csv"), "inputs": names, "targets": [target]},
        "model": problem.model,
        "network": {
            "hidden": [{"units": problem.units, "activation": "tanh"}],
            "priors": problem.priors,
        },
        "initial": {"from_prior": True},
        "phase": [
            {"iterations": 10, "keep": False, "operations": iteration},
            {"iterations": problem.draws, "operations": iteration},
        ],
    }
    api.sample(spec, folder / "run.zarr", workers=0, progress=False)
    values = quantities(committed(Store.open(folder / "run.zarr")), cases=len(problem.targets))
    values = {name: np.log(each) if name.startswith("sigma_") else each for name, each in values.items()}
    del values["log_prior"]
    return values


class Weighted:
    """Draws from the prior with importance weights, made in rounds."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.inputs = np.array(problem.inputs)
        self.targets = np.array(problem.targets)
        self.names = [f"x{number}" for number in range(1, self.inputs.shape[1] + 1)]
        self.times = problem.model.get("time_points")
        if self.times is not None:  # the network's first input is the time of a piece
            t = np.array(self.times)
            middles = np.concatenate([t[:1], (t[1:] + t[:-1]) / 2, t[-1:]])
            self.inputs = np.concatenate(
                [np.hstack([np.full((len(self.inputs), 1), m), self.inputs]) for m in middles]
            )
            self.names = ["time", *self.names]

    def draws(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Quantities by name and log weights of those draws whose weight is not negligible."""
        kept: list[tuple[dict[str, np.ndarray], np.ndarray]] = []
        largest = -math.inf
        for number in range(self.problem.rounds):
            streams = Streams(11, np.array([number], dtype=np.uint64))
            values, log_weight = self.round(streams)
            largest = max(largest, float(log_weight.max()))
            some = log_weight > largest + math.log(SMALLEST)
            kept.append(({name: each[some] for name, each in values.items()}, log_weight[some]))
        values = {name: np.concatenate([each[name] for each, _ in kept]) for name in kept[0][0]}
        return values, np.concatenate([log_weight for _, log_weight in kept])

    def round(self, streams: Streams) -> tuple[dict[str, np.ndarray], np.ndarray]:
        self.streams, self.index, self.log_sigmas = streams, 0, {}
        weights = {}
        n_in, n_hidden, n_out = self.inputs.shape[1], self.problem.units, self.n_outputs
        shapes = {"ih": (n_in, n_hidden), "bh": (1, n_hidden), "th": (1, n_hidden)}
        shapes |= {"ho": (n_hidden, n_out), "io": (n_in, n_out), "bo": (1, n_out)}
        for name, text in self.problem.priors.items():
            if text != "-":
                weights[name] = self.parameters(name, text, *shapes[name])
        hidden = np.tanh(self.inputs @ weights["ih"] + weights["bh"])  # (n, n_cases, n_hidden)
        outputs = (hidden + weights.get("th", 0)) @ weights["ho"] + weights.get("bo", 0)
        if "io" in weights:
            outputs = outputs + self.inputs @ weights["io"]
        return self.quantities(outputs)

    @property
    def n_outputs(self) -> int:
        return int(self.problem.model.get("classes", 1))

    def gamma(self, alpha: float, mean: Any, shape: tuple[int, ...]) -> np.ndarray:
        """Precisions from Gamma(shape alpha/2, mean), one for each draw."""
        self.index += 1
        log_gamma = self.streams.log_gamma(
            alpha / 2, Purpose.PRECISION_COMMON, (N_PER_ROUND, *shape), index=self.index
        )[0]
        return np.asarray(mean * np.exp(log_gamma) / (alpha / 2))

    def parameters(self, name: str, text: str, n_sources: int, n: int) -> np.ndarray:
        """Weights (n_draws, n_sources, n) from FBM's notation, parsed independently of the package."""
        width, *alphas_given = text.lstrip("x").split(":")
        alphas = [float(part) if part else math.inf for part in alphas_given]
        alphas += [math.inf] * (3 - len(alphas))
        if name[0] in "bt":  # group and parameter levels only
            alphas = [alphas[0], math.inf, alphas[1]]
        group, unit, parameter = alphas
        omega = float(width) ** -2
        if text.startswith("x"):
            alpha = parameter if math.isfinite(parameter) else unit
            omega *= n_sources if math.isinf(alpha) else n_sources * alpha / (alpha - 2)
        tau = np.full((N_PER_ROUND, 1, 1), omega)
        if math.isfinite(group):
            tau = self.gamma(group, tau, (1, 1))
            self.log_sigmas[f"sigma_{name}" if name in ("io", "bo") else f"sigma_{name}0"] = tau[:, 0, 0]
        if math.isfinite(unit):
            tau = self.gamma(unit, tau, (n_sources, 1))
            group_name = name if name == "io" else f"{name}0"
            for number, source in enumerate(self.names if name in ("ih", "io") else []):
                self.log_sigmas[f"sigma_{group_name}_unit[{source}]"] = tau[:, number, 0]
        if math.isfinite(parameter):
            tau = self.gamma(parameter, tau, (n_sources, n))
        self.index += 1
        shape = (N_PER_ROUND, n_sources, n)
        normal = self.streams.normal(Purpose.INITIAL_PARAMETER, shape, index=self.index)[0]
        return np.asarray(normal / np.sqrt(tau))

    def quantities(self, outputs: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Quantities under the package's names, and log weights; outputs (n_draws, n_cases, n_outputs)."""
        kind, y = self.problem.model["kind"], self.targets
        if kind == "real":
            values = {"y1": outputs[:, :, 0]}
            log_likelihood = self.log_density_of_real(y - values["y1"])
        elif kind == "binary":
            values = {"p_y1": scipy.special.expit(outputs[:, :, 0])}
            log_likelihood = -np.logaddexp(0, np.where(y == 1, -1, 1) * outputs[:, :, 0]).sum(axis=1)
        elif kind == "class":
            log_p = outputs - scipy.special.logsumexp(outputs, axis=2, keepdims=True)
            values = {f"p_{label}": np.exp(log_p[:, :, label]) for label in range(self.n_outputs)}
            log_likelihood = log_p[:, np.arange(len(y)), y.astype(int)].sum(axis=1)
        else:
            v = outputs[:, :, 0].reshape(len(outputs), -1, len(y))  # (n_draws, n_pieces, n_cases)
            names = [f"log_hazard_{piece}" for piece in range(v.shape[1])] if self.times else ["log_hazard"]
            values = {name: v[:, piece] for piece, name in enumerate(names)}
            ends = np.array([*(self.times or []), np.inf])
            starts = np.array([0.0, *(self.times or [])])
            lived = np.clip(np.abs(y), None, ends[:, None]) - starts[:, None]
            piece = np.searchsorted(ends, np.abs(y))  # a time equal to a boundary ends the piece before it
            at_event = v[:, piece, np.arange(len(y))] * (y > 0)
            log_likelihood = at_event.sum(axis=1)
            log_likelihood = log_likelihood - (np.exp(v) * np.maximum(lived, 0)).sum(axis=(1, 2))
        named = {f"{name}[{case}]": each[:, case] for name, each in values.items() for case in range(len(y))}
        named |= {name: -np.log(tau) / 2 for name, tau in self.log_sigmas.items()}
        return named | {"log_likelihood": log_likelihood}, log_likelihood

    def log_density_of_real(self, residuals: np.ndarray) -> np.ndarray:
        width, *alphas_given = self.problem.model["noise"].split(":")
        alphas = [float(part) if part else math.inf for part in alphas_given] + [math.inf] * 3
        tau = np.full((N_PER_ROUND, 1), float(width) ** -2)
        if math.isfinite(alphas[0]):
            tau = self.gamma(alphas[0], tau, (1,))
            self.log_sigmas["sigma_noise"] = tau[:, 0]
        a = alphas[2]
        if math.isinf(a):
            terms = (np.log(tau / (2 * np.pi)) - tau * residuals**2) / 2
        else:
            constant = math.lgamma((a + 1) / 2) - math.lgamma(a / 2) - math.log(math.pi * a) / 2
            terms = constant + np.log(tau) / 2 - (a + 1) / 2 * np.log1p(tau * residuals**2 / a)
        return np.asarray(terms.sum(axis=1))


def weighted_statistics(x: np.ndarray, log_weight: np.ndarray) -> dict[str, tuple[float, float]]:
    """Mean, sd and quantiles with standard errors, from draws with weights (delta method)."""
    w = np.exp(log_weight - log_weight.max())
    w = w / w.sum()

    def mean(values: np.ndarray) -> tuple[float, float]:
        m = float(w @ values)
        return m, float(np.sqrt((w**2 * (values - m) ** 2).sum()))

    estimates = {"mean": mean(x)}
    variance, error = mean((x - estimates["mean"][0]) ** 2)
    estimates["sd"] = (variance**0.5, error / (2 * variance**0.5))
    order = np.argsort(x)
    share = np.cumsum(w[order])
    for name, level in (("q05", 0.05), ("q50", 0.5), ("q95", 0.95)):
        low, quantile, high = np.interp([level - 0.02, level, level + 0.02], share, x[order])
        estimates[name] = (float(quantile), mean(x < quantile)[1] * float(high - low) / 0.04)
    return estimates


def worst(problem: Problem, drawn: dict[str, np.ndarray]) -> tuple[float, float, str]:
    """Largest difference in combined standard errors, fewest effective draws, and a description of both."""
    exact, log_weight = Weighted(problem).draws()
    weight = np.exp(log_weight - log_weight.max())
    n_exact = float(weight.sum() ** 2 / (weight**2).sum())
    assert set(drawn) == set(exact)
    z, n_ours = [], []
    for name, draws in drawn.items():
        ours, theirs = statistics(draws), weighted_statistics(exact[name], log_weight)
        n_ours.append((draws.var() / ours["mean"][1] ** 2, name))
        for statistic in ours:
            a, b = ours[statistic], theirs[statistic]
            z.append((abs(a[0] - b[0]) / math.hypot(a[1], b[1]), f"{statistic} of {name}: {a} {b}"))
    line = f"{max(z)}, effective draws {min(n_ours)} and {n_exact:.0f}"
    return max(z)[0], min(n_exact, min(n_ours)[0]), line


@pytest.mark.long
@pytest.mark.parametrize("name", PROBLEMS)
def test_sample_agrees_with_importance_sampling(name: str, tmp_path: Path) -> None:
    """Means, sds and quantiles agree within 4 standard errors: 1 false alarm in 16,000 each; seeds fixed."""
    z, n_effective, line = worst(PROBLEMS[name], sampled(PROBLEMS[name], tmp_path))
    assert n_effective > 1000, line  # with fewer effective draws the test would not be sharp
    assert z < 4, line


WRONG: dict[str, dict[str, Any]] = {
    "output weights not scaled": {"priors": {**PROBLEMS["survival"].priors, "ho": "0.7:3"}},
    "wide biases": {"priors": {**PROBLEMS["survival"].priors, "bh": "0.8:3"}},
    "half the alphas of inputs": {"priors": {**PROBLEMS["survival"].priors, "ih": "0.5:3:1.5"}},
    "half the alpha of a group": {"priors": {**PROBLEMS["survival"].priors, "ho": "x0.7:1.5"}},
    "censored cases taken for events": {"targets": (0.4, 1.6, 0.9, 0.3, 2.5, 0.8)},
    "inputs doubled": {"inputs": tuple((2 * a, 2 * b) for a, b in X2)},
}


@pytest.mark.long
@pytest.mark.parametrize("name", WRONG)
def test_another_posterior_is_seen(name: str, tmp_path: Path) -> None:
    problem = PROBLEMS["survival"]
    z, _, line = worst(problem, sampled(replace(problem, **WRONG[name]), tmp_path))
    assert z > 6, line


@pytest.mark.long
def test_the_regression_with_two_modes_has_two() -> None:
    """The middle cases lie on a rise on one side or on the other, and seldom between."""
    values, log_weight = Weighted(PROBLEMS["regression with two modes"]).draws()
    weight = np.exp(log_weight - log_weight.max())
    height = values["y1[1]"] + values["y1[2]"]  # positive where the rise is on the left
    share, _ = np.histogram(height, bins=[-3, -0.5, 0.5, 3], weights=weight / weight.sum())
    assert share[0] > 2 * share[1] and share[2] > 2 * share[1]
