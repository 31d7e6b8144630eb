"""The posterior with variables integrated out: values by brute force, gradients by differences, draws."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

from rayfbnn.arrays import Array
from rayfbnn.errors import ConfigError
from rayfbnn.model import integrated, network, output_layer, prior, regression
from rayfbnn.model.architecture import ACTIVATIONS, LayerSpec, NetworkSpec
from rayfbnn.model.connections import ConnectionTable
from rayfbnn.model.integrated import OutputMarginal, WithoutOutputs, WithoutPrecisions
from rayfbnn.selftest.pivots import ks_p_value
from rayfbnn.state import ChainState
from tests.support import problems
from tests.support.marks import long_but
from tests.support.model.marginals import (
    BOTH,
    COMMON,
    N_CASES,
    NETWORKS,
    OUTPUTS,
    PRECISIONS,
    REAL,
    conditional,
    coordinates,
    made,
)
from tests.support.mutants import importing, mutant
from tests.support.problems import parse, problem, streams

STEP = 1e-6


def worst_error(state: ChainState, density: Any) -> float:
    """Largest difference from central differences, relative to the gradient's largest component."""
    position = coordinates(state, density)
    energy, gradient = density.potential_and_gradient(position, state.precisions)
    assert np.all(np.isfinite(energy))
    assert np.allclose(energy, density.potential(position, state.precisions), rtol=1e-13)
    numeric = np.empty_like(gradient)
    for i in range(position.shape[1]):
        change = np.zeros(position.shape[1])
        change[i] = STEP
        above, below = (density.potential(position + s * change, state.precisions) for s in (1, -1))
        numeric[:, i] = (above - below) / (2 * STEP)
    scale = np.maximum(np.abs(gradient).max(axis=1, initial=0), 1e-3 * np.abs(energy))
    return float(np.max(np.abs(numeric - gradient) / np.maximum(scale, 1)[:, None], initial=0))


# Each network with each model in one of the forms, and with both forms: half of all.
QUICK = [
    (name, model, form)
    for (i, name), (j, model), (k, form) in itertools.product(*map(enumerate, (NETWORKS, REAL, N_CASES)))
    if (i + j + k) % 2
]


@pytest.mark.parametrize(("name", "model", "form"), long_but(QUICK, NETWORKS, REAL, N_CASES))
def test_gradient_is_the_central_difference(name: str, model: str, form: str) -> None:
    for is_missing in (False, True):
        target = made(name, model, form, is_missing=is_missing)
        # Output weights drawn from a vague prior give energies of 1e20, for which differences have no digits.
        for over in (OUTPUTS, BOTH) if name == "vague" else (OUTPUTS, PRECISIONS, BOTH):
            state, density = conditional(target, over, f"{name} {model} {form}", 8)
            assert worst_error(state, density) < 1e-6


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradient_is_right_for_every_activation(activation: str) -> None:
    spec = problems.network(COMMON, activations=(activation, activation))
    state, density = conditional(problem("t", spec=spec, n_cases=19), BOTH, activation, 20)
    assert worst_error(state, density) < 1e-6


@pytest.mark.parametrize("b", [0.3, np.array([1.0, 0.5, 0.0])])
@pytest.mark.parametrize("model", REAL)
def test_gradient_is_right_at_every_temperature(model: str, b: float | Array) -> None:
    target = made("every level", model, "primal", is_missing=True).tempered(b)
    for over in (OUTPUTS, PRECISIONS, BOTH):
        state, density = conditional(target, over, "tempered", 3)
        assert worst_error(state, density) < 1e-6


