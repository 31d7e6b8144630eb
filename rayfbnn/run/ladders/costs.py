"""Relative times of an iteration of ladders in each phase, before all phases have been seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rayfbnn.mcmc.ladder.adaptation import first_settings
from rayfbnn.store.ladder_rounds import plan_of

if TYPE_CHECKING:
    from rayfbnn.mcmc.ladder.records import LadderSettings
    from rayfbnn.spec import RunSpec
    from rayfbnn.store.store import Store

_USUAL_LEVELS = 24  # what the adaptation found for yacht and energy
_USUAL_NOISE = 0.1  # of the coldest level; it changes the lengths of trajectories little
# Seconds of compiled code on one core of an AMD EPYC, for networks of 3 to 64 units with 12 to 5,000 cases.
# Only their ratios matter, which are similar on slower machines.
_OF_CHAINS, _OF_ANNEALING, _OF_EXCHANGES = 2.0e-3, 3.4e-3, 2.8e-3  # an iteration without gradients
_OF_WEIGHT, _OF_UNIT = 0.07e-9, 1e-9  # at a case, in a gradient


def usual_settings(spec: RunSpec, *, levels: int = _USUAL_LEVELS) -> LadderSettings:
    """Return the settings of ladders before any are known, with this many levels if they are automatic."""
    ends, plan = spec.ladder_ends, plan_of(spec)
    if plan.levels is None:
        plan = replace(plan, levels=min(levels, plan.most_levels))
    coldest = [round(-2 * math.log(_USUAL_NOISE) * 2**40)] * len(spec.data.targets)
    return first_settings(ends, plan, top=coldest if ends.kind == "noise" else [], n_chains=1)


def times_of_ladders(store: Store, gradients: Sequence[int]) -> list[float]:
    """Return the relative time of an iteration of a batch of ladders in each phase.

    In a small network a gradient takes less time than the rest of an iteration. Most of this rest does not
    depend on the number of levels.

    gradients  of the chain that each second ladder starts from, in an iteration of each phase
    """
    spec, rounds = store.spec, store.tuning.latest_ladder_rounds()
    settings = rounds[-1].settings if rounds else usual_settings(spec)
    of_levels, annealing = sum(settings.steps), spec.annealing_phase
    pairs = min(spec.chains, spec.chains_per_batch) / 2
    seconds = pairs * _seconds_of_gradient(spec, store.opened.header.n_cases)
    before = [_OF_CHAINS + seconds * count for count in gradients[:annealing]]
    annealed = _OF_ANNEALING + seconds * (gradients[annealing] + of_levels)
    exchanged = _OF_EXCHANGES + seconds * 2 * of_levels
    return [*before, annealed, exchanged, exchanged]


def _seconds_of_gradient(spec: RunSpec, n_cases: int) -> float:
    n_weights = sum(group.size for group in spec.network.groups())
    n_units = sum(layer.units for layer in spec.network.hidden)
    return n_cases * (_OF_WEIGHT * n_weights + _OF_UNIT * n_units)
