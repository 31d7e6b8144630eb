"""A warning that the momentum of `sghmc` is too large, which spreads the draws too widely."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.mcmc.heatbath import Heatbath
from rayfbnn.mcmc.hybrid import Hybrid
from rayfbnn.mcmc.operation import unrolled
from rayfbnn.mcmc.sghmc import Sghmc

if TYPE_CHECKING:
    from rayfbnn.store.store import Store

_MOST_HEAT = 1.5
_STANDARD_ERRORS = 5


def heat_warning(store: Store) -> str:
    """Return a warning if the momentum of `sghmc` after the last blocks is far too large, or "".

    The momentum is standard normal in the posterior, so its mean square should be 1. Steps that are too long
    and gradients on batches make it larger. The result is "" if other operations draw a new momentum, or
    if the excess may be due to chance.
    """
    operations = unrolled(store.spec.phase[-1].operations) if store.kind == "mcmc" else ()
    keeps = any(isinstance(each, Sghmc) and each.integrator != "langevin" for each in operations)
    if not keeps or any(isinstance(each, Heatbath | Hybrid) for each in operations):
        return ""
    loaded = [store.load_state(batch) for batch in range(store.n_batches)]
    momenta = [each[0].momentum.ravel() for each in loaded if each is not None]
    if not momenta:
        return ""
    squares = np.concatenate(momenta).astype(np.float64) ** 2
    heat = squares.mean()
    if heat <= max(_MOST_HEAT, 1 + _STANDARD_ERRORS * math.sqrt(2 / len(squares))):
        return ""
    return (
        f"{store.path}: the mean square of the momentum of sghmc is {heat:.3g} but should be 1, so the draws"
        " are spread too widely; use a smaller stepsize, more friction or larger batches"
    )
