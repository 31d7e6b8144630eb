"""Predictions equal brute force over all draws in memory, for any chunks, pooled or not."""

from __future__ import annotations

import itertools
import json
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

from rayfbnn.answers.predict import predict_from_draws
from rayfbnn.arrays import Array
from rayfbnn.errors import DataError, StoreError, StoreMismatchError
from rayfbnn.model.layout import ParameterLayout
from rayfbnn.reduce import predictive
from rayfbnn.reduce.effective import mcse_mean
from tests.support.store.standin_store import (
    MemoryStore,
    endless,
    make_data,
    make_run,
    make_spec,
    normal,
    view,
)

N_TEST = 9


def unseen(run: MemoryStore) -> tuple[Array, Array]:
    """Inputs and targets that no draw has seen, as in a file."""
    data = make_data(run.spec, N_TEST, seed=41)
    return data.inputs, data.targets


def outputs_by_hand(run: MemoryStore, inputs: Array) -> Array:
    """The network written out, (n_chains, n_draws, n_cases, n_outputs)."""
    x = (inputs - run.data.input_center) / run.data.input_scale
    w = ParameterLayout.from_network(run.spec.network).views(run.store.positions)
    hidden = np.tanh(np.einsum("ni,cdih->cdnh", x, w["ih0"]) + w["bh0"][:, :, None])
    return np.einsum("cdnh,cdho->cdno", hidden, w["ho0"]) + w["bo"][:, :, None]


def noise_by_hand(run: MemoryStore) -> Array:
    """Noise sigma of each target, (n_chains, n_draws, 1, n_targets)."""
    n_targets = run.data.n_targets
    last = run.store.precisions[:, :, -n_targets:] if "noise" in run.precision_layout.units else None
    return (run.store.precisions[:, :, -1:] if last is None else last)[:, :, None] ** -0.5 * np.ones(
        n_targets
    )


def mixture_quantile(p: float, frozen: scipy.stats.rv_continuous) -> float:
    return float(scipy.optimize.brentq(lambda y: frozen.cdf(y).mean() - p, -1e5, 1e5, xtol=1e-11))


REAL = {
    "gaussian": {},
    "per target": {"model__noise": "0.3:4:2"},
    "t": {"model__noise": "0.3:4:5:3"},
    "standardized": {"data__standardize": '["inputs", "targets"]'},
}


@pytest.mark.parametrize("changes", REAL.values(), ids=REAL)
def test_real_table_equals_brute_force(changes: dict[str, str]) -> None:
    run = make_run(make_spec(**changes))
    inputs, targets = unseen(run)
    table = predict_from_draws([run], inputs, targets).table
    center, scale = run.data.target_center, run.data.target_scale
    outputs = outputs_by_hand(run, inputs) * scale + center
    sigma = noise_by_hand(run) * scale * np.ones_like(outputs)
    df = run.spec.model.noise.alphas[2]
    noise = scipy.stats.norm if math.isinf(df) else scipy.stats.t(df)
    log_joint = np.zeros(outputs.shape[:3])
    for target, name in enumerate(run.data.target_names):
        f, s = outputs[..., target], sigma[..., target]
        variance = f.var(axis=(0, 1)) + (s**2 * noise.var()).mean(axis=(0, 1))
        np.testing.assert_allclose(table[f"{name}_mean"], f.mean(axis=(0, 1)), rtol=1e-12)
        np.testing.assert_allclose(table[f"{name}_sd"], np.sqrt(variance), rtol=1e-12)
        by_case = np.moveaxis(f, 2, 0)
        np.testing.assert_allclose(table[f"{name}_mean_mcse"], mcse_mean(by_case), rtol=1e-9)
        family = scipy.stats.norm if math.isinf(df) else scipy.stats.t
        for column, p in {"median": 0.5, "q01": 0.01, "q10": 0.1, "q90": 0.9, "q99": 0.99}.items():
            for case in (0, N_TEST - 1):
                where = {"loc": f[:, :, case], "scale": s[:, :, case]}
                mixture = family(**where) if math.isinf(df) else family(df, **where)
                assert table[f"{name}_{column}"][case] == pytest.approx(
                    mixture_quantile(p, mixture), rel=1e-6, abs=1e-6
                )
        log_joint += noise.logpdf((targets[:, target] - f) / s) - np.log(s)
    log_probability = scipy.special.logsumexp(log_joint, axis=(0, 1)) - math.log(outputs[..., 0, 0].size)
    np.testing.assert_allclose(table["log_probability"], log_probability, rtol=1e-10)


