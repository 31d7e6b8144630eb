"""The radial heatbath keeps the momentum's distribution and its direction."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

from rayfbnn.mcmc import heatbath
from rayfbnn.mcmc.operations import Heatbath, Hybrid, RadialHeatbath
from rayfbnn.selftest.pivots import ks_p_value
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams
from tests.support.integrators import updating
from tests.support.invariance import ONE, THREE, stays_exact
from tests.support.mutants import mutant, schedule_with
from tests.support.problems import chain_streams
from tests.support.targets import gaussian

update = updating(RadialHeatbath)
IN_ONE = (RadialHeatbath(), Hybrid(steps=3, stepsize=0.8))
IN_THREE = (RadialHeatbath(), Hybrid(steps=3, stepsize=0.4), Heatbath(decay=0.5))


def test_exact_draws_stay_exact() -> None:
    assert stays_exact(ONE, IN_ONE, name="radial heatbath")
    assert stays_exact(THREE, IN_THREE, name="radial heatbath in three")


def heated(n_chains: int, n_parameters: int) -> tuple[np.ndarray, np.ndarray]:
    """Momenta before and after the update."""
    streams = chain_streams(41, n_chains)
    before = streams.normal(Purpose.PROPOSAL, (n_parameters,))
    state = ChainState(np.zeros_like(before), before, np.ones((n_chains, 1)))
    after, _ = update(state, streams.at(iteration=1), target=gaussian(3))
    return before, after.momentum


@pytest.mark.parametrize("n_parameters", [1, 2, 5])
def test_length_is_drawn_anew_and_direction_kept(n_parameters: int) -> None:
    before, after = heated(20_000, n_parameters)
    old, new = (before**2).sum(axis=1), (after**2).sum(axis=1)
    assert np.allclose(after * np.sqrt(old)[:, None], before * np.sqrt(new)[:, None])
    assert ks_p_value(scipy.special.chdtr(n_parameters, new)) > 1e-5  # false alarms 1e-5
    z = np.corrcoef(old, new)[0, 1] * np.sqrt(20_000)
    assert abs(z) < 4.4  # 1e-5 if correct


MUTANTS = {
    "one_degree_less": ("state.momentum.shape[1] / 2", "(state.momentum.shape[1] - 0.5) / 2"),
    "no_two": ("2 * xp.exp(streams.log_gamma(", "xp.exp(streams.log_gamma("),
    "no_root": ("xp.sqrt(new_squares / ", "(new_squares / "),
    "keeps_length": (
        "new_squares / xp.where(squares > 0, squares, 1.0)",
        "new_squares",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name: str) -> None:
    changed = mutant(heatbath, MUTANTS[name])
    assert not stays_exact(THREE, IN_THREE, name="radial heatbath", schedule=schedule_with(changed))


def test_a_zero_momentum_stays_and_float32_stays_float32() -> None:
    state = ChainState(*(np.zeros((3, 4), dtype=np.float32) for _ in range(2)), np.ones((3, 1)))
    after, _ = update(state, Streams(1, np.arange(3, dtype=np.uint64)), target=gaussian(3))
    assert (after.momentum == 0).all() and after.momentum.dtype == np.float32
