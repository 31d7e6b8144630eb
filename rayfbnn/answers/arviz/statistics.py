"""The statistics of a run's iterations, with ArviZ's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.mcmc.trajectories import steps_and_stepsize

if TYPE_CHECKING:
    import xarray as xr

    from rayfbnn.store.store import Store

_RENAMED = {"accepted": "acceptance_rate", "energy_change": "energy_error"}
_OF_TRAJECTORIES = ("accepted", "energy", "energy_change", "diverged")


def sample_stats(store: Store, stored: xr.Dataset, *, is_warmup: bool = False) -> xr.Dataset:
    """Return the stored statistics with ArviZ's names, and statistics derived from them.

    lp               log density of parameters and precisions given the data, up to a constant: log_prior
                     plus log_likelihood_total, the latter times the inverse temperature
    diverging        whether a trajectory of the iteration diverged
    acceptance_rate  share of the iteration's proposals that were accepted
    energy_error     change of the energy along the last trajectory
    n_steps          steps of all trajectories of an iteration, if this number is fixed or tuned
    step_size        factor on the heuristic stepsizes, if all trajectories of an iteration have the same

    Draws without trajectories, such as those by rejection or from the prior, have only the log densities. The
    warm-up lacks n_steps and step_size, because they may change there.
    """
    total = stored["log_likelihood_total"]
    lp = total / store.spec.temperature + stored["log_prior"]
    stats = stored.assign(lp=lp)
    if store.kind != "mcmc":
        return stats.drop_vars(_OF_TRAJECTORIES)
    stats = stats.assign(diverging=stored["diverged"] > 0).drop_vars("diverged").rename(_RENAMED)
    if is_warmup:
        return stats
    for name, values in _settings(store, stored.sizes["draw"]).items():
        if np.isfinite(values).all():
            whole = values.astype(np.int64) if name == "n_steps" else values
            shape = (stored.sizes["chain"], len(whole))
            stats[name] = ("chain", "draw"), np.broadcast_to(whole, shape)
    return stats


def _settings(store: Store, n_draws: int) -> dict[str, Array]:
    """Return n_steps and step_size of the first draws of every chain, (n_draws,) each; NaN if unknown."""
    n_steps, stepsizes, first = [np.empty(0)], [np.empty(0)], 1
    for phase in store.spec.phase:
        if phase.keep is True and sum(map(len, n_steps)) < n_draws:
            steps, stepsize = steps_and_stepsize(phase.operations, store.tuning.at(first))
            n_steps.append(np.full(phase.iterations, steps))
            stepsizes.append(np.full(phase.iterations, stepsize))
        first += phase.iterations
    return {
        "n_steps": np.concatenate(n_steps)[:n_draws],
        "step_size": np.concatenate(stepsizes)[:n_draws],
    }
