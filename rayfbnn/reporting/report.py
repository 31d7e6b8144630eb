"""The report: its sections in order, and those that are tables (summary, data, model, how to repeat it)."""

from __future__ import annotations

import math
import platform
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.effects import columns_of
from rayfbnn.arrays import Array
from rayfbnn.data.encoding import InputColumn
from rayfbnn.describe.configuration import described
from rayfbnn.numerals import plain
from rayfbnn.output.facts import (
    Badge,
    Cell,
    Fact,
    Lines,
    Pairs,
    Paragraph,
    Sentences,
    TableFact,
    cell_text,
    html_of,
)
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
    from rayfbnn.answers.predict import Prediction
    from rayfbnn.draws.view import Draws


_LEVEL = 0.8


def glance_section(runs: Sequence[ReportedRun]) -> Iterator[Fact]:
    """Yield a table with a column for each run; for several runs also the settings that differ."""
    facts = [_facts(run) for run in runs]
    if len(runs) == 1:
        yield Pairs(facts[0])
        yield from map(Paragraph, _notes(runs[0]))
        return
    names = list(dict.fromkeys(name for of_run in facts for name in of_run))
    rows = [(name, *(of_run.get(name) for of_run in facts)) for name in names]
    rows += _compared(runs)
    yield TableFact(("", *(run.label for run in runs)), rows)
    yield Sentences([f"{run.label}: {text}" for run in runs for text in _notes(run) if text])
    yield from _settings_that_differ(runs)


def _notes(run: ReportedRun) -> tuple[str, ...]:
    weighing = f"{run.weighing[0].upper()}{run.weighing[1:]}." if run.weighing else ""
    return run.note, run.progress, weighing


def _facts(run: ReportedRun) -> dict[str, Cell]:
    draws, names = run.draws, run.draws.data.target_names
    facts: dict[str, Cell] = {
        "targets": f"{', '.join(names)} ({draws.spec.data_model.in_words})",
        "training cases": f"{draws.data.n_cases:,}",
        "draws": f"{draws.n_chains} {word_for_chains(draws.store)} of {draws.n_draws:,}",
    }
    if draws.kind == "mcmc" and draws.n_chains < draws.store.n_chains:
        facts["chosen chains"] = f"{', '.join(map(str, draws.chain_numbers))} of {draws.store.n_chains}"
    if draws.skipped:
        facts["left out"] = f"{draws.skipped:,} draws at the start of each chain"
    of_chains = run.diagnosis and (run.diagnosis.predictions, run.diagnosis.hyperparameters)
    for verdict in (*(of_chains or ()), run.fit):
        if verdict is not None:
            facts[verdict.subject] = Badge(verdict.grade, verdict.ok)
    facts["errors at"] = "held-out cases" if run.cases.is_held_out else "training cases"
    facts |= _measures(run.prediction)
    if (equal := run.prediction.equal_weights) is not None:
        facts |= {f"{name}, equal weights": value for name, value in _measures(equal).items()}
    for target, name in enumerate(names):
        places = run.places and run.places.of_target(target)
        if places and len(places.low):
            share = float(places.coverage([_LEVEL])[0])
            facts[f"cases in {_LEVEL:.0%} intervals of {name}"] = f"{share:.0%}"
    return facts


def _measures(prediction: Prediction) -> dict[str, Cell]:
    return {
        name.replace("_", " "): cell_text(value) + ("" if error is None else f" ± {plain(error, 2)}")
        for name, (value, error) in prediction.measures.items()
        if name not in ("cases", "draws")
    }


def _compared(runs: Sequence[ReportedRun]) -> list[tuple[Cell, ...]]:
    first = runs[0]
    if not all(
        run.draws.spec.model.kind == first.draws.spec.model.kind
        and np.array_equal(run.cases.targets, first.cases.targets, equal_nan=True)
        for run in runs
    ):
        return []
    of_first = first.prediction.table["log_probability"].to_numpy()
    cells: list[Cell] = ["-"]
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


def _settings_that_differ(runs: Sequence[ReportedRun]) -> Iterator[Fact]:
    by_run = [settings(run.draws.spec) for run in runs]
    names = dict.fromkeys(name for of_run in by_run for name in of_run)
    rows = [(name, *(str(of_run.get(name, "absent")) for of_run in by_run)) for name in names]
    rows.append(("training cases, digest", *(run.draws.data.hash[:12] for run in runs)))
    rows = [row for row in rows if len(set(row[1:])) > 1]
    same = "The configurations and training cases are the same."
    yield Paragraph("The settings that differ:" if rows else same)
    if rows:
        yield TableFact(("setting", *(run.label for run in runs)), rows)


_MAX_ROWS = 60


