"""Statistical tests of exact draws: statistics with known distributions, at a known rate of false alarms."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.model.prior import noise_precisions
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams

if TYPE_CHECKING:
    from rayfbnn.model.sampled import SampledPosterior


def joint_p_values(
    target: SampledPosterior,
    after: tuple[ChainState, Array],
    other: tuple[ChainState, Array],
    streams: Streams,
) -> dict[str, float]:
    """Return a p-value for each statistic of states and data.

    Data are (n_chains, n_cases, n_targets), with NaN for a missing target.

    after  states and data that were exact before the updates under test
    other  independent exact draws, for statistics with a distribution that is known only by simulation
    """
    state, data = after
    uniform = pivots(target, state, data, streams)
    values = {name: ks_p_value(u) for name, u in uniform.items()}
    # One value or one sum of squares for each level; they are independent.
    doubled = {name.replace("squares", "values") for name in uniform if "squares" in name}
    levels = {
        name: u.reshape(len(data), -1)[:, 0]
        for name, u in uniform.items()
        if name not in doubled and "along" not in name and name != "kinetic energy"
    }
    for a, b in itertools.pairwise(levels):
        values[f"{a} with {b}"] = square_p_value(levels[a], levels[b], bins=10)
    expected = products(target, *other)
    for name, sample in products(target, state, data).items():
        values[name] = ks_two_sample_p_value(sample, expected[name])
    return values


def pivots(target: SampledPosterior, state: ChainState, data: Array, streams: Streams) -> dict[str, Array]:
    """Return functions of state and data that are uniform for any model, each (n_chains, ...)."""
    uniform = {
        **_precision_uniforms(target, state, data),
        **_data_uniforms(target, state, data, streams),
        "momentum": scipy.special.ndtr(state.momentum),
    }
    _, gradient = target.with_targets(data).potential_and_gradient(state.position, state.precisions)
    directions = {"position": state.position, "gradient": gradient * target.stepsizes(state.precisions)}
    for name, direction in directions.items():
        # Far out in a tail a gradient may be infinite; any direction works there.
        scale = np.abs(direction).max(axis=1, keepdims=True)
        direction = np.where(np.isfinite(scale) & (scale > 0), direction / np.where(scale > 0, scale, 1), 1.0)
        along = (direction * state.momentum).sum(axis=1) / np.linalg.norm(direction, axis=1)
        uniform[f"momentum along {name}"] = scipy.special.ndtr(along)
    uniform["kinetic energy"] = chi2_uniform((state.momentum**2).sum(axis=1), target.n_parameters)
    return uniform


def _precision_uniforms(target: SampledPosterior, state: ChainState, data: Array) -> dict[str, Array]:
    """Return the conditional distribution function of each level of each group, and of the noise."""
    uniform: dict[str, Array] = {}
    values, layout = target.parameter_layout.views(state.position), target.precision_layout
    for adjustments in layout.adjustments:
        drawn = state.precisions[:, adjustments.columns]
        uniform[adjustments.name] = gamma_uniform(adjustments.alpha, drawn)
    for group in layout.groups:
        alpha_common, alpha_unit, alpha_value = group.prior.alphas
        common = state.precisions[:, group.common]
        tau = common[:, None]
        if math.isfinite(alpha_common):
            uniform[f"{group.name} common"] = gamma_uniform(alpha_common, common / group.mean)
        if group.prior.rectified is not None:
            uniform[f"{group.name} common"] = scipy.special.erf(common / math.sqrt(2 * group.prior.rectified))
        if group.units is not None:
            tau = state.precisions[:, group.units]
            uniform[f"{group.name} unit"] = gamma_uniform(alpha_unit, tau / common[:, None])
        if group.name == "noise":
            uniform |= noise_uniforms(target, state, data, tau, alpha_value)
        if group.is_of_targets:
            continue
        rows = values[group.name].reshape(len(common), group.n_units, -1) * np.sqrt(tau)[:, :, None]
        if group.name in layout.adjusted:
            rows = rows * np.sqrt(state.precisions[:, None, layout.adjusted[group.name][1]])
        if group.prior.mixture is not None:
            share, width = group.prior.mixture
            first, second = (scipy.special.ndtr(scale * rows) for scale in (1.0, group.prior.width / width))
            uniform[f"{group.name} values"] = share * first + (1 - share) * second
            continue
        uniform |= value_uniforms(group.name, rows, alpha_value)
    return uniform


def noise_uniforms(
    target: SampledPosterior, state: ChainState, data: Array, tau: Array, alpha: float
) -> dict[str, Array]:
    """Return the distribution function of the residuals of the observed targets."""
    uniform: dict[str, Array] = {}
    for number in range(target.n_targets):
        rows = (data - outputs(target, state))[:, None, ~np.isnan(data[0, :, number]), number]
        scale = np.sqrt(tau[:, min(number, tau.shape[1] - 1)])[:, None, None]
        uniform |= value_uniforms(f"noise {number}", rows * scale, alpha)
    return uniform


def outputs(target: SampledPosterior, state: ChainState) -> Array:
    """Return the outputs at every case or, for a piecewise hazard, at every piece of every case.

    Shape (n_chains, n_columns, n_outputs).
    """
    every_column = target.with_targets(np.ones((1, target.n_cases, target.n_targets))).inputs[:-1]
    return target.outputs(state.position, every_column.T)


def _data_uniforms(
    target: SampledPosterior, state: ChainState, data: Array, streams: Streams
) -> dict[str, Array]:
    """Return the distribution functions of the observed targets at their values, (n_chains, n)."""
    kind, v = target.model.kind, outputs(target, state)
    random = streams.at(iteration=99).uniform(Purpose.PROPOSAL, data.shape[1:])
    is_observed = ~np.isnan(data[0])
    filled = np.nan_to_num(data)
    if kind == "real":
        return {}
    if kind in ("binary", "class"):
        uniform = randomised_uniforms(target, v, filled, streams)
    elif kind == "count":
        at_most = _count_distribution(target, state, np.exp(v))
        below = np.where(filled > 0, at_most(np.maximum(filled - 1, 0)), 0.0)
        uniform = below + random * (at_most(filled) - below)
    elif kind == "heteroscedastic":
        mean, s = v[:, :, : target.n_targets], v[:, :, target.n_targets :]
        uniform = scipy.special.ndtr((filled - mean) / np.sqrt(target.model.noise_floor**2 + np.exp(-s)))
    else:
        survived = np.exp(-_cumulative_hazard(target, v, np.abs(filled[:, :, 0])))[:, :, None]
        uniform = np.where(filled > 0, survived, random * survived)
    return {"data": uniform[:, is_observed]}


def _count_distribution(target: SampledPosterior, state: ChainState, rate: Array) -> Callable[[Array], Array]:
    """Return the distribution function of counts with these means, (n_chains, n_cases, n_targets)."""
    if target.model.dispersion is None:
        return lambda counts: np.asarray(scipy.special.pdtr(counts, rate))
    shapes = noise_precisions(state.precisions, target.precision_layout)[:, None]
    return lambda counts: np.asarray(scipy.special.betainc(shapes, counts + 1, shapes / (shapes + rate)))


def _cumulative_hazard(target: SampledPosterior, v: Array, time: Array) -> Array:
    """Return the integral of the hazard until each time (n_chains, n_cases), piece by piece."""
    starts = [0.0, *target.model.times]
    ends = [*target.model.times, math.inf]
    hazard = np.exp(v[:, :, 0]).reshape(*time.shape, len(starts))
    return sum(
        hazard[:, :, piece] * np.clip(time - start, 0, end - start)
        for piece, (start, end) in enumerate(zip(starts, ends, strict=True))
    )


def products(target: SampledPosterior, state: ChainState, data: Array) -> dict[str, Array]:
    """Return functions of state and data with distributions known only by simulation, each (n_chains,)."""
    v = outputs(target, state)[:, :: target.data_model.n_cells]
    posterior = target.with_targets(data)
    with np.errstate(over="ignore"):
        return {
            "log likelihood": posterior.log_likelihood(state.position, state.precisions),
            "log prior": posterior.log_prior(state.position, state.precisions),
            "potential": posterior.potential(state.position, state.precisions),
            "target times output": np.nansum(data[:, :, 0] * v[:, :, 0], axis=1),
            "output": v[:, 0, 0],
        }


def gamma_uniform(alpha: float, ratio: Array) -> Array:
    """Return the distribution function of a Gamma variable with shape alpha/2 and mean 1."""
    return scipy.special.gammainc(alpha / 2, alpha / 2 * ratio)


def chi2_uniform(sum_squares: Array, n: int) -> Array:
    """Return the distribution function of a sum of n squares of standard normal variables."""
    return scipy.special.gammainc(n / 2, sum_squares / 2)


def value_uniforms(name: str, standardised: Array, alpha: float) -> dict[str, Array]:
    """Return distribution functions of normal or t values, and of the sum of squares of normal values.

    standardised  the values, (n_chains, n_units, n)
    """
    if math.isfinite(alpha):
        return {f"{name} values": scipy.special.stdtr(alpha, standardised)}
    sums = (standardised**2).sum(axis=(1, 2))
    return {
        f"{name} values": scipy.special.ndtr(standardised),
        f"{name} squares": chi2_uniform(sums, standardised[0].size),
    }


def randomised_uniforms(target: SampledPosterior, v: Array, data: Array, streams: Streams) -> Array:
    """Return the distribution function of each discrete target, uniform between its steps; shape as data."""
    if target.model.kind == "binary":
        probability = np.stack([scipy.special.expit(-v), scipy.special.expit(v)], axis=-1)
    else:
        probability = scipy.special.softmax(v, axis=2)[:, :, None, :]
    above = probability.cumsum(axis=-1)
    label = data.astype(int)[..., None]
    upper = np.take_along_axis(above, label, axis=-1)[..., 0]
    width = np.take_along_axis(probability, label, axis=-1)[..., 0]
    return upper - width * streams.at(iteration=99).uniform(Purpose.PROPOSAL, data.shape[1:])


LEVEL = 1e-5  # rate of false alarms of a suite of statistics, over all looks together
LOOKS = 7

Values = np.ndarray[Any, Any]


def seed_of(name: str) -> int:
    """Return the seed of a test, which depends only on the name; results change only with the code."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