def by_brute_force(state: ChainState, kept_density: WithoutOutputs) -> Array:
    """-log p(observed targets | kept parameters), from the joint normal density of all targets of a chain.

    Outputs are linear in the output parameters, so that an output with one of them at one is a column of the
    matrix that takes them to outputs.
    """
    target, n_kept = kept_density.marginal.posterior, kept_density.n_kept
    inputs, data = target.inputs[:-1].T, kept_density.regression_at(coordinates(state, kept_density))
    n_outputs, n_cases = target.n_targets, target.n_cases
    energies = []
    for chain in range(len(state.position)):
        basis = np.repeat(state.position[chain : chain + 1], target.n_parameters - n_kept, axis=0)
        basis[:, n_kept:] = np.eye(target.n_parameters - n_kept)
        columns = target.outputs(basis, inputs).swapaxes(1, 2).reshape(len(basis), -1)
        prior_precisions = np.broadcast_to(data.prior[chain], (n_outputs, data.prior.shape[2])).T.ravel()
        noise = np.broadcast_to(data.noise[chain], (n_outputs, n_cases)).ravel()
        targets = np.broadcast_to(data.targets[0], data.targets.shape[1:]).reshape(-1)
        is_seen = noise > 0
        columns = columns[:, is_seen]
        covariance = columns.T @ (columns / prior_precisions[:, None]) + np.diag(1 / noise[is_seen])
        density = scipy.stats.multivariate_normal(np.zeros(len(covariance)), covariance)
        energies.append(-density.logpdf(targets[is_seen]))
    return np.array(energies)


def prior_energy(state: ChainState, density: WithoutOutputs) -> Array:
    """Energy of the kept parameters: that of the whole prior with all output parameters zero."""
    target = density.marginal.posterior
    position = state.position.copy()
    position[:, density.n_kept :] = 0
    return target.prior_energy(position, state.precisions)


@pytest.mark.parametrize("form", N_CASES)
@pytest.mark.parametrize("model", REAL)
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "vague"])
def test_value_is_the_normal_density_of_the_targets(name: str, model: str, form: str) -> None:
    for is_missing in (False, True):
        target = made(name, model, form, is_missing=is_missing)
        state, density = conditional(target, OUTPUTS, f"value {name}", 5)
        value = density.potential(coordinates(state, density), state.precisions)
        expected = by_brute_force(state, density) + prior_energy(state, density)
        assert np.allclose(value, expected, rtol=1e-9, atol=1e-9)


def test_both_forms_are_used_and_are_one() -> None:
    for model in REAL:
        target = made("common precisions", model, "dual", is_missing=True)
        state, density = conditional(target, BOTH, "forms", 6)
        assert density.regression.is_dual
        other = replace(density, regression=replace(density.regression, is_dual=False))
        position = coordinates(state, density)
        for a, b in zip(
            density.potential_and_gradient(position, state.precisions),
            other.potential_and_gradient(position, state.precisions),
            strict=True,
        ):
            assert np.allclose(a, b, rtol=1e-9, atol=1e-9 * np.abs(b).max())
    assert not conditional(made("common precisions", "t", "primal"), BOTH, "x", 1)[1].regression.is_dual
    # A vaguer prior would leave the dual form no digits.
    assert not conditional(made("vague", "t", "dual"), BOTH, "x", 1)[1].regression.is_dual


def test_targets_share_a_matrix_where_they_can() -> None:
    def n_systems(name: str, model: str, **options: Any) -> int:
        density = conditional(made(name, model, "primal", **options), BOTH, "share", 2)[1]
        return int(density.regression.prior.shape[1])

    assert n_systems("common precisions", "gaussian") == 1
    assert n_systems("common precisions", "gaussian by target") == 2
    assert n_systems("common precisions", "gaussian", is_missing=True) == 2
    assert n_systems("common precisions", "t") == 2
    assert n_systems("adjustments", "gaussian") == 2
    assert n_systems("t output weights", "gaussian") == 2
    assert n_systems("one output", "t by target") == 1


