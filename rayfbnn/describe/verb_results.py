"""Formats the results of verbs, and the status of a run, as the text that commands print."""

from __future__ import annotations

import json
import math
import shlex
import textwrap
from typing import TYPE_CHECKING

from rayfbnn.numerals import compared, plain
from rayfbnn.output.lines import frame_text, line_width, width_up_to

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arviz_stats import ELPDData

    from rayfbnn.answers.check import CheckResult
    from rayfbnn.answers.diagnostics import Diagnosis
    from rayfbnn.answers.fit_diagnosis import FitDiagnosis
    from rayfbnn.answers.judging.verdicts import Verdict
    from rayfbnn.answers.loo import LooComparison
    from rayfbnn.answers.predict import Prediction
    from rayfbnn.run.running import RunSummary
    from rayfbnn.selftest.selftest import Finding
    from rayfbnn.store.records import VerifyReport
    from rayfbnn.timing.steps import BenchResult, Cost


def run_text(summary: RunSummary) -> str:
    """Describe a run in one line: store, chains, draws, acceptance, divergences, replaced workers.

    A run in rounds that is not ok also gets the command to go on, or the reason that this would not help.
    """
    draws = f"{summary.chains} {summary.word} of {summary.draws:,} draws"
    replaced = f", {summary.failures} workers replaced" if summary.failures else ""
    way = f"; not ok; continue with: rayfbnn resume {shlex.quote(summary.path)} --until ok --max-time 30m"
    if summary.obstacle:
        diagnose = f"rayfbnn diagnose {shlex.quote(summary.path)}"
        way = f"; not ok; more iterations would not help, because {summary.obstacle}; what to do: {diagnose}"
    return f"{summary.path}: {draws}, {updates_text(summary)}{replaced}{way if summary.ok is False else ''}"


def updates_text(counts: RunSummary | Diagnosis) -> str:
    """Describe acceptance and divergences in the iterations kept for the posterior, and in the warm-up.

    Acceptance is omitted for fits and other runs that proposed nothing.
    """
    divergences = f"divergences {counts.divergences} (warm-up {counts.warmup_divergences})"
    if counts.acceptance is None and counts.warmup_acceptance is None:
        return divergences
    shares = _share(counts.acceptance), _share(counts.warmup_acceptance)
    return f"acceptance {shares[0]} (warm-up {shares[1]}), {divergences}"


def _share(acceptance: float | None) -> str:
    if acceptance is None:
        return "-"
    return f"{acceptance:.0%}" if acceptance >= 0.01 or acceptance == 0 else f"one in {1 / acceptance:,.0f}"


def prediction_text(prediction: Prediction) -> str:
    """Return a line for each measure of the summary, with its standard error."""
    rows, equal, stores = {}, prediction.equal_weights, prediction.stores
    for name, (value, error) in prediction.measures.items():
        with_error = "" if error is None else f" +- {plain(error, 2)}"
        others = "" if equal is None else f"   (equal weights {plain(equal.summary[name], 5)})"
        rows[name] = f"{plain(value, 5)}{with_error}{others}"
    width = max(18, 2 + max(map(len, rows)))
    if (fit := prediction.fit) is not None:
        from rayfbnn.answers.judging.fit import FALSE_ALARMS

        (p_value,), _ = compared([fit.p_value], FALSE_ALARMS, ".2g")
        rows["fit"] = fit.grade if math.isnan(fit.p_value) else f"{fit.grade} (p = {p_value})"
    if stores and (numbers := stores[0].chain_numbers) is not None:
        rows["chains"] = ", ".join(map(str, numbers))
    if any(store.skipped for store in stores):
        parts = dict.fromkeys(f"{store.skipped} of {store.committed}" for store in stores)
        rows["skipped"] = f"{', '.join(parts)} draws of each chain"
    return "\n".join(f"{name:<{width}}{words}" for name, words in rows.items())


def loo_text(result: ELPDData | LooComparison) -> str:
    """Return ArviZ's summary of one store, or the table that compares several."""
    from rayfbnn.answers.loo import LooComparison

    if isinstance(result, LooComparison):
        return frame_text(result.table, float_format=_four_digits)
    return str(result)


def loo_json(result: ELPDData | LooComparison) -> str:
    """Return what `loo` found as one JSON object."""
    from rayfbnn.answers.loo import LooComparison, elpd_dict

    return result.to_json() if isinstance(result, LooComparison) else json.dumps(elpd_dict(result))


def diagnosis_text(diagnosis: Diagnosis | FitDiagnosis) -> str:
    """Return the table of quantities, the thresholds, and the verdicts with their advice."""
    from rayfbnn.answers.fit_diagnosis import FitDiagnosis

    limits = ", ".join(f"{name} {value:g}" for name, value in diagnosis.thresholds.items())
    lines = [f"thresholds: {limits}"]
    verdicts: list[Verdict] = []
    if isinstance(diagnosis, FitDiagnosis):
        table = diagnosis.starts
        verdicts += [] if diagnosis.fit is None else [diagnosis.fit]
        lines += wrapped(list(diagnosis.reasons), "  ")
        words = "ok" if diagnosis.ok else "not ok"
    else:
        table = diagnosis.quantities
        verdicts += diagnosis.verdicts
        lines.insert(0, updates_text(diagnosis))
        words = "ok" if diagnosis.ok else f"not ok: {_not_ok_text(diagnosis)}"
    for verdict in verdicts:
        lines += ["", f"{verdict.subject}: {verdict.grade}", *wrapped(list(verdict.sentences), "  ")]
        if verdict.advice:
            lines += ["  what to do:", *wrapped(list(verdict.advice), "  - ")]
    end = ["", words] if verdicts else [words]
    return "\n".join([frame_text(table, float_format=_four_digits, na_rep="-"), *lines, *end])


