"""A sampler that starts at exact draws of a one-dimensional anharmonic target keeps them exact."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import gpu_is_available
from rayfbnn.mcmc import energy, heatbath, leapfrog, metropolis
from rayfbnn.mcmc import hybrid as hmc
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import Heatbath, Hybrid, Metropolis, Negate
from rayfbnn.state import Target
from tests.support import invariance
from tests.support.invariance import LONG, ONE, QUICK
from tests.support.marks import some_long
from tests.support.mutants import importing, mutant, schedule_with
from tests.support.targets import ANHARMONIC, ANHARMONIC_IN_TWO

# Stepsizes for an acceptance of 0.3 to 0.7, at which a wrong decision shows.
CONFIGURATIONS: dict[str, tuple[Operation, ...]] = {
    "plain": (Heatbath(), Hybrid(steps=3, stepsize=0.8)),
    "persistent": (Heatbath(decay=0.7), Hybrid(steps=2, stepsize=0.8), Negate()),
    "window": (Heatbath(decay=0.5), Hybrid(steps=6, stepsize=0.8, window=3), Negate()),
    "touching windows": (Heatbath(decay=0.5), Hybrid(steps=3, stepsize=0.8, window=2), Negate()),
    "overlapping windows": (Heatbath(decay=0.5), Hybrid(steps=4, stepsize=0.9, window=3), Negate()),
    "partitions": (Heatbath(decay=0.5), Hybrid(steps=3, stepsize=0.8, partitions=3), Negate()),
    "cyclic": (
        Heatbath(decay=0.5),
        Hybrid(steps=4, stepsize=0.9, window=2, partitions=3, order="cyclic"),
        Negate(),
    ),
    "gamma jitter": (Heatbath(), Hybrid(steps=3, stepsize=0.8, stepsize_jitter=10.0)),
    "log-uniform jitter": (Heatbath(), Hybrid(steps=3, stepsize=0.7, stepsize_jitter=-0.5)),
    "all": (
        Heatbath(decay=0.8),
        Hybrid(steps=6, stepsize=1.1, window=4, partitions=3, stepsize_jitter=-0.2),
        Negate(),
    ),
    "metropolis": (Heatbath(decay=0.5), Metropolis(stepsize=1.5)),
    "barker": (Heatbath(decay=0.5), Metropolis(stepsize=1.2, acceptance="barker")),
}


def stays_exact(
    name: str,
    *,
    n_chains: int,
    operations: tuple[Operation, ...] | None = None,
    target: Target = ANHARMONIC,
    **options: Any,
) -> bool:
    """Compare position, momentum and the pair with their exact distributions."""
    exact = replace(ONE, target=target)
    operations = CONFIGURATIONS[name] if operations is None else operations
    return invariance.stays_exact(exact, operations, name=name, n_chains=n_chains, **options)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_exact_draws_stay_exact(name: str) -> None:
    assert stays_exact(name, n_chains=QUICK)


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_exact_draws_stay_exact_at_length(name: str) -> None:
    assert stays_exact(name, n_chains=LONG)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_decisions_are_not_one_sided(name: str) -> None:
    """The tests above are only meaningful if many trajectories are accepted and many rejected."""
    _, info = invariance.after_iterations(ONE, CONFIGURATIONS[name], seed=1, n_chains=2_000)
    assert 0.25 < np.mean(info.accepted) < 0.9


# Each mutant: (module, source, replacement, the configuration that must show it).
HMC_MUTANTS: dict[str, tuple[str, str, str]] = {
    "no_negate": ("-accept.momentum", "accept.momentum", "persistent"),
    "offset0": ("offset = streams", "offset = 0 * streams", "window"),
    "offset_below_last": ("streams.integers(window, ", "streams.integers(window - 1, ", "window"),
    "win_first_state": ("score = log_weight + gumbel", "score = xp.where(is_member, 0.0, -xp.inf)", "window"),
    "win_uniform_state": (
        "score = log_weight + gumbel",
        "score = xp.where(is_member, gumbel, -xp.inf)",
        "window",
    ),
    "win_best_state": ("score = log_weight + gumbel", "score = log_weight", "window"),
    "win_first_energy": (
        "log_add_exp(self.log_weight, log_weight)",
        "xp.where(self.log_weight == -xp.inf, log_weight, self.log_weight)",
        "window",
    ),
    "win_not_restored": ("current.restored(start, done == offset)", "current", "window"),
    "win_accept_too_long": ("place >= steps - window + 1", "place >= steps - window", "touching windows"),
    "win_reject_too_long": ("place <= window - 1", "place <= window", "touching windows"),
    "fixed_order": (
        "order = drawn_order(streams, partitions, partition_order)",
        "order = 0 * drawn_order(streams, partitions, partition_order) + xp.arange(partitions)",
        "partitions",
    ),
    "fixed_direction": (
        "order = drawn_order(streams, partitions, partition_order)",
        "order = -xp.arange(partitions) % partitions + 0 * drawn_order(streams, partitions, partition_order)",
        "cyclic",
    ),
    "bwd_same_order": ("[order[:, :1], order[:, :0:-1]]", "[order[:, :1], order[:, 1:]]", "all"),
    "bwd_flipped_order": ("[order[:, :1], order[:, :0:-1]]", "[order[:, ::-1]]", "all"),
    "state_dep_step": (
        "stepsizes = scaled_stepsizes(target, state, stepsize, stepsize_jitter, streams, scales)",
        "stepsizes = (1 + 0.3 * xp.tanh(state.position)) * "
        "scaled_stepsizes(target, state, stepsize, stepsize_jitter, streams)",
        "plain",
    ),
    "accepts_all": (
        "accepted = xp.log(streams.uniform(Purpose.ACCEPT)) < -energy_change",
        "accepted = ~diverged",
        "plain",
    ),
    "decay_wrong": ("math.sqrt(1 - decay**2)", "math.sqrt(1 - decay)", "persistent"),
    "decay_linear": ("math.sqrt(1 - decay**2)", "(1 - decay)", "persistent"),
}
OF_HEATBATH = ("decay_wrong", "decay_linear")
OF_ORDERS = ("bwd_same_order", "bwd_flipped_order")


def changed_module(name: str) -> ModuleType:
    """The module of operations that has the bug, or that imports the function which has it."""
    replacement = HMC_MUTANTS[name][:2]
    if name in OF_ORDERS:
        return importing(hmc, mutant(leapfrog, replacement))
    return mutant(heatbath if name in OF_HEATBATH else hmc, replacement)


LEAPFROG_MUTANTS: dict[str, tuple[str, str, str]] = {
    "no_half": ("composition.kick(number, last)", "float(number < last)", "plain"),
    "half_every_time": ("composition.kick(number, last)", "0.5 if number > 0 else 1.0", "plain"),
    "partial_kick_off_by_one": ("number % n_partitions", "(number + 1) % n_partitions", "all"),
    "energy_of_last_partition": (
        "potential = target.potential(position, precisions)",
        "potential, _ = target.potential_and_gradient("
        "position, precisions, partition=order[:, 0], n_partitions=n_partitions)",
        "partitions",
    ),
}

METROPOLIS_MUTANTS: dict[str, tuple[str, str]] = {
    "sign": ("= energy_change < acc", "= -energy_change < acc"),
    "one_sided": ("* noise", "* (noise + 0.1)"),
    "state_dep_step": ("* noise", "* noise * (1 + 0.8 * xp.tanh(state.position))"),
    "accepts_all": ("= energy_change < acc", "= -xp.inf < acc"),
    "half_energy": ("= energy_change < acc", "= 0.9 * energy_change < acc"),
}

# Each changes the threshold of Barker's rule.
BARKER_MUTANTS: dict[str, tuple[str, str]] = {
    "rejects_too_little": ("threshold + xp.log1p(-uniform)", "threshold + xp.log1p(uniform)"),
    "half_threshold": ("threshold + xp.log1p(-uniform)", "0.8 * (threshold + xp.log1p(-uniform))"),
}


@pytest.mark.parametrize("name", HMC_MUTANTS)
def test_mutant_of_hybrid_is_killed(name: str) -> None:
    configuration = HMC_MUTANTS[name][-1]
    assert not stays_exact(configuration, n_chains=QUICK, schedule=schedule_with(changed_module(name)))


@pytest.mark.parametrize("name", LEAPFROG_MUTANTS)
def test_mutant_of_leapfrog_is_killed(name: str) -> None:
    old, new, configuration = LEAPFROG_MUTANTS[name]
    assert not stays_exact(configuration, n_chains=QUICK, advance=mutant(leapfrog, (old, new)).advance)


@pytest.mark.parametrize("name", METROPOLIS_MUTANTS)
def test_mutant_of_metropolis_is_killed(name: str) -> None:
    changed = mutant(metropolis, METROPOLIS_MUTANTS[name])
    assert not stays_exact("metropolis", n_chains=QUICK, schedule=schedule_with(changed))


@pytest.mark.parametrize("name", BARKER_MUTANTS)
def test_mutant_of_barkers_rule_is_killed(name: str) -> None:
    changed = importing(metropolis, mutant(energy, BARKER_MUTANTS[name]))
    assert not stays_exact("barker", n_chains=QUICK, schedule=schedule_with(changed))


@pytest.mark.parametrize("approximation", ["0.9 * potential", "xp.round(potential)"])
def test_accepting_on_an_approximate_energy_is_killed(approximation: str) -> None:
    changed = mutant(energy, ("potential + kinetic)", f"{approximation} + kinetic)"))
    approximate = mutant(hmc)
    approximate.__dict__.update(total_energy=changed.total_energy)
    assert not stays_exact("plain", n_chains=QUICK, schedule=schedule_with(approximate))


# Changes that leave the distribution as it is, so that no test of invariance can see them: (module, source,
# replacement, configuration), with the reason and the test that does see each.
EQUIVALENT_MUTANTS: dict[str, tuple[ModuleType, str, str, str]] = {
    # The whole update followed by a negation; test_momentum_is_reversed_on_acceptance_only.
    "negated_as_a_whole": (
        hmc,
        "-accept.momentum, reject.momentum",
        "accept.momentum, -reject.momentum",
        "persistent",
    ),
    # Another stepsize; test_partial_steps_of_equal_terms_are_shorter_full_steps.
    "sub_step_not_divided": (
        leapfrog,
        "sizes = trajectory.stepsizes / n_partitions",
        "sizes = 0.5 * trajectory.stepsizes",
        "partitions",
    ),
    # A wrong force used consistently, with the exact energy; the gradient tests of the model.
    "wrong_gradient": (leapfrog, "_scale(sizes, gradient", "_scale(sizes, 0.8 * gradient", "plain"),
}


@pytest.mark.parametrize("name", EQUIVALENT_MUTANTS)
def test_equivalent_mutant_stays_exact(name: str) -> None:
    module, old, new, configuration = EQUIVALENT_MUTANTS[name]
    changed = mutant(module, (old, new))
    options = {"schedule": schedule_with(changed)} if module is hmc else {"advance": changed.advance}
    assert stays_exact(configuration, n_chains=QUICK, **options)


@pytest.mark.parametrize("name", some_long(["fixed_order", "bwd_same_order"], ["fixed_order"]))
def test_order_mutants_need_three_partitions(name: str) -> None:
    """With K = 2 a step uses 0 1 0 or 1 0 1, each its own reverse, so that no wrong order shows."""
    operations = (Heatbath(decay=0.5), Hybrid(steps=6, stepsize=0.8, window=3, partitions=2), Negate())
    changed = schedule_with(changed_module(name))
    assert stays_exact(
        "two partitions", operations=operations, n_chains=QUICK, schedule=changed, target=ANHARMONIC_IN_TWO
    )


def test_dropping_negate_stays_exact() -> None:
    """Without negate, momentum turns back after every acceptance: slow but right, and the user's choice."""
    assert stays_exact("no negate", operations=CONFIGURATIONS["persistent"][:2], n_chains=QUICK)


@pytest.mark.parametrize("name", ["plain", "all"])
def test_exact_draws_stay_exact_in_float32(name: str) -> None:
    assert stays_exact(name, n_chains=QUICK, dtype="float32")


@pytest.mark.gpu
@pytest.mark.skipif(not gpu_is_available(), reason="needs CuPy and a GPU")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_exact_draws_stay_exact_on_the_gpu(name: str, dtype: str) -> None:
    import cupy

    assert stays_exact(name, n_chains=1_000_000, xp=cupy, dtype=dtype)


@pytest.mark.gpu
@pytest.mark.skipif(not gpu_is_available(), reason="needs CuPy and a GPU")
@pytest.mark.parametrize("name", ["no_negate", "offset0", "fixed_order", "bwd_same_order", "state_dep_step"])
def test_mutant_of_hybrid_is_killed_on_the_gpu(name: str) -> None:
    import cupy

    configuration, changed = HMC_MUTANTS[name][-1], schedule_with(changed_module(name))
    assert not stays_exact(configuration, n_chains=1_000_000, xp=cupy, schedule=changed)
