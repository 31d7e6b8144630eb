"""Gibbs updates of precisions agree with the joint density and with integrated distributions."""

from __future__ import annotations

import math
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats

from rayfbnn.model import sampled
from rayfbnn.model.architecture import ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.model.updates import gibbs, hyperbolic
from rayfbnn.selftest.pivots import is_exact, ks_p_value, ks_two_sample_p_value
from rayfbnn.streams import Purpose, Use
from tests.support import problems
from tests.support.model.hierarchy import HIERARCHIES, grid_of_joint, log_gamma_conditional, uniforms_of
from tests.support.mutants import mutant, sampled_with
from tests.support.problems import MODELS, chain_streams, problem, streams

GRID = 20_001
N_DRAWS = 20_000
N_CHAINS = 4_000


def integrated_cdf(log_density: Any, values: np.ndarray, *, low: float, high: float) -> np.ndarray:
    """Distribution function at `values` of a density given by its logarithm, by the trapezoidal rule.

    The grid is refined once about where the density is; its tail beyond is below exp(-40) of the top.
    """
    for _ in range(3):
        x = np.linspace(low, high, GRID)
        log_p = log_density(x)
        inside = x[log_p > log_p.max() - 40]
        low, high = inside[0] - (x[1] - x[0]), inside[-1] + (x[1] - x[0])
    p = np.exp(log_p - log_p.max())
    cumulative = np.concatenate([[0.0], np.cumsum((p[1:] + p[:-1]) / 2)])
    return np.interp(values, x, cumulative / cumulative[-1])


# (alpha, mean) of the precision, (alpha of the level below, how many, their sum): from 2 targets to the
# 10,000 weights of a large layer, from vague to narrow levels.
UPPER = [
    (3.0, 2.0, 4.0, [0.7]),
    (3.0, 2.0, 4.0, [0.7, 3.0, 1.9]),
    (0.2, 400.0, 0.5, [1e-3, 50.0]),
    (8.0, 1.0, 2.0, [0.1, 4.0, 2.0, 1.0]),  # n alpha_below = alpha: the middle of the family
    (50.0, 1.0, 0.5, [1e-4, 2.0]),  # the prior dominates
    (2.0, 1e-6, 3.0, [1e-9] * 5),
    (2.0, 1.0, 100.0, [1.0] * 100),
    (1.0, 1.0, 1e-3, [1e-200, 1e-30]),
]


def upper_is_exact(
    module: ModuleType, alpha: float, mean: float, alpha_below: float, below: list[float]
) -> bool:
    def log_density(x: np.ndarray) -> np.ndarray:
        """Log density of x = log tau, from eqs. 13 and 14 of Neal (2022); tau dx is the Jacobian."""
        a, b = alpha / 2, alpha_below / 2
        total = a * x - a * np.exp(x) / mean  # log tau**(a - 1) exp(-tau a / mean) * tau
        for value in below:
            # The factor that depends on the mean: (b / tau)**b exp(-value b / tau)
            total = total - b * x - b * np.exp(math.log(value) - x)
        return total

    def p_values(seed: int, n: int) -> list[float]:
        drawn = module.log_precision_over_precisions(
            np.full((n, 1), sum(below)),
            len(below),
            alpha,
            np.full((n, 1), mean),
            alpha_below,
            chain_streams(seed, n),
            use=Use(Purpose.PRECISION_COMMON, 0, 1),
        )
        return [ks_p_value(integrated_cdf(log_density, drawn[:, 0], low=-650.0, high=100.0))]

    return is_exact(p_values, name=f"upper {alpha} {mean} {alpha_below} {below[:5]}", n_chains=N_DRAWS)


@pytest.mark.parametrize("alpha, mean, alpha_below, below", UPPER)
def test_precisions_over_precisions_follow_the_integrated_distribution(
    alpha: float, mean: float, alpha_below: float, below: list[float]
) -> None:
    assert upper_is_exact(gibbs, alpha, mean, alpha_below, below)


