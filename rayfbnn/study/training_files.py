"""The configurations of a study, or of merged studies: their predictions and their ranking."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data import Source, is_path
from rayfbnn.data.training import read_cases
from rayfbnn.errors import ConfigError, StoreError, StoreMismatchError, at_most_ten
from rayfbnn.output.facts import Answer, TableFact
from rayfbnn.store.store import Store
from rayfbnn.study.files import Due, Look, StudyFiles, take_look
from rayfbnn.study.plan import Member
from rayfbnn.study.study_status import status_of_study, verdict_of
from rayfbnn.verbs.arguments import chosen_draws, output_path
from rayfbnn.verbs.predicting import check_table_path, predict, write_table

if TYPE_CHECKING:
    import pandas as pd

    from rayfbnn.answers.judging.fit import FitVerdict
    from rayfbnn.answers.judging.verdicts import Verdict
    from rayfbnn.answers.predict import Prediction
    from rayfbnn.study.plan import StudyConfiguration


_NOT_MEASURES = ("cases", "draws", "early_phase")


@dataclass(frozen=True)
class ConfigurationPrediction:
    """The prediction of one configuration, from all draws of its members.

    Attributes
    ----------
    configuration
        The configuration, with its number and the values that distinguish it.
    cases
        The file of the cases; "" if they are not from a file.
    prediction
        The predictions.
    """

    configuration: StudyConfiguration
    cases: str
    prediction: Prediction


@dataclass(frozen=True)
class StudyPrediction(Answer):
    """The predictions of all configurations of a study. Draws of two configurations are never pooled.

    Attributes
    ----------
    each
        The prediction of each configuration, in the order of the grid.
    """

    each: tuple[ConfigurationPrediction, ...]

    @property
    def table(self) -> pd.DataFrame:
        """The tables of all configurations, one below the other; the first column is `configuration`."""
        import pandas as pd

        tables = [one.prediction.table.copy() for one in self.each]
        for one, table in zip(self.each, tables, strict=True):
            table.insert(0, "configuration", one.configuration.number)
        return pd.concat(tables, ignore_index=True)

    @property
    def summary(self) -> pd.DataFrame:
        """A row for each configuration: its label, cases, draws, measures of error, and verdicts.

        The last two columns are the grades of the verdicts on predictions and on fit.
        """
        import pandas as pd

        return pd.DataFrame([_row(one) for one in self.each])

    @property
    def means(self) -> pd.DataFrame:
        """A row for each setting: the mean of each measure over its training files.

        <measure>_se is the standard error of the mean, from the differences between training files; it is NaN
        for a single file. It does not allow for cases that training files share, as in cross-validation.
        """
        import pandas as pd

        settings = dict.fromkeys(one.configuration.setting for one in self.each)
        return pd.DataFrame(
            [
                _mean_row(name, [one for one in self.each if one.configuration.setting == name])
                for name in settings
            ]
        )

    def to_json(self) -> str:
        """Return summary and means as one JSON object; unknown values are null."""
        tables = {"configurations": self.summary, "means": self.means}
        return json.dumps(
            {
                name: json.loads(table.to_json(orient="records", double_precision=15))
                for name, table in tables.items()
            }
        )

    def facts(self) -> list[TableFact]:
        """Return summary and means."""
        tables = (("", self.summary), ("means over training files:", self.means))
        return [
            TableFact(list(map(str, table)), list(table.itertuples(index=False, name=None)), title, digits=5)
            for title, table in tables
        ]


def _row(one: ConfigurationPrediction) -> dict[str, Any]:
    verdict, fit = one.prediction.verdict, one.prediction.fit
    measures = {name: value for name, value in one.prediction.summary.items() if not name.endswith("_se")}
    head = {"configuration": one.configuration.number, "label": one.configuration.label, "data": one.cases}
    grades = {"verdict": "" if verdict is None else verdict.grade, "fit": "" if fit is None else fit.grade}
    return {**head, **measures, **grades}


def _mean_row(setting: str, of_files: Sequence[ConfigurationPrediction]) -> dict[str, Any]:
    import pandas as pd

    summaries = pd.DataFrame([one.prediction.summary for one in of_files])
    row: dict[str, Any] = {"setting": setting, "training_files": len(of_files)}
    for name in map(str, summaries):
        if name not in _NOT_MEASURES and not name.endswith("_se"):
            row[name] = float(summaries[name].mean(skipna=False))
            row[f"{name}_se"] = float(summaries[name].std(skipna=False)) / math.sqrt(len(of_files))
    return row


def cases_of_each(study: StudyFiles, data: Source | list[Source]) -> list[Source]:
    """Return the cases to predict with each configuration, in the order of the grid.

    data  cases for all training files, or a list of them: one for each training file, in the order of the
          study. ConfigError if their numbers differ
    """
    training = list(study.plan.first_with_cases)  # in the order of the grid
    sources = data if isinstance(data, list) else [data]
    if len(sources) not in (1, len(training)):
        raise ConfigError(
            f"data: the study has {len(training)} training files; give one file of cases for each of them, in"
            f" their order, or one for all, got {len(sources)}"
        )
    sources = sources if len(sources) == len(training) else sources * len(training)
    return [sources[training.index(one.data_hash)] for one in study.configurations]


def predict_each(
    study: StudyFiles, data: Source | list[Source], others: Sequence[StudyFiles], out: str | Path | None
) -> StudyPrediction:
    """Predict with each configuration the cases of its training file. All files are read before the first."""
    sources = cases_of_each(study, data)
    stores = [stores_with_draws((study, *others), one.number) for one in study.configurations]
    for one, source in zip(study.configurations, sources, strict=True):
        spec = study.members.spec(Member(one.number, study.plan.seeds[0]))
        read_cases(source, spec)
    if out is not None:
        inputs = [Path(source) for source in sources if is_path(source)]
        check_table_path(output_path(out), inputs)
    each = tuple(
        ConfigurationPrediction(one, str(source) if is_path(source) else "", predict(paths, data=source))
        for one, source, paths in zip(study.configurations, sources, stores, strict=True)
    )
    result = StudyPrediction(each)
    if out is not None:
        write_table(result.table, Path(out))
    return result


_log = logging.getLogger(__name__)

_MOST_SEEDS = 8  # that a warning lists


def look_at_committed(studies: Sequence[StudyFiles], configuration: int) -> Look:
    """Judge the draws that every member of a configuration has now, by the rule of the first study.

    The result is not ok if a member failed or has not begun; this is listed among the reasons.
    """
    _check(studies, configuration)
    stores: dict[int, Store] = {}
    failed: dict[int, str] = {}
    for study in studies:
        for seed in study.seeds():
            member = Member(configuration, seed)
            reason = study.members.failure(member)
            if reason is not None:
                failed[seed] = reason
            elif study.members.is_there(member):
                stores[seed] = study.members.open(member)
            else:
                failed[seed] = "not begun"
    n_draws = min((store.committed_draws for store in stores.values()), default=0)
    if n_draws == 0:
        raise StoreError(f"{studies[0].place}: not every started member has draws; run the study first")
    lengths = {seed: store.committed_draws for seed, store in stores.items()}
    if longer := _different_lengths(lengths):
        _log.warning("%s: %s; the first %d of each are judged", studies[0].place, longer, n_draws)
    number = len(studies[0].looks(configuration)) + 1
    due = Due(number, n_draws, tuple(sorted([*stores, *failed])), is_last=True)
    return take_look(due, n_draws, stores, failed, studies[0].plan.rule)


def stores_with_draws(studies: Sequence[StudyFiles], configuration: int) -> list[str]:
    """Return the stores of a configuration's members that have draws; StoreError if none has."""
    _check(studies, configuration)
    members = [(study, Member(configuration, seed)) for study in studies for seed in study.seeds()]
    lengths = {
        member.seed: study.members.open(member).committed_draws if study.members.is_there(member) else 0
        for study, member in members
    }
    with_draws = {seed: length for seed, length in lengths.items() if length}
    if not with_draws:
        label = studies[0].configurations[configuration].label
        raise StoreError(f"{studies[0].place}: no member of {label} has draws yet; run the study first")
    if len(with_draws) < len(lengths):
        absent = [seed for seed in lengths if seed not in with_draws]
        _log.warning("%s: %s without draws are left out", studies[0].place, _seeds(absent))
    if longer := _different_lengths(with_draws):
        _log.warning("%s: %s; longer members count for more in what is pooled", studies[0].place, longer)
    return [str(study.members.place(member)) for study, member in members if member.seed in with_draws]


