"""Stochastic gradient Hamiltonian Monte Carlo: its stationary variances, exactly, and its bookkeeping.

The steps are linear in position, momentum and noise where the energy is lam q^2/2, so that their stationary
covariance is the solution of a Lyapunov equation; no draws are needed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from rayfbnn.arrays import Array
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc import sghmc as module
from rayfbnn.mcmc.heatbath import heatbath
from rayfbnn.mcmc.hybrid import hybrid
from rayfbnn.mcmc.operation import BuildContext, Settings, Tuning, automatic
from rayfbnn.mcmc.operations import Sghmc
from rayfbnn.model.batches import Batches
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose
from tests.support.invariance import ONE, stays_exact
from tests.support.model.linear import linear
from tests.support.mutants import mutant, schedule_with
from tests.support.problems import chain_streams, streams
from tests.support.ring.parts import position_of, target_of
from tests.support.targets import gaussian, wall


def step(
    kind: str, eps: float, lam: float, friction: float, known: float, *, source: ModuleType = module
) -> Any:
    """Return one step of an integrator as a function of q, p, injected noise and the gradient's noise."""
    settings = source.UpdateConstants(eps, friction, np.ones((1, 1)), False)
    noise = source.NoiseEstimate()
    noise.variance = known

    def moved(q: float, p: float, normal: float, error: float) -> Array:
        after = getattr(source, kind)(
            *(np.full((1, 1), value) for value in (q, p, normal)),
            settings=settings,
            gradient=lambda at: (lam * at + error, None),
            noise=noise,
        )
        return np.array([values[0, 0] for values in after])

    return moved


def stationary(
    kind: str,
    eps: float,
    *,
    lam: float = 1.0,
    friction: float = 1.0,
    v: float = 0.0,
    known: float | None = None,
    source: ModuleType = module,
) -> Array:
    """Return the stationary covariance of position and momentum, (2, 2), for gradient noise of variance v."""
    moved = step(kind, eps, lam, friction, v if known is None else known, source=source)
    linear = np.stack([moved(1, 0, 0, 0), moved(0, 1, 0, 0)], axis=1)
    injected, error = moved(0, 0, 1, 0), moved(0, 0, 0, 1) * np.sqrt(v)
    if kind == "langevin":  # the momentum stays, and plays no part
        linear, injected, error = linear[:1, :1], injected[:1], error[:1]
    noise = np.outer(injected, injected) + np.outer(error, error)
    return np.asarray(scipy.linalg.solve_discrete_lyapunov(linear, noise))


@pytest.mark.parametrize(("eps", "expected"), [(0.1, 1.0026385), (0.4, 1.0526316)])
def test_euler_has_the_stationary_variance_of_its_formula(eps: float, expected: float) -> None:
    for lam, friction, v in ((1.0, 1.0, 2.0), (2.5, 0.7, 0.3)):
        variance = stationary("euler", eps, lam=lam, friction=friction, v=v)[0, 0]
        formula = 1 / (lam * (1 - eps**2 * lam / (4 * (1 - friction * eps / 2))))
        assert variance == pytest.approx(formula, rel=1e-9)
        unknown = stationary("euler", eps, lam=lam, friction=friction, v=v, known=0.0)[0, 0]
        assert unknown == pytest.approx(formula * (1 + eps * v / (2 * friction)), rel=1e-9)
    assert stationary("euler", eps)[0, 0] == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("eps", [0.05, 0.4, 1.2])
def test_splitting_is_exact_for_positions_without_gradient_noise(eps: float) -> None:
    for lam, friction in ((1.0, 1.0), (2.5, 0.2), (0.4, 3.0)):
        assert stationary("splitting", eps, lam=lam, friction=friction)[0, 0] == pytest.approx(1 / lam)


def splitting_variances(source: ModuleType = module) -> list[float]:
    return [float(stationary("splitting", eps, v=1.0, source=source)[0, 0]) for eps in (0.1, 0.4)]


def test_splitting_with_known_gradient_noise_has_a_bias_of_third_order() -> None:
    assert splitting_variances() == pytest.approx([1.00025, 1.0163], abs=5e-5)
    assert stationary("splitting", 0.4, v=1.0, known=0.0)[0, 0] > 1.15


