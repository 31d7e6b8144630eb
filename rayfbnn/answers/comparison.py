"""The comparison of runs with a reference run at test cases, and its table."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from rayfbnn.answers.distances import (
    BAND,
    INTERVALS,
    calibration_error,
    cases_at_once,
    coverage,
    distances,
    functions_of,
    mean_and_error,
    merged,
    reliability,
    scores,
)
from rayfbnn.answers.judging.words import as_json
from rayfbnn.answers.measures import root_mean_square
from rayfbnn.arrays import Array
from rayfbnn.draws.quantities import sigmas
from rayfbnn.draws.subsets import check_same_posterior, halves, spread, with_draws, with_members
from rayfbnn.draws.view import Draws
from rayfbnn.errors import DataError
from rayfbnn.numerals import plain
from rayfbnn.output.facts import Answer, Fact, Paragraph, TableFact
from rayfbnn.reduce.passes import TaskExecutor, TasksInProcess
from rayfbnn.reduce.tile import Reader

if TYPE_CHECKING:
    import pandas as pd


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
    executor: TaskExecutor | None = None,
    memory_bytes: float = 256e6,
    on_progress: Callable[[float], None] = lambda share: None,
) -> tuple[dict[str, Compared], Compared]:
    """Compare runs of one posterior with a reference run: scores, calibration and distances.

    The result has the comparison of each method, and that of one half of the reference's chains with the
    other half. Distances below the latter are not meaningful. Only a few numbers are kept for each case.

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
    executor = executor or TasksInProcess()
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

    def compared(run: Draws, distance: Measures, exact: dict[str, tuple[float, float]]) -> Compared:
        of_sigmas = _differences(_log_sigmas(run), exact)
        return Compared(
            averages(scored[run], distance, scored[reference]), of_sigmas, *_reliability(scored[run])
        )

    exact, pairs = _log_sigmas(reference), zip(methods.items(), distant, strict=True)
    rows = {name: compared(run, distance, exact) for (name, run), distance in pairs}
    return rows, compared(one, floor, _log_sigmas(other))


