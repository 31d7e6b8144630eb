"""The path of a posterior's ladder: levels of noise, or powers of the likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.errors import ConfigError
from rayfbnn.model.architecture import ModelSpec
from rayfbnn.model.noise_ladder import NoisePath, PathFromPrior
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import ChainState, LadderEnds
from rayfbnn.streams import Streams


def path_of(posterior: SampledPosterior) -> NoisePath | PowerPath:
    """Return the path from a hot level to this posterior.

    Levels of noise avoid the transition that powers meet if the noise is small and drawn: a fit of k
    parameters has an entropy (k/2) log RSS and an energy (n/2) log RSS, so that all scales of the residuals
    are equally likely at a power of about k/n.
    """
    b = posterior.inverse_temperature
    if not (isinstance(b, float) and b == 1):
        raise ConfigError("ladder: needs temperature = 1, because its levels are temperatures themselves")
    ends = ends_of(posterior.model, posterior.n_targets)
    return (PowerPath if ends.kind == "powers" else NoisePath)(posterior, ends)


def ends_of(model: ModelSpec, n_targets: int) -> LadderEnds:
    """Return what the levels of a model's ladder differ in, and where it ends.

    Levels of noise are for Gaussian noise, and for t noise with one free level: the common one, or that of
    targets.
    """
    if model.noise is None or model.noise.rectified is not None:
        return LadderEnds("powers", 0.0)
    common, of_target, of_case = (math.isfinite(alpha) for alpha in model.noise.alphas)
    if of_case and common == of_target:
        return LadderEnds("powers", 0.0)
    is_free = common or of_target
    return LadderEnds("noise", math.inf if is_free else math.log(model.noise.mean_precision(n_targets)))


@dataclass(frozen=True, eq=False)
class PowerEnergies:
    """The energies exp(x) U, where U = -log likelihood is the measure, (n_rows,) float64."""

    measure: Array

    def at(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return array_namespace(x).exp(x) * self.measure


@dataclass(frozen=True, eq=False)
class PowerPath(PathFromPrior):
    """The path prior * likelihood**b with x = log b: a mcmc.ladder.records.Path. Its top is x = 0."""

    sigmas: tuple[str, ...] | None = None

    def with_multipliers(self, multipliers: tuple[float, ...]) -> PowerPath:
        return self  # no noise is held

    def target(self, x: Array) -> SampledPosterior:
        return self.posterior.tempered(array_namespace(x).exp(x))

    def hot(self, x: float) -> SampledPosterior:
        return self.posterior.tempered(math.exp(x))

    def placed(self, state: ChainState, x: Array) -> ChainState:
        return state

    def offered(
        self, state: ChainState, streams: Streams, *, is_below: Array
    ) -> tuple[ChainState, PowerEnergies]:
        return state, PowerEnergies(-self.posterior.log_likelihood(state.position, state.precisions))

    def log_precisions(self, precisions: Array) -> Array:
        return array_namespace(precisions).zeros((len(precisions), 0))
