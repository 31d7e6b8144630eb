"""Writes the tables and pictures of docs/book.md from the kept results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gates
import numpy as np
import pictures
from comparing import Results
from published import BOOK, FBM

KEPT = Path(__file__).parents[2] / "tests/data/book.jsonl"


def order(name: str) -> tuple[Any, ...]:
    """Return the key that sorts names of figures and rows as the book has them."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))


def kept() -> Results:
    """Return the kept lines of results by name."""
    lines = [json.loads(line) for line in KEPT.read_text().splitlines()]
    return {line.get("row", line.get("comparison")): line for line in lines}


def write(docs: Path) -> None:
    """Write the tables of docs/book.md between its markers, and its pictures."""
    results = kept()
    path = docs / "book.md"
    path.write_text(with_tables(path.read_text(), results))
    pictures.draw_all(results, docs / "images")


def with_tables(text: str, results: Results) -> str:
    """Return a page whose tables, between <!-- table X --> and <!-- end -->, are those of the results."""

    def table(match: re.Match[str]) -> str:
        return f"<!-- table {match[1]} -->\n\n{_section(match[1], results)}\n\n<!-- end -->"

    return re.sub(r"<!-- table (\S+) -->.*?<!-- end -->", table, text, flags=re.DOTALL)


def _section(figure: str, results: Results) -> str:
    """Return the table of a figure, and its gates."""
    if figure != "4.11" and not _rows_of(results, figure):
        return "No results are kept yet."
    parts = [TABLES[figure](results)]
    judged = gates.judged(results, figure)
    if judged:
        rows = [(gate.words, found, "yes" if passed else "**no**") for gate, found, passed in judged]
        parts.append(_table(("expected", "found", "agrees"), rows))
    return "\n\n".join(parts)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _number(line: dict[str, Any] | None, name: str, digits: int = 3, factor: float = 1.0) -> str:
    """Return a measure with its standard error, "-" if there is none."""
    if line is None:
        return "-"
    sign, name = (
        (-1, "log_probability") if name == "minus_log_probability" and name not in line else (1, name)
    )
    value = line.get(name)
    if value is None:
        return "-"
    error = line.get(f"{name}_se")
    text = f"{sign * value * factor:.{digits}f}"
    return text if error is None else f"{text} ± {error * factor:.{digits}f}"


