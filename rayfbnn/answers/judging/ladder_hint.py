"""The hint that a ladder may join modes, and what keeps ladders that are there from doing so."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.judging.verdicts import Verdict
from rayfbnn.answers.judging.words import RHAT_IN_REACH
from rayfbnn.arrays import Array
from rayfbnn.draws.ladders import LadderDraws
from rayfbnn.errors import ConfigError
from rayfbnn.mcmc.operation import Tuning, gradient_evaluations
from rayfbnn.reduce.effective import MIN_DRAWS, rhat
from rayfbnn.spec import RunSpec

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws


_STEADY = 0.5  # standard deviations of a chain that its mean may change by, from half to half
_LADDERS = 8
# Gradients of a ladder in an iteration: 24 levels, whose trajectories have 16 steps at the hottest and 128 at
# the coldest.
_GRADIENTS = 24 * 50


def ladder_hint(run: Draws, rhat: float) -> str:
    """Return a sentence that offers a ladder, with a line to paste and its cost; "" if it would not help.

    A ladder is offered if the chains disagree in log likelihood while each is steady. More iterations would
    not join such chains.

    rhat  of the log likelihood
    """
    if run.kind != "mcmc" or run.early_phase is not None or run.spec.ladder is not None:
        return ""
    is_apart = math.isfinite(rhat) and rhat > RHAT_IN_REACH and run.n_draws >= 2 * MIN_DRAWS
    if not is_apart or not are_steady(run.stat("log_likelihood")) or not _is_possible(run.spec):
        return ""
    return (
        f"the chains are steady but disagree in log likelihood (R-hat {rhat:.2f}), so that more iterations"
        " will not join them; ladders show which of them count, and take about"
        f" {_one_digit(_cost(run))} times the gradients of this run: rayfbnn sample run.toml ladder.zarr"
        f" --set ladder.levels=auto --set chains={_LADDERS} (with a configuration that has no [[phase]];"
        " docs/ladder.md)"
    )


def _one_digit(factor: float) -> str:
    return f"{max(1.0, float(f'{factor:.1g}')):,.0f}"


def with_hint(verdict: Verdict, hint: str) -> Verdict:
    """Return a verdict on predictions with the hint as a further advice, if there is one and it is not ok."""
    if not hint or verdict.ok or verdict.subject != "predictions":
        return verdict
    return replace(verdict, advice=(*verdict.advice, hint))


def are_steady(log_likelihood: Array) -> bool:
    """Return True if all chains move, and the means of most change little from half to half.

    log_likelihood  (n_chains, n_draws)
    """
    first, second = np.array_split(log_likelihood, 2, axis=1)
    change = np.abs(second.mean(axis=1) - first.mean(axis=1))
    within = log_likelihood.std(axis=1, ddof=1)
    return bool((within > 0).all() and np.median(change / within) < _STEADY)


def _is_possible(spec: RunSpec) -> bool:
    """Return True if the same model can be run with a ladder."""
    try:
        _with_ladders(spec)
    except ConfigError:
        return False
    return True


def _with_ladders(spec: RunSpec) -> RunSpec:
    """Return the configuration of the same model with ladders of the usual length."""
    left_out = ("phase", "method", "methods", "chains_per_batch", "iterations")
    keys = {key: value for key, value in spec.written().items() if key not in left_out}
    return RunSpec.from_dict({**keys, "chains": _LADDERS, "ladder": {}}).resolved(spec.encoding)


def _cost(run: Draws) -> float:
    """Return the gradients of ladders of the usual length over those of this run."""
    spec, settings = run.spec, run.store.tuning.latest()[1]
    of_run = sum(
        phase.iterations * gradient_evaluations(phase.operations, tuning=Tuning(settings))
        for phase in spec.phase
    )
    exchanged = sum(phase.iterations for phase in _with_ladders(spec).phase[-2:])
    return _LADDERS * exchanged * _GRADIENTS / (spec.chains * max(1, of_run))


# With fewer draws, levels may only seem to disagree or not to exchange. Neighbours that exchange in one of
# fifty iterations would have eight exchanges in these.
_LEAST_DRAWS = 400


def lasting_obstacle(levels: LadderDraws) -> str:
    """Return why more iterations with the same levels would not make ladders converge; "" if they may.

    Levels do not change any more once draws are kept. If neighbours hardly exchange, or if ladders disagree
    at the hot end where each of them is steady, that will stay so.
    """
    if levels.measure.shape[1] < _LEAST_DRAWS:
        return ""
    return _without_exchange(levels) or _without_agreement(levels)


def _without_exchange(levels: LadderDraws) -> str:
    """Name the neighbours that are expected to exchange less than once in all draws."""
    n_draws = levels.measure.shape[1]
    exchanges = n_draws * (1 - levels.rejection)
    ladder, pair = np.unravel_index(np.argmin(exchanges), exchanges.shape)
    if not exchanges[ladder, pair] < 1:
        return ""
    return (
        f"{levels.name_of(int(pair))} and {levels.name_of(int(pair) + 1)} exchange less than once in"
        f" {n_draws} iterations of ladder {levels.ladders[ladder]}"
    )


def _without_agreement(levels: LadderDraws) -> str:
    """Say that ladders disagree at all hotter levels, if each is steady where they disagree least."""
    hot_half = levels.measure[..., : levels.n_levels // 2].astype(float)
    of_levels = [float(rhat(hot_half[..., level])) for level in range(hot_half.shape[2])]
    least = int(np.argmin(of_levels))
    if not of_levels[least] > RHAT_IN_REACH or not are_steady(hot_half[..., least]):
        return ""
    return (
        f"the ladders are steady but disagree at all levels of the hotter half (R-hat at least"
        f" {of_levels[least]:.2f})"
    )
