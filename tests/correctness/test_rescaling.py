"""Rescaling updates keep exact draws exact, move along their orbits, and do no more than that."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import ModuleType

import numpy as np
import pytest

from rayfbnn.mcmc import leapfrog
from rayfbnn.model import posterior, rescaling
from rayfbnn.model.posterior import Posterior
from rayfbnn.operations import Operation, Rescale
from rayfbnn.state import ChainState
from rayfbnn.streams import Streams
from tests.correctness.cell_statistics import judged
from tests.correctness.cells import Cell
from tests.correctness.mutants import mutant
from tests.model import problems
from tests.model.problems import problem, streams

STEPSIZE = 0.8
ALONG: tuple[rescaling.Along, ...] = ("sigmas", "incoming")


@dataclass(frozen=True)
class RescalingCell(Cell):
    """A cell in which nothing but one rescaling moves."""

    along: rescaling.Along = "sigmas"

    def iteration(self) -> tuple[Operation, ...]:
        return (Rescale(along=self.along, stepsize=STEPSIZE),)


PLACES = {
    "class": ("two layers", "every level", "class"),
    "past a layer": ("past a layer", "scaled, every level", "binary, missing"),
    "adjustments": ("adjustments past a layer", "group, unit", "t, missing"),
    "fixed": ("offsets", "fixed", "count"),
    "shared weights": ("shared weights", "group, parameter", "class"),
    "relu": ("relu", "unit", "real, each target"),
}
CELLS = {
    (name, along): RescalingCell(*place, f"rescale along {along}", along=along)
    for name, place in PLACES.items()
    for along in ALONG
    if (name, along) != ("fixed", "sigmas")  # there is nothing to move
}


LONG = [("past a layer", "sigmas"), ("fixed", "incoming")]


@pytest.mark.parametrize(
    ("name", "along"),
    [pytest.param(*each, marks=pytest.mark.long if each in LONG else ()) for each in CELLS],
    ids=[" along ".join(each) for each in CELLS],
)
def test_joint_distribution_stays(name: str, along: rescaling.Along) -> None:
    assert judged(CELLS[name, along], n_chains=4_000).is_exact


def with_module(module: ModuleType) -> ModuleType:
    changed = mutant(posterior)
    changed.rescaling = module  # type: ignore[attr-defined]
    return changed


# A bug in rescaling.py: (old, new) in its source, and the cell that must show it.
MUTANTS: dict[str, tuple[str, str, tuple[str, rescaling.Along]]] = {
    "Jacobian forgotten": (" + orbit.log_jacobian * log_f", "", ("class", "sigmas")),
    "Jacobian forgotten in layers": (" + orbit.log_jacobian * log_f", "", ("class", "incoming")),
    "Jacobian of the parameters alone": (
        "self.parameters.sum() + self.precisions.sum()",
        "self.parameters.sum()",
        ("class", "sigmas"),
    ),
    "Jacobian of the precisions alone": (
        "self.parameters.sum() + self.precisions.sum()",
        "self.precisions.sum()",
        ("class", "incoming"),
    ),
    "sign of the decision": ("< proposed - current", "< current - proposed", ("class", "sigmas")),
    "accepts all": ("accepted = thresholds[:, number] <", "accepted = -99 <", ("class", "sigmas")),
    "one-sided": ("log_f = steps[:, number]", "log_f = abs(steps[:, number])", ("class", "sigmas")),
    "stale density": (
        "current = xp.where(accepted, proposed, current)",
        "current = current",
        ("class", "sigmas"),
    ),
    "precisions stay": (
        "precisions = xp.where(accepted[:, None], moved_precisions, precisions)",
        "precisions = precisions",
        ("class", "sigmas"),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name: str) -> None:
    old, new, cell = MUTANTS[name]
    changed = with_module(mutant(rescaling, (old, new)))
    assert not judged(CELLS[cell], n_chains=4_000, name=f", {name}", posterior=changed).is_exact


def rescaled(along: rescaling.Along, target: Posterior) -> tuple[ChainState, ChainState]:
    random = streams(f"rescaling along {along}", 300)
    state = target.initial_state(random, sigmas=None)
    after, _ = target.rescale(
        state, random.at(iteration=1), along=along, stepsize=0.3, advance=leapfrog.advance
    )
    return state, after


def test_parameters_over_their_sigmas_stay() -> None:
    target = problem("class")
    state, after = rescaled("sigmas", target)
    columns = target.precision_layout.parameter_columns
    ratio = np.sqrt(after.precisions / state.precisions)[:, columns] * after.position / state.position
    assert np.allclose(ratio, 1, rtol=1e-12)
    changed = (after.precisions != state.precisions).mean(axis=0)
    assert (changed[target.precision_layout.is_free] > 0.1).all()
    assert (changed[~target.precision_layout.is_free] == 0).all()
    assert after.momentum is state.momentum


def test_saturated_units_say_the_same_whatever_the_scale_of_what_leads_into_them() -> None:
    priors = {"ih0": "0.7:3:4", "bh0": "0.7:3", "h0h1": "x0.8:4", "bh1": "0.6::6", "ho1": "x1.2:4"}
    spec = problems.network(priors, activations=("tanh", "tanh"))
    target = problem("binary", spec=spec)
    state = target.initial_state(streams("saturated", 50), sigmas=None)
    far = 1e6 * state.position
    made = rescaling.orbits_along("incoming", spec, target.parameter_layout, target.precision_layout)
    inputs = target.inputs[:-1].T
    into_outputs = made[-1]
    for orbit in made[:-1]:
        moved = far * np.exp(0.4 * orbit.parameters)
        assert np.allclose(target.outputs(moved, inputs), target.outputs(far, inputs), rtol=1e-9)
    outputs = target.outputs(state.position * np.exp(0.4 * into_outputs.parameters), inputs)
    assert np.allclose(outputs, np.exp(0.4) * target.outputs(state.position, inputs), rtol=1e-12)
    assert np.array_equal(sum(orbit.parameters for orbit in made), np.ones(target.n_parameters))
    columns, is_free = target.precision_layout.parameter_columns, target.precision_layout.is_free
    for orbit in made:
        assert np.array_equal(orbit.precisions[columns], -2 * orbit.parameters * is_free[columns])


def test_the_share_accepted_is_that_of_the_orbits_that_moved() -> None:
    target = problem("class")
    state, after = rescaled("incoming", target)
    random = streams("rescaling along incoming", 300).at(iteration=1)
    _, info = target.rescale(state, random, along="incoming", stepsize=0.3, advance=leapfrog.advance)
    # What leads into a layer is on no other orbit.
    moved = [target.parameter_layout.slices[name].start for name in ("bh0", "bh1", "ho1")]
    assert np.allclose(info.accepted, (after.position != state.position)[:, moved].mean(axis=1), rtol=1e-12)
    assert 0.2 < info.accepted.mean() < 0.95


def test_densities_are_the_joint_density() -> None:
    target = problem("t by target").tempered(0.7)
    state = target.initial_state(streams("density", 20), sigmas=None)
    joint = target.log_prior(state.position, state.precisions) + 0.7 * target.log_likelihood(
        state.position, state.precisions
    )
    found = target._log_density(state.position, state.precisions, advance=leapfrog.advance)
    assert np.allclose(found, joint, rtol=1e-12)


def test_a_network_without_hidden_layers_has_one_layer_to_rescale() -> None:
    spec = problems.network({"io": "1:2", "bo": "1:2"}, units=(), activations=())
    target = problem("binary", spec=spec)
    (orbit,) = rescaling.orbits_along("incoming", spec, target.parameter_layout, target.precision_layout)
    assert orbit.log_jacobian == target.n_parameters - 2 * 2


def test_precisions_stay_within_their_range() -> None:
    target = problem(
        "binary", spec=problems.network({"ih0": "1:1", "ho0": "1"}, units=(2,), activations=("tanh",))
    )
    state = target.initial_state(streams("range", 200), sigmas=None)
    far = ChainState(0 * state.position, state.momentum, state.precisions.copy())
    far.precisions[:, 0] = np.exp(599.9)
    after, _ = target.rescale(
        far, streams("range", 200, iteration=1), along="sigmas", stepsize=1.0, advance=leapfrog.advance
    )
    assert (abs(np.log(after.precisions)) <= 600).all()


def test_chains_do_not_depend_on_their_batch() -> None:
    target = problem("class")
    random = streams("rescaling batch", 40, iteration=1)
    state = target.initial_state(random, sigmas=None)
    for along in ALONG:
        rescale = partial(target.rescale, along=along, stepsize=0.3, advance=leapfrog.advance)
        together, _ = rescale(state, random)
        for chain in (0, 7):
            own = np.arange(chain, chain + 1)
            part = ChainState(state.position[own], state.momentum[own], state.precisions[own])
            alone, _ = rescale(part, Streams(random.seed, random.chains[own], 1))
            assert np.array_equal(alone.position, together.position[own])
            assert np.array_equal(alone.precisions, together.precisions[own])
