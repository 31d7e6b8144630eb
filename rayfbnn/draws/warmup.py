"""The draws of warm-up phases that are kept apart, and the iterations that draws come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.view import Committed, Draws, of_source

if TYPE_CHECKING:
    from rayfbnn.spec import RunSpec
    from rayfbnn.store.store import Store


def warmup_draws(store: Store) -> Draws | None:
    """Return a view of the draws of phases with keep = "warmup"; None if none are committed.

    They are not draws from the posterior.
    """
    n_draws = store.committed_warmup_draws
    return of_source(store, Committed(store, n_draws, "warmup"), n_draws) if n_draws else None


def iterations_of(spec: RunSpec, numbers: Array, *, keep: Literal["warmup", True] = True) -> Array:
    """Return the iterations, counted from 1, that draws come from, (n_draws,).

    numbers  the numbers of the draws among those of all phases with this value of `keep`
    """
    iterations = np.zeros(len(numbers), dtype=np.int64)
    first_draw, first_iteration = 0, 1
    for phase in spec.phase:
        if phase.keep == keep:
            is_here = (numbers >= first_draw) & (numbers < first_draw + phase.iterations)
            iterations[is_here] = numbers[is_here] - first_draw + first_iteration
            first_draw += phase.iterations
        first_iteration += phase.iterations
    return iterations