def integral_error(name: str, over: tuple[str, ...], *, module: Any = integrated) -> float:
    """Largest error of differences of potential between positions, against integrals by quadrature."""
    target, n = made(name, "gaussian", "primal"), 6
    random = streams("integral", n)
    state = target.initial_state(random, sigmas=None)
    precisions = np.repeat(state.precisions[:1], n, axis=0)
    made_of = module.marginal(target, over)
    density = made_of.given(replace(state, precisions=precisions), random)
    value = density.potential(coordinates(replace(state, precisions=precisions), density), precisions)
    zeroed = output_layer.with_columns(precisions, made_of.groups, value=0.0)
    if over == PRECISIONS:
        rest = target.potential(state.position, zeroed)
    else:
        density = integrated.marginal(target, OUTPUTS).given(replace(state, precisions=precisions), random)
        rest = density.potential(coordinates(state, density), zeroed)
    integrals = np.zeros(n)
    for group in made_of.groups:
        scales = np.ones(group.size)
        if group.adjustments is not None:
            scales = np.resize(precisions[0, group.adjustments], group.size)
        alpha, mean = group.precision.prior.alphas[0], group.precision.mean
        squares = (scales * state.position[:, group.part] ** 2).sum(axis=1)
        integrals -= [log_integral(alpha, mean, group.size, total) for total in squares]
    return float(np.ptp(value - rest - integrals))


@pytest.mark.parametrize("over", [PRECISIONS, BOTH])
@pytest.mark.parametrize("name", ["common precisions", "adjustments"])
def test_integrated_precisions_leave_their_integral(name: str, over: tuple[str, ...]) -> None:
    assert integral_error(name, over) < 1e-7


def test_all_groups_of_common_precisions_are_integrated_out() -> None:
    target = made("common precisions", "gaussian", "primal")
    names = set(target.parameter_layout.slices)
    assert {group.precision.name for group in integrated.marginal(target, PRECISIONS).groups} == names
    both, outputs = integrated.marginal(target, BOTH), integrated.marginal(target, OUTPUTS)
    assert isinstance(both, OutputMarginal) and isinstance(outputs, OutputMarginal)
    feeding = {"ho0", "ho1", "io", "bo"}
    assert {group.precision.name for group in both.groups} == names - feeding
    assert {group.precision.name for group in both.moved} == feeding
    assert outputs.groups == outputs.moved == ()


def moved_error(module: Any = integrated) -> float:
    """Largest error of the potential along logs of precisions, against products of densities."""
    target, n = made("common precisions", "gaussian by target", "primal"), 8
    random = streams("moved", n)
    state = target.initial_state(random, sigmas=None)
    both = module.marginal(target, BOTH)
    precisions = np.repeat(state.precisions[:1], n, axis=0)
    log_prior = np.zeros(n)
    for group in both.moved:
        column, alpha = group.precision.common, group.precision.prior.alphas[0]
        precisions[:, column] = state.precisions[:, column]
        tau = precisions[:, column]
        log_prior += prior.log_gamma_density(tau, alpha, group.precision.mean) + np.log(tau)
    state = ChainState(np.repeat(state.position[:1], n, axis=0), state.momentum, precisions)
    given, other = (each.given(state, random) for each in (both, integrated.marginal(target, OUTPUTS)))
    value = given.potential(coordinates(state, given), precisions)
    rest = other.potential(coordinates(state, other), precisions)
    return float(np.ptp(value - rest + log_prior))


def test_precisions_that_move_along_have_their_prior() -> None:
    assert moved_error() < 1e-9


def test_precisions_that_move_along_are_where_they_were_and_where_they_went() -> None:
    target = made("common precisions", "gaussian", "primal")
    state, density = conditional(target, BOTH, "moved", 4)
    random = streams("moved", 4, iteration=1)
    start = density.start(state, random)
    columns = [group.precision.common for group in density.marginal.moved]
    n = density.n_kept
    assert np.array_equal(start.momentum[:, :n], state.momentum[:, :n])
    assert np.allclose(np.exp(start.position[:, n:]), state.precisions[:, columns], rtol=1e-12)
    after = density.complete(state, replace(start, position=start.position + 1), random)
    assert np.allclose(after.precisions[:, columns], np.e * state.precisions[:, columns], rtol=1e-12)
    assert np.array_equal(after.position[:, :n], state.position[:, :n] + 1)
    assert np.array_equal(after.momentum, state.momentum)


