"""Ranks the configurations of a study by the probability that they give to the targets of cases."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data import Source
from rayfbnn.errors import ConfigError
from rayfbnn.store.store import Store
from rayfbnn.study.merging import stores_with_draws
from rayfbnn.study.study_status import status_of_study, verdict_of
from rayfbnn.study.training_files import cases_of_each
from rayfbnn.verbs.arguments import chosen_draws
from rayfbnn.verbs.predicting import predict

if TYPE_CHECKING:
    from rayfbnn.answers.judging.fit import FitVerdict
    from rayfbnn.answers.judging.verdicts import Verdict
    from rayfbnn.study.files import StudyFiles
    from rayfbnn.study.plan import Configuration


@dataclass(frozen=True)
class Rank:
    """The place of a setting in the ranking.

    Attributes
    ----------
    configuration
        The number of its configuration, or of the first if it has several, one for each training file.
    label
        The values that distinguish it from the others.
    log_probability
        Mean over cases of the log probability density of a case's targets; over several training files, the
        mean of their means.
    difference
        Distance of the mean below that of the best setting; 0 for the best.
    difference_se
        Standard error of the difference, from the differences of the cases, or of the files if there are
        several; 0 for the best, NaN for one case.
    n_cases, n_files
        Number of cases with targets, and of training files.
    predictions, fit
        The grades of the verdicts on predictions at these cases, and on whether the predictive distributions
        describe their targets; training cases are then left out. Several training files are counted by grade.
        "" if there is no verdict.
    ok
        Whether all its configurations have converged; None before they are complete. If it is not True, the
        draws may come from chains that do not agree.
    """

    configuration: int
    label: str
    log_probability: float
    difference: float
    difference_se: float
    n_cases: int
    n_files: int
    predictions: str
    fit: str
    ok: bool | None


def rank(study: StudyFiles, data: Source | list[Source]) -> list[Rank]:
    """Return the settings, the best first; ConfigError if the cases have no targets.

    Settings are configurations, or configurations that differ only in their training files. With several
    files, differences are between the means of files, and their standard errors are from these.
    """
    sources = cases_of_each(study, data)
    by_setting: dict[str, list[Configuration]] = {}
    for one in study.configurations:
        by_setting.setdefault(one.setting, []).append(one)
    settings = list(by_setting.values())
    files = {tuple(one.data_hash for one in setting) for setting in settings}
    if len(files) > 1:
        raise ConfigError("data: settings that do not share their training files cannot be ranked")
    scored = [_scored(study, one.number, sources[one.number]) for one in study.configurations]
    by_file = [
        _with_targets([scored[one.number].log_probabilities for one in of_file])
        for of_file in zip(*settings, strict=True)
    ]
    n_cases = sum(values.shape[1] for values in by_file)
    values = by_file[0]
    if len(by_file) > 1:
        values = np.stack([of_file.mean(axis=1) for of_file in by_file], axis=1)
    status = status_of_study(study)
    best = int(values.mean(axis=1).argmax())
    ranks = []
    for setting, row in zip(settings, values, strict=True):
        lost = np.zeros(len(row))
        np.subtract(values[best], row, out=lost, where=values[best] != row)  # both may be -inf
        is_known = len(row) > 1 and np.isfinite(lost).all()
        error = float(lost.std(ddof=1)) / math.sqrt(len(row)) if is_known else math.nan
        ranks.append(
            Rank(
                configuration=setting[0].number,
                label=setting[0].setting,
                log_probability=float(row.mean()),
                difference=float(lost.mean()),
                difference_se=0.0 if setting is settings[best] else error,
                n_cases=n_cases,
                n_files=len(by_file),
                predictions=_grades([scored[one.number].predictions for one in setting]),
                fit=_grades([scored[one.number].fit for one in setting]),
                ok=verdict_of([status.configurations[one.number] for one in setting]),
            )
        )
    return sorted(ranks, key=lambda one: one.difference)


@dataclass(frozen=True)
class _Scored:
    """The scores of the predictions of a configuration.

    log_probabilities  of each case (n_cases,), NaN for cases without targets
    predictions, fit   grades of verdicts, "" if there is none
    """

    log_probabilities: Array
    predictions: str
    fit: str


def _scored(study: StudyFiles, configuration: int, data: Source) -> _Scored:
    """Predict the cases with the pooled draws of a configuration; ConfigError if they have no targets."""
    paths = stores_with_draws([study], configuration)
    prediction = predict(paths, data=data)
    if "log_probability" not in prediction.table:
        raise ConfigError("data: ranking needs cases with targets, and these have none")
    verdict, fit = prediction.verdict, prediction.fit or _fit_left_out(paths, prediction.verdict)
    return _Scored(
        np.asarray(prediction.table["log_probability"], dtype=np.float64),
        "" if verdict is None else verdict.grade,
        fit.grade,
    )


def _fit_left_out(paths: Sequence[str], predictions: Verdict | None) -> FitVerdict:
    """Return the verdict on fit where `predict` gives none, since the cases are the training cases."""
    from rayfbnn.answers.judging.fit import verdict_on_fit_left_out
    from rayfbnn.answers.judging.ladder_pooled import pooled_by_evidence

    runs, _ = pooled_by_evidence([chosen_draws(Store.open(path), 0) for path in paths])
    return verdict_on_fit_left_out(runs, predictions=predictions)


def _grades(of_files: Sequence[str]) -> str:
    """Return the grade that all files share, or how many files have each."""
    counts = Counter(of_files)
    if len(counts) == 1:
        return of_files[0]
    return ", ".join(f"{grade or 'none'} in {n} of {len(of_files)}" for grade, n in counts.most_common())


def _with_targets(rows: Sequence[Array]) -> Array:
    """Return the rows (n_settings, n_cases) without cases that have no targets."""
    values = np.stack(rows)
    values = values[:, ~np.isnan(values).any(axis=0)]
    if values.shape[1] == 0:
        raise ConfigError("data: ranking needs cases with targets, but all targets are missing")
    return values


def ranked_cases(ranks: list[Rank]) -> str:
    """Return in words what the ranking is from."""
    files = f", in {ranks[0].n_files} files" if ranks[0].n_files > 1 else ""
    return f"{ranks[0].n_cases} cases{files}"


def ranks_text(ranks: list[Rank]) -> str:
    """Return a line for each setting, the best first."""
    lines = [
        f"mean log probability of {ranked_cases(ranks)}, how far below the best, and the verdicts on"
        " predictions and fit:"
    ]
    widths = [max(len(getattr(one, name) or "-") for one in ranks) for name in ("predictions", "fit")]
    for one in ranks:
        below = "best" if one.difference == 0 else f"-{one.difference:.4g} +- {one.difference_se:.2g}"
        note = "" if one.ok else "  (not complete)" if one.ok is None else "  (not converged)"
        verdicts = f"{one.predictions or '-':<{widths[0]}}  {one.fit or '-':<{widths[1]}}"
        lines.append(f"{one.log_probability:10.4f}  {below:<20}  {verdicts}  {one.label}{note}")
    return "\n".join(lines)
