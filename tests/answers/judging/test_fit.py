"""The verdict on fit: of runs on data that the model describes, and on data that it does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.special
import scipy.stats

import rayfbnn
from rayfbnn.answers.diagnostics import Diagnosis
from rayfbnn.answers.judging.fit import FitVerdict, judge_fit, verdict_on_fit, verdict_on_fit_at
from rayfbnn.answers.judging.fit_evidence import FitEvidence, evidence_at, evidence_left_out
from rayfbnn.answers.judging.verdicts import Verdict
from rayfbnn.arrays import Array
from rayfbnn.draws.subsets import halves, thinned
from rayfbnn.draws.view import committed
from rayfbnn.errors import ConfigError
from rayfbnn.reduce.on_ray import OnRay
from rayfbnn.store.store import Store
from tests.support.store.standin_store import make_run, make_spec, normal, uniform

N_TRAIN, N_TEST = 200, 150
HERE: dict[str, Any] = {"workers": 0, "progress": False}
REAL = {"kind": "real", "noise": "0.5:0.5"}


def t_quantiles(degrees: float, x: Array) -> Array:
    return np.asarray(scipy.stats.t.ppf(uniform(5, x.shape), degrees))


def negative_binomial(x: Array) -> Array:
    """Counts of mean exp(1 + x / 2) and shape 1."""
    return np.asarray(scipy.stats.nbinom.ppf(uniform(5, x.shape), 1, 1 / (1 + np.exp(1 + x / 2))))


def poisson(x: Array) -> Array:
    return np.asarray(scipy.stats.poisson.ppf(uniform(5, x.shape), np.exp(1 + x / 2)))


def labels(x: Array) -> Array:
    """One of three labels, the last for large x."""
    p = scipy.special.softmax(np.stack([-x, np.zeros_like(x), x]), axis=0)
    return np.asarray((uniform(5, x.shape) > p.cumsum(axis=0)).sum(axis=0), dtype=float)


def times(x: Array) -> Array:
    """Exponential times, a third of them censored."""
    time, end = -np.log(uniform(5, x.shape)) * np.exp(-x / 2), -2 * np.log(uniform(6, x.shape))
    return np.where(time < end, time, -end)


# What the model describes: the model, and targets as a function of the first input.
RIGHT: dict[str, tuple[dict[str, Any], Callable[[Array], Array]]] = {
    "real": (REAL, lambda x: x + 0.5 * normal(5, x.shape)),
    "t noise": ({"kind": "real", "noise": "0.5:0.5::4"}, lambda x: x + 0.5 * t_quantiles(4, x)),
    "heteroscedastic": ({"kind": "heteroscedastic"}, lambda x: x + 0.5 * 2**x * normal(5, x.shape)),
    "count": ({"kind": "count"}, poisson),
    "binary": ({"kind": "binary"}, lambda x: (uniform(5, x.shape) < scipy.special.expit(x)).astype(float)),
    "class": ({"kind": "class", "classes": 3}, labels),
    "survival": ({"kind": "survival", "hazard": "constant"}, times),
}
# What it does not, with words of a reason and of the advice.
WRONG: dict[str, tuple[dict[str, Any], Callable[[Array], Array], str, str]] = {
    "overdispersed counts": (
        {"kind": "count"},
        negative_binomial,
        "the 50, 80 and 95 % intervals of y hold",
        'model = { kind = "count", dispersion = "0.3:0.5" }',
    ),
    "changing noise": (
        REAL,
        lambda x: x + 0.5 * 2**x * normal(5, x.shape),
        "the spread of y varies with",
        'model = { kind = "heteroscedastic" }',
    ),
    "outliers": (REAL, lambda x: x + 0.5 * t_quantiles(2, x), "intervals of y hold", '"0.2:0.5::4"'),
    "skewed and positive": (
        {"kind": "real", "noise": "0.5:0.5"},
        lambda x: np.exp(0.8 * normal(5, x.shape)),
        "of y",
        'data.transform = { y = "log" }',
    ),
    "too little spread": (
        {"kind": "count"},
        lambda x: np.round(3 + 0.3 * normal(5, x.shape)),
        "intervals of y hold",
        "counts vary less",
    ),
    "times of one length": (
        {"kind": "survival", "hazard": "constant"},
        lambda x: np.exp(0.1 * normal(5, x.shape)),
        "intervals of y hold",
        'hazard = "piecewise"',
    ),
}


def configuration(model: dict[str, Any], targets: list[str], **changes: Any) -> dict[str, Any]:
    """A network without hidden units, whose chains agree after a few steps."""
    operations = [
        {"op": "sample-sigmas"},
        {"op": "heatbath"},
        {"op": "hybrid", "steps": 10, "stepsize": 0.4, "stepsize_jitter": -1.1},
    ]
    return {
        "seed": 3,
        "chains": 8,
        "dtype": "float64",
        "data": {"targets": targets, "inputs": ["x1", "x2"]},
        "model": model,
        "network": {"hidden": [], "priors": {"io": "1", "bo": "3"}},
        "phase": [
            {"iterations": 60, "keep": False, "operations": operations},
            {"iterations": 100, "operations": operations},
        ],
        **changes,
    }


def table_of(truth: Callable[[Array], Array]) -> pd.DataFrame:
    """Training and test cases; x1 from -1 to 1 and x2, which matters not."""
    x = 2 * uniform(4, (N_TRAIN + N_TEST, 2)) - 1
    return pd.DataFrame({"x1": x[:, 0], "x2": x[:, 1], "y": truth(x[:, 0])})


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, pd.DataFrame]]:
    """A function that returns the store of a problem, sampled once, and its test cases."""
    folder = tmp_path_factory.mktemp("fit")

    def store(name: str) -> tuple[Path, pd.DataFrame]:
        model, truth = RIGHT[name] if name in RIGHT else WRONG[name][:2]
        path, table = folder / f"{name}.zarr", table_of(truth)
        if not path.exists():
            rayfbnn.sample(configuration(model, ["y"]), path, data=table[:N_TRAIN], **HERE)
        return path, table[N_TRAIN:]

    return store


def run_of(path: Path) -> Any:
    return committed(Store.open(path))


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_model_has_no_misfit(name: str, stores: Any) -> None:
    """The false-alarm rate is at most 5 % for each of the verdicts; the seeds are fixed."""
    path, test = stores(name)
    diagnosis = rayfbnn.diagnose(path, decisive="fit")
    assert isinstance(diagnosis, Diagnosis) and diagnosis.fit is not None
    assert diagnosis.fit.grade == "no misfit" and diagnosis.ok, diagnosis.fit
    fit = rayfbnn.predict(path, data=test).fit
    assert fit is not None and fit.grade == "no misfit", fit


@pytest.mark.parametrize("name", WRONG)
def test_a_misfit_is_found_with_its_remedy(name: str, stores: Any) -> None:
    path, test = stores(name)
    _, _, reason, advice = WRONG[name]
    diagnosis = rayfbnn.diagnose(path, decisive="fit")
    predicted = rayfbnn.predict(path, data=test).fit
    assert isinstance(diagnosis, Diagnosis) and not diagnosis.ok
    for fit in (diagnosis.fit, predicted):
        assert fit is not None and fit.grade == "misfit" and fit.p_value <= 0.05
        assert any(reason in sentence for sentence in fit.reasons), fit.reasons
        assert any(advice in way for way in fit.advice), fit.advice
    assert diagnosis.decided_by == diagnosis.fit.reasons[0]


def test_a_misfit_decides_only_on_request(stores: Any) -> None:
    path, _ = stores("overdispersed counts")
    assert rayfbnn.diagnose(path, decisive="predictions").ok
    text = str(rayfbnn.diagnose(path, decisive="fit"))
    assert "\nfit: misfit\n  the " in text
    assert text.endswith("not ok: the predictive distributions do not describe the targets (docs/not_ok.md)")
    without = rayfbnn.diagnose(path, fit=False)
    assert without.fit is None and "fit:" not in str(without)
    with pytest.raises(ConfigError, match='"fit" needs the verdict on fit'):
        rayfbnn.diagnose(path, decisive="fit", fit=False)
    with pytest.raises(ConfigError, match='must be "predictions" or "all", got "fit"'):
        rayfbnn.resume(path, decisive="fit", **HERE)  # type: ignore[arg-type]


def test_json_and_text_have_the_verdict(stores: Any) -> None:
    path, test = stores("overdispersed counts")
    prediction = rayfbnn.predict(path, data=test)
    of_prediction = json.loads(prediction.to_json())["fit"]
    assert of_prediction["grade"] == "misfit" and of_prediction["cases"] == {"data": N_TEST}
    assert "fit" in str(prediction) and "misfit (p = 0.0025)" in str(prediction)
    of_diagnosis = json.loads(rayfbnn.diagnose(path).to_json())["fit"]
    assert of_diagnosis["cases"] == {"training cases": N_TRAIN}
    coverage = of_diagnosis["coverage"]["training cases"]["y"]
    assert coverage["0.8"] < 0.7 and set(coverage) == {"0.5", "0.8", "0.95"}
    assert "misfit" in rayfbnn.diagnose(path)._repr_html_()


def test_other_cases_are_judged_as_well(stores: Any) -> None:
    """Test cases of another kind than the training cases are a misfit of their own."""
    path, test = stores("count")
    shifted = test.assign(y=test["y"] + 4)
    fit = rayfbnn.diagnose(path, data=shifted).fit
    assert isinstance(fit, FitVerdict) and fit.grade == "misfit"
    assert fit.cases == {"training cases": N_TRAIN, "data": N_TEST}
    assert all("predicted without itself" not in reason for reason in fit.reasons)
    assert rayfbnn.diagnose(path, data=test).fit.grade == "no misfit"
    assert rayfbnn.diagnose(path, data=test.drop(columns="y")).fit.cases == {"training cases": N_TRAIN}
    assert rayfbnn.predict(path, data=test.drop(columns="y")).fit is None


def test_training_cases_are_judged_only_without_themselves(stores: Any) -> None:
    path, _ = stores("count")
    table = table_of(poisson)[:N_TRAIN]
    assert rayfbnn.predict(path, data=table[::-1]).fit is None
    assert rayfbnn.predict(path, data=table[1:]).fit is not None
    assert rayfbnn.diagnose(path, data=table).fit.cases == {"training cases": N_TRAIN}


def test_each_of_several_targets_is_judged(tmp_path: Path) -> None:
    """The second target has outliers, and a third of its values are missing."""
    x = 2 * uniform(4, (N_TRAIN, 2)) - 1
    bad = np.where(np.arange(N_TRAIN) % 3 == 0, np.nan, t_quantiles(2, x[:, 0]))
    table = pd.DataFrame({"x1": x[:, 0], "x2": x[:, 1], "good": normal(7, (N_TRAIN,)), "bad": bad})
    model = {"kind": "real", "noise": "0.5:0.5:0.5"}  # with a sigma for each target
    rayfbnn.sample(configuration(model, ["good", "bad"]), tmp_path / "run.zarr", data=table, **HERE)
    fit = rayfbnn.diagnose(tmp_path / "run.zarr").fit
    assert fit is not None and fit.grade == "misfit"
    assert all("bad" in reason and "good" not in reason for reason in fit.reasons)
    assert set(fit.coverage["training cases"]) == {"good", "bad"}
    evidence = evidence_left_out([run_of(tmp_path / "run.zarr")])
    assert [target.n_cases for target in evidence.targets] == [N_TRAIN, (2 * N_TRAIN) // 3]


def test_what_is_not_known_of_networks_is_no_misfit(tmp_path: Path) -> None:
    """Eight training cases leave the mean so uncertain that 150 others all lie on one side of it."""
    n_alarms = 0
    for seed in range(12):
        y = normal(20 + seed, (8 + N_TEST,))
        table = pd.DataFrame({"x1": np.zeros(8 + N_TEST), "x2": normal(5, (8 + N_TEST,)), "y": y})
        changes = {"network": {"hidden": [], "priors": {"bo": "3"}}, "seed": seed}
        spec = configuration({"kind": "real", "noise": "1"}, ["y"], **changes)
        path = tmp_path / f"{seed}.zarr"
        rayfbnn.sample(spec, path, data=table[:8], **HERE)
        test = table[8:]
        fit = verdict_on_fit_at([run_of(path)], test[["x1", "x2"]].to_numpy(), test[["y"]].to_numpy())
        assert fit is not None
        n_alarms += fit.grade == "misfit"
        # By itself the distance of the means would be one for most: sqrt(150 / 8) standard errors.
    assert n_alarms <= 2  # a binomial of 12 at 5 % exceeds 2 with a probability of 2 %; seeds fixed


def test_the_fit_is_not_judged_if_chains_do_not_agree(stores: Any) -> None:
    run = run_of(stores("overdispersed counts")[0])
    bad = Verdict("predictions", "not usable", ("R-hat",), decided_by="R-hat")
    fit = verdict_on_fit([run], predictions=bad)
    assert fit.grade == "cannot tell" and not fit.ok
    assert fit.reasons == ("a misfit could be that of the chains, whose predictions are not usable",)
    assert fit.remarks[0].startswith("the 50, 80 and 95 % intervals of y hold")
    found = verdict_on_fit([run])
    assert found.grade == "misfit" and set(found.reasons) <= set(fit.remarks)
    assert fit.advice == tuple(f"if longer runs do not help: {advice}" for advice in found.advice) != ()
    fitting = run_of(stores("count")[0])
    assert verdict_on_fit([fitting], predictions=bad).advice == ()


def test_too_few_cases_cannot_be_judged() -> None:
    fit = verdict_on_fit([make_run(make_spec())])
    assert fit.grade == "cannot tell"
    assert fit.warning == "cannot judge the fit: only 12 cases have a known target; at least 20 are needed"


def test_censored_times_are_mentioned(stores: Any) -> None:
    path, _ = stores("survival")
    fit = rayfbnn.diagnose(path).fit
    n_censored = int((run_of(path).data.targets < 0).sum())
    assert n_censored > 20
    assert any(sentence.startswith(f"{n_censored} of 200 times are censored") for sentence in fit.remarks)


def test_many_cases_are_chosen_by_the_seed(monkeypatch: pytest.MonkeyPatch, stores: Any) -> None:
    monkeypatch.setattr("rayfbnn.answers.judging.fit_evidence.MOST_CASES", 50)
    run = run_of(stores("count")[0])
    evidence = evidence_left_out([run])
    assert (evidence.n_used, evidence.n_all) == (50, N_TRAIN)
    assert "50 of 200 cases are used, which the seed chooses" in verdict_on_fit([run]).remarks


def test_cases_are_left_out_of_the_draws_of_several_runs_together(stores: Any) -> None:
    """Two runs, each with half of the chains, give what one run with all chains gives."""
    run = thinned(run_of(stores("count")[0]), 100)
    pooled = evidence_left_out(halves(run))
    np.testing.assert_allclose(low_of(pooled), low_of(evidence_left_out([run])), rtol=1e-6)
    assert verdict_on_fit(halves(run)).grade == verdict_on_fit([run]).grade == "no misfit"


def low_of(evidence: FitEvidence) -> Array:
    cases: Any = evidence.targets[0].cases
    return np.concatenate([cases.low, cases.place])


def test_the_evidence_is_a_function_of_the_seed(stores: Any) -> None:
    path, test = stores("count")
    inputs, targets = test[["x1", "x2"]].to_numpy(), test[["y"]].to_numpy()
    np.testing.assert_array_equal(*(low_of(evidence_left_out([run_of(path)])) for _ in range(2)))
    np.testing.assert_array_equal(*(low_of(evidence_at([run_of(path)], inputs, targets)) for _ in range(2)))


@pytest.mark.ray
def test_workers_find_the_same_bits(ray_session: None, stores: Any) -> None:
    path, test = stores("count")
    inputs, targets = test[["x1", "x2"]].to_numpy(), test[["y"]].to_numpy()
    run, on_ray = run_of(path), OnRay(None, None)
    left_out = evidence_left_out([run], executor=on_ray)
    np.testing.assert_array_equal(low_of(left_out), low_of(evidence_left_out([run])))
    there = evidence_at([run], inputs, targets, executor=on_ray)
    np.testing.assert_array_equal(low_of(there), low_of(evidence_at([run], inputs, targets)))


def test_replicates_are_as_the_model_draws_them() -> None:
    """Predictions of draws that are far apart: the places of replicates are uniform over all of them."""
    run = make_run(make_spec(chains=8), n_draws=50)
    inputs = run.data.inputs[np.arange(60) % 12]
    evidence = evidence_at([run], inputs, np.full((60, 2), 100.0))
    for target in evidence.targets:
        cases: Any = target.cases
        assert len(cases.low) == 400
        of_replicates = cases.low[1:].mean(axis=1)  # of cases that share a draw, so they are not independent
        z = (of_replicates.mean() - 0.5) / (of_replicates.std() / np.sqrt(len(of_replicates)))
        assert abs(z) < 4  # 1 in 16,000; seed fixed
        assert cases.low[1:].std() == pytest.approx(np.sqrt(1 / 12), rel=0.05)


def test_several_stores_are_judged_together(stores: Any) -> None:
    path, test = stores("count")
    inputs, targets = test[["x1", "x2"]].to_numpy(), test[["y"]].to_numpy()
    both = verdict_on_fit_at([run_of(path), run_of(path)], inputs, targets)
    assert both is not None and both.grade == "no misfit"


def test_draws_without_a_posterior_have_no_verdict(tmp_path: Path) -> None:
    table = table_of(poisson)[:N_TRAIN]
    rayfbnn.prior(configuration({"kind": "count"}, ["y"]), tmp_path / "prior.zarr", data=table, draws=20)
    assert rayfbnn.predict(tmp_path / "prior.zarr", data=table).fit is None


def approximation(method: str, settings: dict[str, Any], path: Path, truth: Any) -> FitVerdict:
    spec = configuration({"kind": "count"}, ["y"], methods={method: settings})
    rayfbnn.sample(spec, path, data=table_of(truth)[:N_TRAIN], method=method, **HERE)
    diagnosis = rayfbnn.diagnose(path)
    assert json.loads(diagnosis.to_json())["fit"]["grade"] == diagnosis.fit.grade
    assert f"\nfit: {diagnosis.fit.grade}\n" in str(diagnosis)
    assert rayfbnn.diagnose(path, decisive="fit").ok is diagnosis.fit.ok
    predicted = rayfbnn.predict(path, data=table_of(truth)[N_TRAIN:]).fit
    assert predicted is not None and predicted.grade == diagnosis.fit.grade
    return diagnosis.fit


def test_approximations_are_judged(tmp_path: Path) -> None:
    """Only two of three starts count."""
    settings = {"starts": 3, "draws": 300, "members": 2}
    right = approximation("laplace", settings, tmp_path / "right.zarr", poisson)
    assert right.grade == "no misfit", right
    wrong = approximation("laplace", settings, tmp_path / "wrong.zarr", negative_binomial)
    assert wrong.grade == "misfit"


def test_unreliable_weights_leave_the_fit_open(stores: Any) -> None:
    run = run_of(stores("count")[0])
    evidence = replace(evidence_left_out([run]), n_large_k=60)
    fit = judge_fit([evidence], run.spec.data_model, is_positive={})
    assert fit.grade == "cannot tell" and "60 of 200 training cases cannot be left out" in fit.reasons[0]
