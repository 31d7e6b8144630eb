"""Stores held against a reference: what is zero, what by hand, and what shrinks."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.stats

from rayfbnn.answers.comparison import COLUMNS, Compared, Comparison, compare_draws
from rayfbnn.answers.predict import predict_from_draws
from rayfbnn.errors import DataError, StoreMismatchError
from tests.support.store.standin_store import OTHER_MODELS, make_data, make_run, make_spec, run_of

KINDS = ("real", "binary", "class")


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_is_at_no_distance_from_itself(kind: str) -> None:
    run, again = make_run(make_spec(kind)), make_run(make_spec(kind))
    unseen = make_data(run.spec, 9, seed=41)
    rows, floor = compare_draws(run, {"same": again}, unseen.inputs, unseen.targets)
    values = rows["same"].values
    zero = ("w2", "mean_difference") if kind == "real" else ("total_variation", "kl")
    for name in (
        *zero,
        "log_probability_difference",
        f"{'squared_error' if kind == 'real' else 'error_rate'}_difference",
    ):
        assert values[name] == pytest.approx(0, abs=1e-10), name
        assert kind != "real" or floor.values["w2"] > 0.01
    assert values["sd_ratio"] == pytest.approx(1)
    assert values.get("agreement", 1) == 1
    assert rows["same"].log_sigma and set(rows["same"].log_sigma.values()) == {0.0}


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_predict(kind: str) -> None:
    run, other = make_run(make_spec(kind)), make_run(make_spec(kind, seed=2), seed=5)
    unseen = make_data(run.spec, 9, seed=41)
    unseen.targets[3, 0] = np.nan
    rows, _ = compare_draws(run, {"other": other}, unseen.inputs, unseen.targets)
    summary, of_exact = (predict_from_draws([run], unseen.inputs, unseen.targets) for run in (other, run))
    for name in ("log_probability", "squared_error" if kind == "real" else "error_rate"):
        assert rows["other"].values[name] == pytest.approx(summary.summary[name])
        assert rows["other"].values[f"{name}_se"] == pytest.approx(summary.summary[f"{name}_se"])
        paired = (summary.table[name] - of_exact.table[name]).dropna()
        assert rows["other"].values[f"{name}_difference"] == pytest.approx(paired.mean())
        error = paired.std() / np.sqrt(len(paired))
        assert rows["other"].values[f"{name}_difference_se"] == pytest.approx(error)
    if kind == "real":
        values = rows["other"].values
        assert values["rmse"] == pytest.approx(np.sqrt(values["squared_error"]))
        assert values["rmse_se"] == pytest.approx(values["squared_error_se"] / (2 * values["rmse"]))


@pytest.mark.parametrize("kind", ["binary", "class"])
def test_the_calibration_error_is_the_one_by_hand(kind: str) -> None:
    """Fifteen bins of the largest probability; in each, the gap between its sum and the right guesses."""
    run, other = make_run(make_spec(kind)), make_run(make_spec(kind, seed=2), seed=5)
    unseen = make_data(run.spec, 40, seed=41)
    unseen.targets[3, 0] = np.nan
    rows, _ = compare_draws(run, {"other": other}, unseen.inputs, unseen.targets)
    table, gaps = predict_from_draws([other], unseen.inputs).table, np.zeros(15)
    for name, labels in zip(run.spec.data.targets, unseen.targets.T, strict=True):
        for case in np.flatnonzero(~np.isnan(labels)):
            ones = [f"p_{label}" for label in (0, 1, 2)] if kind == "class" else [f"{name}_p"]
            p = table.loc[case, ones].to_numpy()
            p = p if kind == "class" else np.append(1 - p, p)
            gaps[int(15 * p.max())] += (p.argmax() == labels[case]) - p.max()
    n_known = np.isfinite(unseen.targets).sum()
    assert rows["other"].values["ece"] == pytest.approx(np.abs(gaps).sum() / n_known)


@pytest.mark.parametrize("kind", ["binary", "class"])
def test_the_expected_error_rate_is_that_of_predict_where_all_targets_are_known(kind: str) -> None:
    run, other = make_run(make_spec(kind)), make_run(make_spec(kind, seed=2), seed=5)
    unseen = make_data(run.spec, 9, seed=41)
    rows, floor = compare_draws(run, {"other": other}, unseen.inputs, unseen.targets)
    summary = predict_from_draws([other], unseen.inputs).summary
    for name in ("expected_error_rate", "expected_error_rate_se"):
        assert rows["other"].values[name] == pytest.approx(summary[name])
    assert floor.values["expected_error_rate"] > 0
    table = Comparison("exact.zarr", {**rows, "halves": floor})
    assert "expected error rate" in table.to_text() and "expected_error_rate_se" in table.to_frame()
    unseen.targets[3, 0] = np.nan
    with_missing, _ = compare_draws(run, {"other": other}, unseen.inputs, unseen.targets)
    known = predict_from_draws([other], unseen.inputs, unseen.targets).table
    if kind == "class":  # the only target of the case: it is left out, as of the calibration error
        expected = known["expected_error_rate"].drop(index=3).mean()
        assert with_missing["other"].values["expected_error_rate"] == pytest.approx(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_of_cases_give_the_same(kind: str) -> None:
    run, other = make_run(make_spec(kind)), make_run(make_spec(kind, seed=2), seed=5)
    unseen = make_data(run.spec, 9, seed=41)
    whole, in_pieces = (
        compare_draws(run, {"other": other}, unseen.inputs, unseen.targets, memory_bytes=memory)[0]["other"]
        for memory in (256e6, 3e4)
    )
    for name, value in whole.values.items():
        assert in_pieces.values[name] == pytest.approx(value), name


def test_distances_of_labels_are_those_by_hand() -> None:
    run, other = make_run(make_spec("class")), make_run(make_spec("class", seed=2), seed=5)
    unseen = make_data(run.spec, 9, seed=41)
    rows, _ = compare_draws(run, {"other": other}, unseen.inputs, unseen.targets)
    labels = ["p_0", "p_1", "p_2"]
    p, q = (predict_from_draws([run], unseen.inputs).table[labels].to_numpy() for run in (run, other))
    assert rows["other"].values["total_variation"] == pytest.approx(np.abs(p - q).sum(axis=1).mean() / 2)
    assert rows["other"].values["kl"] == pytest.approx((p * np.log(p / q)).sum(axis=1).mean())
    assert rows["other"].values["agreement"] == (p.argmax(axis=1) == q.argmax(axis=1)).mean()


def test_the_crps_of_one_draw_is_that_of_its_gaussian() -> None:
    """A store of two equal draws predicts a Gaussian, whose score has a closed form."""
    spec = make_spec(chains=1, chains_per_batch=1)
    run = make_run(spec, n_draws=2)
    run.store.positions[:], run.store.precisions[:] = run.store.positions[:, :1], run.store.precisions[:, :1]
    unseen = make_data(spec, 9, seed=41)
    rows, _ = compare_draws(run, {"one": run}, unseen.inputs, unseen.targets)
    table = predict_from_draws([run], unseen.inputs).table
    scores = []
    for target, name in enumerate(spec.data.targets):
        mean, sd = table[f"{name}_mean"].to_numpy(), table[f"{name}_sd"].to_numpy()
        z, norm = (unseen.targets[:, target] - mean) / sd, scipy.stats.norm
        scores.append(sd * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi)))
    assert rows["one"].values["crps"] == pytest.approx(np.mean(scores), rel=0.02)


@pytest.mark.parametrize("model", OTHER_MODELS, ids=lambda model: model.get("hazard", model["kind"]))
def test_every_data_model_can_be_compared(model: dict[str, str]) -> None:
    run, inputs, targets = run_of(model)
    rows, floor = compare_draws(run, {"same": run}, inputs, targets)
    assert rows["same"].values["w2"] == 0 < floor.values["w2"]
    assert 0 <= rows["same"].values["coverage"] <= 1
    assert rows["same"].values["crps"] > 0


def test_the_floor_shrinks_as_draws_are_added() -> None:
    """Independent draws: 64 times as many divide the distance between halves by about eight."""
    floors = []
    for n_draws in (25, 1600):
        run = make_run(make_spec("binary", chains=2), n_draws=n_draws)
        unseen = make_data(run.spec, 30, seed=41)
        floors.append(compare_draws(run, {}, unseen.inputs, unseen.targets)[1].values["total_variation"])
    assert 3 < floors[0] / floors[1] < 20


def test_other_posteriors_are_refused() -> None:
    run, other = make_run(make_spec()), make_run(make_spec(model__noise="0.4:4"))
    unseen = make_data(run.spec, 9, seed=41)
    with pytest.raises(StoreMismatchError, match="noise"):
        compare_draws(run, {"other": other}, unseen.inputs, unseen.targets)


def test_cases_without_targets_are_refused() -> None:
    run = make_run(make_spec())
    unseen = make_data(run.spec, 9, seed=41)
    with pytest.raises(DataError, match="known target"):
        compare_draws(run, {}, unseen.inputs, np.full_like(unseen.targets, np.nan))


def test_the_table_says_the_same_in_every_form() -> None:
    run, other = make_run(make_spec()), make_run(make_spec(seed=2), seed=5)
    unseen = make_data(run.spec, 9, seed=41)
    rows, floor = compare_draws(run, {"hmc": run, "bbb": other}, unseen.inputs, unseen.targets)
    table = Comparison("hmc", {**rows, "halves of hmc": floor}, ("R-hat is 1.2",))
    document, frame = json.loads(table.to_json()), table.to_frame()
    assert document["reference"] == "hmc" and not document["ok"]
    assert [row["method"] for row in document["rows"]] == ["hmc", "bbb", "halves of hmc"]
    assert document["rows"][1]["w2"] == frame["w2"][1] == rows["bbb"].values["w2"]
    assert document["rows"][1]["log_sigma"]["sigma_ih0"] == frame["log_sigma[sigma_ih0]"][1]
    assert f"{rows['bbb'].values['w2']:.2f}" in table.to_text()
    assert "may not have converged: R-hat is 1.2" in table.to_text()
    assert set(rows["bbb"].values) <= {key for name in COLUMNS for key in (name, f"{name}_se")}
    assert "<table>" in table._repr_html_()


def test_values_with_tiny_errors_are_shown_with_two_digits_of_them() -> None:
    reference = Compared({"kl": 0.0, "kl_se": 0.0}, {"sigma_ih0": 0.0})
    close = Compared({"kl": 1.0387e-6, "kl_se": 4.313e-8}, {"sigma_ih0": 0.014})
    text = Comparison("hmc", {"hmc": reference, "halves of hmc": close}).to_text()
    assert "1.04e-06 +- 4.3e-08" in text and "+0.01 (ih0)" in text
    assert "+0.00" not in text
