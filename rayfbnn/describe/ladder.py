"""Describes the ladders of a configuration: what their levels hold, their schedule, and what was found."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rayfbnn.numerals import plain
from rayfbnn.store.ladder_words import level_words

if TYPE_CHECKING:
    from rayfbnn.spec import RunSpec
    from rayfbnn.store.store import Store

_HELD = {
    "noise": "noise, held at one value at each level and drawn at the last, which is the posterior",
    "powers": "powers of the likelihood; the last level has power 1 and is the posterior",
}


def describe_ladder(spec: RunSpec, store: Store | None) -> list[str]:
    """Describe the levels, the two families and the phases of ladders, one item a line.

    With a store the lines also give the levels that the adaptation has found so far.
    """
    ladder, phases = spec.ladder, spec.phase
    assert ladder is not None
    held, kind = len(phases) - 4, spec.ladder_ends.kind
    levels = f"{'up to ' if ladder.levels == 'auto' else ''}{ladder.most_levels} levels"
    warmup = sum(phase.iterations for phase in phases[: held + 1])
    is_t = kind == "powers" and spec.model.noise is not None
    why = [
        "  not levels of noise, because t noise has them with one alpha of common and targets, not with both"
    ]
    what = "noise of the hottest level" if kind == "noise" else "power of the hottest level"
    hot = "found by the adaptation" if ladder.hot == "auto" else plain(ladder.hot, 3)
    together = min(spec.chains, spec.chains_per_batch)
    return [
        f"Ladder: {spec.chains} ladders of {levels}: {_HELD[kind]}",
        *(why if is_t else []),
        f"  {what}: {hot}",
        f"  from chains: ladders 0, 2, ... ({spec.chains // 2}), each from a chain of its own",
        f"  from the prior: ladders 1, 3, ... ({spec.chains // 2}), each annealed from draws of its own",
        f"  batches of {together} ladders, with {'up to ' if ladder.levels == 'auto' else ''}"
        f"{together * ladder.most_levels:,} chains at all levels",
        f"  phases 1 to {held + 1}: {warmup:,} iterations of the default schedule, in the former's chains",
        f"  phase {held + 2}: {ladder.annealing:,} iterations, in which the latter are annealed",
        f"  phase {held + 3}: {ladder.adaptation:,} iterations in rounds ({len(ladder.rounds)}), each with"
        " new levels, stepsizes and lengths",
        f"  phase {held + 4}: {phases[-1].iterations:,} iterations; the draw of the last level is kept",
        "  operations at every level, before neighbours exchange their states:",
        *(f"    {operation.description()}" for operation in phases[-1].operations),
        *([] if store is None else [f"  {line}" for line in _found(store)]),
    ]


def _found(store: Store) -> list[str]:
    """Return lines with the latest levels, and how they did in the last round."""
    rounds = store.tuning.latest_ladder_rounds()
    planned = sum(one.of == "ladders" for one in store.tuning.rounds)
    finished = sum(one.of_levels is not None for one in rounds)
    if not rounds:
        return ["levels: not known yet"]
    settings = rounds[-1].settings
    lines = [
        f"levels after {finished} of {planned} rounds: {settings.n_levels},"
        f" {level_words(store.spec, settings)}",
        f"steps: {settings.steps[0]} at the hottest level, {settings.steps[-1]} at the last",
    ]
    measured = rounds[-1].of_levels
    if measured is not None:
        rejection, accepted = measured.mean_rejection, measured.mean_accepted
        lines.append(
            f"last round: rejection of exchanges {min(rejection):.2f} to {max(rejection):.2f}, acceptance of"
            f" trajectories {min(accepted):.2f} to {max(accepted):.2f}, R-hat over the ladders"
            f" {_r_hat(measured.r_hat())}"
        )
    return lines


def _r_hat(values: tuple[float, ...]) -> str:
    first, last = (
        f"{value:.2f}" if math.isfinite(value) else "infinite" for value in (values[0], values[-1])
    )
    return f"{first} at the hottest level, {last} at the last"
