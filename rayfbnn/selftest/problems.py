"""The small networks that `selftest` is about, with data drawn from their joint distribution."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Literal

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.mcmc.heatbath import Heatbath, Negate
from rayfbnn.mcmc.hybrid import Hybrid
from rayfbnn.mcmc.hybrid_marginal import HybridMarginal
from rayfbnn.mcmc.model_updates import SampleSigmas
from rayfbnn.mcmc.operation import Operation
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.likelihood.registry import data_model_from_spec
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import ChainState, Target
from rayfbnn.streams import Purpose, Streams

Dtype = Literal["float32", "float64"]
N_CASES = 7
DTYPES: tuple[Dtype, Dtype] = ("float64", "float32")


@dataclass(frozen=True)
class Problem:
    """A small network with its data model. Together the problems have priors of all kinds.

    priors  group -> prior in FBM's notation
    over    variables that trajectories integrate out, as in hybrid-marginal; () for plain hybrid
    """

    priors: dict[str, str]
    model: ModelSpec
    n_targets: int = 1
    hidden: tuple[LayerSpec, ...] = (LayerSpec(2, "tanh"),)
    over: tuple[Literal["outputs", "precisions"], ...] = ()

    def posterior(self, xp: ModuleType, dtype: Dtype) -> SampledPosterior:
        """Return the posterior for fixed inputs; its targets are placeholders that draws replace."""
        priors = {
            name: PriorSpec.parse(text, key=name, two_levels=name[0] in "bt")
            for name, text in self.priors.items()
        }
        network = NetworkSpec(
            2, data_model_from_spec(self.model).n_outputs(self.n_targets), self.hidden, priors
        )
        inputs = Streams(5, np.arange(N_CASES, dtype=np.uint64)).normal(Purpose.PROPOSAL, (2,))
        targets = np.ones((N_CASES, self.n_targets))
        return SampledPosterior.from_spec(network, self.model, inputs, targets, dtype=dtype, xp=xp)

    def moved(
        self, posterior: SampledPosterior, state: ChainState, streams: Streams
    ) -> tuple[Target, ChainState]:
        """Return the target of trajectories for a posterior, and their initial state."""
        if not self.over:
            return posterior, state
        target = posterior.marginal(self.over).given(state, streams)
        return target, target.start(state, streams)

    @property
    def updates(self) -> tuple[Operation, ...]:
        """The operations of one iteration.

        Steps are large enough to reject about half of the trajectories, and momentum is kept for long. Wrong
        decisions then become visible.
        """
        trajectory: Operation = Hybrid(steps=4, stepsize=1.4, window=2, partitions=3)
        if self.over:
            trajectory = HybridMarginal(self.over, steps=4, stepsize=1.4, window=2)
        return SampleSigmas(), Heatbath(decay=0.95), trajectory, Negate()


def _noise(text: str) -> PriorSpec:
    return PriorSpec.parse(text, key="noise")


PROBLEMS: dict[str, Problem] = {
    "real": Problem(
        {"ih0": "1.5:3", "bh0": "0.7:4", "ho0": "x2:5", "bo": "0.8"}, ModelSpec("real", _noise("0.5:3"))
    ),
    "t noise, every level": Problem(
        {"ti": "0.5:4:5", "ih0": "1:4:5:6", "bh0": "0.7:4:6", "ho0": "x1.5:5:6:4", "io": "0.5::6", "bo": "1"},
        ModelSpec("real", _noise("0.5:4:5:6")),
        n_targets=2,
    ),
    "binary": Problem(
        {"ih0": "2:3:5", "bh0": "0.7:4", "ho0": "x3:4", "io": "0.5:5", "bo": "0.8"},
        ModelSpec("binary"),
        n_targets=2,
    ),
    "class, two layers": Problem(
        {"ih0": "2:4", "bh0": "0.7:4", "h0h1": "x2:4:5", "th0": "0.5:4", "ho0": "1:5", "ho1": "x3:4"},
        ModelSpec("class", classes=3),
        hidden=(LayerSpec(2, "tanh"), LayerSpec(3, "softplus")),
    ),
    "count": Problem({"ih0": "1:4", "bh0": "0.7:4", "ho0": "x1:4", "bo": "0.8"}, ModelSpec("count")),
    "real, hybrid-marginal": Problem(
        {"ih0": "1.5:3", "bh0": "0.7:4", "ho0": "x2:5", "bo": "0.8"},
        ModelSpec("real", _noise("0.5:3")),
        over=("outputs", "precisions"),
    ),
}


def exact_start(target: SampledPosterior, streams: Streams) -> tuple[ChainState, Array]:
    """Draw states and data (n_chains, n_cases, n_targets) from their joint distribution."""
    state = target.initial_state(streams, sigmas=None)
    return state, target.sample_targets(state.position, state.precisions, streams)


def started(name: str, xp: ModuleType, seed: int) -> tuple[Target, ChainState]:
    """Return the target of a problem's trajectories and its state, for 20 chains with their own data."""
    problem, streams = PROBLEMS[name], Streams(seed, xp.arange(20, dtype=xp.uint64))
    posterior = problem.posterior(xp, "float64")
    state, data = exact_start(posterior, streams)
    return problem.moved(posterior.with_targets(data), state, streams)
