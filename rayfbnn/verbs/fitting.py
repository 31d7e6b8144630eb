"""The stores of approximations, which `sample` creates for their methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayfbnn.errors import ConfigError
from rayfbnn.store.store import Store

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.spec import RunSpec
    from rayfbnn.store.storage.places import Place
    from rayfbnn.verbs.until import Until


def new_fit(place: Place, spec: RunSpec, dataset: Dataset) -> Store:
    """Create the store of a fit, before its first step; ConfigError if the method does not apply."""
    from rayfbnn.run.fitting.fits import checked_state_shapes
    from rayfbnn.run.fitting.fitter import DRAWS_AT_ONCE
    from rayfbnn.run.kernel import kernel_name

    return Store.create(
        place,
        spec=spec,
        data=dataset,
        kernel=kernel_name(spec),
        kind="approximate",
        n_draws=spec.kept_draws,
        chains=spec.chains,
        chains_per_batch=spec.chains_per_batch,
        draws_per_block=min(DRAWS_AT_ONCE, spec.kept_draws),
        fit_state=checked_state_shapes(spec, dataset),
    )


def check_can_fit(spec: RunSpec, goal: Until | None) -> None:
    """Raise ConfigError if a fit is asked for something that only runs of Markov chains can do."""
    if spec.fit is None:
        return
    if goal is not None:
        raise ConfigError(f"until: only for runs of Markov chains; {spec.method} is an approximation")
    if spec.n_parts > 1:
        raise ConfigError(
            f"data.parts: {spec.method} needs all cases in one place, got {spec.n_parts}; it must be 1 (or"
            " left out)"
        )
