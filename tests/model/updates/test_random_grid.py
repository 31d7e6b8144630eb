"""Random-grid updates of upper-level precisions: exact, of the right levels, and equal within a cell."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
import pytest

from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.model.updates import gibbs, metropolis
from rayfbnn.selftest.pivots import is_exact, ks_p_value
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams
from tests.support import problems
from tests.support.model.hierarchy import HIERARCHIES, uniforms_of
from tests.support.mutants import mutant, sampled_with
from tests.support.problems import chain_streams, problem, streams

SPEC = problems.network(HIERARCHIES, units=(2, 3))
MODELS = ["gaussian by target", "t", "t by target", "binary"]
STEPSIZE = 2.0


def with_module(model: str, module: ModuleType) -> SampledPosterior:
    return problem(model, spec=SPEC, posterior=sampled_with(module).SampledPosterior)


def stays_exact(model: str, *, module: ModuleType = metropolis, n_chains: int = 4_000) -> bool:
    """Return True if exact draws stay exact under three updates of the upper levels."""
    target = with_module(model, module)

    def p_values(seed: int, n_chains: int) -> list[float]:
        random = chain_streams(seed, n_chains)
        state = target.initial_state(random, sigmas=None)
        targets = target.sample_targets(state.position, state.precisions, random)
        informed = target.with_targets(targets)
        for iteration in (1, 2, 3):
            state, _ = informed.random_grid(state, random.at(iteration=iteration), stepsize=STEPSIZE)
        return [ks_p_value(values) for values in uniforms_of(informed, state, targets)]

    return is_exact(p_values, name=f"random grid {model}", n_chains=n_chains)


@pytest.mark.parametrize("model", MODELS)
def test_exact_draws_stay_exact(model: str) -> None:
    assert stays_exact(model)


MUTANTS = {
    "accepts_all": ("< change", "< change + 9"),
    "sign": ("< change", "< -change"),
    "half_density": ("< change", "< 0.8 * change"),
    "no_jacobian": ("alpha / 2 * (x - array", "(alpha / 2 - 1) * x - alpha / 2 * (array"),
    "alpha_as_shape": ("return alpha / 2 * (x", "return alpha * (x"),
    "rate_for_mean": ("exp(x) / mean)", "exp(x) * mean)"),
    "one_fewer_below": ("below.shape[2] * x", "(below.shape[2] - 1) * x"),
    "mean_below": ("below.sum(axis=2)", "below.mean(axis=2)"),
    "grid_not_random": ("place = streams.uniform(Purpose.GRID, shape, index=index)", "place = 0.3 + 0 * x"),
    "not_the_centre": ("place + 0.5)", "place + 0.4)"),
}


DENSITY_MUTANTS = {
    "t_df": ("(alpha + 1) / 2 * xp.log1p", "alpha / 2 * xp.log1p"),
    "gaussian_values": (
        "(alpha + 1) / 2 * xp.log1p(xp.exp(x)[:, :, None] * self.squares / alpha)",
        "xp.exp(x)[:, :, None] * self.squares / 2",
    ),
}


@pytest.mark.parametrize("name", [*MUTANTS, *DENSITY_MUTANTS])
def test_mutant_is_killed(name: str) -> None:
    module, mutants = (metropolis, MUTANTS) if name in MUTANTS else (gibbs, DENSITY_MUTANTS)
    assert not stays_exact("t by target", module=mutant(module, mutants[name]))


def updated(model: str = "t by target") -> tuple[SampledPosterior, ChainState, ChainState]:
    target = problem(model, spec=SPEC)
    random = streams("random grid", 300)
    state = target.initial_state(random, sigmas=None)
    after, _ = target.random_grid(state, random.at(iteration=1), stepsize=STEPSIZE)
    return target, state, after


def test_the_upper_levels_and_no_others_change() -> None:
    target, state, after = updated()
    is_upper = np.zeros(target.n_precisions, dtype=bool)
    for group in target.precision_layout.groups:
        alpha, _, alpha_value = group.prior.alphas
        if group.units is not None:
            is_upper[group.units] = math.isfinite(alpha_value)
        is_upper[group.common] = math.isfinite(alpha) and (
            group.units is not None or math.isfinite(alpha_value)
        )
    changed = (after.precisions != state.precisions).mean(axis=0)
    assert ((changed > 0.1) == is_upper).all() and (changed[~is_upper] == 0).all()
    assert 0.2 < changed[is_upper].mean() < 0.9
    assert after.position is state.position and after.momentum is state.momentum


@pytest.mark.parametrize("model", MODELS)
def test_densities_are_the_joint_density_up_to_a_constant(model: str) -> None:
    """Each precision of a single chain takes 50 values: log prior + log likelihood + log tau."""
    target = problem(model, spec=SPEC)
    state = target.initial_state(streams("random grid", 1), sigmas=None)
    x = np.linspace(-3, 3, 50)
    seen: list[float] = []

    def compared(precisions, log_density, streams, *, stepsize, index):
        shape = precisions.shape[1:]
        local = np.array([log_density(np.full((1, *shape), value))[0] for value in x])  # (50, n_units)
        columns = [int(np.flatnonzero(state.precisions[0] == value)[0]) for value in precisions[0]]
        for unit, column in enumerate(columns):
            many = np.repeat(state.precisions, 50, axis=0)
            many[:, column] = np.exp(x)
            position = np.repeat(state.position, 50, axis=0)
            joint = target.log_prior(position, many) + target.log_likelihood(position, many) + x
            seen.append(np.ptp(joint - local[:, unit]) / abs(joint).max())
        return precisions, np.zeros(precisions.shape, dtype=bool)

    changed = mutant(metropolis)
    changed._metropolis = compared  # type: ignore[attr-defined]
    with_module(model, changed).random_grid(state, streams("random grid", 1), stepsize=1.0)
    assert len(seen) >= 9
    assert max(seen) < 1e-9


def test_two_precisions_in_one_cell_propose_the_same() -> None:
    random = Streams(1, np.zeros(2_000, dtype=np.uint64))  # the same random numbers, 2,000 times
    x = np.sort(streams("cells", 2_000).normal(Purpose.PROPOSAL, (1,)), axis=0)
    proposed, accepted = metropolis._metropolis(np.exp(x), np.zeros_like, random, stepsize=0.25, index=0)
    after = np.log(proposed)
    assert accepted.all()
    centres = np.unique(after.round(9))
    assert 8 < len(centres) < 30 and np.allclose(np.diff(centres), 0.5)
    assert abs(after - x).max() <= 0.25


def test_precisions_stay_within_their_range() -> None:
    random = streams("range", 500)
    far = np.full((500, 1), math.exp(599.9))
    after, accepted = metropolis._metropolis(far, np.zeros_like, random, stepsize=5.0, index=0)
    assert np.array_equal(accepted, after != far)
    assert (abs(np.log(after)) <= 600).all() and (after != far).any() and (after == far).any()


def test_chains_do_not_depend_on_their_batch() -> None:
    target, state, after = updated()
    for chain in (0, 7):
        one_chain = np.arange(chain, chain + 1)
        part = ChainState(state.position[one_chain], state.momentum[one_chain], state.precisions[one_chain])
        random = streams("random grid", 300, iteration=1)
        alone, _ = target.random_grid(
            part, Streams(random.seed, random.chains[one_chain], 1), stepsize=STEPSIZE
        )
        assert np.array_equal(alone.precisions, after.precisions[one_chain])
