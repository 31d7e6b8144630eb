"""The report: its sections in order, and those that are tables (summary, data, model, how to repeat it)."""

from __future__ import annotations

import html
import math
import platform
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.effects import columns_of
from rayfbnn.arrays import Array
from rayfbnn.data.encoding import InputColumn
from rayfbnn.describe.configuration import (
    describe,
    dispersion_in_words,
    noise_in_words,
    prior_in_words,
    sigma_range,
)
from rayfbnn.numerals import plain
from rayfbnn.output import tables
from rayfbnn.reporting.chains import traces_section, verdicts_section
from rayfbnn.reporting.page import Section, page
from rayfbnn.reporting.predictions import (
    by_relevance,
    calibration_section,
    dependence_section,
    relevance_section,
    residuals_section,
)
from rayfbnn.reporting.reported_run import ReportedRun, Tell, labels_of
from rayfbnn.spec.run_spec import settings
from rayfbnn.store.store import word_for_chains
from rayfbnn.version import __version__

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


_MAX_ROWS = 60
_KINDS = {
    "number": "number",
    "levels": "levels, an input of 0 or 1 for each",
    "ordered": "ordered levels, numbered from 0",
    "missing": "only whether the value is missing",
}


def data_section(run: ReportedRun) -> str:
    """Return the number of cases and inputs, a table of the columns, and a table of the targets."""
    draws, cases = run.draws, run.cases
    spec, data = draws.spec, draws.data
    held_out = f"{cases.n_all:,}, {cases.source}" if cases.is_held_out else "none given"
    numbers = tables.pairs(
        {
            "training cases": data.n_cases,
            "source": spec.data.train or "from memory",
            "held-out cases": held_out,
            "columns that are inputs": len(columns_of(draws)),
            "inputs of the network": data.n_inputs,
            "standardised": " and ".join(spec.data.standardize) or "nothing",
            "on a log scale": ", ".join(spec.data.transform or {}) or None,
        }
    )
    return numbers + _inputs(draws) + _targets(draws) + _left_out(draws)


def _inputs(draws: Draws) -> str:
    columns = columns_of(draws)
    rows = [_input_row(draws, column) for column in columns[:_MAX_ROWS]]
    more = len(columns) - len(rows)
    header = ("input", "type", "values in the training cases", "missing")
    return tables.table(header, rows) + tables.paragraph(f"and {more:,} more columns" if more else "")


def _input_row(draws: Draws, column: InputColumn) -> tuple[tables.Cell, ...]:
    names = draws.data.input_names
    if column.kind == "levels":
        values = [draws.data.inputs[:, names.index(name)].sum() for name in column.value_names]
        words = ", ".join(
            f"{level} ({count:.0f})" for level, count in zip(column.levels, values, strict=True)
        )
    elif column.kind == "ordered":
        places = draws.data.inputs[:, names.index(column.name)]
        counts = [int((places == place).sum()) for place in range(len(column.levels))]
        words = ", ".join(f"{level} ({count})" for level, count in zip(column.levels, counts, strict=True))
    elif column.kind == "missing":
        words = "always the same"
    else:
        words = _range_in_words(draws.data.inputs[:, names.index(column.name)])
    return column.name, _KINDS[column.kind], words, column.n_missing


def _range_in_words(values: Array) -> str:
    low, middle, high = (tables.cell_text(float(value)) for value in np.quantile(values, [0, 0.5, 1]))
    return f"{low} to {high}, median {middle}"


def _targets(draws: Draws) -> str:
    rows = []
    for target, name in enumerate(draws.data.target_names):
        values = draws.data.targets[:, target]
        n_missing = int(np.isnan(values).sum())
        rows.append((name, draws.spec.data_model.in_words, _target_in_words(draws, name, values), n_missing))
    return tables.table(("target", "data model", "values in the training cases", "missing"), rows)


def _target_in_words(draws: Draws, name: str, values: Array) -> str:
    model, known = draws.spec.data_model, values[~np.isnan(values)]
    if len(known) == 0:
        return "none"
    if model.has_labels:
        labels = labels_of(draws, name)
        numbers, counts = np.unique(known, return_counts=True)
        return ", ".join(
            f"{labels[int(number)] if labels else f'{number:g}'} ({count})"
            for number, count in zip(numbers, counts, strict=True)
        )
    if model.are_times:
        return f"{_range_in_words(np.abs(known))}; {int((known < 0).sum())} censored"
    return f"{_range_in_words(known)}, mean {tables.cell_text(float(known.mean()))}"


def _left_out(draws: Draws) -> str:
    encoding = draws.spec.encoding
    if encoding is None:
        return ""
    sentences = []
    if encoding.constant:
        constant = ", ".join(f"{name} (always {value})" for name, value in encoding.constant.items())
        sentences.append(f"Left out, because they are constant: {constant}.")
    if encoding.not_used:
        names = ", ".join(encoding.not_used)
        sentences.append(f"Left out, because the configuration does not ask for them: {names}.")
    return tables.items(sentences)