def is_exact(p_values: Callable[[int, int], list[float]], *, name: str, n_chains: int) -> bool:
    """Return False if a suite of statistics does not have its distribution; false alarms are 1 in 100,000.

    Gandy and Scott (2021), "Unit testing for MCMC and other Monte Carlo methods", algorithm 2: decide at once
    if the smallest p-value is clearly large or clearly small, and otherwise look again with four times as
    many new chains. `p_values(seed, n_chains)` returns the p-values, which are combined by Bonferroni.
    """
    beta = LEVEL / LOOKS
    gamma = beta ** (1 / LOOKS)
    for look in range(LOOKS):
        values = p_values(seed_of(f"{name}, look {look}"), n_chains if look == 0 else 4 * n_chains)
        smallest = min(values) * len(values)
        if not smallest > beta:
            return False
        if smallest > gamma + beta:
            return True
        beta /= gamma
    return True


def ks_p_value(uniforms: Values) -> float:
    """Return the Kolmogorov-Smirnov p-value for values uniform on (0, 1); asymptotic, Stephens (1970)."""
    n = uniforms.size
    ordered = np.sort(uniforms.ravel())
    distance = max(np.max(np.arange(1, n + 1) / n - ordered), np.max(ordered - np.arange(n) / n))
    root = np.sqrt(n)
    return float(scipy.special.kolmogorov((root + 0.12 + 0.11 / root) * distance))


