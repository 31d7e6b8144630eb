"""The joint test: parameters from the prior and data given them keep their joint distribution.

Every chain starts at an exact draw of (parameters, precisions, data). The data are then held fixed. After any
number of iterations the pair must still have its joint distribution. New data drawn after the iterations
would hide a sampler that ignores the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Literal

import numpy as np

from rayfbnn.arrays import Array, to_host
from rayfbnn.mcmc import leapfrog, schedule
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import Heatbath, Hybrid, Negate, SampleSigmas
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.likelihood.registry import data_model_from_spec
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.selftest.pivots import is_exact, joint_p_values
from rayfbnn.state import Advance, ChainState
from rayfbnn.streams import Purpose, Streams
from tests.support.problems import chain_streams, parse, streams_on_array

N_ITERATIONS = 5
N_CHAINS, FEW = 20_000, 4_000  # of the long tests and of the others
# These steps give an acceptance of 0.4 to 0.7, and momentum lasts, so that wrong decisions show.
ITERATION = (
    SampleSigmas(),
    Heatbath(decay=0.95),
    Hybrid(steps=4, stepsize=1.5, window=2, partitions=3),
    Negate(),
)


@dataclass(frozen=True)
class Problem:
    """A small network with every kind of prior that its data model needs.

    It has 7 cases by default, so that blocks are uneven.
    """

    n_inputs: int
    n_targets: int
    priors: dict[str, str]
    model: ModelSpec
    hidden: tuple[LayerSpec, ...] = (LayerSpec(2, "tanh"),)
    operations: tuple[Operation, ...] = ITERATION
    n_cases: int = 7
    inputs: Array = field(init=False)

    def __post_init__(self) -> None:
        streams = Streams(5, np.arange(self.n_cases, dtype=np.uint64))
        object.__setattr__(self, "inputs", streams.normal(Purpose.PROPOSAL, (self.n_inputs,)))

    def posterior(
        self, *, dtype: Literal["float32", "float64"] = "float64", xp: Any = np
    ) -> SampledPosterior:
        n_outputs = data_model_from_spec(self.model).n_outputs(self.n_targets)
        network = NetworkSpec(self.n_inputs, n_outputs, self.hidden, parse(self.priors))
        targets = np.zeros((self.n_cases, self.n_targets))
        return SampledPosterior.from_spec(network, self.model, self.inputs, targets, dtype=dtype, xp=xp)


def noise(text: str) -> PriorSpec:
    return PriorSpec.parse(text, key="noise")


PROBLEMS = {
    "real": Problem(
        1,
        1,
        {"ih0": "1.5:3", "bh0": "0.7:4", "ho0": "x2:5", "bo": "0.8"},
        ModelSpec("real", noise=noise("0.5:3")),
    ),
    "t": Problem(
        2,
        2,
        {
            "ti": "0.5:4:5",
            "ih0": "1.5:4:5",
            "bh0": "0.7:4:6",
            "ho0": "x1.5:5:6:4",
            "io": "0.5::6",
            "bo": "0.8:4",
        },
        ModelSpec("real", noise=noise("0.5:4:5:6")),
    ),
    "binary": Problem(
        2, 2, {"ih0": "2:3:5", "bh0": "0.7:4", "ho0": "x3:4", "io": "0.5:5", "bo": "0.8"}, ModelSpec("binary")
    ),
    "class": Problem(
        2,
        1,
        {
            "ih0": "2:4",
            "bh0": "0.7:4",
            "h0h1": "x2:4:5",
            "th0": "0.5:4",
            "ho0": "1:5",
            "ho1": "x3:4",
            "bo": "0.8",
        },
        ModelSpec("class", classes=3),
        hidden=(LayerSpec(2, "tanh"), LayerSpec(3, "softplus")),
    ),
}


def exact_start(target: SampledPosterior, streams: Streams) -> tuple[ChainState, Array]:
    """State and data (n_chains, n_cases, n_targets) drawn from the joint distribution."""
    state = target.initial_state(streams, sigmas=None)
    return state, target.sample_targets(state.position, state.precisions, streams)


def p_values(
    problem: Problem,
    *,
    seed: int,
    n_chains: int,
    dtype: Literal["float32", "float64"] = "float64",
    xp: Any = np,
    schedule: ModuleType = schedule,
    prepare: Callable[[SampledPosterior], Any] = lambda target: target,
    advance_for: Callable[[Any], Advance] = lambda target: leapfrog.advance,
    streams_of: Callable[[int, Array], Streams] = streams_on_array,
) -> dict[str, float]:
    """Return one p-value for each statistic after the iterations; `prepare` lets mutants change the data."""
    device_streams = streams_of(seed, xp.arange(n_chains, dtype=xp.uint64))
    device_target = problem.posterior(dtype=dtype, xp=xp)
    state, data = exact_start(device_target, device_streams)
    sampled = prepare(device_target.with_targets(data))
    iteration = schedule.build_iteration(
        problem.operations,
        target=sampled,
        updates={"sample-sigmas": sampled.sample_sigmas, "sample-noise": sampled.sample_noise},
        advance=advance_for(sampled),
    )
    for _, after, _ in schedule.run(state, device_streams, iteration=iteration, first=1, count=N_ITERATIONS):
        state = after

    # Statistics are computed on the host in float64, whatever the dtype and device of the sampler.
    target, streams = problem.posterior(), chain_streams(seed, n_chains)
    state = ChainState(*(to_host(array).astype(float) for array in vars(state).values()))
    data = to_host(data)
    other = replace(streams, chains=streams.chains + np.uint64(2**31))
    return joint_p_values(target, (state, data), exact_start(target, other), streams)


def stays_exact(problem: Problem, name: str, *, n_chains: int = N_CHAINS, **options: Any) -> bool:
    return is_exact(
        lambda seed, n: list(p_values(problem, seed=seed, n_chains=n, **options).values()),
        name=f"joint {name}",
        n_chains=n_chains,
    )