def model_section(run: ReportedRun) -> str:
    """Return a sentence on the network, a table of the priors, and the collapsed full description."""
    spec = run.draws.spec
    network = spec.network
    layers = [f"{layer.units} {layer.activation} units" for layer in network.hidden]
    sentence = (
        f"A network of {network.inputs} inputs, {' and then '.join(layers) or 'no hidden units'} and"
        f" {network.outputs} output{'s' if network.outputs > 1 else ''} has {network.n_parameters:,}"
        f" parameters. The data model is {spec.data_model.in_words}."
    )
    rows: list[tuple[tables.Cell, ...]] = []
    for group in network.groups():
        omega = group.prior.mean_precision(group.shape[0])
        rows.append(
            (
                group.name,
                group.size,
                spec.network_keys.priors[group.name],
                _sigma(group.prior.alphas[0], omega) if group.prior.rectified is None else "",
                prior_in_words(group),
            )
        )
    for name, words in (("noise", noise_in_words), ("dispersion", dispersion_in_words)):
        prior = getattr(spec.model, name)
        if prior is not None:
            text = getattr(spec.model_keys, name) or ""
            sigma = _sigma(prior.alphas[0], prior.mean_precision(1))
            rows.append((name, len(spec.data.targets), text, sigma, words(prior)))
    header = ("group", "parameters", "prior", "common sigma, 5-95 %", "in words")
    whole = html.escape(describe(spec, store=run.draws.store))
    details = f"<details><summary>Full output of rayfbnn show</summary><pre>{whole}</pre></details>"
    return tables.paragraph(sentence) + tables.table(header, rows) + details


def _sigma(alpha: float, mean_precision: float) -> str:
    if math.isinf(alpha):
        return f"{mean_precision**-0.5:.4g}"
    low, high = sigma_range(alpha, mean_precision)
    return f"{low} to {high}"


_REFERENCES = (
    "Neal, R. M. (1996). Bayesian Learning for Neural Networks. Lecture Notes in Statistics 118. Springer."
    " The models, their priors and hybrid Monte Carlo for them.",
    "Neal, R. M. Software for Flexible Bayesian Modeling (FBM). The family of models and the notation of"
    " priors.",
    "Vehtari, A., Gelman, A., Simpson, D., Carpenter, B. and Bürkner, P.-C. (2021). Rank-normalization,"
    " folding, and localization: an improved R-hat for assessing convergence of MCMC. Bayesian Analysis 16,"
    " 667-718. R-hat and effective sample sizes.",
)


def repeating_section(run: ReportedRun) -> str:
    """Return versions, seed and digests, the commands and the configuration, and what to cite."""
    draws = run.draws
    spec, root = draws.spec, draws.store.root
    facts = tables.pairs(
        {
            "rayfbnn that made the store": root.version,
            "rayfbnn that made this page": __version__,
            "Python, NumPy": f"{platform.python_version()}, {np.__version__}",
            "kernel of the run": root.kernel,
            "arithmetic, device": f"{spec.dtype}, {spec.device}",
            "seed": str(spec.seed),
            "chains": spec.chains,
            "digest of the store": root.identity,
            "digest of the training cases (SHA-256)": draws.data.hash,
        }
    )
    verb = {"exact": "reject", "prior": "prior"}.get(draws.kind, "sample")
    options = ""
    if verb != "sample":
        options = f" --draws {draws.total}"
    elif spec.method is not None:
        options = f" --method {spec.method}"
    name = shlex.quote(draws.path.name)
    cases = "" if spec.data.train else " --data train.csv"  # the training cases were given from memory
    commands = f"rayfbnn {verb} run.toml {name}{cases}{options}\nrayfbnn verify {name}"
    files = "run.toml" if spec.data.train else "run.toml, and the training cases as train.csv"
    words = (
        "The same version produces bitwise identical draws from the same configuration and training cases, on"
        " machines of the same kind, with any number of workers. Save the configuration below as"
        f" {files}, and run:"
    )
    cite = f"rayfbnn, version {root.version}: posterior draws of Bayesian neural networks."
    return "".join(
        [
            facts,
            tables.paragraph(words),
            f"<pre>{html.escape(commands)}</pre>",
            "<details><summary>The configuration, run.toml</summary>",
            f"<pre>{html.escape(spec.to_toml())}</pre></details>",
            tables.paragraph("To cite:"),
            tables.items((cite, *_REFERENCES)),
        ]
    )


_MAX_EFFECTS = 6  # columns with pictures of their effects


def report_html(runs: Sequence[ReportedRun], tell: Tell) -> str:
    """Return the page on the runs, with several runs side by side in each section.

    tell  called with a description of each step
    """
    ranked = {}
    for run in runs:
        tell(f"{run.label}: relevance of inputs")
        ranked[run.label] = by_relevance(run)
    # All runs have pictures of the same columns, the most relevant ones of the first run.
    first = [column.name for column, _ in ranked[runs[0].label]]

    def dependence(run: ReportedRun) -> str:
        of_run = {column.name: column for column, _ in ranked[run.label]}
        chosen = [of_run[name] for name in [*first, *of_run] if name in of_run]
        return dependence_section(run, list(dict.fromkeys(chosen))[:_MAX_EFFECTS])

    parts: tuple[tuple[str, str, Callable[[ReportedRun], str]], ...] = (
        ("data", "Data", data_section),
        ("model", "Model", model_section),
        ("verdicts", "Verdicts", verdicts_section),
        ("predictions", "Predictions and their calibration", calibration_section),
        ("residuals", "Residuals", residuals_section),
        ("inputs", "Relevance of inputs", lambda run: relevance_section(run, ranked[run.label])),
        ("effects", "Averaged effects of inputs", dependence),
        ("traces", "Traces", traces_section),
        ("repeat", "How to repeat and cite", repeating_section),
    )
    sections = [Section("glance", "At a glance", (("", glance_section(runs)),))]
    for key, title, section_of in parts:
        tell(title)
        panels = tuple((run.label, section_of(run)) for run in runs)
        if any(html for _, html in panels):
            sections.append(Section(key, title, panels))
    labels = ", ".join(run.label for run in runs)
    return page(f"Report on {labels}", _subtitle(runs), sections)


def _subtitle(runs: Sequence[ReportedRun]) -> str:
    cases = runs[0].cases
    at = f"{cases.n_all:,} held-out cases" if cases.is_held_out else "the training cases"
    return f"Draws of Bayesian neural networks. Predictions are compared with the targets of {at}."