def _not_too_many(run: Draws) -> Draws:
    at_most = max(1, _DRAWS // run.n_chains)
    return run if run.n_draws <= at_most else with_draws(run, spread(run.n_draws, at_most))


def _distances(
    runs: list[Draws], inputs: Array, *, executor: TaskExecutor, memory_bytes: float
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
    return dict(zip(_keys(name), mean_and_error(values), strict=True))


def _reliability(score: Measures) -> tuple[Array, Array]:
    if "confidence" in score:
        return reliability(score["confidence"], score["is_right"])
    return INTERVALS, coverage(score["low"], score["high"], INTERVALS)


def _log_sigmas(run: Draws) -> dict[str, tuple[float, float]]:
    logs = {name: np.log(values) for name, values in sigmas(run).items()}
    return {name: (float(values.mean()), float(values.std())) for name, values in logs.items()}


def _differences(
    ours: dict[str, tuple[float, float]], exact: dict[str, tuple[float, float]]
) -> dict[str, float]:
    return {
        name: (ours[name][0] - mean) / sd for name, (mean, sd) in exact.items() if name in ours and sd > 0
    }


_BLOCKS = {
    "test cases (differences are from the reference, case by case)": {
        "log_probability": "log probability",
        "log_probability_difference": "its difference",
        "error_rate": "error rate",
        "error_rate_difference": "its difference",
        "squared_error": "squared error",
        "squared_error_difference": "its difference",
        "rmse": "RMSE",
    },
    "calibration": {
        "expected_error_rate": "expected error rate",
        "ece": "ECE",
        "coverage": "10-90 % band",
        "crps": "CRPS",
    },
    "distance from the reference": {
        "total_variation": "total variation",
        "kl": "KL",
        "agreement": "agreement",
        "w2": "W2/sd",
        "mean_difference": "means/sd",
        "sd_ratio": "sd ratio",
    },
    "hyperparameters, evidence and cost": {
        "log_sigma": "log sigma",
        "log_evidence": "log evidence",
        "seconds": "seconds",
        "gradients": "gradients",
    },
}
COLUMNS = [name for columns in _BLOCKS.values() for name in columns]
"""The names of the values of a row, in order."""

_MOST_DECIMALS = 7


@dataclass(frozen=True)
class Comparison(Answer):
    """A table that compares methods with a reference.

    Attributes
    ----------
    reference
        Name of the method, or path of the store, with the draws that count as exact.
    rows
        The comparisons by method, in the requested order. The last row, "halves of " and the reference,
        compares one half of the reference's chains with the other half. Distances below the ones in this row
        are not meaningful.
    reasons
        Sentences saying why the reference may not have converged; empty if it passes `diagnose`.
    """

    reference: str
    rows: dict[str, Compared]
    reasons: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if the reference passes `diagnose`; distances from it can then be trusted."""
        return not self.reasons

    @property
    def floor(self) -> Compared:
        """The last row: one half of the reference compared with the other half."""
        return self.rows[list(self.rows)[-1]]

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each method with the names of `COLUMNS` and their standard errors, <name>_se.

        Each free sigma has a column log_sigma[<name>]: the difference of the mean of its log from that of the
        reference, in standard deviations of the reference. Columns without any value are left out.
        """
        import pandas as pd

        records = [
            {"method": name}
            | {key: row.values[key] for column in COLUMNS for key in _keys(column) if key in row.values}
            | {f"log_sigma[{sigma}]": value for sigma, value in row.log_sigma.items()}
            for name, row in self.rows.items()
        ]
        frame = pd.DataFrame(records)
        ordered = ["method", *(key for column in COLUMNS for key in _keys(column) if key in frame)]
        return frame[ordered + [name for name in frame if name not in ordered]]

    def to_json(self) -> str:
        """Return one JSON object; unknown values are null, and values that do not apply are absent."""
        rows = [{"method": name, **row.values, "log_sigma": row.log_sigma} for name, row in self.rows.items()]
        document = {"reference": self.reference, "ok": self.ok, "reasons": list(self.reasons), "rows": rows}
        return json.dumps(as_json(document))

    def facts(self) -> list[Fact]:
        """Return a table for each group of columns, the reference, and its faults."""
        facts: list[Fact] = []
        for title, columns in _BLOCKS.items():
            shown = [name for name in columns if any(_cell(row, name) for row in self.rows.values())]
            rows = [
                (method, *(_cell(row, name) or "-" for name in shown)) for method, row in self.rows.items()
            ]
            if shown:
                facts.append(TableFact(("", *(columns[name] for name in shown)), rows, title))
        facts.append(
            Paragraph(f"reference: {self.reference}; distances below that of its halves are not meaningful")
        )
        doubts = (Paragraph(f"the reference may not have converged: {reason}") for reason in self.reasons)
        return [*facts, *doubts]


def _keys(column: str) -> tuple[str, str]:
    return column, f"{column}_se"


def _cell(row: Compared, name: str) -> str:
    """Return a value with its standard error as text, "" if the row lacks it."""
    if name == "log_sigma":
        sigma = max(row.log_sigma, key=lambda name: abs(row.log_sigma[name]), default="")
        difference = row.log_sigma.get(sigma)
        if not difference:  # no free sigmas, or the reference compared with itself
            return "" if difference is None else "0"
        return f"{difference:+.2f} ({sigma.removeprefix('sigma_')})"
    value, error = row.values.get(name, math.nan), row.values.get(f"{name}_se", math.nan)
    if math.isnan(value):
        return ""
    if name in ("seconds", "gradients"):
        return f"{value:,.0f}" if value >= 10 else plain(value, 2)
    if not error > 0:
        return plain(value, 4)
    decimals = max(1 - math.floor(math.log10(error)), 0)  # two digits of the error
    if decimals > _MOST_DECIMALS:
        return f"{value:.2e} +- {error:.1e}"
    return f"{value:,.{decimals}f} +- {error:,.{decimals}f}"
