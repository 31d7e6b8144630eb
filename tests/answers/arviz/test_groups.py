"""The groups and statistics that ArviZ gets, against what the store and the predictions say."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.special import logsumexp

import rayfbnn
from rayfbnn.draws.outputs import network_values
from rayfbnn.draws.subsets import spread
from rayfbnn.draws.view import committed
from rayfbnn.errors import ConfigError
from rayfbnn.store.store import Store
from rayfbnn.streams import Purpose, Streams
from tests.support.marks import some_long
from tests.support.small import small_spec
from tests.support.store.fits import MODELS, spec_of

HERE: dict[str, Any] = {"workers": 0, "progress": False}
STORED = ["posterior", "sample_stats", "warmup_posterior", "warmup_sample_stats"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two standardised targets, and draws from its prior."""
    folder = tmp_path_factory.mktemp("finished")
    spec = small_spec(folder, data__standardize=["inputs", "targets"], data__inputs=["x1"])
    tables = spec.to_dict()
    tables["data"] |= {"targets": ["x2", "y"], "train": str(folder / "train.csv")}
    rayfbnn.sample(tables, folder / "run.zarr", **HERE)
    rayfbnn.prior(tables, folder / "prior.zarr", draws=6)
    return folder


def test_nothing_warns_of_metadata_where_a_store_is_opened_as_documented(finished: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rayfbnn.open(finished / "run.zarr").load()
        rayfbnn.to_datatree(finished / "run.zarr", prior=finished / "prior.zarr").load()
        rayfbnn.export(finished / "run.zarr", out=finished / "run.nc")
        xr.open_datatree(finished / "run.zarr", engine="zarr", consolidated=False).close()
        xr.open_zarr(finished / "run.zarr", group="posterior", chunks=None, consolidated=False).close()
    with pytest.warns(RuntimeWarning, match="consolidated metadata"):  # which docs/store.md quotes
        xr.open_zarr(finished / "run.zarr", group="posterior", chunks=None).close()


def test_statistics_have_the_names_and_types_of_arviz(finished: Path) -> None:
    store = Store.open(finished / "run.zarr")
    stats = rayfbnn.open(store.path)["sample_stats"].to_dataset()
    assert set(stats.data_vars) == {
        "acceptance_rate", "diverging", "energy", "energy_error", "n_steps", "step_size",
        "log_likelihood_total", "log_prior", "lp",
    }  # fmt: skip
    assert (stats["diverging"].dtype, stats["n_steps"].dtype) == (bool, np.int64)
    assert all(stats[name].dims == ("chain", "draw") for name in stats.data_vars)
    total, log_prior = (store.read_stat(name) for name in ("log_likelihood", "log_prior"))
    np.testing.assert_array_equal(stats["lp"], total + log_prior)
    np.testing.assert_array_equal(stats["acceptance_rate"], store.read_stat("accepted"))
    np.testing.assert_array_equal(stats["energy_error"], store.read_stat("energy_change"))
    assert (stats["n_steps"] == 6).all() and (stats["step_size"] == 0.3).all()  # of the last phase


def test_steps_and_stepsizes_are_those_that_tuning_found(tmp_path: Path) -> None:
    operations = [{"op": "heatbath"}, {"op": "hybrid", "steps": "auto", "stepsize": "auto"}]
    phases = [{"iterations": 40, "keep": False, "operations": operations}]
    phases += [{"iterations": 3, "operations": operations}, {"iterations": 2, "operations": operations[:1]}]
    rayfbnn.sample(small_spec(tmp_path, phase=phases[:2]), tmp_path / "run.zarr", **HERE)
    store = Store.open(tmp_path / "run.zarr")
    (settings,) = store.tuning.latest()[1].values()
    stats = rayfbnn.open(tmp_path / "run.zarr")["sample_stats"]
    assert (stats["n_steps"] == settings.steps).all() and (stats["step_size"] == settings.stepsize).all()
    rayfbnn.sample(small_spec(tmp_path, phase=phases), tmp_path / "more.zarr", **HERE)
    assert "step_size" not in rayfbnn.open(tmp_path / "more.zarr")["sample_stats"]  # of all draws, or of none


def test_the_lp_of_a_tempered_run_is_of_what_was_sampled(tmp_path: Path) -> None:
    rayfbnn.sample(small_spec(tmp_path, temperature=4.0), tmp_path / "run.zarr", **HERE)
    stats = rayfbnn.open(tmp_path / "run.zarr")["sample_stats"]
    expected = stats["log_likelihood_total"] / 4 + stats["log_prior"]
    np.testing.assert_allclose(stats["lp"], expected, rtol=1e-12)
    with pytest.raises(ConfigError, match="groups: log_likelihood is not available at temperature 4"):
        rayfbnn.to_datatree(tmp_path / "run.zarr", groups=["log_likelihood"])
    assert "log_likelihood" not in rayfbnn.to_datatree(tmp_path / "run.zarr").children


@pytest.mark.parametrize("missing", some_long([False, True], [False]))
@pytest.mark.parametrize("name", MODELS)
def test_pointwise_log_likelihoods_are_those_of_the_predictions(
    name: str, missing: bool, tmp_path: Path
) -> None:
    """Their mean over draws, as densities, is what `predict` says of each case; their sum is the total."""
    spec = spec_of(name, tmp_path, missing=missing, dtype="float64")
    rayfbnn.sample(spec, tmp_path / "run.zarr", **HERE)
    tree = rayfbnn.to_datatree(tmp_path / "run.zarr", groups=["log_likelihood", "sample_stats"])
    values = tree["log_likelihood"]["targets"]
    table = rayfbnn.predict(tmp_path / "run.zarr", data=tmp_path / "train.csv").table
    flat = values.values.reshape(50, -1)
    means = logsumexp(flat, axis=0) - np.log(50)
    np.testing.assert_allclose(means, table["log_probability"].dropna(), rtol=1e-9)
    total = tree["sample_stats"]["log_likelihood_total"]
    np.testing.assert_allclose(values.sum(values.dims[2:]), total, rtol=1e-9)
    if missing:
        assert values.dims == ("chain", "draw", "observation")
        assert values["case"].values.tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
        assert set(values["target"].values.tolist()) == {"y"}


def test_log_likelihoods_are_of_each_target_in_the_units_of_the_file(finished: Path) -> None:
    store = Store.open(finished / "run.zarr")
    values = rayfbnn.to_datatree(store.path, groups=["log_likelihood"])["log_likelihood"]["targets"]
    assert values.dims == ("chain", "draw", "case", "target")
    assert values["target"].values.tolist() == ["x2", "y"]
    scale = 12 * np.log(store.data.target_scale).sum()
    total = store.read_stat("log_likelihood")  # of the standardised targets, in float32
    np.testing.assert_allclose(values.sum(("case", "target")) + scale, total, rtol=1e-4, atol=1e-4)


def test_new_data_are_outputs_with_noise_of_their_own_random_numbers(finished: Path) -> None:
    store = Store.open(finished / "run.zarr")
    tree = rayfbnn.to_datatree(store.path, groups=["posterior_predictive"])
    drawn = tree["posterior_predictive"]["targets"]
    outputs = network_values(committed(store), store.data.inputs).reshape(5, 10, 12, 2)
    sigma = store.read_precisions()[..., store.precision_layout.noise_columns] ** -0.5
    standardized = (drawn.values - store.data.target_center) / store.data.target_scale
    noise = (standardized - outputs) / sigma[:, :, None]
    streams = Streams(store.spec.seed, np.arange(5, dtype=np.uint64))
    for draw in range(10):
        expected = streams.at(iteration=draw + 1).normal(Purpose.TARGET_VALUE, (2, 12))
        np.testing.assert_allclose(noise[:, draw], expected.swapaxes(1, 2), atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_new_data_are_in_the_range_of_the_data_model(name: str, tmp_path: Path) -> None:
    spec = spec_of(name, tmp_path)
    rayfbnn.sample(spec, tmp_path / "run.zarr", **HERE)
    tree = rayfbnn.to_datatree(tmp_path / "run.zarr", groups=["posterior_predictive", "observed_data"])
    drawn = tree["posterior_predictive"]["targets"]
    assert drawn.dims == ("chain", "draw", "case", "target") and np.isfinite(drawn).all()
    assert tree["observed_data"]["targets"].dims == drawn.dims[2:]
    allowed = spec.data_model.target_range(drawn.values)
    assert allowed is None or allowed.is_possible.all()


def test_fewer_draws_are_some_of_all(finished: Path) -> None:
    everything = rayfbnn.to_datatree(finished / "run.zarr")
    fewer = rayfbnn.to_datatree(finished / "run.zarr", skip=1, draws=3)
    numbers = [1, 5, 9]
    assert list(fewer.children) == list(everything.children)
    for name, group in fewer.children.items():
        if name.startswith("warmup") or "draw" not in group.dims:
            assert group.to_dataset().identical(everything[name].to_dataset())
            continue
        assert group["draw"].values.tolist() == numbers
        for variable in group.data_vars:
            expected = everything[name][variable].sel(draw=numbers).values
            np.testing.assert_array_equal(group[variable].values, expected, err_msg=f"{name} {variable}")


@pytest.mark.parametrize(("n_draws", "n_wanted"), [(10, 3), (10, 10), (7, 1), (1000, 37)])
def test_draws_that_are_spread_end_with_the_last(n_draws: int, n_wanted: int) -> None:
    numbers = spread(n_draws, n_wanted)
    assert (len(numbers), numbers[-1]) == (n_wanted, n_draws - 1)
    assert numbers[0] >= 0
    if n_wanted > 1:
        assert np.ptp(np.diff(numbers)) <= 1


def test_draws_from_the_prior_have_the_groups_of_the_prior(finished: Path) -> None:
    tree = rayfbnn.open(finished / "prior.zarr")
    assert list(tree.children) == [
        "prior", "sample_stats_prior", "prior_predictive", "observed_data", "constant_data"
    ]  # fmt: skip
    assert set(tree["sample_stats_prior"].data_vars) == {"log_likelihood_total", "log_prior", "lp"}
    both = rayfbnn.to_datatree(finished / "run.zarr", prior=finished / "prior.zarr")
    assert list(both.children) == [
        *STORED, "observed_data", "constant_data", "prior", "sample_stats_prior", "prior_predictive",
        "posterior_predictive", "log_likelihood", "log_prior",
    ]  # fmt: skip
    assert both["prior"].sizes["draw"] == 6 and both["posterior"].sizes["draw"] == 10
    for path, prior in (("run.zarr", "run.zarr"), ("prior.zarr", "prior.zarr")):
        with pytest.raises(ConfigError, match=r"prior: expected a store made by `rayfbnn prior`"):
            rayfbnn.to_datatree(finished / path, prior=finished / prior)


def test_log_priors_are_in_two_parts_that_add_up(finished: Path) -> None:
    tree = rayfbnn.to_datatree(finished / "run.zarr", groups=["log_prior"])
    total = tree["log_prior"]["weights"] + tree["log_prior"]["sigmas"]
    np.testing.assert_allclose(total, Store.open(finished / "run.zarr").read_stat("log_prior"), rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"groups": ["loglik"]}, "groups: .* has no group loglik; it has posterior, sample_stats, "),
        ({"groups": ["prior"]}, "groups: .* has no group prior"),
        ({"max_memory": 15e3}, r"take 1.92e-05 GB, above 1.5e-05 GB; take fewer draws \(draws = 7\)"),
        ({"max_memory": 0}, "max_memory: must be a number of bytes"),
        ({"draws": 0}, "draws: must be at least 1, got 0"),
        ({"skip": 10}, "skip: must be below 10, the draws per chain"),
    ],
)
def test_what_cannot_be_given_is_refused(finished: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rayfbnn.to_datatree(finished / "run.zarr", **settings)


def test_one_group_may_be_given_by_its_name(finished: Path) -> None:
    assert list(rayfbnn.to_datatree(finished / "run.zarr", groups="log_prior").children) == ["log_prior"]