def log_integral(alpha: float, mean: float, n: int, squares: float) -> float:
    """log of the integral over x = log tau of the Gamma density and tau**(n/2) exp(-tau squares/2)."""
    tau_most_likely = (alpha + n) / (alpha / mean + squares)

    def log_density(x: float) -> float:
        tau = tau_most_likely * np.exp(x)
        return float((alpha + n) / 2 * np.log(tau) - tau * (alpha / mean + squares) / 2)

    peak = log_density(0.0)
    area, _ = scipy.integrate.quad(lambda x: np.exp(log_density(x) - peak), -12, 5, epsabs=0, epsrel=1e-11)
    return float(peak + np.log(area))


def dependence(over: tuple[str, ...], *, module: Any = integrated) -> set[str]:
    """Names of results that depend on integrated variables; Gaussian noise needs no auxiliary variables."""
    target = made("common precisions", "gaussian", "primal")
    state, density = conditional(target, over, "depends", 3, module=module)
    random, made_of = streams("depends", 3, iteration=2), module.marginal(target, over)
    position, precisions = state.position.copy(), state.precisions.copy()
    if over != PRECISIONS:
        position[:, density.n_kept :] += 1.0
    for group in made_of.groups:
        precisions[:, group.precision.common] *= 7.0
    changed = replace(state, position=position, precisions=precisions)
    other = made_of.given(changed, random)
    results = []
    for each, at in ((density, state), (other, changed)):
        energy, gradient = each.potential_and_gradient(coordinates(at, each), at.precisions)
        results.append({"energy": energy, "gradient": gradient, "stepsizes": each.stepsizes(at.precisions)})
    return {name for name in results[0] if not np.array_equal(results[0][name], results[1][name])}


@pytest.mark.parametrize("over", [OUTPUTS, PRECISIONS, BOTH])
def test_nothing_depends_on_what_is_integrated_out(over: tuple[str, ...]) -> None:
    assert dependence(over) == set()


def test_stepsizes_do_not_depend_on_precisions_that_move_along() -> None:
    target = made("common precisions", "gaussian", "primal")
    state, density = conditional(target, BOTH, "moved stepsizes", 3)
    assert len(density.marginal.moved) == 4
    changed = state.precisions.copy()
    for group in density.marginal.moved:
        changed[:, group.precision.common] *= 7.0
    assert np.array_equal(density.stepsizes(state.precisions), density.stepsizes(changed))


@pytest.mark.parametrize(
    ("old", "new", "over"),
    [
        ("with_columns(precisions, (*marginal.groups, *marginal.moved)).copy()", "precisions.copy()", BOTH),
        ("stepsizes(with_columns(precisions, self.groups))", "stepsizes(precisions)", PRECISIONS),
    ],
)
def test_stepsizes_of_what_is_integrated_out_are_seen(old: str, new: str, over: tuple[str, ...]) -> None:
    assert dependence(over, module=mutant(integrated, (old, new))) == {"stepsizes"}


def test_stepsizes_do_not_depend_on_parameters() -> None:
    for model in REAL:
        target = made("every level", model, "primal")
        state, density = conditional(target, BOTH, "stepsizes", 3)
        moved = integrated.marginal(target, BOTH).given(
            replace(state, position=state.position + 1), streams("other", 3)
        )
        assert np.array_equal(density.stepsizes(state.precisions), moved.stepsizes(state.precisions))


def test_stepsizes_are_finite_under_vague_priors_of_the_output_weights() -> None:
    spec = problems.network({**COMMON, "ho0": "+", "ho1": "+", "io": "+", "bo": "+"})
    state, density = conditional(problem("gaussian", spec=spec, n_cases=19), OUTPUTS, "vague", 3)
    least = problem("gaussian", spec=problems.network(COMMON)).stepsizes(state.precisions).min()
    assert density.stepsizes(state.precisions).min() > 1e-3 * min(1.0, least)