def _different_lengths(lengths: Mapping[int, int]) -> str:
    """Return how many draws the chains of which members have, or "" if all have the same number.

    lengths  the number of draws in each chain of a member, by its seed
    """
    different = sorted(set(lengths.values()))
    if len(different) < 2:
        return ""
    parts = [
        f"{length} draws in each chain of {_seeds([seed for seed in lengths if lengths[seed] == length])}"
        for length in different
    ]
    return f"members have different lengths: {', '.join(at_most_ten(parts))}"


def _seeds(seeds: Sequence[int]) -> str:
    """Return the seeds of some members as text, the first few by their numbers."""
    listed = ", ".join(map(str, seeds[:_MOST_SEEDS]))
    more = f" and {len(seeds) - _MOST_SEEDS} more" if len(seeds) > _MOST_SEEDS else ""
    return f"seed{'s' if len(seeds) > 1 else ''} {listed}{more}"


def _check(studies: Sequence[StudyFiles], configuration: int) -> None:
    """Raise an error unless all studies are of the same posterior, and no two have the same seed."""
    first = studies[0]
    first.check_configuration(configuration)
    seeds: dict[int, StudyFiles] = {}
    for study in studies:
        pairs = list(zip_longest(study.configurations, first.configurations))
        if any(one is None or other is None or one.data_hash != other.data_hash for one, other in pairs):
            raise StoreMismatchError(f"{study.place}: the training cases are not those of {first.place}")
        free = {"seed": None, "data": None}  # the hashes of the cases are compared instead
        if any(one.keys | free != other.keys | free for one, other in pairs):
            raise StoreMismatchError(f"{study.place}: the configurations are not those of {first.place}")
        for seed in study.seeds():
            if seed in seeds:
                raise ConfigError(
                    f"{study.place}: seed {seed} is in {seeds[seed].place} too; the same seed gives the same"
                    " draws, which must not be counted twice"
                )
            seeds[seed] = study


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
        "" without a verdict.
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
    by_setting: dict[str, list[StudyConfiguration]] = {}
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
    from rayfbnn.answers.judging.fit import verdict_on_fit
    from rayfbnn.answers.predict import weighed_by_evidence

    runs, _ = weighed_by_evidence([chosen_draws(Store.open(path), 0) for path in paths])
    return verdict_on_fit(runs, predictions=predictions)


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


def ranking(ranks: list[Rank]) -> TableFact:
    """Return a table with a row for each setting, the best first."""
    head = (
        "setting",
        "log probability",
        "below the best",
        "standard error",
        "predictions",
        "fit",
        "complete",
    )
    complete = {True: "converged", False: "not converged", None: "not complete"}
    rows = [
        (one.label, one.log_probability, one.difference, one.difference_se)
        + (one.predictions or "-", one.fit or "-", complete[one.ok])
        for one in ranks
    ]
    files = f", in {ranks[0].n_files} files" if ranks[0].n_files > 1 else ""
    title = f"mean log probability of {ranks[0].n_cases} cases{files}"
    return TableFact(head, rows, title)