@pytest.mark.parametrize("chains", [4, 400])
@pytest.mark.parametrize("changes", REAL.values(), ids=REAL)
def test_quantiles_of_many_draws_are_exact(
    changes: dict[str, str], chains: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search begins with some of the draws: of each chain, or of each group of chains."""
    monkeypatch.setattr(predictive, "_MANY_CASES", 1)  # the search for each case is its own
    run = make_run(make_spec(chains=chains, draws_per_block=500, **changes), n_draws=36_000 // chains)
    inputs = normal(17, (4, 2))
    table = predict_from_draws([run], inputs).table
    center, scale = run.data.target_center, run.data.target_scale
    outputs = outputs_by_hand(run, inputs[:2]) * scale + center
    sigma = noise_by_hand(run) * scale * np.ones_like(outputs)
    df = run.spec.model.noise.alphas[2]
    for column, p in {"median": 0.5, "q01": 0.01, "q90": 0.9}.items():
        where = {"loc": outputs[:, :, 1, 0], "scale": sigma[:, :, 1, 0]}
        mixture = scipy.stats.norm(**where) if math.isinf(df) else scipy.stats.t(df, **where)
        assert table[f"y1_{column}"][1] == pytest.approx(
            mixture_quantile(p, mixture), abs=1e-4 * table["y1_sd"][1]
        )


@pytest.mark.parametrize(
    ("chains", "n_draws"), [(1, 40), (3, 9), (8, 2), (11, 1), (2, 5)], ids=lambda value: str(value)
)
def test_the_search_begins_with_groups_of_some_draws(
    chains: int, n_draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few chains or draws there are; a run without eight of either has no groups.

    So few draws may agree by chance on a wrong correction, which is at most 5e-4 of a standard deviation.
    """
    for name, value in {"_MANY": 1, "_MANY_CASES": 1, "_SOME": 4}.items():
        monkeypatch.setattr(predictive, name, value)
    run = make_run(make_spec(chains=chains), n_draws=n_draws)
    other = make_run(make_spec(chains=9, seed=2), n_draws=3, seed=5)
    inputs = normal(17, (5, 2))
    quantiles = [f"y1_{name}" for name in ("q01", "median", "q99")]
    found = predict_from_draws([run, other], inputs).table[quantiles]
    monkeypatch.setattr(predictive, "_MANY", 1 << 15)
    expected = predict_from_draws([run, other], inputs).table[quantiles]
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_progress_never_goes_back_and_reaches_the_end() -> None:
    run = make_run(make_spec())
    shares: list[float] = []
    predict_from_draws([run], normal(17, (600, 2)), memory_bytes=2e5, on_progress=shares.append)
    assert len(shares) > 10 and shares == sorted(shares)
    assert 0 < shares[0] < 0.5 and shares[-1] == 1


def test_real_errors_are_of_mean_and_median_summed_over_targets() -> None:
    run = make_run(make_spec())
    inputs, targets = unseen(run)
    table = predict_from_draws([run], inputs, targets).table
    squared = (table["y1_mean"] - targets[:, 0]) ** 2 + (table["y2_mean"] - targets[:, 1]) ** 2
    absolute = abs(table["y1_median"] - targets[:, 0]) + abs(table["y2_median"] - targets[:, 1])
    np.testing.assert_allclose(table["squared_error"], squared, rtol=1e-12)
    np.testing.assert_allclose(table["absolute_error"], absolute, rtol=1e-12)


def test_binary_probabilities_are_means_over_draws() -> None:
    run = make_run(make_spec("binary"))
    inputs, targets = unseen(run)
    table = predict_from_draws([run], inputs, targets).table
    per_draw = scipy.special.expit(outputs_by_hand(run, inputs))
    p = per_draw.mean(axis=(0, 1))
    np.testing.assert_allclose(table[["y1_p", "y2_p"]], p, rtol=1e-12)
    joint = np.where(targets == 1, per_draw, 1 - per_draw).prod(axis=3).mean(axis=(0, 1))
    np.testing.assert_allclose(table["log_probability"], np.log(joint), rtol=1e-10)
    np.testing.assert_array_equal(table["error_rate"], ((p > 0.5) != targets).mean(axis=1))
    np.testing.assert_allclose(table["expected_error_rate"], np.minimum(p, 1 - p).mean(axis=1), rtol=1e-12)
    assert set(table) == {"y1_p", "y2_p", "log_probability", "error_rate", "expected_error_rate"}


def test_class_probabilities_are_means_over_draws() -> None:
    run = make_run(make_spec("class"))
    inputs, targets = unseen(run)
    table = predict_from_draws([run], inputs, targets).table
    p = scipy.special.softmax(outputs_by_hand(run, inputs), axis=3).mean(axis=(0, 1))
    labels = targets[:, 0].astype(int)
    np.testing.assert_allclose(table[["p_0", "p_1", "p_2"]], p, rtol=1e-12)
    np.testing.assert_allclose(table["log_probability"], np.log(p[np.arange(N_TEST), labels]), rtol=1e-10)
    np.testing.assert_array_equal(table["error_rate"], p.argmax(axis=1) != labels)
    np.testing.assert_allclose(table["expected_error_rate"], 1 - p.max(axis=1), rtol=1e-12)
    assert set(table) == {"p_0", "p_1", "p_2", "log_probability", "error_rate", "expected_error_rate"}


def test_summary_is_mean_and_standard_error_of_the_columns() -> None:
    run = make_run(make_spec())
    prediction = predict_from_draws([run], *unseen(run))
    measures = ("squared_error", "absolute_error", "log_probability")
    names = (*measures, "y1_rmse", "y2_rmse")
    assert set(prediction.summary) == {"cases", "draws", *names, *(f"{name}_se" for name in names)}
    assert prediction.summary["cases"] == N_TEST and prediction.summary["draws"] == 4 * 20
    for name in measures:
        column = prediction.table[name].to_numpy()
        assert prediction.summary[name] == pytest.approx(column.mean())
        assert prediction.summary[f"{name}_se"] == pytest.approx(column.std(ddof=1) / math.sqrt(N_TEST))
    assert json.loads(prediction.to_json()) == prediction.summary


def test_columns_are_in_the_documented_order() -> None:
    run = make_run(make_spec())
    inputs, targets = unseen(run)
    one = ["mean", "median", "sd", "q01", "q10", "q90", "q99", "mean_mcse"]
    columns = [f"{name}_{column}" for name in ("y1", "y2") for column in one]
    assert list(predict_from_draws([run], inputs).table) == columns
    errors = ["squared_error", "absolute_error", "log_probability"]
    assert list(predict_from_draws([run], inputs, targets).table) == columns + errors


@pytest.mark.parametrize("kind", ["real", "binary", "class"])
def test_without_targets_there_are_no_errors(kind: str) -> None:
    run = make_run(make_spec(kind))
    prediction = predict_from_draws([run], unseen(run)[0])
    expected = set() if kind == "real" else {"expected_error_rate", "expected_error_rate_se"}
    assert set(prediction.summary) == {"cases", "draws"} | expected
    assert not {"log_probability", "error_rate", "squared_error"} & set(prediction.table)


def test_one_case_has_errors_without_standard_errors() -> None:
    run = make_run(make_spec())
    inputs, targets = unseen(run)
    summary = predict_from_draws([run], inputs[:1], targets[:1]).summary
    assert "squared_error" in summary and "squared_error_se" not in summary
    assert "y1_rmse" in summary and "y1_rmse_se" not in summary


@pytest.mark.parametrize("standardize", ["[]", '["inputs", "targets"]'])
def test_the_root_mean_squared_error_of_each_target_is_in_its_units(standardize: str) -> None:
    """One target is missing in a case; the standard error is about that of the jackknife."""
    run = make_run(make_spec(data__standardize=standardize))
    inputs, targets = unseen(run)
    targets[3, 1] = np.nan
    summary = predict_from_draws([run], inputs, targets).summary
    center, scale = run.data.target_center, run.data.target_scale
    assert (scale != 1).all() == ("targets" in standardize)
    means = center + scale * outputs_by_hand(run, inputs).mean(axis=(0, 1))
    for target, name in enumerate(("y1", "y2")):
        squares = np.square(means[:, target] - targets[:, target])[~np.isnan(targets[:, target])]
        assert summary[f"{name}_rmse"] == pytest.approx(math.sqrt(squares.mean()), rel=1e-9)
        without = np.array([math.sqrt(np.delete(squares, case).mean()) for case in range(len(squares))])
        jackknife = math.sqrt((len(squares) - 1) * np.mean(np.square(without - without.mean())))
        assert summary[f"{name}_rmse_se"] == pytest.approx(jackknife, rel=0.2)
    assert summary["squared_error"] == pytest.approx(
        (summary["y1_rmse"] ** 2 * N_TEST + summary["y2_rmse"] ** 2 * (N_TEST - 1)) / N_TEST
    )


def test_a_target_without_values_has_no_root_mean_squared_error() -> None:
    run = make_run(make_spec())
    inputs, targets = unseen(run)
    targets[:, 1] = np.nan
    prediction = predict_from_draws([run], inputs, targets)
    assert math.isnan(prediction.summary["y2_rmse"]) and "y2_rmse_se" not in prediction.summary
    assert json.loads(prediction.to_json())["y2_rmse"] is None


@pytest.mark.parametrize("kind", ["real", "binary", "class"])
@pytest.mark.parametrize("memory_bytes", [1.0, 2e4])
def test_table_does_not_depend_on_the_memory_allowed(kind: str, memory_bytes: float) -> None:
    run = make_run(make_spec(kind))
    cases = unseen(run)
    whole = predict_from_draws([run], *cases).table
    in_pieces = predict_from_draws([run], *cases, memory_bytes=memory_bytes).table
    np.testing.assert_allclose(in_pieces, whole, rtol=1e-9)
    some = predict_from_draws([run], *(values[3:5] for values in cases)).table
    np.testing.assert_allclose(some, whole[3:5], rtol=1e-9)


def test_float32_draws_give_the_table_to_float32_digits() -> None:
    spec, single = make_spec(), make_spec(dtype="float32")
    run = make_run(single)
    double = MemoryStore(spec, make_data(spec), run.store.positions.astype(np.float64), run.store.precisions)
    cases = unseen(run)
    np.testing.assert_allclose(
        predict_from_draws([run], *cases).table, predict_from_draws([view(double)], *cases).table, rtol=2e-4
    )


def test_units_of_the_targets_scale_the_predictions_and_shift_the_density() -> None:
    spec = make_spec(data__standardize='["targets"]')
    run = make_run(spec)
    inputs, targets = unseen(run)
    metres = predict_from_draws([run], inputs, targets).table
    scaled = make_data(spec)
    for array in (scaled.targets, scaled.target_center, scaled.target_scale):
        array *= 1000
    millimetres = predict_from_draws([make_run(spec, scaled)], inputs, targets * 1000).table
    for column in ("y1_mean", "y2_q01", "y1_sd", "y2_mean_mcse", "absolute_error"):
        np.testing.assert_allclose(millimetres[column], 1000 * metres[column], rtol=1e-9)
    difference = millimetres["log_probability"] - metres["log_probability"]
    np.testing.assert_allclose(difference, -2 * math.log(1000), rtol=1e-9)


def stores_of_two_seeds(n_draws: tuple[int, int]) -> list[MemoryStore]:
    return [
        make_run(make_spec(seed=seed), make_data(make_spec()), n_draws=n, seed=10 * seed)
        for seed, n in zip((1, 2), n_draws, strict=True)
    ]


def test_pooled_stores_predict_as_one_store_of_all_chains() -> None:
    first, second = stores_of_two_seeds((20, 20))
    both = view(
        MemoryStore(
            first.spec,
            first.data,
            np.concatenate([first.positions(), second.positions()]),
            np.concatenate([first.precisions(), second.precisions()]),
        )
    )
    cases = unseen(first)
    pooled, together = predict_from_draws([first, second], *cases), predict_from_draws([both], *cases)
    np.testing.assert_allclose(pooled.table, together.table, rtol=1e-9)
    assert pooled.summary["draws"] == together.summary["draws"] == 160


def test_pooled_stores_of_unequal_length_weigh_every_draw_equally() -> None:
    first, second = stores_of_two_seeds((30, 10))
    inputs, _ = unseen(first)
    means = [predict_from_draws([run], inputs).table["y1_mean"] for run in (first, second)]
    pooled = predict_from_draws([first, second], inputs).table
    np.testing.assert_allclose(pooled["y1_mean"], 0.75 * means[0] + 0.25 * means[1], rtol=1e-12)
    assert np.isfinite(pooled["y1_mean_mcse"]).all()


def test_error_of_the_mean_shows_that_pooled_runs_disagree() -> None:
    first, second = stores_of_two_seeds((20, 20))
    inputs, _ = unseen(first)
    before = predict_from_draws([first, second], inputs).table["y1_mean_mcse"].mean()
    second.store.positions[:, :, -2:] += 10  # the output biases
    assert predict_from_draws([first, second], inputs).table["y1_mean_mcse"].mean() > 10 * before


@pytest.mark.parametrize(
    ("changes", "data_seed", "named"),
    [
        ({"seed": 1}, None, r"has the same seed \(1\) as"),
        ({"network__priors__bo": "2"}, None, "network.priors.bo"),
        ({"model__noise": "0.1:4"}, None, "model.noise"),
        ({"data__standardize": '["inputs"]'}, None, "data.standardize"),
        ({"temperature": "3"}, None, "temperature: was 1.0, now 3.0"),
        ({}, 99, "training cases differ"),
    ],
)
def test_stores_of_other_posteriors_or_of_one_seed_are_not_pooled(
    changes: dict[str, Any], data_seed: int | None, named: str
) -> None:
    run, spec = make_run(make_spec()), make_spec(**{"seed": 2, **changes})
    other = make_run(spec) if data_seed is None else make_run(spec, make_data(spec, seed=data_seed))
    with pytest.raises(StoreMismatchError, match=named):
        predict_from_draws([run, other], unseen(run)[0])


def test_a_store_without_draws_is_an_error() -> None:
    with pytest.raises(StoreError, match="no draws are committed"):
        make_run(make_spec(), n_draws=0)


@pytest.mark.parametrize("kind", ["real", "binary", "class"])
def test_outputs_that_are_not_finite_are_an_error(kind: str) -> None:
    run = make_run(make_spec(kind, dtype="float32"))
    run.store.positions[0, [3, 5], -1] = np.inf  # an output bias
    with pytest.raises(
        StoreError, match="2 of the draws .* not finite in float32; sample with dtype = float64"
    ):
        predict_from_draws([run], unseen(run)[0])


@pytest.mark.parametrize("shape", [(N_TEST, 3), (N_TEST,), (0, 2)])
def test_inputs_of_a_wrong_shape_are_an_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="inputs: the shape must be"):
        predict_from_draws([make_run(make_spec())], np.zeros(shape))