@pytest.mark.parametrize("form", N_CASES)
@pytest.mark.parametrize("model", REAL)
def test_output_parameters_are_drawn_from_their_normal_distribution(model: str, form: str) -> None:
    """One density for 3,000 chains: L'(w - m) is standard normal, A = L L' from the columns of outputs."""
    target = made("t output weights", model, form, is_missing=True)
    random, n = streams(f"draws {model} {form}", 3_000), 3_000
    one = target.initial_state(streams(f"start {model}", 1), sigmas=None)
    given_one = integrated.marginal(target, BOTH).given(one, streams(f"start {model}", 1, iteration=1))
    assert isinstance(given_one, WithoutOutputs)
    state = ChainState(*(np.repeat(a, n, axis=0) for a in (one.position, one.momentum, one.precisions)))
    data = given_one.regression
    many = replace(data, noise=np.repeat(data.noise, n, axis=0), prior=np.repeat(data.prior, n, axis=0))
    density = replace(given_one, regression=many)
    after = density.complete(state, density.start(state, random), random)
    n_kept = given_one.n_kept
    assert np.array_equal(after.position[:, :n_kept], state.position[:, :n_kept])
    assert np.array_equal(after.momentum, state.momentum)
    assert data.is_dual == (form == "dual")

    basis = np.repeat(one.position, target.n_parameters - n_kept, axis=0)
    basis[:, n_kept:] = np.eye(len(basis))
    columns = target.outputs(basis, target.inputs[:-1].T).swapaxes(1, 2).reshape(len(basis), -1)
    noise = np.broadcast_to(data.noise[0], (target.n_targets, target.n_cases)).ravel()
    prior_precisions = given_one.regression_at(coordinates(one, given_one)).prior[0].T.ravel()
    a = (columns * noise) @ columns.T + np.diag(prior_precisions)
    m = np.linalg.solve(a, columns @ (noise * data.targets[0].ravel()))
    uniform = scipy.special.ndtr((after.position[:, n_kept:] - m) @ np.linalg.cholesky(a))
    assert min(ks_p_value(column) for column in uniform.T) > 1e-5 / uniform.shape[1]
    covariances = np.corrcoef(uniform.T)[np.triu_indices(uniform.shape[1], 1)]
    assert abs(covariances).max() < 5.5 / np.sqrt(n)  # at most 276 statistics: 1 in 100,000


def test_precisions_are_drawn_given_the_new_parameters() -> None:
    target = made("common precisions", "gaussian", "primal")
    random = streams("precisions", 4_000)
    state = target.initial_state(random, sigmas=None)
    density = integrated.marginal(target, PRECISIONS).given(state, random)
    assert isinstance(density, WithoutPrecisions)
    after = density.complete(state, density.start(state, random), random.at(iteration=1))
    groups = {group.precision.common: group for group in density.groups}
    for column in range(target.n_precisions):
        if column not in groups:
            assert np.array_equal(after.precisions[:, column], state.precisions[:, column])
            continue
        group = groups[column]
        alpha = group.precision.prior.alphas[0]
        rate = (alpha / group.precision.mean + (state.position[:, group.part] ** 2).sum(axis=1)) / 2
        uniform = scipy.special.gammainc((alpha + group.size) / 2, after.precisions[:, column] * rate)
        assert ks_p_value(uniform) > 1e-6


def test_groups_with_other_levels_stay_as_they_are() -> None:
    target = made("every level", "gaussian", "primal")
    names = {group.precision.name for group in integrated.marginal(target, PRECISIONS).groups}
    assert names == {"bh0", "ho1"}
    names = {group.precision.name for group in integrated.marginal(target, BOTH).groups}
    assert names == {"bh0"}


@pytest.mark.parametrize("model", ["class"])
def test_other_models_are_refused_over_outputs_alone(model: str) -> None:
    target = problem(model)
    for over in (OUTPUTS, BOTH):
        with pytest.raises(
            ConfigError, match='over: the outputs cannot .* model.kind = "class" has no Gauss'
        ):
            target.marginal(over)
    assert isinstance(target.marginal(PRECISIONS), WithoutPrecisions)


