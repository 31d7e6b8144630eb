"""Predictions of every configuration of a study, each with the cases that belong to its training file."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfbnn.data import Source, is_path
from rayfbnn.data.training import read_cases
from rayfbnn.errors import ConfigError
from rayfbnn.output.lines import frame_text
from rayfbnn.study.members import Member
from rayfbnn.study.merging import stores_with_draws
from rayfbnn.verbs.arguments import output_path
from rayfbnn.verbs.predicting import check_table_path, predict, write_table

if TYPE_CHECKING:
    import pandas as pd

    from rayfbnn.answers.predict import Prediction
    from rayfbnn.study.files import StudyFiles
    from rayfbnn.study.plan import Configuration

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

    configuration: Configuration
    cases: str
    prediction: Prediction


@dataclass(frozen=True)
class StudyPrediction:
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

    def __str__(self) -> str:
        """Return summary and means as text."""
        tables = [
            frame_text(table, index=False, float_format="{:.5g}".format, na_rep="-")
            for table in (self.summary, self.means)
        ]
        return "\n\nmeans over training files:\n".join(tables)


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

    data  cases for all training files, or a list of them: one for each training file, in the order in which
          they were given to the study. ConfigError if their numbers differ
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
