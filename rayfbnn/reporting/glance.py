"""The first section: a summary of one run, or of several side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.numerals import plain
from rayfbnn.output import tables
from rayfbnn.reporting.reported_run import ReportedRun
from rayfbnn.spec.run_spec import settings
from rayfbnn.store.ladder_words import word_for_chains

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws

_LEVEL = 0.8


def glance_section(runs: Sequence[ReportedRun]) -> str:
    """Return a table with a column for each run; for several runs also the settings that differ."""
    facts = [_facts(run) for run in runs]
    if len(runs) == 1:
        return tables.pairs(facts[0]) + "".join(map(tables.paragraph, _notes(runs[0])))
    names = list(dict.fromkeys(name for of_run in facts for name in of_run))
    rows = [(name, *(of_run.get(name) for of_run in facts)) for name in names]
    rows += _compared(runs)
    header = ("", *(run.label for run in runs))
    notes = tables.items(f"{run.label}: {text}" for run in runs for text in _notes(run) if text)
    return tables.table(header, rows) + notes + _settings_that_differ(runs)


def _notes(run: ReportedRun) -> tuple[str, ...]:
    weighing = f"{run.weighing[0].upper()}{run.weighing[1:]}." if run.weighing else ""
    return run.note, run.progress, weighing


def _facts(run: ReportedRun) -> dict[str, tables.Cell]:
    draws = run.draws
    facts: dict[str, tables.Cell] = {
        "targets": f"{', '.join(draws.data.target_names)} ({draws.spec.data_model.in_words})",
        "training cases": f"{draws.data.n_cases:,}",
        "draws": f"{draws.n_chains} {word_for_chains(draws.store)} of {draws.n_draws:,}",
    }
    facts |= _choice(draws)
    if run.diagnosis is not None:
        for verdict in (run.diagnosis.predictions, run.diagnosis.hyperparameters):
            facts[verdict.subject] = tables.grade_badge(verdict.grade, is_ok=verdict.ok)
    if run.fit is not None:
        facts["fit"] = tables.grade_badge(run.fit.grade, is_ok=run.fit.ok)
    facts["errors at"] = "held-out cases" if run.cases.is_held_out else "training cases"
    facts |= _measures(run.prediction.summary, draws.data.target_names)
    if (equal := run.prediction.equal_weights) is not None:
        of_equal = _measures(equal.summary, draws.data.target_names)
        facts |= {f"{name}, equal weights": value for name, value in of_equal.items()}
    if run.places is not None:
        for target, name in enumerate(draws.data.target_names):
            places = run.places.of_target(target)
            if len(places.low):
                share = float(places.coverage([_LEVEL])[0])
                facts[f"cases in {_LEVEL:.0%} intervals of {name}"] = f"{share:.0%}"
    return facts


def _measures(summary: dict[str, float], targets: Sequence[str]) -> dict[str, tables.Cell]:
    """Return the measures of predictions by name, each with its standard error."""
    names = {
        measure: measure.replace("_", " ") for measure in ("log_probability", "squared_error", "error_rate")
    }
    names |= {f"{target}_rmse": f"RMSE of {target}" for target in targets} | {"c_index": "C-index"}
    return {
        words: _with_error(summary, measure)
        for measure, words in names.items()
        if not math.isnan(summary.get(measure, math.nan))
    }


def _choice(draws: Draws) -> dict[str, tables.Cell]:
    """Return the chains and draws that were asked for, if these are not all."""
    facts: dict[str, tables.Cell] = {}
    if draws.kind == "mcmc" and draws.n_chains < draws.store.n_chains:
        facts["chosen chains"] = f"{', '.join(map(str, draws.chain_numbers))} of {draws.store.n_chains}"
    if draws.skipped:
        facts["left out"] = f"{draws.skipped:,} draws at the start of each chain"
    return facts


def _with_error(summary: dict[str, float], measure: str) -> str:
    error = summary.get(f"{measure}_se", math.nan)
    value = tables.cell_text(summary[measure])
    return value if math.isnan(error) else f"{value} ± {plain(error, 2)}"


def _compared(runs: Sequence[ReportedRun]) -> list[tuple[tables.Cell, ...]]:
    """Return the differences of log probabilities from the first run, if all runs have the same cases."""
    first = runs[0]
    if not all(_same_cases(first, run) for run in runs[1:]):
        return []
    of_first = first.prediction.table["log_probability"].to_numpy()
    cells: list[tables.Cell] = ["-"]
    for run in runs[1:]:
        difference = run.prediction.table["log_probability"].to_numpy() - of_first
        difference = difference[~np.isnan(difference)]
        if len(difference) < 2:
            cells.append("-")
            continue
        error = difference.std(ddof=1) / math.sqrt(len(difference))
        sign = "+" if difference.mean() > 0 else ""
        cells.append(f"{sign}{plain(difference.mean(), 3)} ± {plain(error, 2)}")
    return [("log probability, difference from the first, case by case", *cells)]


def _same_cases(first: ReportedRun, other: ReportedRun) -> bool:
    ours, theirs = first.cases.targets, other.cases.targets
    same_kind = first.draws.spec.model.kind == other.draws.spec.model.kind
    return same_kind and ours.shape == theirs.shape and bool(np.array_equal(ours, theirs, equal_nan=True))


def _settings_that_differ(runs: Sequence[ReportedRun]) -> str:
    """Return a table of the settings that are not the same in all runs."""
    by_run = [settings(run.draws.spec) for run in runs]
    names = list(dict.fromkeys(name for of_run in by_run for name in of_run))
    rows = []
    for name in names:
        cells = [_setting(of_run, name) for of_run in by_run]
        if len(set(cells)) > 1:
            rows.append((name, *cells))
    if len({run.draws.data.hash for run in runs}) > 1:
        rows.append(("training cases, digest", *(run.draws.data.hash[:12] for run in runs)))
    if not rows:
        return tables.paragraph("The configurations and training cases are the same.")
    return tables.table(("setting", *(run.label for run in runs)), rows, caption="The settings that differ")


def _setting(of_run: dict[str, object], name: str) -> str:
    return str(of_run[name]) if name in of_run else "absent"