@pytest.mark.parametrize("eps", [0.1, 0.4])
def test_langevin_has_the_stationary_variance_of_its_formula(eps: float) -> None:
    for lam, v in ((1.0, 1.0), (2.5, 0.3)):
        variance = stationary("langevin", eps, lam=lam, v=v)[0, 0]
        formula = (1 + eps**2 * v / 4) / (lam * (1 - eps**2 * lam / 4))
        assert variance == pytest.approx(formula, rel=1e-9)


MUTANTS = {
    "sign of the noise": ("- c * eps**2 * noise.variance", "+ c * eps**2 * noise.variance"),
    "sigma for its square": ("c * eps**2 * noise.variance", "c * eps * noise.variance"),
    "no noise": ("1 - c**2 - c", "0 * c - c"),
}
HALF_FRICTION = ("math.exp(-settings.friction * eps)", "math.exp(-settings.friction * eps / 2)")

BATCH_WITHOUT_WEIGHT = ("target.n_cases / cases.shape[1]", "1.0")


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_of_the_splitting_is_killed(name: str) -> None:
    assert splitting_variances(mutant(module, MUTANTS[name])) != pytest.approx([1.00025, 1.0163], abs=5e-5)


MUTANTS_OF_EULER = {
    "sign of the gradient's noise": ("(friction - eps * noise", "(friction + eps * noise"),
    "gradient's noise without its half": ("noise.variance / 2) * eps", "noise.variance) * eps"),
    "friction without the stepsize": ("- eps * friction * p", "- friction * p"),
}
MUTANTS_OF_LANGEVIN = {
    "drift without its half": ("eps**2 / 2 * s**2", "eps**2 * s**2"),
    "the stepsize for its square": ("eps**2 / 2 * s**2", "eps / 2 * s**2"),
}


def variance_of(kind: str, source: ModuleType = module) -> float:
    """Return the stationary variance of the position for gradient noise of variance 1 that is known."""
    return float(stationary(kind, 0.4, v=1.0, source=source)[0, 0])


@pytest.mark.parametrize("name", MUTANTS_OF_EULER)
def test_mutant_of_euler_is_killed(name: str) -> None:
    formula = 1 / (1 - 0.4**2 / (4 * (1 - 0.4 / 2)))  # as in the test of its stationary variance
    assert variance_of("euler") == pytest.approx(formula, rel=1e-9)
    assert variance_of("euler", mutant(module, MUTANTS_OF_EULER[name])) != pytest.approx(formula, rel=1e-2)


@pytest.mark.parametrize("name", MUTANTS_OF_LANGEVIN)
def test_mutant_of_langevin_is_killed(name: str) -> None:
    formula = (1 + 0.4**2 / 4) / (1 - 0.4**2 / 4)  # as in the test of its stationary variance
    assert variance_of("langevin") == pytest.approx(formula, rel=1e-9)
    assert variance_of("langevin", mutant(module, MUTANTS_OF_LANGEVIN[name])) != pytest.approx(
        formula, rel=1e-2
    )


def test_friction_makes_the_momentum_forget_at_its_rate() -> None:
    moved = step("splitting", 0.1, 0.0, 0.7, 0.0)
    assert moved(0, 1, 0, 0)[1] == pytest.approx(np.exp(-0.07), rel=1e-12)


def test_half_of_the_friction_is_seen() -> None:
    changed = step("splitting", 0.1, 0.0, 0.7, 0.0, source=mutant(module, HALF_FRICTION))
    assert changed(0, 1, 0, 0)[1] != pytest.approx(np.exp(-0.07), rel=1e-3)


def test_without_friction_gradient_noise_heats_at_its_rate() -> None:
    """The energy q^2/2 + p^2/2 grows by eps^2 V/2 a step: 0.02 for eps 0.1, V 4."""
    moved = step("splitting", 0.1, 1.0, 0.0, 0.0)
    linear = np.stack([moved(1, 0, 0, 0), moved(0, 1, 0, 0)], axis=1)
    error = 2 * moved(0, 0, 0, 1)
    covariance, energies = np.eye(2), []
    for _ in range(2_000):
        covariance = linear @ covariance @ linear.T + np.outer(error, error)
        energies.append(np.trace(covariance) / 2)
    assert (energies[-1] - energies[0]) / 1_999 == pytest.approx(0.0202, abs=2e-4)


SMALL = (Sghmc(steps=15, stepsize=0.01, friction=1.0),)


