"""Studies over training files: each has its own posterior, and its own test file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from rayfbnn import api, cli
from rayfbnn.errors import ConfigError, DataError, StoreExistsError, StoreMismatchError
from rayfbnn.store.store import Store
from rayfbnn.study import Rule, Study
from rayfbnn.study.plan import Member
from rayfbnn.study.training_files import _grades
from tests.support.small import small_spec, write_train

RULE = Rule(max_rhat=9, max_mcse=9, least_draws=5, looks=1, cases=3)
FOLDS, NOISES = "data.train=train_{0..2}.csv", "model.noise=0.3:3,0.9:3"


def write_folds(folder: Path) -> Path:
    """Three folds of the small table's twelve cases, and the file of the small configuration."""
    head, *rows = write_train(folder).read_text().splitlines()
    for fold in range(3):
        test = rows[4 * fold : 4 * fold + 4]
        train = [row for row in rows if row not in test]
        (folder / f"train_{fold}.csv").write_text("\n".join([head, *train]) + "\n")
        (folder / f"test_{fold}.csv").write_text("\n".join([head, *test]) + "\n")
    spec = small_spec(folder, chains=2, chains_per_batch=2, draws_per_block=10)
    (folder / "run.toml").write_text(spec.to_toml())
    return folder / "run.toml"


