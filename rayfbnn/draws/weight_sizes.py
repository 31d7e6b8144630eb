"""The root mean square of each group of parameters, a size that does not depend on the order of units."""

from __future__ import annotations

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.view import Draws


def weight_sizes(run: Draws) -> dict[str, Array]:
    """Return the root mean square of each group's parameters by name, (n_chains, n_draws) float64 each.

    The group ih0 is called rms_ih0. Draws are read one chunk at a time.
    """
    slices = run.parameter_layout.slices
    sizes = {f"rms_{group}": np.empty((run.n_chains, run.n_draws)) for group in slices}
    for chains, draws in run.chunks():
        positions = run.positions(chains, draws)
        for values, group in zip(sizes.values(), slices.values(), strict=True):
            values[chains, draws] = np.sqrt(np.square(positions[..., group]).mean(axis=2, dtype=np.float64))
    return sizes
