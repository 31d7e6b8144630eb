"""Levels and rounds of ladders in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rayfbnn.mcmc.ladder.records import LadderSettings
from rayfbnn.numerals import plain
from rayfbnn.store.catalogue import DATA_ENERGY, LOG_RSS, LOG_SCALE
from rayfbnn.store.tuning_rounds import Round

if TYPE_CHECKING:
    from rayfbnn.spec import RunSpec
    from rayfbnn.store.store import Store

MEASURES = {
    LOG_RSS: "log RSS",
    LOG_SCALE: "the log scale of the residuals",
    DATA_ENERGY: "the energy of the data",
}
_NAMES = {"operations": "tuning", "starts": "first levels", "ladders": "levels"}


def word_for_chains(store: Store) -> str:
    """Return "ladders" for a run of ladders, whose chains these are, and "chains" for any other store."""
    return word_of_run(store.spec) if store.kind == "mcmc" else "chains"


def word_of_run(spec: RunSpec) -> str:
    """Return "ladders" if the chains of a run are ladders, or "chains"."""
    return "chains" if spec.ladder is None else "ladders"


def value_of_level(spec: RunSpec, coordinate: float) -> float:
    """Return what a level holds: its noise as a standard deviation of the standardised targets, or its power.

    coordinate  the log of a noise precision, or of a power
    """
    return math.exp(-coordinate / 2 if spec.ladder_ends.kind == "noise" else coordinate)


def level_words(spec: RunSpec, settings: LadderSettings) -> str:
    """Return the values that the hottest and the coldest level hold, such as "noise 0.9 to 0.05"."""
    name = "noise" if spec.ladder_ends.kind == "noise" else "power"
    first, last = (plain(value_of_level(spec, settings.levels[end]), 2) for end in (0, -1))
    return f"{name} {first} to {last}"


def round_words(rounds: Sequence[Round], current: Round) -> str:
    """Return a round and how many of its kind there are, such as "tuning 3/40" or "levels 2/7"."""
    same = [one.number for one in rounds if one.of == current.of]
    return f"{_NAMES[current.of]} {same.index(current.number) + 1}/{len(same)}"


def stage_words(spec: RunSpec, rounds: Sequence[Round], iteration: int) -> str:
    """Return the phase of a run of ladders that comes after `iteration` iterations."""
    ends = [sum(phase.iterations for phase in spec.phase[: number + 1]) for number in range(len(spec.phase))]
    number = next((number for number, end in enumerate(ends) if iteration < end), len(ends))
    if number >= len(spec.phase) - 1:
        return "sampling" if number < len(ends) else "complete"
    if number < spec.annealing_phase:
        return "warming up"
    if number == spec.annealing_phase:
        return "annealing"
    of_levels = [one for one in rounds if one.of == "ladders"]
    finished = sum(one.last <= iteration for one in of_levels)
    return f"adapting levels, round {finished + 1} of {len(of_levels)}"