def test_too_few_draws_give_predictions_without_their_error() -> None:
    run = make_run(make_spec(), n_draws=1)
    table = predict_from_draws([run], unseen(run)[0]).table
    assert np.isfinite(table["y1_q99"]).all() and table["y1_mean_mcse"].isna().all()


def peak_bytes(run: MemoryStore, n_cases: int, memory_bytes: float) -> int:
    data = make_data(run.spec, n_cases, seed=41)
    predict_from_draws([run], data.inputs[:2], data.targets[:2])  # imports are not the reduction's memory
    tracemalloc.start()
    try:
        predict_from_draws([run], data.inputs, data.targets, memory_bytes=memory_bytes)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["real", "binary"])
def test_memory_is_bounded_whatever_the_number_of_draws(kind: str) -> None:
    memory_bytes = 8e6
    draws_at_all_cases = 8 * 2 * 4 * 3000 * 300  # outputs of 4 chains, 3,000 draws, 2 targets, 300 cases
    assert draws_at_all_cases > 7 * memory_bytes
    run = endless(make_run(make_spec(kind, draws_per_block=50)), 3000)
    assert peak_bytes(run, 300, memory_bytes) < memory_bytes


def test_a_tie_at_one_half_is_no_error_for_label_zero() -> None:
    spec = make_spec("binary")
    run = make_run(spec)
    run.store.positions[...] = 0
    summary = predict_from_draws([run], np.zeros((2, 2)), np.array([[0, 0], [1, 0]])).summary
    assert summary["error_rate"] == 0.25
    assert summary["log_probability"] == pytest.approx(2 * math.log(0.5))