def cases_of(folder: Path) -> list[Path]:
    return [folder / f"test_{fold}.csv" for fold in range(3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete study of two settings on three folds. The training files have been deleted before it ran."""
    folder = tmp_path_factory.mktemp("folds")
    study = Study.create(folder / "study", write_folds(folder), seeds=2, vary=[NOISES, FOLDS], rule=RULE)
    for file in folder.glob("train*.csv"):
        file.rename(file.with_suffix(".kept"))
    assert study.run(workers=0, progress=False).ok
    return folder


@pytest.fixture
def study(folder: Path) -> Study:
    return Study.open(folder / "study")


def rayfbnn(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["study", *(str(argument) for argument in arguments)])


def test_each_member_has_the_cases_of_its_training_file(study: Study, folder: Path) -> None:
    assert study.n_training_files == 3
    for one in study.configurations:
        train = folder / f"train_{one.number % 3}.csv"
        assert one.varied[1] == f"data.train={train.name}" and one.setting == one.varied[0]
        targets = np.genfromtxt(train.with_suffix(".kept"), delimiter=",", skip_header=1)[:, 2]
        for seed in (1, 2):
            store = Store.open(study.members.place(Member(one.number, seed)))
            assert store.spec.train_path == train
            assert store.data.targets[:, 0] == pytest.approx(targets, rel=1e-6)


def test_each_configuration_predicts_the_test_file_of_its_training_file(study: Study, folder: Path) -> None:
    result = study.predict_each(cases_of(folder), out=folder / "all.csv")
    assert [one.configuration.number for one in result.each] == list(range(6))
    for one in result.each:
        number = one.configuration.number
        stores = [study.members.place(Member(number, seed)) for seed in (1, 2)]
        alone = api.predict([str(store) for store in stores], data=one.cases)
        assert one.cases == str(cases_of(folder)[number % 3])
        assert one.prediction.summary == alone.summary and alone.summary["draws"] == 2 * 2 * 10
        rows = result.table[result.table["configuration"] == number].drop(columns="configuration")
        assert rows.reset_index(drop=True).equals(alone.table)
    assert len((folder / "all.csv").read_text().splitlines()) == 1 + 6 * 4


def test_members_of_two_training_files_are_never_pooled(study: Study, folder: Path) -> None:
    stores = [str(study.members.place(Member(number, 1))) for number in (0, 1)]
    with pytest.raises(StoreMismatchError):
        api.predict(stores, data=cases_of(folder)[0])
    with pytest.raises(ConfigError, match="there are 3 training files; name a configuration"):
        study.predict(cases_of(folder)[0])


def test_means_are_over_training_files(study: Study, folder: Path) -> None:
    result = study.predict_each(cases_of(folder))
    for row, start in zip(result.means.to_dict("records"), (0, 3), strict=True):
        errors = np.array([one.prediction.summary["y_rmse"] for one in result.each[start : start + 3]])
        assert row["setting"] == study.configurations[start].varied[0] and row["training_files"] == 3
        assert row["y_rmse"] == pytest.approx(errors.mean())
        assert row["y_rmse_se"] == pytest.approx(errors.std(ddof=1) / 3**0.5)


def test_one_file_of_cases_does_for_all_training_files(study: Study, folder: Path) -> None:
    result = study.predict_each(cases_of(folder)[0])
    assert {one.cases for one in result.each} == {str(cases_of(folder)[0])}


def test_verdicts_of_files_are_counted_where_they_differ() -> None:
    assert _grades(["misfit"]) == _grades(["misfit", "misfit"]) == "misfit"
    assert _grades(["misfit", "no misfit", "no misfit"]) == "no misfit in 2 of 3, misfit in 1 of 3"
    assert _grades(["", ""]) == "" and _grades(["", "misfit"]) == "none in 1 of 2, misfit in 1 of 2"


def test_a_ranking_has_the_verdicts_of_each_setting(study: Study, folder: Path) -> None:
    each = study.predict_each(cases_of(folder))
    assert each.summary["fit"].tolist() == [
        one.prediction.fit.grade for one in each.each if one.prediction.fit
    ]
    for one in study.rank(cases_of(folder)):
        of_setting = [row.prediction for row in each.each if row.configuration.setting == one.label]
        assert one.predictions == _grades([found.verdict.grade for found in of_setting if found.verdict])
        assert one.fit == _grades([found.fit.grade for found in of_setting if found.fit]) == "cannot tell"


def test_settings_are_ranked_by_the_means_of_files(study: Study, folder: Path) -> None:
    best, other = study.rank(cases_of(folder))
    means = np.array(
        [one.prediction.summary["log_probability"] for one in study.predict_each(cases_of(folder)).each]
    )
    lost = means.reshape(2, 3)[best.configuration // 3] - means.reshape(2, 3)[other.configuration // 3]
    assert {best.label, other.label} == {"model.noise=0.3:3", "model.noise=0.9:3"}
    assert (best.n_cases, best.n_files, best.ok) == (12, 3, True)
    assert other.difference == pytest.approx(lost.mean()) and other.difference > 0
    assert other.difference_se == pytest.approx(lost.std(ddof=1) / 3**0.5)


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (["test_0.csv", "test_1.csv"], "data: the study has 3 training files; .* got 2"),
        (["test_0.csv", "test_1.csv", "test_7.csv"], "no such file: .*test_7.csv"),
    ],
)
def test_wrong_files_of_cases_are_refused(
    study: Study, folder: Path, sources: list[str], message: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        study.predict_each([folder / name for name in sources], out=folder / "wrong.csv")
    assert not (folder / "wrong.csv").exists()


def test_the_shell_takes_a_list_of_files(study: Study, folder: Path) -> None:
    out = folder / "shell.csv"
    result = rayfbnn("predict", study.place, "--data", folder / "test_{0..2}.csv", "--out", out, "--json")
    document = json.loads(result.stdout)
    assert [row["data"] for row in document["configurations"]] == list(map(str, cases_of(folder))) * 2
    assert [row["training_files"] for row in document["means"]] == [3, 3]
    listed = ",".join(map(str, cases_of(folder)))
    text = rayfbnn("predict", study.place, "--data", listed).stdout
    assert "means over training files:" in text and "data.train=train_2.csv" in text
    alone = rayfbnn("predict", study.place, "--data", folder / "test_1.csv", "--configuration", 1, "--json")
    assert json.loads(alone.stdout)["y_rmse"] == pytest.approx(document["configurations"][1]["y_rmse"])
    page = rayfbnn("report", study.place, "--data", listed, "--out", folder / "page.html")
    assert "12 cases, in 3 files" in page.stdout
    assert "file by file" in (folder / "page.html").read_text()


@pytest.mark.long
def test_studies_of_other_training_files_are_not_merged(study: Study, folder: Path, tmp_path: Path) -> None:
    def other(name: str, train: str) -> Study:
        made = Study.create(tmp_path / name, spec, seeds=[5], vary=[NOISES, train], rule=RULE)
        made.run(workers=0, progress=False)
        return made

    spec = write_folds(tmp_path)
    merged = study.predict_each(cases_of(folder), others=[other("same", FOLDS)])
    assert [one.prediction.summary["draws"] for one in merged.each] == [3 * 2 * 10] * 6
    with pytest.raises(StoreMismatchError, match="the training cases are not those of"):
        study.predict_each(
            cases_of(folder), others=[other("order", "data.train=train_{1..2}.csv,train_0.csv")]
        )


# Refusals, after which nothing has been created.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"vary": ["data.train=train_{0..3}.csv"]},
            r"configuration 3 \(data.train=train_3.csv\): no such file",
        ),
        (
            {"vary": ["data.train=train_0.csv,copy.csv"]},
            r"0 \(.*train_0.csv\) and 1 \(.*copy.csv\) are the same",
        ),
        ({"vary": [FOLDS], "data": "other.csv"}, "data: must be left out if data.train is varied"),
        ({"vary": ["data.train=train_{2..0}.csv"]}, "must be a range of 1 to 1000 numbers"),
        ({"vary": ["data.train=train_{0..999999999}.csv"]}, "must be a range of 1 to 1000 numbers"),
        ({"vary": ["data.train='train_{0..2}.csv'"]}, r"no such file: .*train_{0\.\.2}.csv"),
        ({"vary": ["data.train=train_0.csv,train_1.csv; chains=2"]}, "data.train has 2 and chains has 1"),
    ],
)
def test_wrong_training_files_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    spec = write_folds(tmp_path)
    (tmp_path / "copy.csv").write_bytes((tmp_path / "train_0.csv").read_bytes())
    with pytest.raises((ConfigError, DataError), match=message):
        Study.create(tmp_path / "study", spec, seeds=2, **options)
    assert not (tmp_path / "study").exists()


def test_ranges_keep_leading_zeros(tmp_path: Path) -> None:
    spec = write_folds(tmp_path)
    (tmp_path / "train_0.csv").rename(tmp_path / "train_09.csv")
    (tmp_path / "train_1.csv").rename(tmp_path / "train_10.csv")
    study = Study.create(tmp_path / "study", spec, seeds=2, vary=["data.train=train_{09..10}.csv"])
    assert [one.label for one in study.configurations] == [
        "data.train=train_09.csv",
        "data.train=train_10.csv",
    ]


def test_a_creation_that_crashed_is_completed_only_for_the_same_files(tmp_path: Path) -> None:
    spec = write_folds(tmp_path)
    Study.create(tmp_path / "study", spec, seeds=2, vary=[FOLDS])
    (tmp_path / "study" / "study.json").unlink()
    with pytest.raises(StoreExistsError, match="belongs to another, unfinished study"):
        Study.create(tmp_path / "study", spec, seeds=2, vary=["data.train=train_{1..2}.csv,train_0.csv"])
    study = Study.create(tmp_path / "study", spec, seeds=2, vary=[FOLDS])
    assert sorted(study.members.names()) == [Member(number, 1).name for number in range(3)]
