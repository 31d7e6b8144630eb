"""The starts of ladders, from chains at the posterior (family A) or annealed from the prior (family B).

Annealing from the prior also gives the log normalising constant of a held level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc.heatbath import Heatbath
from rayfbnn.mcmc.hybrid import Hybrid
from rayfbnn.mcmc.ladder.iteration import at_levels
from rayfbnn.mcmc.ladder.records import LadderSettings, LadderState, Path, started
from rayfbnn.mcmc.model_updates import SampleSigmas
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.tempering.annealing import annealed_log_weights
from rayfbnn.state import Advance, ChainState
from rayfbnn.streams import Streams

_FIRST = {"noise": -7.0, "powers": math.log(1e-5)}  # the coordinate where annealing begins

_STEPSIZES = (1.0, 0.5, 0.2, 0.1)  # factors, in turn


def filled(chains: ChainState, settings: LadderSettings, path: Path) -> LadderState:
    """Return ladders that have the state of one chain at every level: ladder r starts from chain r.

    Two ladders must never start from the same chain, or their agreement would prove nothing.
    """
    xp = array_namespace(chains.position)
    n_levels, n_ladders = settings.n_levels, len(chains.position)
    chain = chains.of_chains(xp.repeat(xp.arange(n_ladders), n_levels))
    x = xp.asarray(np.tile([*settings.levels, path.ends.top], n_ladders))
    return started(path.with_multipliers(settings.multipliers).placed(chain, x), n_levels)


def annealing(
    path: Path,
    operations: tuple[Operation, ...],
    settings: LadderSettings,
    *,
    n_ladders: int,
    n_iterations: int,
    first: int = 1,
    advance: Advance,
) -> Callable[[ChainState, Streams], ChainState]:
    """Return an update that brings prior draws to their levels in n_iterations iterations, from `first` on.

    In the n-th of them the coordinate is n/n_iterations of the way from noise far above the targets (or from
    hardly any power) to the coldest held level, or that of the row's own level if this is hotter. Each row
    has its draws.

    Stepsizes go through a cycle, because none has been tuned yet: with one that is too large a row would stay
    where it is. The rows of the top end with held noise, which sample-sigmas or sample-noise must draw before
    any use.
    """
    path = path.with_multipliers(settings.multipliers)
    cold = settings.levels[-1] if math.isinf(path.ends.top) else path.ends.top
    own = np.tile([*settings.levels, cold], n_ladders)

    def update(chain: ChainState, streams: Streams) -> ChainState:
        share = (streams.iteration - first + 1) / n_iterations
        x = np.minimum(own, _FIRST[path.ends.kind] + (cold - _FIRST[path.ends.kind]) * share)
        factor = _STEPSIZES[streams.iteration % len(_STEPSIZES)]
        shorter = replace(settings, stepsizes=tuple(factor * one for one in settings.stepsizes), scales=())
        at_now = at_levels(path, operations, shorter, x, advance=advance)
        return at_now(chain, streams)[0]

    return update


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
