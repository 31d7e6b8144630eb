"""The log normalising constant of the hot level, by annealing from the prior to it."""

from __future__ import annotations

from collections.abc import Callable

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc.heatbath import Heatbath
from rayfbnn.mcmc.hybrid import Hybrid
from rayfbnn.mcmc.ladder.path import Path
from rayfbnn.mcmc.ladder.records import LadderSettings
from rayfbnn.mcmc.model_updates import SampleSigmas
from rayfbnn.mcmc.tempering.annealing import annealed_log_weights, inverse_temperatures
from rayfbnn.state import Advance
from rayfbnn.streams import Streams

_POWER = 4.0  # as for `evidence`
_STEPS, _STEPSIZE, _JITTER = 20, 0.3, -0.2  # of hybrid, as for `evidence`


def log_weights_of_hot(
    path: Path,
    settings: LadderSettings,
    streams: Streams,
    *,
    n_temperatures: int,
    advance: Advance,
    on_progress: Callable[[int], None] | None = None,
) -> Array:
    """Return the log importance weight of each run from the prior to the hot level, (n_runs,) float64.

    `annealing.normaliser` makes log Z of the hot level from them. With the log ratios of a ladder
    (bennett.py) it gives log p(targets), the log evidence of the model for standardised targets.
    Fewer temperatures do than for the posterior, because the hot level is close to the prior.

    streams  one chain for each run
    """
    path = path.with_multipliers(settings.multipliers)
    drawn = path.prior_draw(streams.at(iteration=0))
    xp = array_namespace(drawn.position)
    hot = settings.levels[0]
    state = path.placed(drawn, xp.full(streams.n_chains, hot))
    operations = (
        SampleSigmas(groups=path.sigmas),
        Heatbath(),
        Hybrid(steps=_STEPS, stepsize=_STEPSIZE, stepsize_jitter=_JITTER),
    )
    log_weights = annealed_log_weights(
        state,
        streams,
        target=path.hot(hot),
        operations=operations,
        inverse_temperatures=inverse_temperatures(n_temperatures, power=_POWER),
        advance=advance,
        on_progress=on_progress,
    )
    return log_weights[-1]