@pytest.mark.parametrize("kind", ["binary", "class"])
def test_the_expected_error_rate_does_not_depend_on_the_targets(kind: str) -> None:
    run = make_run(make_spec(kind))
    inputs, targets = unseen(run)
    alone = predict_from_draws([run], inputs)
    column = alone.table["expected_error_rate"]
    targets[3:5] = np.nan
    with_targets = predict_from_draws([run], inputs, targets)
    assert with_targets.table["expected_error_rate"].equals(column)
    error = column.std(ddof=1) / math.sqrt(N_TEST)
    for prediction in (alone, with_targets):
        assert prediction.summary["expected_error_rate"] == pytest.approx(column.mean())
        assert prediction.summary["expected_error_rate_se"] == pytest.approx(error)


@pytest.mark.parametrize("kind", ["binary", "class"])
def test_the_expected_error_rate_is_the_mean_of_the_error_rate_over_predicted_labels(kind: str) -> None:
    """All targets are taken to have each combination of labels, with the probability of the combination."""
    run = make_run(make_spec(kind))
    inputs, targets = unseen(run)
    table = predict_from_draws([run], inputs).table
    of_each = [["p_0", "p_1", "p_2"]] if kind == "class" else [["y1_p"], ["y2_p"]]
    p = [table[columns].to_numpy() for columns in of_each]
    if kind == "binary":
        p = [np.hstack([1 - of_one, of_one]) for of_one in p]
    mean = np.zeros(N_TEST)
    for labels in itertools.product(*(range(of_target.shape[1]) for of_target in p)):
        chance = np.prod([of_target[:, label] for of_target, label in zip(p, labels, strict=True)], axis=0)
        error_rate = predict_from_draws([run], inputs, targets * 0 + labels).table["error_rate"]
        mean += chance * error_rate
    np.testing.assert_allclose(mean, table["expected_error_rate"], rtol=1e-12)