@pytest.mark.parametrize("a", [0.0, 0.3, 1.0, 5.0, 200.0, 1e5])
@pytest.mark.parametrize("omega", [1e-100, 1e-6, 0.1, 1.0, 10.0, 1e4])
def test_hyperbolic_variables_follow_the_integrated_distribution(a: float, omega: float) -> None:
    def log_density(y: np.ndarray) -> np.ndarray:
        return a * y - omega * np.cosh(y)

    random = streams(f"hyperbolic {a} {omega}", N_DRAWS)
    y = hyperbolic.hyperbolic_variable(
        a, np.full((N_DRAWS, 1), omega), random, use=Use(Purpose.PROPOSAL, 0, 1)
    )
    assert np.all(np.isfinite(y))
    uniforms = integrated_cdf(log_density, y[:, 0], low=-500.0, high=500.0)
    assert ks_p_value(uniforms) > 1e-6  # 36 combinations: one false alarm in 30,000; seed fixed


def test_precisions_over_values_follow_the_gamma_distribution() -> None:
    n, alpha, mean, sum_squares = 5, 3.0, 2.0, 1.7
    random = streams("gamma", N_DRAWS)
    drawn = gibbs.log_precision_over_values(
        np.full((N_DRAWS, 1), sum_squares), n, alpha, mean, random, use=Use(Purpose.PRECISION_COMMON, 0, 1)
    )
    uniforms = scipy.special.gammainc((alpha + n) / 2, np.exp(drawn) * (alpha / mean + sum_squares) / 2)
    assert ks_p_value(uniforms) > 1e-5  # seed fixed


def log_upper_conditional(
    tau: np.ndarray, alpha: float, mean: float, alpha_below: float, below: np.ndarray
) -> Any:
    """Neal (2022) eq. 31, not normalised."""
    power = (alpha - below.size * alpha_below) / 2 - 1
    return power * np.log(tau) - tau * alpha / (2 * mean) - alpha_below * below.sum() / (2 * tau)


def test_conditionals_are_the_joint_density_up_to_a_constant() -> None:
    gaussian = {name: ":".join(text.split(":")[:3]) for name, text in problems.PRIORS.items()}
    gaussian |= {"ti": "0.4", "th0": "0.3:4"}  # the last alpha of a bias or offset belongs to its parameters
    target = problem("gaussian by target", spec=problems.network(gaussian))
    state = target.initial_state(streams("joint", 1), sigmas=None)
    values = target.parameter_layout.views(state.position)
    values["noise"] = target.targets - target.outputs(state.position, target.inputs[:-1].T).swapaxes(1, 2)
    checked = 0
    for group in target.precision_layout.groups:
        alpha, alpha_unit, _ = group.prior.alphas
        rows = values[group.name].reshape(group.n_units, -1)
        if math.isfinite(alpha):
            tau, log_joint = grid_of_joint(target, state, group.common)
            if group.units is None:
                expected = log_gamma_conditional(tau, alpha, group.mean, rows**2)
            else:
                below = state.precisions[0, group.units]
                expected = log_upper_conditional(tau, alpha, group.mean, alpha_unit, below)
            assert np.ptp(log_joint - expected) < 1e-9 * np.abs(log_joint).max()
            checked += 1
        for unit in range(group.n_units if group.units is not None else 0):
            tau, log_joint = grid_of_joint(
                target, state, target.precision_layout.units[group.name].start + unit
            )
            common = state.precisions[0, group.common]
            expected = log_gamma_conditional(tau, alpha_unit, common, rows[unit] ** 2)
            assert np.ptp(log_joint - expected) < 1e-9 * np.abs(log_joint).max()
            checked += 1
    assert checked == target.precision_layout.is_free.sum()


def stays_exact(
    name: str,
    *,
    model: str,
    kernel: str,
    gibbs_module: ModuleType = gibbs,
    n: int,
    settings: tuple[dict[str, Any], ...] = ({},),
) -> bool:
    """Return True if exact draws of precisions, parameters and targets stay exact under Gibbs updates.

    Every level of every group then gives independent uniforms, however precisions, parameters and targets
    depend on each other. There is one result for each setting.
    """
    module = sampled if gibbs_module is gibbs else sampled_with(gibbs_module)
    spec = problems.network(HIERARCHIES, units=(2, 3))
    target = problem(model, spec=spec, posterior=module.SampledPosterior)

    def p_values(seed: int, n_chains: int) -> list[float]:
        random = chain_streams(seed, n_chains)
        state = target.initial_state(random, sigmas=None)
        targets = target.sample_targets(state.position, state.precisions, random)
        informed = target.with_targets(targets)
        for iteration, setting in enumerate(settings, start=1):
            state, _ = getattr(informed, kernel)(state, random.at(iteration=iteration), **setting)
        return [ks_p_value(values) for values in uniforms_of(informed, state, targets)]

    return is_exact(p_values, name=name, n_chains=n)


