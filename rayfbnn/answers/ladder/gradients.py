"""The gradients that a run of ladders takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayfbnn.mcmc.operation import Tuning, gradient_evaluations

if TYPE_CHECKING:
    from rayfbnn.store.store import Store


def gradients_of_ladders(store: Store) -> float:
    """Return how many gradients a run of ladders takes, of all ladders together, up to its planned end.

    Half of the ladders have a chain in the warm-up, and the levels of the other half are annealed there.
    """
    spec, log = store.spec, store.tuning
    settings, n_pairs = log.latest()[1], store.n_chains / 2
    total = 0.0
    for number, phase in enumerate(spec.phase[: spec.annealing_phase + 1]):
        tuning = Tuning(settings, is_measured=number < spec.annealing_phase)
        total += n_pairs * phase.iterations * gradient_evaluations(phase.operations, tuning=tuning)
    rounds = [one for one in log.rounds if one.of == "ladders"]
    found = [one.settings for one in log.latest_ladder_rounds()]
    lengths = [spec.phase[spec.annealing_phase].iterations / 2, *(one.last - one.first + 1 for one in rounds)]
    for length, of_round in zip([*lengths, spec.phase[-1].iterations], found, strict=False):
        total += store.n_chains * length * sum(of_round.steps)
    return total
