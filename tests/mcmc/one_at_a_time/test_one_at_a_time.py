"""Metropolis and slice sampling of one parameter at a time keep exact draws exact."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import scipy.special

from rayfbnn.errors import SamplingError
from rayfbnn.mcmc import metropolis, slice_1
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import Heatbath, Metropolis1, Slice1
from rayfbnn.selftest.pivots import ks_p_value
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams
from tests.support.integrators import updating
from tests.support.invariance import (
    LONG,
    ONE,
    QUICK,
    THREE,
    ExactTarget,
    after_iterations,
    stays_exact,
)
from tests.support.mutants import mutant, schedule_with
from tests.support.problems import chain_streams
from tests.support.targets import SumOfTerms, banana, gaussian

BANANA = banana()
# Two normals, so that a slice may be two intervals apart: share, mean, sd of each.
SHARE, MEANS, SDS = np.array([0.35, 0.65]), np.array([-1.6, 1.4]), np.array([0.4, 0.8])


def two_normals(q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    z = (q - MEANS) / SDS
    log_densities = np.log(SHARE / SDS / np.sqrt(2 * np.pi)) - z**2 / 2
    total = np.logaddexp(log_densities[:, 0], log_densities[:, 1])
    return -total, (np.exp(log_densities - total[:, None]) * z / SDS).sum(axis=1, keepdims=True)


def two_normals_draws(streams: Streams) -> np.ndarray:
    which = (streams.uniform(Purpose.INITIAL_PARAMETER, (1,), index=1) < SHARE[1]).astype(int)
    return MEANS[which] + SDS[which] * streams.normal(Purpose.INITIAL_PARAMETER, (1,))


def two_normals_cdf(q: np.ndarray) -> np.ndarray:
    return (scipy.special.ndtr((q - MEANS) / SDS) * SHARE).sum(axis=1, keepdims=True)


APART = ExactTarget(SumOfTerms((two_normals,), 1), two_normals_draws, two_normals_cdf)
CONFIGURATIONS: dict[str, tuple[ExactTarget, tuple[Operation, ...]]] = {
    "metropolis-1": (ONE, (Heatbath(), Metropolis1(stepsize=1.5))),
    "metropolis-1 of three": (THREE, (Heatbath(), Metropolis1(stepsize=1.0, stepsize_jitter=-0.5))),
    "metropolis-1 at random": (THREE, (Metropolis1(stepsize=1.0, random=True),)),
    "metropolis-1 by barker": (THREE, (Metropolis1(stepsize=1.0, acceptance="barker"),)),
    "slice-1": (ONE, (Heatbath(), Slice1(stepsize=0.7))),
    "slice-1 of one width": (ONE, (Slice1(stepsize=1.5, max_steps=1),)),
    "slice-1 of few widths": (THREE, (Heatbath(), Slice1(stepsize=0.4, max_steps=2, stepsize_jitter=5.0))),
    "slice-1 of three": (THREE, (Slice1(stepsize=1.0),)),
    "slice-1 at random": (THREE, (Slice1(stepsize=0.5, max_steps=4, random=True),)),
    "slice-1 doubling": (APART, (Heatbath(), Slice1(stepsize=0.7, doubling=True))),
    "slice-1 of one dip": (ONE, (Slice1(stepsize=0.3, doubling=True),)),
    "slice-1 doubling twice": (THREE, (Slice1(stepsize=0.5, max_steps=7, doubling=True),)),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_exact_draws_stay_exact(name: str) -> None:
    exact, operations = CONFIGURATIONS[name]
    assert stays_exact(exact, operations, name=name, n_chains=QUICK // 2)


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_exact_draws_stay_exact_at_length(name: str) -> None:
    exact, operations = CONFIGURATIONS[name]
    assert stays_exact(exact, operations, name=name, n_chains=LONG)


# Each mutant: (module, source, replacement, the configuration that must show it).
MUTANTS: dict[str, tuple[ModuleType, str, str, str]] = {
    "sign": (metropolis, "energy_change < threshold", "-energy_change < threshold", "metropolis-1"),
    "accepts_all": (metropolis, "energy_change < threshold[:, turn]", "energy_change < 9", "metropolis-1"),
    "one_sided": (metropolis, "normal[:, turn]", "(normal[:, turn] + 0.1)", "metropolis-1"),
    "half_energy": (metropolis, "energy_change < thr", "0.8 * energy_change < thr", "metropolis-1"),
    "stale_energy": (
        metropolis,
        "energy = xp.where(accepted, proposal_energy, energy)",
        "energy = energy",
        "metropolis-1 of three",
    ),
    "one_decision": (metropolis, "threshold[:, turn]", "threshold[:, 0]", "metropolis-1 of three"),
    "slice_fixed_level": (slice_1, "energy + above[:, turn]", "energy + 1", "slice-1"),
    "slice_low_level": (slice_1, "energy + above[:, turn]", "energy + 0.8 * above[:, turn]", "slice-1"),
    "slice_centred": (slice_1, "width * below[:, turn]", "width / 2", "slice-1 of one width"),
    "slice_one_side": (
        slice_1,
        "max_steps * share[:, turn]",
        "max_steps - 1 + 0 * left",
        "slice-1 of few widths",
    ),
    "slice_extra_width": (slice_1, "max_steps - 1 - n_left", "max_steps - n_left", "slice-1 of few widths"),
    "slice_wide": (
        slice_1,
        "inside = pending & (moved_energy <= level",
        "inside = pending & (moved_energy <= 0.3 + level",
        "slice-1",
    ),
    "slice_stale_energy": (
        slice_1,
        "position, energy = _shrunk",
        "position, _ = _shrunk",
        "slice-1 of three",
    ),
    "slice_shrinks_both": (
        slice_1,
        "xp.where(pending & (point < value), point, left)",
        "xp.where(pending, value - abs(point - value), left)",
        "slice-1 of one width",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name: str) -> None:
    module, old, new, configuration = MUTANTS[name]
    changed = mutant(module, (old, new))
    exact, operations = CONFIGURATIONS[configuration]
    options = {"schedule": schedule_with(changed)}
    try:
        assert not stays_exact(exact, operations, name=configuration, **options)
    except SamplingError:  # the slice of a level from before may hold no point
        assert name == "slice_stale_energy"


metropolis_one, slice_one = updating(Metropolis1), updating(Slice1)
DOUBLING_MUTANTS = {
    "every point accepted": ("ok &= ~(halving & is_apart & both_outside)", "pass"),
    "one end outside is enough": ("> level) & (line.at(high)", "> level) | (line.at(high)"),
    "always to the right": ("uniform < 0.5", "uniform < 0.1"),
    "both ends must be inside": ("<= level) | (line.at(right)", "<= level) & (line.at(right)"),
    "wide halves alone": ("1.1 * width", "9 * width"),
    "no doubling more than once": ("growing &= (", "growing &= (right - left < 1.5 * width) & ("),
}


@pytest.mark.parametrize("name", DOUBLING_MUTANTS)
def test_mutant_of_doubling_is_killed(name: str) -> None:
    changed = mutant(slice_1)
    changed.doubled = mutant(slice_1, DOUBLING_MUTANTS[name]).doubled  # type: ignore[attr-defined]
    exact, operations = CONFIGURATIONS["slice-1 doubling"]
    options = {"schedule": schedule_with(changed)}
    assert not stays_exact(exact, operations, name="slice-1 doubling", n_chains=QUICK // 4, **options)


def test_looking_at_every_half_stays_exact() -> None:
    """This mutant is equivalent: if both ends of such a half are outside, doubling would have ended there."""
    changed = mutant(slice_1)
    always = mutant(slice_1, ("is_apart |= halving & (", "is_apart |= halving | ("))
    changed.doubled = always.doubled  # type: ignore[attr-defined]
    exact, operations = CONFIGURATIONS["slice-1 doubling"]
    options = {"schedule": schedule_with(changed)}
    assert stays_exact(exact, operations, name="slice-1 doubling", n_chains=QUICK // 4, **options)


def test_doubling_finds_a_wide_slice_in_few_evaluations() -> None:
    state, streams = start(500)
    target, calls = gaussian(3), 0
    potential = target.potential

    def counted(*arguments):
        nonlocal calls
        calls += 1
        return potential(*arguments)

    object.__setattr__(target, "potential", counted)
    after, _ = slice_one(state, streams, target=target, stepsize=1e-4, max_steps=2**30, doubling=True)
    # Stepping out would take some 20,000 for each of the three parameters.
    assert calls < 4_000 and abs(after.position - state.position).mean() > 0.5


def test_stepping_out_beyond_the_slice_stays_exact() -> None:
    """This mutant is equivalent: all points of the slice lead to any interval equally often."""
    changed = mutant(slice_1, ("<= level\n        edge", "<= level + 1\n        edge"))
    exact, operations = CONFIGURATIONS["slice-1"]
    assert stays_exact(exact, operations, name="slice-1", schedule=schedule_with(changed))


def test_decisions_are_not_one_sided() -> None:
    for name in ("metropolis-1", "metropolis-1 of three", "metropolis-1 at random"):
        _, info = after_iterations(*CONFIGURATIONS[name], seed=1, n_chains=2_000)
        assert 0.25 < info.accepted.mean() < 0.9


def test_exact_draws_stay_exact_in_float32() -> None:
    for name in ("metropolis-1 of three", "slice-1 of three"):
        exact, operations = CONFIGURATIONS[name]
        assert stays_exact(exact, operations, name=name, n_chains=QUICK // 2, dtype="float32")


def start(n_chains: int) -> tuple[ChainState, Streams]:
    streams = chain_streams(29, n_chains, iteration=1)
    position = streams.normal(Purpose.INITIAL_PARAMETER, (3,)) / 2
    return ChainState(position, position[:, ::-1], np.ones((n_chains, 1))), streams


def test_the_new_value_lies_in_the_slice_and_anywhere_in_it() -> None:
    """For a normal the slice is |q| < sqrt(2 (U0 + e)); shrinking favours points near the old value."""
    state, streams = start(20_000)
    state = ChainState(np.full((20_000, 1), 2.0), np.zeros((20_000, 1)), state.precisions)
    after, _ = slice_one(state, streams, target=gaussian(1), stepsize=1.0)
    end = np.sqrt(2 * (2.0 - np.log(streams.uniform(Purpose.SLICE_LEVEL, (1,))[:, 0])))
    assert (abs(after.position[:, 0]) <= end).all()
    share = (after.position[:, 0] / end + 1) / 2
    assert (np.histogram(share, bins=10, range=(0, 1))[0] > 1_500).all()


def test_metropolis_proposals_of_single_parameters_are_normal() -> None:
    state, streams = start(5_000)
    still = ChainState(np.zeros((5_000, 3)), state.momentum, state.precisions)
    after, info = metropolis_one(still, streams, target=gaussian(3), stepsize=1e-6)
    assert info.accepted.mean() > 0.9999
    assert ks_p_value(scipy.special.ndtr(after.position / 1e-6)) > 1e-5


@pytest.mark.parametrize("update", [metropolis_one, slice_one])
def test_one_parameter_at_random_changes_one_uniformly(update) -> None:
    state, streams = start(6_000)
    after, _ = update(state, streams, target=BANANA, stepsize=0.5, random=True)
    changed = after.position != state.position
    assert changed.sum(axis=1).max() == 1
    chosen = streams.integers(3, Purpose.COORDINATE)
    assert (changed.argmax(axis=1) == chosen)[changed.any(axis=1)].all()
    assert after.momentum is state.momentum


def test_slices_are_left_by_shrinking() -> None:
    """Shrinking an interval of 10**12 stepsizes takes some 60 points, not 10**12."""
    state, streams = start(50)
    after, _ = slice_one(state, streams, target=gaussian(3), stepsize=1e12)
    assert (abs(after.position) < 10).all()


def test_a_slice_that_is_never_found_is_an_error_with_advice() -> None:
    state, streams = start(3)
    with pytest.raises(SamplingError, match="slice-1 found no point .* smaller stepsize"):
        slice_one(state, streams, target=gaussian(3), stepsize=1e308, stepsize_jitter=-9.0)


@pytest.mark.parametrize("operation", [Slice1(stepsize=1.0), Metropolis1(stepsize=1.0)])
def test_descriptions_say_which_parameters_have_turns(operation: Slice1 | Metropolis1) -> None:
    assert "each parameter in turn" in operation.description()
    assert "one parameter at random" in replace(operation, random=True).description()