def data_section(run: ReportedRun) -> Iterator[Fact]:
    """Yield what `show` says about the data, and tables of the values of inputs and targets."""
    draws, cases = run.draws, run.cases
    held_out = f"{cases.n_all:,}, {cases.source}" if cases.is_held_out else "none given"
    about = "\n".join(described(draws.spec, store=draws.store)["data"])
    columns, n_shown = columns_of(draws), _MAX_ROWS
    head = ("values in the training cases", "missing")
    yield Lines(f"{about}\n  held-out cases: {held_out}")
    inputs = [(one.name, _input_in_words(draws, one), one.n_missing) for one in columns[:n_shown]]
    yield TableFact(("input", *head), inputs)
    if len(columns) > n_shown:
        yield Paragraph(f"and {len(columns) - n_shown:,} more columns")
    yield TableFact(("target", *head), _targets(draws))


def _input_in_words(draws: Draws, column: InputColumn) -> str:
    names, inputs = draws.data.input_names, draws.data.inputs
    if column.kind == "missing":
        return "always the same"
    if column.kind == "levels":
        counts = [inputs[:, names.index(name)].sum() for name in column.value_names]
    elif column.kind == "ordered":
        counts = [(inputs[:, names.index(column.name)] == place).sum() for place in range(len(column.levels))]
    else:
        return _range_in_words(inputs[:, names.index(column.name)])
    return ", ".join(f"{level} ({count:.0f})" for level, count in zip(column.levels, counts, strict=True))


def _range_in_words(values: Array) -> str:
    low, middle, high = (cell_text(float(value)) for value in np.quantile(values, [0, 0.5, 1]))
    return f"{low} to {high}, median {middle}"


def _targets(draws: Draws) -> list[tuple[str, str, int]]:
    return [
        (name, _target_in_words(draws, name, values), int(np.isnan(values).sum()))
        for name, values in zip(draws.data.target_names, draws.data.targets.T, strict=True)
    ]


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
    return f"{_range_in_words(known)}, mean {cell_text(float(known.mean()))}"


def model_section(run: ReportedRun) -> Iterator[Fact]:
    """Yield what `show` says about the network, its priors, the schedule, and the defaults used."""
    by_subject = described(run.draws.spec, store=run.draws.store)
    blocks = ("\n".join(lines) for subject, lines in by_subject.items() if lines and subject != "data")
    yield Lines("\n\n".join(blocks))


_REFERENCES = (
    "Neal, R. M. (1996). Bayesian Learning for Neural Networks. Lecture Notes in Statistics 118. Springer."
    " The models, their priors and hybrid Monte Carlo for them.",
    "Neal, R. M. Software for Flexible Bayesian Modeling (FBM). The family of models and the notation of"
    " priors.",
    "Vehtari, A., Gelman, A., Simpson, D., Carpenter, B. and Bürkner, P.-C. (2021). Rank-normalization,"
    " folding, and localization: an improved R-hat for assessing convergence of MCMC. Bayesian Analysis 16,"
    " 667-718. R-hat and effective sample sizes.",
)


def repeating_section(run: ReportedRun) -> Iterator[Fact]:
    """Yield versions, seed and digests, the commands and the configuration, and what to cite."""
    draws = run.draws
    spec, root = draws.spec, draws.store.root
    yield Pairs(
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
    yield Paragraph(
        "The same version produces bitwise identical draws from the same configuration and training cases, on"
        " machines of the same kind, with any number of workers. Save the configuration below as"
        f" {files}, and run:"
    )
    yield Lines(commands)
    yield Lines(spec.to_toml(), summary="The configuration, run.toml")
    yield Paragraph("To cite:")
    cite = f"rayfbnn, version {root.version}: posterior draws of Bayesian neural networks."
    yield Sentences((cite, *_REFERENCES))


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

    def dependence(run: ReportedRun) -> Iterable[Fact]:
        of_run = {column.name: column for column, _ in ranked[run.label]}
        chosen = [of_run[name] for name in [*first, *of_run] if name in of_run]
        return dependence_section(run, list(dict.fromkeys(chosen))[:_MAX_EFFECTS])

    parts: tuple[tuple[str, str, Callable[[ReportedRun], Iterable[Fact]]], ...] = (
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
    sections = [Section("glance", "At a glance", (("", html_of(glance_section(runs))),))]
    for key, title, section_of in parts:
        tell(title)
        panels = tuple((run.label, html_of(section_of(run))) for run in runs)
        if any(html for _, html in panels):
            sections.append(Section(key, title, panels))
    labels = ", ".join(run.label for run in runs)
    return page(f"Report on {labels}", _subtitle(runs), sections)


def _subtitle(runs: Sequence[ReportedRun]) -> str:
    cases = runs[0].cases
    at = f"{cases.n_all:,} held-out cases" if cases.is_held_out else "the training cases"
    return f"Draws of Bayesian neural networks. Predictions are compared with the targets of {at}."
