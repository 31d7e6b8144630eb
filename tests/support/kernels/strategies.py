"""Random trajectories on networks of every shape that kernels cover, for Hypothesis."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st

from rayfbnn.kernels.network_plan import ACTIVATION_CODES
from rayfbnn.model.architecture import NetworkSpec, destination
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose
from tests.support.kernels.networks import Start, values_of
from tests.support.problems import MODELS, covariates_of, network, problem, streams

REAL_OR_BINARY = sorted(set(MODELS) - {"class"})
Form = Literal["primal", "dual"]


@dataclass(frozen=True)
class RandomTrajectory:
    """A trajectory on which a kernel and array code must agree.

    made_for  posterior that the kernel is compiled for
    target    that posterior, perhaps at a temperature and with each chain's own targets, or its density with
              outputs or common precisions integrated out
    """

    made_for: SampledPosterior
    target: Any
    start: Start
    n_steps: int


@st.composite
def networks(
    draw: st.DrawFn, *, outputs: int, most_units: int, leaving_out: Collection[str], is_marginal: bool
) -> NetworkSpec:
    """Networks with up to four hidden layers, any groups, any levels of their priors, and adjustments."""
    units = tuple(draw(st.lists(st.integers(1, most_units), max_size=4)))
    inputs = draw(st.integers(1, 5))
    activations = tuple(draw(st.sampled_from(sorted(ACTIVATION_CODES))) for _ in units)
    bare = network({}, inputs=inputs, outputs=outputs, units=units, activations=activations)
    possible = [name for name in bare.possible_groups() if name not in leaving_out]
    chosen = draw(st.lists(st.sampled_from(possible), min_size=1, unique=True))
    if is_marginal:  # At least one group feeds the outputs, and at least one is kept.
        chosen += [name for name in ("ti", "bo") if not any(_feeds(x) == _feeds(name) for x in chosen)]
    spec = network(
        {name: draw(st.sampled_from(_levels(name))) for name in chosen},
        inputs=inputs,
        outputs=outputs,
        units=units,
        activations=activations,
    )
    adjusted = draw(st.sets(st.sampled_from(sorted(spec.possible_adjustments()))))
    return replace(spec, adjustments=dict.fromkeys(sorted(adjusted), 4.0))


def _feeds(name: str) -> bool:
    return destination(name) == "o"


def _levels(name: str) -> list[str]:
    """Levels of a prior: fixed, common, unit, parameter or all, perhaps scaled by the number of units."""
    if name[0] in "bt":
        return ["0.6", "1:3", "0.7::4", "0.6:4:5"]
    return ["0.6", "1:3", "0.7::4", "0.7:::4", "0.6:3:4:5", *(["x0.9:4::6"] if name[0] == "h" else [])]


@st.composite
def posteriors(
    draw: st.DrawFn,
    *,
    models: Collection[str] = tuple(MODELS),
    most_units: int = 13,
    most_cases: int = 150,
    leaving_out: Collection[str] = (),
    is_marginal: bool = False,
) -> SampledPosterior:
    """Posteriors in float32 or float64, some of them with missing targets."""
    model = draw(st.sampled_from(sorted(models)))
    outputs = 3 if model == "class" else draw(st.integers(1, 5))
    spec = draw(
        networks(outputs=outputs, most_units=most_units, leaving_out=leaving_out, is_marginal=is_marginal)
    )
    dtype = draw(st.sampled_from(["float32", "float64"]))
    n_cases = draw(st.integers(1, most_cases))
    target = problem(model, spec=spec, dtype=dtype, n_cases=n_cases)
    if not draw(st.booleans()):
        return target
    values = values_of(target)
    values[draw(st.integers(0, n_cases - 1)), 0] = np.nan
    return SampledPosterior.from_spec(spec, target.model, covariates_of(target), values, dtype=dtype)


@st.composite
def _variants(
    draw: st.DrawFn, posterior: SampledPosterior, n_chains: int, *, may_be_tempered: bool
) -> SampledPosterior:
    """Variants of a posterior.

    They may be at a temperature, common to all chains or different for each, and have targets of each chain.
    """
    target = posterior
    if draw(st.booleans()):
        values = values_of(posterior)
        target = target.with_targets(np.stack([np.roll(values, k, axis=0) for k in range(n_chains)]))
    if may_be_tempered:
        temperatures = np.linspace(0.3, 1.0, n_chains)
        target = target.tempered(draw(st.sampled_from([1.0, 0.4, temperatures])))
    return target


@st.composite
def trajectories(draw: st.DrawFn, **options: Any) -> RandomTrajectory:
    """Trajectories of posteriors, with full and partial gradients; the options are those of `posteriors`."""
    posterior, n_chains = draw(posteriors(**options)), draw(st.integers(1, 5))
    target = draw(_variants(posterior, n_chains, may_be_tempered=True))
    n_partitions = min(draw(st.integers(1, 5)), posterior.n_cases)
    start = Start.of(target, n_chains=n_chains, n_partitions=n_partitions, are_unlike=True)
    return RandomTrajectory(posterior, target, start, draw(st.integers(1, 3)))


@st.composite
def without_precisions(draw: st.DrawFn, **options: Any) -> RandomTrajectory:
    """Trajectories with the groups' common precisions integrated out, with full and partial gradients."""
    trajectory = draw(trajectories(**options))
    return replace(trajectory, target=trajectory.target.marginal(("precisions",)))


@st.composite
def without_outputs(draw: st.DrawFn, *, form: Form, most_cases: int, **options: Any) -> RandomTrajectory:
    """Trajectories with the output layer integrated out, by matrices of the features or of the cases.

    `is_dual` decides which matrices, whatever the numbers of features and cases.
    """
    posterior = draw(posteriors(models=REAL_OR_BINARY, most_cases=most_cases, is_marginal=True, **options))
    n_chains = draw(st.integers(1, 5))
    target = draw(_variants(posterior, n_chains, may_be_tempered=posterior.model.kind != "binary"))
    start_, random = Start.of(target, n_chains=n_chains, are_unlike=True), streams("auxiliary", n_chains)
    state = ChainState(start_.position, start_.momentum, start_.precisions)
    over = draw(st.sampled_from([("outputs",), ("outputs", "precisions")]))
    density: Any = target.marginal(over).given(state, random)
    is_dual = form == "dual"
    marginal = replace(density.marginal, layer=replace(density.marginal.layer, is_dual=is_dual))
    density = replace(density, marginal=marginal, regression=replace(density.regression, is_dual=is_dual))
    position = density.start(state, random).position
    momentum = random.normal(Purpose.MOMENTUM, (density.n_parameters,)).astype(posterior.dtype)
    stepsizes = (0.1 * density.stepsizes(state.precisions)).astype(posterior.dtype)
    start = Start(position, momentum, state.precisions, stepsizes, order=None)
    return RandomTrajectory(posterior, density, start, draw(st.integers(1, 3)))
