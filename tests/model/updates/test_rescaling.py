"""Rescaling updates keep exact draws exact, move along their orbits, and change nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import Rescale
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.model.updates import metropolis
from rayfbnn.state import ChainState
from rayfbnn.streams import Streams
from tests.correctness.cell_statistics import judged, posterior_of
from tests.correctness.cells import Cell
from tests.support import problems
from tests.support.mutants import mutant, sampled_with
from tests.support.problems import problem, streams

STEPSIZE = 0.8
ALONG: tuple[metropolis.Along, ...] = ("sigmas", "incoming")


@dataclass(frozen=True)
class RescalingCell(Cell):
    """A cell whose only update is one rescaling."""

    along: metropolis.Along = "sigmas"

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
    if (name, along) != ("fixed", "sigmas")  # nothing moves here
}


LONG = [("past a layer", "sigmas"), ("fixed", "incoming")]


@pytest.mark.parametrize(
    ("name", "along"),
    [pytest.param(*each, marks=pytest.mark.long if each in LONG else ()) for each in CELLS],
    ids=[" along ".join(each) for each in CELLS],
)
def test_joint_distribution_stays(name: str, along: metropolis.Along) -> None:
    assert judged(CELLS[name, along], n_chains=4_000).is_exact


# Bugs in metropolis.py: (old, new) in its source, and the cell that must show each.
MUTANTS: dict[str, tuple[str, str, tuple[str, metropolis.Along]]] = {
    "prior forgotten": (" + orbit.log_prior_ratio(precisions, log_f)", "", ("class", "sigmas")),
    "prior forgotten in layers": (" + orbit.log_prior_ratio(precisions, log_f)", "", ("class", "incoming")),
    "prior of proposed sigmas": (
        "log_prior_ratio(precisions",
        "log_prior_ratio(moved_precisions",
        ("class", "sigmas"),
    ),
    "density of precisions, not of their logarithms": (
        "(2 * n * log_f + ratio",
        "((2 * n - 2 / level.half) * log_f + ratio",
        ("class", "sigmas"),
    ),
    "one precision of several": ("2 * n * log_f", "2 * log_f", ("relu", "incoming")),
    "precisions over one": (
        "precisions[:, level.columns] / mean",
        "precisions[:, level.columns]",
        ("class", "sigmas"),
    ),
    "priors that stay": ("self.n_free * log_f", "0 * log_f", ("fixed", "incoming")),
    "sign of the decision": ("< current - proposed", "< proposed - current", ("class", "sigmas")),
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
    changed = sampled_with(mutant(metropolis, (old, new)))
    assert not judged(CELLS[cell], n_chains=2_000, name=f", {name}", posterior=changed).is_exact


def rescaled(along: metropolis.Along, target: SampledPosterior) -> tuple[ChainState, ChainState]:
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
    orbits = metropolis.orbits_along("incoming", spec, target.parameter_layout, target.precision_layout)
    inputs = target.inputs[:-1].T
    into_outputs = orbits[-1]
    log_f = np.full(50, 0.4)
    for orbit in orbits[:-1]:
        moved, _ = orbit.moved(far, state.precisions, log_f)
        assert np.allclose(target.outputs(moved, inputs), target.outputs(far, inputs), rtol=1e-9)
    moved, _ = into_outputs.moved(state.position, state.precisions, log_f)
    outputs = target.outputs(moved, inputs)
    assert np.allclose(outputs, np.exp(0.4) * target.outputs(state.position, inputs), rtol=1e-12)
    together = np.ones_like(state.position), state.precisions
    for orbit in orbits:
        together = orbit.moved(*together, log_f)
    assert np.allclose(together[0], np.exp(0.4))
    is_free = target.precision_layout.is_free
    assert np.allclose(together[1], np.where(is_free, np.exp(-0.8), 1) * state.precisions)


def test_the_share_accepted_is_that_of_the_orbits_that_moved() -> None:
    target = problem("class")
    state, after = rescaled("incoming", target)
    random = streams("rescaling along incoming", 300).at(iteration=1)
    _, info = target.rescale(state, random, along="incoming", stepsize=0.3, advance=leapfrog.advance)
    # Parameters that lead into a layer are on no other orbit.
    moved = [target.parameter_layout.slices[name].start for name in ("bh0", "bh1", "ho1")]
    assert np.allclose(info.accepted, (after.position != state.position)[:, moved].mean(axis=1), rtol=1e-12)
    assert 0.2 < info.accepted.mean() < 0.95


@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_ratios_are_those_of_the_prior_and_the_jacobian(
    place: tuple[str, str, str], along: metropolis.Along
) -> None:
    target = posterior_of(RescalingCell(*place, "ratios"))
    parameters, layout = target.parameter_layout, target.precision_layout
    state = target.initial_state(streams("ratios", 20), sigmas=None)
    log_f = np.linspace(-1, 1, 20)
    at = state.position, state.precisions
    for orbit in metropolis.orbits_along(along, target.network, parameters, layout):
        to = orbit.moved(*at, log_f)
        n = [(abs(np.log(new / old)) > 0).any(axis=0).sum() for new, old in zip(to, at, strict=True)]
        energy = [target.prior_energy(*state_) for state_ in (at, to)]
        expected = (n[0] - 2 * n[1]) * log_f + target.log_prior(*to) - target.log_prior(*at)
        assert np.allclose(
            orbit.log_prior_ratio(state.precisions, log_f), expected + energy[1] - energy[0], rtol=1e-9
        )


def test_a_network_without_hidden_layers_has_one_layer_to_rescale() -> None:
    spec = problems.network({"io": "1:2", "bo": "1:2"}, units=(), activations=())
    target = problem("binary", spec=spec)
    (orbit,) = metropolis.orbits_along("incoming", spec, target.parameter_layout, target.precision_layout)
    assert len(orbit.parameters) == len(orbit.precisions) == 2


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
            one_chain = np.arange(chain, chain + 1)
            part = ChainState(
                state.position[one_chain], state.momentum[one_chain], state.precisions[one_chain]
            )
            alone, _ = rescale(part, Streams(random.seed, random.chains[one_chain], 1))
            assert np.array_equal(alone.position, together.position[one_chain])
            assert np.array_equal(alone.precisions, together.precisions[one_chain])
