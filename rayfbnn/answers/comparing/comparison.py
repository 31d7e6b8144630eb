"""The comparison of runs with a reference run at test cases, a piece of the cases at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from rayfbnn.answers.comparing.answers import answers, cases_at_once, merged
from rayfbnn.answers.comparing.distances import distances
from rayfbnn.answers.comparing.scores import (
    BAND,
    INTERVALS,
    calibration_error,
    coverage,
    mean_and_error,
    reliability,
    scores,
)
from rayfbnn.arrays import Array
from rayfbnn.draws.quantities import sigmas
from rayfbnn.draws.same_posterior import check_same_posterior
from rayfbnn.draws.subsets import halves
from rayfbnn.draws.weighted_starts import with_members
from rayfbnn.errors import DataError

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws

Measures: TypeAlias = dict[str, Array]  # by name, at all cases


@dataclass(frozen=True)
class Compared:
    """The comparison of one method with the reference.

    values       by the names of `table.COLUMNS`; values that do not apply are absent
    log_sigma    difference of the mean of each free log sigma from the reference's, in the reference's
                 standard deviations
    said, happened  for labels, the mean largest probability and the share of right guesses in each of 15
                 bins; for numbers, the levels of central intervals and the share of targets inside
    """

    values: dict[str, float]
    log_sigma: dict[str, float] = field(default_factory=dict)
    said: Array = None
    happened: Array = None


def compare_draws(
    reference: Draws,
    methods: Mapping[str, Draws],
    inputs: Array,
    targets: Array,
    *,
    memory_bytes: float = 256e6,
) -> tuple[dict[str, Compared], Compared]:
    """Compare runs of one posterior with a reference run: scores, calibration and distances.

    The result has the comparison of each method, and that of one half of the reference's chains with the
    other half. Distances below the latter are not meaningful. The cases are processed in pieces, and only a
    few numbers are kept for each case.

    Parameters
    ----------
    reference : run with the draws that count as exact
    methods : runs of the same posterior by name; the reference may be among them
    inputs : (n_cases, n_inputs)     as in the data file
    targets : (n_cases, n_targets)   as in the data file, NaN where missing
    memory_bytes : float             approximate memory to use at once
    """
    check_same_posterior([reference, *methods.values()], is_approximation_allowed=True)
    if len(inputs) == 0 or np.isnan(targets).all():
        raise DataError(f"data: test cases with a known target are needed, got {len(inputs)} cases")
    methods = {name: with_members(run) for name, run in methods.items()}
    runs = {"": reference} | methods
    scored: dict[str, list[Measures]] = {name: [] for name in (*runs, "halves")}
    distant: dict[str, list[Measures]] = {name: [] for name in (*runs, "halves")}
    at_once = cases_at_once(list(runs.values()), memory_bytes)
    for first in range(0, len(inputs), at_once):
        cases = slice(first, first + at_once)
        for name, score, distance in _piece(runs, inputs[cases], targets[cases], memory_bytes / 4):
            scored[name].append(score)
            distant[name].append(distance)
    exact, exact_sigmas = _joined(scored[""]), _log_sigmas(reference)
    rows = {
        name: Compared(
            averages(_joined(scored[name]), _joined(distant[name]), exact),
            _differences(_log_sigmas(run), exact_sigmas),
            *_reliability(_joined(scored[name])),
        )
        for name, run in methods.items()
    }
    one, other = map(_log_sigmas, halves(reference))
    floor = averages(_joined(scored["halves"]), _joined(distant["halves"]), exact)
    return rows, Compared(floor, _differences(one, other), *_reliability(_joined(scored["halves"])))


def _piece(
    runs: Mapping[str, Draws], inputs: Array, targets: Array, memory_bytes: float
) -> Iterator[tuple[str, Measures, Measures]]:
    """Yield the scores and distances of each run at some cases, and of the first half of the reference.

    The reference has the name "". Its first half has the name "halves", and distances from the other half.
    """
    reference = runs[""]
    one, other = (answers(half, inputs, targets, memory_bytes=memory_bytes) for half in halves(reference))
    exact = merged(one, other)
    yield "halves", scores(reference, one, targets), distances(one, other)
    of_exact = scores(reference, exact, targets)
    for name, run in runs.items():
        if run is reference:
            yield name, of_exact, distances(exact, exact)
        else:
            said = answers(run, inputs, targets, memory_bytes=memory_bytes)
            yield name, scores(run, said, targets), distances(said, exact)


def _joined(pieces: list[Measures]) -> Measures:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def averages(score: Measures, distance: Measures, exact: Measures) -> dict[str, float]:
    """Return means over cases with their standard errors, by the names of the table's columns.

    score, exact  from `scores.scores` of a method and of the reference at the same cases
    distance      from `distances.distances`
    """
    values: dict[str, float] = {}
    for name in ("log_probability", "error_rate", "squared_error", "crps"):
        if name in score:
            values |= _with_error(name, score[name])
            if name != "crps":
                values |= _with_error(f"{name}_difference", score[name] - exact[name])
    if "confidence" in score:
        values |= _with_error("expected_error_rate", score["expected_error_rate"])
        values["ece"] = calibration_error(score["confidence"], score["is_right"])
    else:
        values["coverage"] = float(coverage(score["low"], score["high"], np.array([BAND]))[0])
    for name in ("total_variation", "kl", "agreement", "w2"):
        if name in distance:
            values |= _with_error(name, distance[name])
    if "mean_difference" in distance:
        values["mean_difference"] = float(np.sqrt(mean_and_error(distance["mean_difference"])[0]))
    log_ratio = distance["log_sd_ratio"]  # -inf for a single draw, since its ratio is 0
    log_ratio = log_ratio[~np.isnan(log_ratio)]
    values["sd_ratio"] = float(np.exp(log_ratio.mean())) if len(log_ratio) else math.nan
    return values


def _with_error(name: str, values: Array) -> dict[str, float]:
    mean, error = mean_and_error(values)
    return {name: mean, f"{name}_se": error}


def _reliability(score: Measures) -> tuple[Array, Array]:
    if "confidence" in score:
        return reliability(score["confidence"], score["is_right"])
    return INTERVALS, coverage(score["low"], score["high"], INTERVALS)


def _log_sigmas(run: Draws) -> dict[str, tuple[float, float]]:
    """Return the mean and the standard deviation over draws of the log of each free sigma."""
    logs = {name: np.log(values) for name, values in sigmas(run).items()}
    return {name: (float(values.mean()), float(values.std())) for name, values in logs.items()}


def _differences(
    ours: dict[str, tuple[float, float]], exact: dict[str, tuple[float, float]]
) -> dict[str, float]:
    return {
        name: (ours[name][0] - mean) / sd for name, (mean, sd) in exact.items() if name in ours and sd > 0
    }