def test_full_gradients_and_small_steps_stay_close_to_exact() -> None:
    assert stays_exact(ONE, SMALL, name="sghmc of small steps")


def test_a_wrong_temperature_is_seen() -> None:
    changed = mutant(module, ("1 - c**2 - c", "0.5 * (1 - c**2) - c"))
    assert not stays_exact(ONE, SMALL, name="sghmc of small steps", schedule=schedule_with(changed))


def built(tuned: Sghmc, target: Any, *, is_measured: bool) -> Any:
    """Return the update of an automatic sghmc, tuned to stepsize 0.3 and factors 1, 2, ... of groups."""
    (found,) = automatic((tuned,))
    factors = tuple(1.0 + number for number in range(len(target.group_sizes)))
    tuning = Tuning({found: Settings(0.3, tuned.steps, tuned.steps, factors)}, is_measured)
    return tuned.build(BuildContext(target, {}, leapfrog.advance, tuning, 1)), factors


def test_an_automatic_stepsize_is_that_of_trajectories_that_are_accepted_or_rejected() -> None:
    """In tuning phases the update is `hybrid` from a new momentum; its measurements are of that `hybrid`."""
    target, state, streams = started("gaussian", 4)
    operation = Sghmc(steps=6, stepsize="auto", friction=0.5, scaling="auto")
    update, factors = built(operation, target, is_measured=True)
    after, info = update(state, streams)
    fresh, _ = heatbath(state, streams)
    settings = {"steps": 6, "stepsize": 0.3, "stepsize_jitter": -0.2, "scales": factors}
    expected, _ = hybrid(fresh, streams, target=target, **settings)
    assert np.array_equal(after.position, expected.position)
    assert info.operation == automatic((operation,))[0] and info.measured.slopes


def test_after_tuning_the_stepsizes_are_half_of_those_that_were_found_times_their_scales() -> None:
    target, state, streams = started("gaussian", 4)
    operation = Sghmc(steps=6, stepsize="auto", friction=0.5, scaling="auto")
    update, factors = built(operation, target, is_measured=False)
    after, _ = update(state, streams)
    widened = np.repeat(factors, target.group_sizes)

    class _Wider:
        def __getattr__(self, name: str) -> Any:
            return getattr(target, name)

        def stepsizes(self, precisions: Array) -> Array:
            return target.stepsizes(precisions) * widened

    expected, _ = module.sghmc(state, streams, target=_Wider(), steps=6, stepsize=0.15, friction=0.5)
    np.testing.assert_array_equal(after.position, expected.position)
    plain, _ = module.sghmc(state, streams, target=target, steps=6, stepsize=0.15, friction=0.5)
    assert not np.allclose(after.position, plain.position)


def started(name: str, n_chains: int) -> tuple[Any, ChainState, Any]:
    target = target_of(name)
    position, precisions = position_of(target, n_chains)
    streams = chain_streams(3, n_chains, iteration=2)
    momentum = streams.normal(Purpose.MOMENTUM, position.shape[1:])
    return target, ChainState(position, momentum, precisions), streams


@pytest.mark.parametrize("integrator", ["splitting", "euler", "langevin"])
def test_chains_do_not_depend_on_their_batch_of_chains(integrator: Any) -> None:
    target, state, streams = started("class", 4)
    noise: Any = "none" if integrator == "langevin" else "estimate"
    run = partial(
        module.sghmc, target=target, steps=5, stepsize=0.1, batch=4, noise=noise, integrator=integrator
    )
    together, _ = run(state, streams)
    assert not np.array_equal(together.position, state.position)
    for chain in range(4):
        one = slice(chain, chain + 1)
        alone = ChainState(state.position[one], state.momentum[one], state.precisions[one])
        after, _ = run(alone, type(streams)(streams.seed, streams.chains[one], streams.iteration))
        assert np.array_equal(after.position[0], together.position[chain])
        assert np.array_equal(after.momentum[0], together.momentum[chain])


def test_a_batch_of_all_cases_is_the_full_gradient() -> None:
    target, state, streams = started("gaussian", 3)
    run = partial(module.sghmc, state, streams, target=target, steps=3, stepsize=0.1)
    (whole, _), (batch, _), (estimated, _) = run(), run(batch=11), run(batch=11, noise="estimate")
    np.testing.assert_allclose(batch.position, whole.position, rtol=1e-10)
    np.testing.assert_allclose(estimated.position, whole.position, rtol=1e-10)  # without choice, V is 0


