"""The ranking of configurations, from log probabilities that are made up."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from rayfbnn.study import Study, training_files
from rayfbnn.study.training_files import rank, ranking
from tests.support.small import small_spec


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study.create(
        tmp_path / "study", small_spec(tmp_path), seeds=2, vary=["model.noise=0.3:3,0.9:3,2:3"]
    )


def ranked(study: Study, monkeypatch: pytest.MonkeyPatch, *columns: list[float]) -> list[training_files.Rank]:
    """The ranking if the configurations gave the cases these log probabilities."""
    fit = SimpleNamespace(grade="no misfit")
    tables = [
        SimpleNamespace(table=pd.DataFrame({"log_probability": column}), verdict=None, fit=fit)
        for column in columns
    ]
    stores: Any = lambda studies, configuration: configuration  # noqa: E731
    predict: Any = lambda configuration, data: tables[configuration]  # noqa: E731
    monkeypatch.setattr(training_files, "stores_with_draws", stores)
    monkeypatch.setattr(training_files, "predict", predict)
    return rank(study, "cases.csv")


def test_differences_are_paired_and_cases_without_targets_are_left_out(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = ranked(study, monkeypatch, [-2, -8, math.nan], [-1, -6, math.nan], [-1.5, -6.5, math.nan])
    assert [one.configuration for one in ranks] == [1, 2, 0]
    assert [one.n_cases for one in ranks] == [2, 2, 2]
    assert [one.difference for one in ranks] == [0, 0.5, 1.5]
    assert [one.difference_se for one in ranks] == pytest.approx([0, 0, 0.5])  # lost 1 and 2


def test_a_case_that_a_configuration_finds_impossible_counts_against_it(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = ranked(study, monkeypatch, [-1, -math.inf], [-5, -6], [-5, -7])
    assert [one.configuration for one in ranks] == [1, 2, 0]
    assert ranks[-1].difference == math.inf and math.isnan(ranks[-1].difference_se)
    assert "-inf" in str(ranking(ranks))


def test_what_all_find_impossible_tells_nothing(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = ranked(study, monkeypatch, *[[-math.inf, -1.0]] * 3)
    assert [one.difference for one in ranks] == [0, 0, 0]


def test_the_status_of_a_study_asks_once_what_is_due(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time reads the records of all looks: a grid of many members would take minutes."""
    calls, due = [], study.due
    monkeypatch.setattr(study, "due", lambda: calls.append(1) or due())
    assert len(study.status().configurations) == 3
    assert len(calls) == 1