def ks_two_sample_p_value(a: Values, b: Values) -> float:
    """Return the Kolmogorov-Smirnov p-value for two samples from the same distribution."""
    root = np.sqrt(len(a) * len(b) / (len(a) + len(b)))
    return float(scipy.special.kolmogorov((root + 0.12 + 0.11 / root) * ks_distance(a, b)))


def ks_distance(a: Values, b: Values) -> float:
    """Return the largest distance between the empirical distribution functions of two samples, (n,) each."""
    a, b = np.sort(a), np.sort(b)
    points = np.concatenate([a, b])
    below_a = np.searchsorted(a, points, side="right") / len(a)
    below_b = np.searchsorted(b, points, side="right") / len(b)
    return float(np.abs(below_a - below_b).max())


def chi2_p_value(counts: Values) -> float:
    """Return the p-value of Pearson's test for equally likely cells."""
    expected = counts.sum() / counts.size
    statistic = float(((counts - expected) ** 2).sum() / expected)
    return float(scipy.special.chdtrc(counts.size - 1, statistic))


def square_p_value(u: Values, v: Values, *, bins: int = 20) -> float:
    """Return the p-value for pairs uniform on the unit square, from counts in bins x bins cells."""
    cell = (bins * u).astype(int).clip(0, bins - 1) * bins + (bins * v).astype(int).clip(0, bins - 1)
    return chi2_p_value(np.bincount(cell, minlength=bins * bins))
