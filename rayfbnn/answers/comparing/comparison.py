"""The comparison of runs with a reference run at test cases."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from rayfbnn.answers.comparing.distances import distances
from rayfbnn.answers.comparing.functions import cases_at_once, functions_of, merged
from rayfbnn.answers.comparing.scores import (
    BAND,
    INTERVALS,
    calibration_error,
    coverage,
    mean_and_error,
    reliability,
    scores,
)
from rayfbnn.answers.measures import root_mean_square
from rayfbnn.arrays import Array
from rayfbnn.draws.quantities import sigmas
from rayfbnn.draws.same_posterior import check_same_posterior
from rayfbnn.draws.subsets import halves, spread, with_draws
from rayfbnn.draws.weighted_starts import with_members
from rayfbnn.errors import DataError
from rayfbnn.reduce.executors import InProcess

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws
    from rayfbnn.reduce.blocks import Reader
    from rayfbnn.reduce.executors import Executor

Measures: TypeAlias = dict[str, Array]  # by name, at all cases
_DRAWS = 100_000  # of a run, for distances, which need all of them at once


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
    executor: Executor | None = None,
    memory_bytes: float = 256e6,
    on_progress: Callable[[float], None] = lambda share: None,
) -> tuple[dict[str, Compared], Compared]:
    """Compare runs of one posterior with a reference run: scores, calibration and distances.

    The result has the comparison of each method, and that of one half of the reference's chains with the
    other half. Distances below the latter are not meaningful. Only a few numbers are kept for each case.

    Parameters
    ----------
    reference : run with the draws that count as exact
    methods : runs of the same posterior by name; the reference may be among them
    inputs : (n_cases, n_inputs)     as in the data file
    targets : (n_cases, n_targets)   as in the data file, NaN where missing
    executor                         runs the tasks; this process unless given
    memory_bytes : float             approximate memory to use at once
    on_progress : callable           called with the share of the work that is done, about
    """
    check_same_posterior([reference, *methods.values()], is_approximation_allowed=True)
    if len(inputs) == 0 or np.isnan(targets).all():
        raise DataError(f"data: test cases with a known target are needed, got {len(inputs)} cases")
    executor = executor or InProcess()
    methods = {name: with_members(run) for name, run in methods.items()}
    one, other = halves(reference)
    # Scored once each; the reference may also be among the methods.
    scored: dict[Draws, Measures] = {}
    for run in (reference, one, *methods.values()):
        if run not in scored:
            scored[run] = scores(run, inputs, targets, executor=executor, memory_bytes=memory_bytes)
            on_progress(len(scored) / (len(methods) + 3))
    runs = [_not_too_many(run) for run in (one, other, reference, *methods.values())]
    floor, *distant = _distances(
        runs, reference.data.standardized(inputs), executor=executor, memory_bytes=memory_bytes
    )
    of_halves = Compared(
        averages(scored[one], floor, scored[reference]),
        _differences(_log_sigmas(one), _log_sigmas(other)),
        *_reliability(scored[one]),
    )
    exact_sigmas = _log_sigmas(reference)
    rows = {
        name: Compared(
            averages(scored[run], distance, scored[reference]),
            _differences(_log_sigmas(run), exact_sigmas),
            *_reliability(scored[run]),
        )
        for (name, run), distance in zip(methods.items(), distant, strict=True)
    }
    return rows, of_halves


def _not_too_many(run: Draws) -> Draws:
    """Return the run with evenly spaced draws only, if its draws of all chains are very many."""
    at_most = max(1, _DRAWS // run.n_chains)
    return run if run.n_draws <= at_most else with_draws(run, spread(run.n_draws, at_most))


def _distances(
    runs: list[Draws], inputs: Array, *, executor: Executor, memory_bytes: float
) -> list[Measures]:
    """Return the distances of the halves of the reference from each other, then of each method.

    runs    both halves of the reference, the reference, and the methods
    inputs  (n_cases, n_inputs), standardised
    """
    at_once = cases_at_once(runs, memory_bytes)
    jobs = [(inputs[at : at + at_once], memory_bytes / 4) for at in range(0, len(inputs), at_once)]
    by_job = list(executor.map(_distances_of_cases, runs, jobs))
    return [
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for parts in zip(*by_job, strict=True)
    ]


def _distances_of_cases(reader: Reader, job: tuple[Array, float]) -> list[Measures]:
    inputs, block_bytes = job
    one, other = (functions_of(run, inputs, memory_bytes=block_bytes) for run in reader.runs[:2])
    exact = merged(one, other)
    _, _, reference, *methods = reader.runs
    found = [distances(one, other)]
    for run in methods:
        same = run is reference
        found.append(distances(exact if same else functions_of(run, inputs, memory_bytes=block_bytes), exact))
    return found


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
    if "squared_error" in score:
        values["rmse"], values["rmse_se"] = root_mean_square(np.sqrt(score["squared_error"]))
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