def test_configured_connections_into_the_outputs_are_refused() -> None:
    table = ConnectionTable((0, 1), (0, 1), (0, 0))
    spec = NetworkSpec(
        2,
        2,
        (LayerSpec(2, "tanh"),),
        parse({"ih0": "1", "ho0": "1:3", "bo": "1"}),
        connections={"ho0": table},
    )
    with pytest.raises(ConfigError, match="network.connections.ho0 feeds the outputs"):
        problem("gaussian", spec=spec).marginal(OUTPUTS)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", N_CASES)
@pytest.mark.parametrize("model", ["gaussian", "t by target"])
def test_chains_do_not_depend_on_their_batch(model: str, form: str, dtype: str) -> None:
    target = made("common precisions", model, form, dtype=dtype)
    state, density = conditional(target, BOTH, "batch", 5)
    random = streams("batch", 5, iteration=1)
    after = density.complete(state, density.start(state, random), random)
    energy, gradient = density.potential_and_gradient(coordinates(state, density), state.precisions)
    energy, gradient = energy.copy(), gradient.copy()
    for chains in ([0], [3, 4]):
        part = ChainState(state.position[chains], state.momentum[chains], state.precisions[chains])
        own_streams = replace(random, chains=random.chains[chains])
        alone = integrated.marginal(target, BOTH).given(part, own_streams)
        own_energy, own_gradient = alone.potential_and_gradient(coordinates(part, alone), part.precisions)
        assert np.array_equal(own_energy, energy[chains])
        assert np.array_equal(own_gradient, gradient[chains])
        completed = alone.complete(part, alone.start(part, own_streams), own_streams)
        assert np.array_equal(completed.position, after.position[chains])
        assert np.array_equal(completed.precisions, after.precisions[chains])


def test_float32_is_close_to_float64() -> None:
    single, double = (
        made("common precisions", "gaussian", "primal", dtype=d) for d in ("float32", "float64")
    )
    state, density = conditional(double, BOTH, "close", 6)
    rounded = replace(state, position=state.position.astype(np.float32))
    other = integrated.marginal(single, BOTH).given(rounded, streams("close", 6, iteration=1))
    a, da = density.potential_and_gradient(coordinates(state, density), state.precisions)
    b, db = other.potential_and_gradient(coordinates(rounded, other), state.precisions)
    assert b.dtype == np.float64 and db.dtype == np.float32
    assert np.allclose(a, b, rtol=1e-4) and np.allclose(da, db, rtol=1e-2, atol=1e-3 * np.abs(da).max())


def test_a_trajectory_that_blows_up_is_silent(recwarn: pytest.WarningsRecorder) -> None:
    for form in N_CASES:
        target = made("common precisions", "gaussian", form, dtype="float32")
        state, density = conditional(target, BOTH, "blow-up", 3)
        for value in (1e30, np.inf, np.nan):
            position = coordinates(state, density).copy()
            whole = density.potential_and_gradient(position, state.precisions)[0].copy()
            position[1] = value
            energy, _ = density.potential_and_gradient(position, state.precisions)
            assert not np.isfinite(energy[1])
            assert np.array_equal(energy[[0, 2]], whole[[0, 2]])
    assert len(recwarn) == 0