def wrapped(sentences: list[str], first: str, at_most: int = 100) -> list[str]:
    """Wrap sentences to lines of at most 100 characters that fit, with later lines indented by four."""
    return [
        line
        for sentence in sentences
        for line in textwrap.wrap(
            sentence,
            width_up_to(at_most),
            initial_indent=first,
            subsequent_indent="    ",
            break_on_hyphens=False,
            break_long_words=False,
        )
    ]


def _not_ok_text(diagnosis: Diagnosis) -> str:
    words = {
        "cannot tell": "may not have converged",
        "not usable": "are not usable",
        "usable": "are usable but have not converged",
    }
    if diagnosis.decisive == "fit":
        known = diagnosis.fit is not None and diagnosis.fit.grade == "misfit"
        words_of_fit = "do not describe the targets" if known else "cannot be compared with the targets"
        return f"the predictive distributions {words_of_fit} (docs/not_ok.md)"
    of_parameters = diagnosis.hyperparameters if diagnosis.decisive == "all" else None
    short = [
        f"the {verdict.subject} {words.get(verdict.grade, 'have not converged')}"
        for verdict in (diagnosis.ladders, diagnosis.predictions, of_parameters)
        if verdict is not None and verdict.grade != "converged"
    ]
    return f"{', and '.join(short)} (docs/not_ok.md)"


def check_text(result: CheckResult) -> str:
    """Return the table of tests, the threshold, and the verdict."""
    return "\n".join(
        [
            frame_text(result.table, float_format=_four_digits),
            f"a p-value below {result.threshold:.3g} counts as a difference; by chance alone any occurs with"
            f" probability at most {result.false_alarm_rate:g}",
            "ok" if result.ok else "not ok",
        ]
    )


def verification_text(report: VerifyReport, *, repair: bool, dry_run: bool) -> str:
    """Return a line for each problem, the number of problems, and the repairs made or possible."""
    lines = [f"{problem.file}: {problem.what}" for problem in report.problems]
    lines.append(f"{report.files_checked} files checked, {len(report.problems)} problems")
    lines.extend(f"{'would ' if dry_run else ''}{step}" for step in report.repairs)
    if report.damage and dry_run:
        lines.append("nothing was changed; without --dry-run this is done, and resume recomputes the blocks")
    elif report.damage and repair:
        lines.append("damaged blocks were set aside; resume recomputes them")
    elif report.damage:
        lines.append("--repair sets damaged blocks aside, and resume recomputes them")
    if report.read_errors:
        lines.append("files that could not be read are left unchanged; find out why, then verify again")
    return "\n".join(lines)


def finding_text(finding: Finding) -> str:
    """Return one row of the table of `selftest`."""
    verdict = "ok" if finding.ok else "FAILED"
    return _finding_row(finding.test, finding.subject, finding.found, finding.allowed, verdict)


def _finding_row(*cells: str) -> str:
    widths = [14, 35, 11, 11, 0]  # the longest text of each column; the last one needs no padding
    width = line_width()
    if width is not None:  # what it is a test of is often short
        widths[1] = max(18, min(35, width - 52))
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))


def finding_header() -> str:
    """Return the header of the table of `selftest`."""
    return _finding_row("test", "of", "found", "allowed", "verdict")


def bench_text(result: BenchResult) -> str:
    """Return the rows as a table, and the estimate in words."""
    lines = [f"{result.device}, {result.dtype}: microseconds per leapfrog step of a chain"]
    width = max([19, *(len(row.shape) for row in result.rows)]) + 1
    lines.append(f"{'shape':<{width}}{'chains':>8}{'us/step':>12}{'GFLOP/s':>10}  kernel")
    lines += [
        f"{row.shape:<{width}}{row.chains:>8}{plain(row.us_per_step, 4):>12}{plain(row.gflops, 4):>10}"
        f"  {row.kernel}"
        for row in result.rows
    ]
    if (estimate := result.estimate) is not None:
        costs = list(dict.fromkeys((estimate.least, estimate.most)))
        lines.append(f"the whole run: {_costs_text(costs, estimate.workers)}")
        if len(costs) > 1:
            lines.append(
                "from the shortest to the longest automatic trajectories; the run finds their length"
            )
    return "\n".join(lines)


def _costs_text(costs: Sequence[Cost], workers: int) -> str:
    evaluations = " to ".join(f"{cost.gradient_evaluations:,}" for cost in costs)
    core = " to ".join(duration(cost.core_seconds) for cost in costs)
    together = " to ".join(duration(cost.seconds) for cost in costs)
    return (
        f"{evaluations} gradient evaluations, about {core} on one core,"
        f" {together} with {workers} worker{'s' if workers > 1 else ''}"
    )


def _four_digits(value: float) -> str:
    return plain(value, 4)


def duration(seconds: float) -> str:
    """Return a time such as "45 seconds", "12 minutes" or "3.4 hours"."""
    if seconds < 120:
        return f"{seconds:.2g} seconds" if seconds < 10 else f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{plain(seconds / 3600, 3)} hours"
