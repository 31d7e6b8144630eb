"""The log normalising constant of a held level, by annealing from the prior to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc.heatbath import Heatbath
from rayfbnn.mcmc.hybrid import Hybrid
from rayfbnn.mcmc.ladder.path import Path
from rayfbnn.mcmc.ladder.records import LadderSettings
from rayfbnn.mcmc.model_updates import SampleSigmas
from rayfbnn.mcmc.tempering.annealing import annealed_log_weights
from rayfbnn.state import Advance
from rayfbnn.streams import Streams

_STEPS, _STEPSIZE, _JITTER = 20, 0.3, -0.2  # of hybrid, as for `evidence`


def log_weights_of_level(
    path: Path,
    settings: LadderSettings,
    streams: Streams,
    *,
    level: int = 0,
    inverse_temperatures: Sequence[float],
    advance: Advance,
    on_progress: Callable[[int], None] | None = None,
) -> Array:
    """Return the log importance weights of runs from the prior to a level, (n_temperatures, n_runs) float64.

    `annealing.normaliser` makes log Z of the level from the last row. With the log ratios of a ladder from
    there (bennett.py) it gives log p(targets), the log evidence of the model for standardised targets. The
    runs need fewer temperatures than to the posterior, because the noise of the level is larger.

    streams               one chain for each run
    level                 any level below the top; by default the hot one
    inverse_temperatures  ascending from 0 to 1: powers of the level's likelihood
    """
    path = path.with_multipliers(settings.multipliers)
    drawn = path.prior_draw(streams.at(iteration=0))
    xp = array_namespace(drawn.position)
    x = settings.levels[level]
    state = path.placed(drawn, xp.full(streams.n_chains, x))
    operations = (
        SampleSigmas(groups=path.sigmas),
        Heatbath(),
        Hybrid(steps=_STEPS, stepsize=_STEPSIZE, stepsize_jitter=_JITTER),
    )
    return annealed_log_weights(
        state,
        streams,
        target=path.hot(x),
        operations=operations,
        inverse_temperatures=inverse_temperatures,
        advance=advance,
        on_progress=on_progress,
    )
