"""Chooses the path of a posterior's ladder: levels of noise, or powers of the likelihood."""

from __future__ import annotations

import math

from rayfbnn.errors import ConfigError
from rayfbnn.model.architecture import NOISE
from rayfbnn.model.ladder.noise import NoisePath
from rayfbnn.model.ladder.powers import PowerPath
from rayfbnn.model.sampled import SampledPosterior


def path_of(posterior: SampledPosterior) -> NoisePath | PowerPath:
    """Return the path from a hot level to this posterior.

    Levels of noise avoid the transition that powers meet if the noise is small and drawn: a fit of k
    parameters has an entropy (k/2) log RSS and an energy (n/2) log RSS, so that all scales of the residuals
    are equally likely at a power of about k/n.
    """
    b = posterior.inverse_temperature
    if not (isinstance(b, float) and b == 1):
        raise ConfigError("ladder: needs temperature = 1, because its levels are temperatures themselves")
    if posterior.model.noise is None:
        return PowerPath(posterior)
    group = posterior.precision_layout.groups[-1]
    assert group.name == NOISE
    alpha_common, alpha_unit, alpha_case = group.prior.alphas
    if math.isfinite(alpha_case) or (math.isfinite(alpha_common) and math.isfinite(alpha_unit)):
        return PowerPath(posterior)
    return NoisePath(posterior)