def error_of_a_pass(source: Any = module) -> float:
    """Return by how much the mean of the gradients of a pass of equal batches differs from the full one."""
    target, state, _ = started("gaussian", 3)
    n = target.n_cases
    full = target.potential_and_gradient(state.position, state.precisions)[1]
    batches = [np.full((3, 1), case) for case in range(n)]
    gradients = [source.gradient_of_cases(target, state.position, state.precisions, each) for each in batches]
    return float(np.abs(np.mean(gradients, axis=0) / full - 1).max())


def test_a_pass_of_batches_has_the_full_gradient_as_its_mean() -> None:
    assert error_of_a_pass() < 1e-9


def test_a_batch_without_its_weight_is_seen() -> None:
    assert error_of_a_pass(mutant(module, BATCH_WITHOUT_WEIGHT)) > 0.01


def difference_of_orders() -> float:
    """Return by how many standard errors draws after two batches differ if the file is sorted or shuffled.

    It is the largest for means and variances of the parameters; the chains start at one point and have other
    random numbers in the two files.
    """
    problem, n_chains, settings = linear(), 4_000, {"steps": 2, "stepsize": 0.2, "batch": 5}
    orders = np.argsort(problem.y), streams("order", 1).permutation(len(problem.y), Purpose.PROPOSAL)[0]
    means, variances, errors = [], [], []
    for seed, order in enumerate(orders):
        target = replace(
            problem.target, inputs=problem.target.inputs[:, order], targets=problem.target.targets[:, order]
        )
        precisions = np.repeat(target.start(streams("start", 1))[1], n_chains, axis=0)
        random = chain_streams(seed, n_chains, iteration=1)
        state = ChainState(np.zeros((n_chains, 4)), np.zeros((n_chains, 4)), precisions)
        after = module.sghmc(state, random, target=target, **settings)[0].position
        centred = (after - after.mean(axis=0)) ** 2
        means.append((after.mean(axis=0), after.var(axis=0) / n_chains))
        variances.append((centred.mean(axis=0), centred.var(axis=0) / n_chains))
    for (first, error), (second, other) in (means, variances):
        errors.append(np.abs(first - second) / np.sqrt(error + other))
    return float(np.max(errors))


def test_draws_do_not_depend_on_the_order_of_the_file() -> None:
    """Eight differences, each beyond 4 standard errors once in 16,000 times; the seeds are fixed."""
    assert difference_of_orders() < 4


def test_batches_cut_from_the_file_as_it_lies_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Batches,
        "batch",
        lambda self, number: np.tile(np.arange(5) + 5 * number, (len(self.streams.chains), 1)),
    )
    assert difference_of_orders() > 10


def test_a_chain_that_blows_up_stays_and_is_counted() -> None:
    state = ChainState(
        np.array([[0.1, 0.2], [2.9, 0.0]]), np.array([[0.5, 0.5], [9.0, 0.0]]), np.ones((2, 1))
    )
    after, info = module.sghmc(state, chain_streams(3, 2, iteration=1), target=wall(2), steps=5, stepsize=0.2)
    assert list(info.diverged) == [False, True]
    assert np.array_equal(after.position[1], state.position[1])
    assert np.isnan(info.energy_change).all()


def test_nothing_is_computed_in_double_precision_for_a_run_in_single_precision() -> None:
    state = ChainState(np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32), np.ones((2, 1)))
    for integrator in ("splitting", "euler", "langevin"):
        after, _ = module.sghmc(
            state,
            chain_streams(3, 2, iteration=1),
            target=gaussian(3),
            steps=2,
            stepsize=0.1,
            integrator=integrator,  # type: ignore[arg-type]
        )
        assert after.position.dtype == after.momentum.dtype == np.float32


def test_the_description_names_what_is_automatic() -> None:
    automatic_words = Sghmc(steps=5, stepsize="auto", batch=4, noise="estimate", scaling="auto").description()
    assert "automatic scales of groups" in automatic_words and "of its stepsize is used" in automatic_words
    fixed = Sghmc(steps=5, stepsize=0.1, integrator="langevin", batch=7).description()
    assert "automatic" not in fixed and "friction" not in fixed and "batches of at most 7 cases" in fixed