def _convergence(line: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells on convergence: R-hat and ESS of outputs and of hyperparameters, and seconds."""

    def shown(name: str) -> str:
        rhat, ess = line.get(f"{name}_rhat"), line.get(f"{name}_ess")
        return "-" if ess is None else f"{'-' if rhat is None else f'{rhat:.2f}'}; {ess:.0f}"

    return shown("outputs"), shown("sigmas"), _seconds(line)


def _seconds(line: dict[str, Any]) -> str:
    """Return the processor seconds, "-" if they are not known."""
    return "-" if line["seconds"] is None else f"{line['seconds']:.0f}"


_CONVERGENCE = ("R-hat; ESS of outputs", "of sigmas", "seconds")


def _rows_of(results: Results, figure: str) -> list[str]:
    return [name for name in sorted(results, key=order) if figure in results[name].get("figures", ())]


def _measured(figure: str, measures: dict[str, tuple[str, int, float]]) -> Callable[[Results], str]:
    """Return the table of a figure's rows: what the book, FBM and we have for each measure."""

    def table(results: Results) -> str:
        header = ["row"]
        for words, _, _ in measures.values():
            header += [f"{words}: book", "FBM", "here"]
        rows = []
        for name in _rows_of(results, figure):
            cells = [name]
            for measure, (_, digits, factor) in measures.items():
                of = (BOOK.get(name), FBM.get(name), results[name])
                cells += [_number(line, measure, digits, factor) for line in of]
            rows.append([*cells, *_convergence(results[name])])
        return _table([*header, *_CONVERGENCE], rows)

    return table


def _progress(results: Results) -> str:
    rows = []
    for name in _rows_of(results, "3.2"):
        errors = results[name]["training_errors"]
        after = [" ".join(f"{run[n - 1]:.4f}" for run in errors) for n in (5, 10, 20)]
        rows.append([name.removeprefix("3.2-"), *after, f"{results[name]['acceptance']:.2f}"])
    return _table(("trajectory", "after 5 super-transitions", "after 10", "after 20", "acceptance"), rows)


def _sweep(figure: str) -> Callable[[Results], str]:
    def table(results: Results) -> str:
        stepsizes = (0.1, 0.3, 0.5, 0.7, 1.0)
        rows = []
        for name in _rows_of(results, figure):
            line = results[name]
            shown = [f"{gates.acceptance_near(line, stepsize):.2f}" for stepsize in stepsizes]
            rows.append([name, f"{gates.stability_limit(line):.3g}", *shown, _seconds(line)])
        return _table(
            ("row", "stable up to", *(f"acceptance near {one:g}" for one in stepsizes), "seconds"), rows
        )

    return table


def _autocorrelations(results: Results) -> str:
    rows = []
    for name in _rows_of(results, "3.6"):
        line = results[name]
        shown = [f"{gates.mean_autocorrelation(line, group):.2f}" for group in ("ih0", "bh0", "ho0")]
        error = _number(line, "squared_error", 5)
        rows.append([name, f"{line['acceptance']:.2f}", *shown, error, *_convergence(line)])
    groups = ("input weights", "hidden biases", "output weights")
    return _table(("row", "acceptance", *groups, "squared error", *_CONVERGENCE), rows)


def _sampling(results: Results) -> str:
    line = results["3.6-L8000"]
    *runs, pooled = line["errors_long"]
    *short_runs, short = line["errors_short"]
    rows = [
        ["Gaussian approximation, highest evidence; lowest test error", "0.00573; 0.00557", "-", "-"],
        [
            "super-transitions 51 to 150, each run",
            "0.00558 0.00554 0.00561",
            "-",
            " ".join(f"{error:.5f}" for error in runs),
        ],
        ["the same, pooled", "0.00557", "0.00544", f"{pooled:.5f} ± {line['squared_error_se']:.5f}"],
        [
            "super-transitions 16 to 30, each run",
            "0.00557 0.00562 0.00560",
            "-",
            " ".join(f"{error:.5f}" for error in short_runs),
        ],
        ["the same, pooled", "0.00558", "0.00546", f"{short:.5f}"],
        ["rejection", "13 %", "13.5 %", f"{1 - line['acceptance']:.1%}"],
        ["noise", "0.051 ± 0.002", "0.0496 ± 0.0019", f"{line['noise']:.4f} ± {line['noise_sd']:.4f}"],
        ["log probability", "-", "3.069 ± 0.010", _number(line, "log_probability")],
    ]
    rhat = ", ".join(_convergence(line)[:2])
    return _table(("", "book", "FBM", "here"), rows) + f"\n\nR-hat and ESS of outputs, of sigmas: {rhat}."


def _random_walks(results: Results) -> str:
    rows = []
    for name in _rows_of(results, "3.9"):
        line = results[name]
        book = BOOK[name]
        accepted = f"{book['accepted']:.2%}" if "accepted" in book else "-"
        distance = "at most 0.2" if "accepted" in book else f"{book['range']:g}"
        rows.append(
            [
                name.removeprefix("3.9-"),
                accepted,
                f"{line['accepted']:.2%}",
                distance,
                f"{line['range']:.3g}",
                _seconds(line),
            ]
        )
    return _table(("method and stepsize", "acceptance: book", "here", "range: book", "here", "seconds"), rows)


def _sizes(results: Results) -> str:
    rows = []
    for name in _rows_of(results, "4.2"):
        line = results[name]
        _, cases, units, prior = name.split("-")
        rows.append(
            [
                cases,
                units,
                prior,
                _number(line, "squared_error", 5),
                _number(line, "absolute_error", 4),
                f"{line['noise']:.4f}",
                *_convergence(line),
            ]
        )
    return _table(("set", "units", "prior", "squared error", "absolute error", "noise", *_CONVERGENCE), rows)


def _maximum_likelihood(results: Results) -> str:
    rows = []
    for name in _rows_of(results, "4.4"):
        line, units = results[name], name.removeprefix("4.4-")
        best = int(np.argmin(np.array(line["train_errors"])[:, -1]))
        bayes = results.get(f"4.2-A-{units}-gaussian")
        rows.append(
            [
                units,
                f"{line['train_error']:.5f}",
                _number(BOOK.get(name), "squared_error", 5),
                f"{line['squared_error']:.5f}",
                f"{min(line['test_errors'][best]):.5f}",
                _number(bayes, "squared_error", 5),
                _seconds(line),
            ]
        )
    errors = ("squared error, training cases", "test cases: book", "here", "least on the way", "posterior")
    return _table(("units", *errors, "seconds"), rows)


def _folds(results: Results) -> str:
    rows = []
    for kind in ("none", "6+6"):
        name = f"4.11-{kind}"
        if name not in results:
            continue
        lines = [results[f"{name}-{fold}"] for fold in range(10)]
        per_fold = " ".join(f"{line['squared_error']:.1f}" for line in lines)
        rhats = [line["outputs_rhat"] for line in lines if line.get("outputs_rhat") is not None]
        cells = [_number(of.get(name), "squared_error", 2) for of in (BOOK, FBM, results)]
        cells += [_number(of.get(name), "absolute_error", 2) for of in (BOOK, results)]
        seconds = sum(line["seconds"] for line in lines)
        rows.append([kind, *cells, per_fold, f"{max(rhats):.2f}" if rhats else "-", f"{seconds:.0f}"])
    header = ("hidden units", "squared error: book", "FBM", "here", "absolute error: book", "here")
    return _table((*header, "squared error of each fold", "largest R-hat of outputs", "seconds"), rows)


_SQUARED = {"squared_error": ("squared error", 5, 1.0)}
_BOSTON = {
    "squared_error": ("squared error", 2, 1.0),
    "absolute_error": ("absolute error", 2, 1.0),
    "minus_log_probability": ("minus log probability", 3, 1.0),
}
_GLASS = {
    "error_rate": ("error, %", 1, 100.0),
    "merged_error_rate": ("window glass as one class, %", 1, 100.0),
    "minus_log_probability": ("minus log probability", 3, 1.0),
}
TABLES: dict[str, Callable[[Results], str]] = {
    "3.2": _progress,
    "3.3": _sweep("3.3"),
    "3.6": _autocorrelations,
    "3.8": _sampling,
    "3.9": _random_walks,
    "3.10": _sweep("3.10"),
    "3.11": _sweep("3.11"),
    "4.2": _sizes,
    "4.4": _maximum_likelihood,
    "4.6": _measured("4.6", {"error_rate": ("error, %", 1, 100.0)}),
    "4.8": _measured("4.8", _SQUARED),
    "4.10": _measured("4.10", _BOSTON),
    "4.11": _folds,
    "4.13": _measured("4.13", _GLASS),
}