@pytest.mark.parametrize("kind", ["real", "binary", "class"])
def test_missing_targets_are_left_out_of_errors_and_log_probability(kind: str) -> None:
    run = make_run(make_spec(kind, **({"data__standardize": '["targets"]'} if kind == "real" else {})))
    inputs, targets = unseen(run)
    whole = predict_from_draws([run], inputs, targets).table
    targets[3] = np.nan
    if kind != "class":
        targets[5, 1] = np.nan
    prediction = predict_from_draws([run], inputs, targets)
    table, summary = prediction.table, prediction.summary
    measures = [name for name in ("squared_error", "error_rate", "log_probability") if name in table]
    others = [case for case in range(N_TEST) if case not in (3, 5)]
    for name in measures:
        assert np.isnan(table[name][3]) and table[name][others].equals(whole[name][others])
        assert summary[f"{name}_se"] == pytest.approx(table[name].std() / math.sqrt(N_TEST - 1))
    if kind == "real":
        assert table["squared_error"][5] == pytest.approx((table["y1_mean"][5] - targets[5, 0]) ** 2)
        f = outputs_by_hand(run, inputs)[:, :, 5, 0] * run.data.target_scale[0]
        sigma = noise_by_hand(run)[:, :, 0, 0] * run.data.target_scale[0]
        density = scipy.stats.norm.pdf(targets[5, 0], f + run.data.target_center[0], sigma)
        assert table["log_probability"][5] == pytest.approx(math.log(density.mean()), rel=1e-10)
    if kind == "binary":
        assert table["error_rate"][5] == ((table["y1_p"][5] > 0.5) != targets[5, 0])


@pytest.mark.parametrize("kind", ["real", "binary", "class"])
def test_json_has_no_nan_where_all_targets_are_missing(kind: str) -> None:
    run = make_run(make_spec(kind))
    inputs, targets = unseen(run)
    read = json.loads(
        predict_from_draws([run], inputs, np.full_like(targets, np.nan)).to_json(), parse_constant=pytest.fail
    )
    assert read["log_probability"] is None and read["cases"] == N_TEST