KERNELS = ["sample_sigmas", "sample_noise"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("model", MODELS)
def test_exact_draws_stay_exact_under_gibbs_updates(model: str, kernel: str) -> None:
    assert stays_exact(f"{kernel} {model}", model=model, kernel=kernel, n=N_CHAINS)


SOME = {
    "lower": ({"level": "lower"},) * 2,
    "upper": ({"level": "upper"},) * 2,
    "one group after another": ({"groups": ("h0h1", "bh0")}, {"groups": ("noise", "io"), "level": "upper"}),
}


@pytest.mark.parametrize("which", SOME)
def test_exact_draws_stay_exact_under_updates_of_some_precisions(which: str) -> None:
    assert stays_exact(which, model="t by target", kernel="sample_sigmas", settings=SOME[which], n=N_CHAINS)


def changed_columns(model: str, **settings: Any) -> tuple[SampledPosterior, set[int]]:
    spec = problems.network(HIERARCHIES, units=(2, 3))
    target = problem(model, spec=replace(spec, adjustments={"ah0": 3.0, "ao": 4.0}))
    state = target.initial_state(streams("some", 3), sigmas=None)
    after, _ = target.sample_sigmas(state, streams("some", 3, iteration=1), **settings)
    every_chain = (after.precisions != state.precisions).all(axis=0)
    assert np.array_equal(every_chain, (after.precisions != state.precisions).any(axis=0))
    return target, set(np.flatnonzero(every_chain).tolist())


@pytest.mark.parametrize("model", ["gaussian by target", "t by target", "t", "gaussian"])
def test_a_level_is_of_the_precisions_that_it_says(model: str) -> None:
    target, lower = changed_columns(model, level="lower")
    _, upper = changed_columns(model, level="upper")
    expected: set[int] = set()
    for group in target.precision_layout.groups:
        alpha, alpha_unit, alpha_value = group.prior.alphas
        if group.units is not None and math.isinf(alpha_value):
            expected |= set(range(group.units.start, group.units.stop))
        if math.isfinite(alpha) and math.isinf(alpha_unit) and math.isinf(alpha_value):
            expected.add(group.common)
    for adjustments in target.precision_layout.adjustments:
        expected |= set(range(adjustments.columns.start, adjustments.columns.stop))
    assert lower == expected
    assert upper == set(np.flatnonzero(target.precision_layout.is_free).tolist()) - expected
    assert upper and lower


def test_groups_are_those_named() -> None:
    target, changed = changed_columns("t by target", groups=("h0h1", "noise", "ao"))
    layout = target.precision_layout
    expected = {layout.common["h0h1"], layout.common["noise"]}
    for columns in (layout.units["h0h1"], layout.units["noise"], layout.adjustments[-1].columns):
        expected |= set(range(columns.start, columns.stop))
    assert changed == expected


def test_both_levels_one_after_the_other_are_the_whole_update() -> None:
    """If only the noise has two levels, the bits agree: the same random numbers, lower before upper."""
    spec = problems.network({"io": "1:2", "bo": "1"}, inputs=1, outputs=2, units=(), activations=())
    target = problem("gaussian by target", spec=spec)
    state = target.initial_state(streams("levels", 3), sigmas=None)
    random = streams("levels", 3, iteration=1)
    whole, _ = target.sample_sigmas(state, random)
    lower, _ = target.sample_sigmas(state, random, level="lower")
    both, _ = target.sample_sigmas(lower, random, level="upper")
    assert np.array_equal(both.precisions, whole.precisions)


UPPER_MUTANTS = {
    "one too few below": (
        "a = (alpha - n * alpha_below) / 2",
        "a = (alpha - (n - 1) * alpha_below) / 2",
    ),
    "missing Jacobian": (
        "a = (alpha - n * alpha_below) / 2",
        "a = (alpha - n * alpha_below) / 2 - 1",
    ),
    "alpha as shape": ("log_b = math.log(alpha / 2)", "log_b = math.log(alpha)"),
    "alpha below as shape": ("log_c = math.log(alpha_below / 2)", "log_c = math.log(alpha_below)"),
    "rate for mean": ("math.log(alpha / 2) - xp.log(mean)", "math.log(alpha / 2) + xp.log(mean)"),
    "not mirrored": ("y * xp.copysign(1.0, a)", "y"),
    "mean for sum": ("xp.log(below)", "xp.log(below / n)"),
}
HYPERBOLIC_MUTANTS = {
    "right tail covered too wide": ("-rate_right * (y - right), 0.0", "-0.5 * rate_right * (y - right), 0.0"),
    "left tail covered too wide": ("rate_left * (y - left), cover", "0.5 * rate_left * (y - left), cover"),
    "everything accepted": (
        "accepted = xp.log(u[..., 2]) + cover <= log_density(y)",
        "accepted = xp.ones(width.shape, dtype=bool)",
    ),
    "density about the mode": ("a * (xp.expm1(z) - z)", "a * xp.expm1(z)"),
}


@pytest.mark.parametrize("name", UPPER_MUTANTS)
def test_a_wrong_upper_conditional_is_seen(name: str) -> None:
    assert not upper_is_exact(mutant(gibbs, UPPER_MUTANTS[name]), *UPPER[1])


@pytest.mark.parametrize("name", HYPERBOLIC_MUTANTS)
def test_a_wrong_rejection_step_is_seen(name: str) -> None:
    copy = mutant(gibbs)
    bug = mutant(hyperbolic, HYPERBOLIC_MUTANTS[name])
    copy.hyperbolic_variable = bug.hyperbolic_variable  # type: ignore[attr-defined]
    assert not upper_is_exact(copy, *UPPER[1])


GIBBS_MUTANTS = {
    "one degree of freedom less": (
        "return (alpha + n) / 2, (alpha / mean",
        "return (alpha + n - 1) / 2, (alpha / mean",
    ),
    "alpha as shape": (
        "return (alpha + n) / 2, (alpha / mean",
        "return alpha + n / 2, (alpha / mean",
    ),
    "rate for mean": ("(alpha / mean + sum_squares) / 2", "(alpha * mean + sum_squares) / 2"),
    "sum of squares not halved": ("(alpha / mean + sum_squares) / 2", "alpha / mean / 2 + sum_squares"),
    "common one as if units had no precisions": (
        "below = precisions[:, group.units].sum(axis=1, keepdims=True)",
        "below = sums.together().squares.sum(axis=2)",
    ),
    "value precisions given the upper mean": (
        "sums.sum_of_t_precisions(precisions[:, columns], alpha",
        "sums.sum_of_t_precisions(mean + 0 * precisions[:, columns], alpha",
    ),
    "value precisions without the value": (
        "log_gamma - xp.log((alpha / mean + squares) / 2)",
        "log_gamma - xp.log(alpha / mean / 2 + 0 * squares)",
    ),
    "value precisions one degree less": (
        "weights * (alpha + 1) / 2, purpose",
        "weights * alpha / 2, purpose",
    ),
    "residuals a fifth": (
        "yield number, group, noise()",
        "yield number, group, replace(noise(), squares=0.04 * noise().squares)",
    ),
}


LEVEL_MUTANTS = {
    "t values taken for Gaussian ones": (
        "if math.isinf(alpha_value):\n        return _GammaDraw",
        "if True:\n        return _GammaDraw",
    ),
    "upper levels given lower ones of before": (
        "below = precisions[:, group.units].sum(axis=1, keepdims=True)",
        "below = np.roll(precisions, 1, axis=0)[:, group.units].sum(axis=1, keepdims=True)",
    ),
}


@pytest.mark.parametrize("name", LEVEL_MUTANTS)
def test_a_wrong_update_of_the_upper_levels_is_seen(name: str) -> None:
    assert not stays_exact(
        f"mutant {name}",
        model="t by target",
        kernel="sample_sigmas",
        gibbs_module=mutant(gibbs, LEVEL_MUTANTS[name]),
        settings=SOME["upper"],
        n=N_CHAINS,
    )


@pytest.mark.parametrize("name", GIBBS_MUTANTS)
def test_a_wrong_gibbs_update_is_seen(name: str) -> None:
    assert not stays_exact(
        f"mutant {name}",
        model="t by target",
        kernel="sample_sigmas",
        gibbs_module=mutant(gibbs, GIBBS_MUTANTS[name]),
        n=N_CHAINS,
    )


def test_fixed_precisions_stay_to_the_bit() -> None:
    for model in MODELS:
        target = problem(model, spec=problems.network(HIERARCHIES, outputs=3 if model == "class" else 2))
        for sigmas in (None, 0.5):
            state = target.initial_state(streams("fixed", 3), sigmas=sigmas)
            after, _ = target.sample_sigmas(state, streams("fixed", 3, iteration=1))
            fixed = ~target.precision_layout.is_free
            assert np.array_equal(after.precisions[:, fixed], state.precisions[:, fixed])
            assert np.all(after.precisions[:, ~fixed] != state.precisions[:, ~fixed])
            assert after.position is state.position and after.momentum is state.momentum
            means = [
                group.mean for group in target.precision_layout.groups if math.isinf(group.prior.alphas[0])
            ]
            common = [g.common for g in target.precision_layout.groups if math.isinf(g.prior.alphas[0])]
            assert np.array_equal(state.precisions[:, common], np.tile(means, (3, 1)))


def test_sampling_noise_leaves_other_precisions() -> None:
    target = problem("t by target")
    state = target.initial_state(streams("noise alone", 3), sigmas=None)
    after, _ = target.sample_noise(state, streams("noise alone", 3, iteration=1))
    noise = target.precision_layout.common["noise"]
    assert np.array_equal(after.precisions[:, :noise], state.precisions[:, :noise])
    assert np.all(after.precisions[:, noise:] != state.precisions[:, noise:])


def test_groups_of_one_prior_get_different_random_numbers() -> None:
    spec = NetworkSpec(1, 1, (), problems.parse({"io": "1:2", "bo": "1:2"}))
    target = SampledPosterior.from_spec(
        spec, ModelSpec("real", PriorSpec.parse("1:2", key="noise")), np.zeros((3, 1)), np.zeros((3, 1))
    )
    state = target.initial_state(streams("alike", 4), sigmas=1.0)
    after, _ = target.sample_sigmas(state, streams("alike", 4, iteration=1))
    assert len(np.unique(after.precisions)) == after.precisions.size
    drawn = target.initial_state(streams("alike", 4), sigmas=None)
    assert len(np.unique(drawn.precisions)) == drawn.precisions.size
    assert len(np.unique(np.abs(drawn.position))) == drawn.position.size


@pytest.mark.parametrize("group", ["noise", "io"])
def test_updates_of_all_levels_and_their_reversal_are_in_detailed_balance(group: str) -> None:
    """From exact draws, (before, after) forwards is distributed as (after, before) backwards."""
    spec = problems.network({"io": "1:2:2", "bo": "1"}, inputs=1, outputs=1, units=(), activations=())
    model = ModelSpec("real", PriorSpec.parse("0.5:2:2", key="noise"))
    target = SampledPosterior.from_spec(spec, model, np.ones((1, 1)), np.zeros((1, 1)))
    random = streams("reversal", 20_000)
    state = target.initial_state(random, sigmas=None)
    sampled = target.with_targets(target.sample_targets(state.position, state.precisions, random))
    layout = target.precision_layout
    common, unit = layout.common[group], layout.units[group].start

    def p_value(*, is_reversed: bool) -> float:
        after, _ = sampled.sample_sigmas(state, random.at(iteration=1))
        before, _ = sampled.sample_sigmas(state, random.at(iteration=2), is_reversed=is_reversed)
        # The units are drawn right after this common level, or this common level right after them.
        forwards = state.precisions[:, common] / after.precisions[:, unit]
        backwards = before.precisions[:, common] / state.precisions[:, unit]
        return ks_two_sample_p_value(forwards, backwards)

    assert p_value(is_reversed=True) > 1e-4  # fails for 1 in 10,000 seeds; the seed is fixed
    assert p_value(is_reversed=False) < 1e-6
