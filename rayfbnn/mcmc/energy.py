"""Energies for accept decisions: in float64, and +inf where a trajectory has blown up."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from rayfbnn.arrays import Array, array_namespace, to_host
from rayfbnn.errors import SamplingError
from rayfbnn.streams import Streams

Acceptance: TypeAlias = Literal["metropolis", "barker"]


def finite_or_infinite(energy: Array) -> Array:
    """Return the energy (n_chains,) with +inf where it is not finite.

    An energy of +inf is never accepted. Only this function turns NaN, an overflow or a potential of -inf
    into a rejection.
    """
    xp = array_namespace(energy)
    return xp.where(xp.isfinite(energy), energy, xp.inf)


def total_energy(potential: Array, momentum: Array) -> Array:
    """Return H = potential + |momentum|**2 / 2, (n_chains,) float64, +inf where it is not finite.

    The mass is one in coordinates scaled by the stepsizes, Neal (1996) sec. 3.2.2. The sum is in float64
    because decisions depend on differences of order 1, and a float32 near 1e5 is only accurate to 0.01.
    """
    xp = array_namespace(momentum)
    with np.errstate(all="ignore"):
        kinetic = xp.square(momentum.astype(xp.float64)).sum(axis=1) / 2
        return finite_or_infinite(potential + kinetic)


def acceptance_threshold(uniform: Array, acceptance: Acceptance) -> Array:
    """Return the threshold of the energy change, in the shape of the uniform numbers u.

    A proposal is accepted if its energy change is below the threshold.

    metropolis   -log u                 accepts with probability min(1, exp(-change))
    barker       log(1 - u) - log u     accepts with probability 1/(1 + exp(change)), Barker (1965)

    Barker's threshold is always the lower one. A change of +inf is never accepted.
    """
    xp = array_namespace(uniform)
    threshold = -xp.log(uniform)
    return threshold if acceptance == "metropolis" else threshold + xp.log1p(-uniform)


def describe_acceptance(acceptance: Acceptance) -> str:
    """Name the acceptance rule, after a comma, unless it is Metropolis's."""
    return "" if acceptance == "metropolis" else ", accepted by Barker's rule"


def require_finite(energy: Array, streams: Streams) -> None:
    """Raise a SamplingError that names the chains if any starting energy is not finite."""
    xp = array_namespace(energy)
    if bool(xp.isfinite(energy).all()):
        return
    chains = to_host(streams.chains)[~np.isfinite(to_host(energy))]
    raise not_finite(chains, where=f"iteration {streams.iteration}, operation {streams.operation}")


def require_finite_start(energy: Array, streams: Streams) -> Array | None:
    """Call `require_finite` on the host; on a device return whether each energy is finite, (n_chains,).

    This function does not wait for results on a device. The code that later reads the iteration's results on
    the host raises `not_finite`.
    """
    xp = array_namespace(energy)
    if xp is np:
        require_finite(energy, streams)
        return None
    return xp.isfinite(energy)


def not_finite(chains: Array, *, where: str) -> SamplingError:
    """Return the error for chains that started a trajectory at an energy that is not finite.

    chains  the numbers of the chains
    where   the iteration and the operation, in words
    """
    return SamplingError(
        f"{where}: the starting energy of chain"
        f" {', '.join(str(chain) for chain in chains[:8])}{', ...' if len(chains) > 8 else ''} is not finite;"
        " start from other sigmas (initial.sigmas), use dtype float64, or look for extreme values in the data"
    )
