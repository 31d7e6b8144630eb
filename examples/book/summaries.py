"""Sums up a run for its figure of the book, in a few hundred numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.answers.mixing import autocorrelations
from rayfbnn.arrays import Array

if TYPE_CHECKING:
    from running import Finished

MEASURES = ("squared_error", "absolute_error", "error_rate", "log_probability")
GROUPS = ("ih0", "bh0", "ho0")
_MOST_LAGS = 40
_CASES_AT_ONCE = 500


def functions(run: Finished) -> dict[str, Any]:
    """Return the functions of some draws on a grid (figure 1.2)."""
    grid = np.linspace(-2, 2, 81)
    draws = outputs(run.tree["prior" if run.row.kind == "prior" else "posterior"], grid[:, None])[0, :, :, 0]
    return {"grid": rounded(grid), "functions": rounded(draws)}


def training_errors(run: Finished) -> dict[str, Any]:
    """Return the squared error of each draw on the training cases, by chain (figure 3.2)."""
    targets = run.train[["y1", "y2"]].to_numpy()
    found = outputs(run.tree["posterior"], run.train[["x1", "x2"]].to_numpy())
    return {"training_errors": rounded(((found - targets) ** 2).sum(-1).mean(-1))}


def along_trajectory(run: Finished) -> dict[str, Any]:
    """Return an output and the sizes of parameters along a trajectory, of the first chain (figure 3.4)."""
    draws = run.tree["posterior"]
    output = outputs(draws, np.array([[-1.47, 0.75]]))[0, :, 0, 0]
    return {"output": rounded(output)} | {name: rounded(sizes(draws, name)[0]) for name in GROUPS}


def energy_errors(run: Finished) -> dict[str, Any]:
    """Return the changes of energy by stepsize (figures 3.3, 3.10 and 3.11): medians, quartiles, acceptance.

    They are changes of free energy where trajectories have windows.
    """
    stats = run.tree["sample_stats"]
    errors, stepsizes = stats["energy_error"].values, stats["step_size"].values[0]
    errors = np.where(np.isnan(errors), np.inf, errors)
    found: dict[str, list[Any]] = {"stepsizes": [], "quartiles": [], "acceptances": []}
    for stepsize in np.unique(stepsizes):
        some = np.minimum(errors[:, stepsizes == stepsize], 1e9)
        found["stepsizes"].append(float(f"{stepsize:.3g}"))
        found["quartiles"].append(rounded(np.quantile(some, (0.25, 0.5, 0.75))))
        found["acceptances"].append(rounded(np.minimum(1, np.exp(-some)).mean()))
    return found


def magnitudes(run: Finished) -> dict[str, Any]:
    """Return the root mean squares of groups of parameters, and their autocorrelations over chains.

    Figures 3.5 (the series of the first chain) and 3.6.
    """
    draws, found = run.tree["posterior"], {}
    for name in GROUPS:
        series = sizes(draws, name)
        found[f"{name}_series"] = rounded(series[0])
        together = autocorrelations(series[:, run.skip :]).together[1 : 1 + _MOST_LAGS]
        found[f"{name}_autocorrelations"] = rounded(together)
    return found


def noise(run: Finished) -> dict[str, Any]:
    """Return the mean and standard deviation of the noise level."""
    values = run.tree["posterior"]["sigma_noise"].values[:, run.skip :]
    return {"noise": rounded(values.mean()), "noise_sd": rounded(values.std())}


def errors_of_runs(run: Finished) -> dict[str, Any]:
    """Return squared errors of each run and of all, from all draws used and from a fifth of the run.

    Figure 3.8: super-transitions 51 to 150, and 16 to 30.
    """
    draws, n_draws = run.tree["posterior"], run.tree["posterior"].sizes["draw"]
    targets = run.test[["y1", "y2"]].to_numpy()
    parts = {"long": slice(run.skip, n_draws), "short": slice(n_draws // 10, max(1, n_draws // 5))}
    errors = {name: [np.zeros(draws.sizes["chain"] + 1)] for name in parts}
    for first in range(0, len(targets), _CASES_AT_ONCE):
        some = run.test[first : first + _CASES_AT_ONCE]
        found = outputs(draws, some[["x1", "x2"]].to_numpy())
        for name, at in parts.items():
            of_runs = found[:, at].mean(axis=1)
            means = np.concatenate([of_runs, of_runs.mean(axis=0, keepdims=True)])
            errors[name].append(((means - some[["y1", "y2"]].to_numpy()) ** 2).sum(axis=(1, 2)))
    return {f"errors_{name}": rounded(sum(values) / len(targets)) for name, values in errors.items()}


def at_point(run: Finished) -> dict[str, Any]:
    """Return outputs of the first run for inputs (-1.471, 0.752), also with noise, and means (figure 3.7)."""
    draws = run.tree["posterior"]
    found = outputs(draws, np.array([[-1.471, 0.752]]))[:, run.skip :, 0]
    sigmas = draws["sigma_noise"].values[0, run.skip :].reshape(found.shape[1], -1)
    with_noise = found[0] + sigmas * np.random.default_rng(0).normal(size=found.shape[1:])
    return {
        "at_point": rounded(found.mean(axis=(0, 1))),
        "outputs_at_point": rounded(found[0]),
        "targets_at_point": rounded(with_noise),
    }


def explored(run: Finished) -> dict[str, Any]:
    """Return how far the hidden-to-output weights moved, and the acceptance (figure 3.9)."""
    series = sizes(run.tree["posterior"], "ho0")[0]
    return {
        "series": rounded(series),
        "range": rounded(series.max() - series.min()),
        "accepted": rounded(run.tree["sample_stats"]["acceptance_rate"].values.mean()),
    }


def cloud(run: Finished) -> dict[str, Any]:
    """Return 200 draws from the predictive distribution just outside the training cases (figure 4.3)."""
    draws = run.tree["posterior"]
    means = outputs(draws, np.array([[2.0, 0.5]]))[:, :, 0].reshape(-1, 2)
    sigmas = draws["sigma_noise"].values.reshape(len(means), -1)
    chosen = np.linspace(0, len(means) - 1, min(200, len(means))).astype(int)
    noise = np.random.default_rng(0).normal(size=(len(chosen), 2))
    points = means[chosen] + sigmas[chosen] * noise
    return {"cloud": rounded(points), "cloud_sd": rounded(points.std(axis=0))}


def input_magnitudes(run: Finished) -> dict[str, Any]:
    """Return root mean squares of the weights out of each input (figures 4.7 and 4.8): means and series.

    The series are of the first chain.
    """
    draws = run.tree["posterior"]
    weights = draws["ih0" if "ih0" in draws else "io"].values
    squares = (weights.astype(np.float64) ** 2).mean(axis=-1)
    return {
        "inputs": rounded(np.sqrt(squares[:, run.skip :].mean(axis=(0, 1)))),
        "input_series": rounded(np.sqrt(squares[0]).T),
    }


def merged_windows(run: Finished) -> dict[str, Any]:
    """Return the error rate with both kinds of window glass as one class (figure 4.13)."""
    labels = sorted(run.train["type"].unique())
    table = run.prediction.table
    probabilities = table[[f"p_{label}" for label in labels]].to_numpy()
    is_window = np.array([label.startswith("Win") for label in labels])
    merged = np.column_stack([probabilities[:, is_window].sum(axis=1), probabilities[:, ~is_window]])
    names = np.array(["Win", *np.array(labels)[~is_window]])
    actual = run.test["type"].where(~run.test["type"].str.startswith("Win"), "Win").to_numpy()
    return {"merged_error_rate": rounded((names[merged.argmax(axis=1)] != actual).mean())}


def vagueness(run: Finished) -> dict[str, Any]:
    """Return the entropy of targets given each network, and the size of output weights (figure 4.14)."""
    columns = ["RI", "Na", "Mg", "Al", "Si", "K", "Ca", "Ba", "Fe"]
    center, spread = run.train[columns].mean(), run.train[columns].std(ddof=0)
    inputs = ((run.test[columns] - center) / spread).to_numpy()
    entropies, magnitude = [], []
    for name in ("warmup_posterior", "posterior"):
        draws = run.tree[name]
        found = outputs(draws, inputs)[0]
        shifted = found - found.max(axis=-1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        entropies.append(-(np.exp(logs) * logs).sum(axis=-1).mean(axis=-1))
        magnitude.append(sizes(draws, "ho0")[0])
    return {"entropy": rounded(np.concatenate(entropies)), "ho0_sizes": rounded(np.concatenate(magnitude))}


def outputs(draws: Any, inputs: Array) -> Array:
    """Return outputs of networks with one hidden layer or none, (n_chains, n_draws, n_cases, n_outputs)."""
    total = draws["bo"].values[:, :, None].astype(np.float64)
    if "ih0" in draws:
        summed = np.einsum("ni,cdij->cdnj", inputs, draws["ih0"].values) + draws["bh0"].values[:, :, None]
        total = total + np.einsum("cdnj,cdjk->cdnk", np.tanh(summed), draws["ho0"].values)
    if "io" in draws:
        total = total + np.einsum("ni,cdik->cdnk", inputs, draws["io"].values)
    return np.asarray(total)


def sizes(draws: Any, group: str) -> Array:
    """Return the root mean square of a group of parameters in each draw, (n_chains, n_draws)."""
    values = draws[group].values.astype(np.float64)
    return np.asarray(np.sqrt((values.reshape(*values.shape[:2], -1) ** 2).mean(axis=-1)))


def rounded(values: Any) -> Any:
    """Return numbers with four digits, as lists that JSON can hold."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0:
        return float(f"{float(array):.4g}")
    return [rounded(value) for value in array]