# Bugs in the formulas: module, (old, new), and the number of cases of the problem that must show each.
FORMULA_MUTANTS: dict[str, tuple[Any, tuple[str, str], str]] = {
    "log|A| forgotten": (regression, ("solution.log_determinant - xp.log", "-xp.log"), "primal"),
    "log|S| forgotten": (regression, (" - xp.log(regression.prior).sum(axis=2)", ""), "primal"),
    "one log determinant for all targets": (
        regression,
        ("0.5 * (n_each * log_ratio + squares)", "0.5 * (log_ratio + squares)"),
        "primal",
    ),
    "log T forgotten": (
        regression,
        ("regression.noise, 1.0)) - _LOG_2_PI", "1.0, 1.0)) - _LOG_2_PI"),
        "primal",
    ),
    "residuals without their precisions": (
        regression,
        ("(noise * residuals**2)", "(residuals**2)"),
        "primal",
    ),
    "m'Sm forgotten": (
        regression,
        ("squares += (regression.prior[:, :, :, None] * solution.mean**2).sum(axis=(1, 2, 3))", "pass"),
        "primal",
    ),
    "gradient of the determinant halved": (
        regression,
        ("slopes = xp.matmul((noise * inverse)", "slopes = 0.5 * xp.matmul((noise * inverse)"),
        "primal",
    ),
    "gradient of the residuals forgotten": (
        regression,
        ("slopes -= xp.matmul(means, residuals", "0 * xp.matmul(means, residuals"),
        "primal",
    ),
    "log|B| forgotten": (
        regression,
        ("n_each * solution.log_determinant.sum(axis=1) + squares", "squares"),
        "dual",
    ),
    "dual gradient of the residuals forgotten": (
        regression,
        ("inverse -= xp.matmul(solution.mean, solution.mean.swapaxes(2, 3))", "pass"),
        "dual",
    ),
    "alpha left out of the integrated prior": (
        output_layer,
        ("(alpha + group.size) / 2 * xp.log(rate)", "group.size / 2 * xp.log(rate)"),
        "primal",
    ),
    "slope of the integrated prior": (
        output_layer,
        ("((alpha + group.size) / rate)", "(group.size / rate)"),
        "primal",
    ),
    "alpha left out of the prior of what moves along": (
        integrated,
        ("half * (ratio - x[:, number])", "half * ratio"),
        "primal",
    ),
    "slope of the prior of what moves along": (integrated, ("half * (ratio - 1)", "half * ratio"), "primal"),
    "slope by log S": (
        regression,
        ("0.5 * (regression.prior * second_moments - n_each)", "0.5 * regression.prior * second_moments"),
        "primal",
    ),
    "dual slope by log S": (regression, ("-0.5 * (slopes * features", "-0.4 * (slopes * features"), "dual"),
    "adjustments not in the integrated prior": (
        output_layer,
        ("scaled = (rows * precisions[:, None, group.adjustments]).reshape(w.shape)", "pass"),
        "primal",
    ),
    "input offsets by way of the direct connections": (
        integrated,
        ("gradient[:, layer.wiring.offsets[0]][:, units] += value_gradients[0].sum(axis=2)", "pass"),
        "primal",
    ),
    "hidden units' way to the outputs": (
        network,
        ("in (value_gradients or {}).items()", "in {}"),
        "primal",
    ),
}


@pytest.mark.parametrize("name", FORMULA_MUTANTS)
def test_mutant_of_the_formulas_is_killed(name: str) -> None:
    """The value shows a bug if it differs, and central differences otherwise."""
    module, replacement, form = FORMULA_MUTANTS[name]
    changed = mutant(module, replacement)
    if module is regression:
        made_of: Any = mutant(integrated)
        made_of.regression = changed
        changed = made_of
    elif module is not integrated:
        changed = importing(integrated, changed)
    target = made("adjustments", "gaussian", form)
    spec = made("common precisions", "gaussian", form)
    errors = []
    for problem_of_bug in (target, spec):
        state, density = conditional(problem_of_bug, BOTH, "mutant", 4, module=changed)
        errors.append(worst_error(state, density) > 1e-3)
        state, density = conditional(problem_of_bug, OUTPUTS, "mutant", 4, module=changed)
        value = density.potential(coordinates(state, density), state.precisions)
        errors.append(not np.allclose(value, by_brute_force(state, density) + prior_energy(state, density)))
    errors.append(integral_error("adjustments", BOTH, module=changed) > 1e-3)
    errors.append(moved_error(changed) > 1e-3)
    assert any(errors)
