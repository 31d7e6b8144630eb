"""Leave-one-out cross-validation: against ArviZ's own on all densities at once, and against closed forms."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.special import logsumexp

import rayfbnn
from rayfbnn.answers.loo import elpd_data, leave_out, n_unreliable
from rayfbnn.arrays import Array
from rayfbnn.draws.view import Draws, Source, committed
from rayfbnn.errors import StoreError
from rayfbnn.reduce.importance import TileJob, leave_out_one, leave_out_tile, relative_efficiency
from rayfbnn.reduce.passes import TasksInProcess
from rayfbnn.reduce.tile import Reader, bytes_of
from rayfbnn.store.store import Store
from tests.support.model.linear import linear_run, loo_of_linear
from tests.support.small import small_spec
from tests.support.store.fits import MODELS, spec_of
from tests.support.store.standin_store import Endless, make_data, make_run, make_spec, normal

az: Any = pytest.importorskip("arviz_stats")
pytest.importorskip("arviz_base", reason="loo needs the extra of the same name")

HERE: dict[str, Any] = {"workers": 0, "progress": False}
SMALLEST = 1.0  # memory for tiles of one case


def tree_of(log_densities: xr.DataArray) -> xr.DataTree:
    """What ArviZ's loo takes: the log densities (chain, draw, case), and some posterior."""
    posterior = xr.Dataset({"any": log_densities.isel(case=0, drop=True)})
    groups = {"posterior": posterior, "log_likelihood": log_densities.to_dataset(name="y")}
    return xr.DataTree.from_dict(groups)


def joint(path: Path) -> xr.DataArray:
    """The log density of the observed targets of each case that has any, (chain, draw, case)."""
    values = rayfbnn.to_datatree(path, groups=["log_likelihood"])["log_likelihood"]["targets"]
    if "observation" in values.dims:
        return values.groupby("case").sum()
    return values.sum("target")


@pytest.mark.filterwarnings("ignore:Estimated shape", "ignore:The point-wise")
@pytest.mark.parametrize("name", MODELS)
def test_each_case_is_that_of_arviz_on_all_densities(name: str, tmp_path: Path) -> None:
    """ArviZ takes one relative efficiency for all cases, and is therefore asked case by case."""
    rayfbnn.sample(spec_of(name, tmp_path, dtype="float64"), tmp_path / "run.zarr", **HERE)
    left_out = leave_out(committed(Store.open(tmp_path / "run.zarr")), memory_bytes=SMALLEST)
    assert np.flatnonzero(np.isnan(left_out.elpd)).tolist() == [5]  # its target is missing
    densities = joint(tmp_path / "run.zarr")
    assert densities["case"].values.tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    for place, case in enumerate(densities["case"].values):
        of_case = densities.isel(case=[place])
        efficiency = relative_efficiency(of_case.values[:, :, 0])
        expected = az.loo(tree_of(of_case), pointwise=True, reff=efficiency)
        given = left_out.elpd[case], left_out.p[case], left_out.pareto_k[case]
        np.testing.assert_allclose(given, (expected.elpd, expected.p, expected.pareto_k[0]), rtol=1e-8)


@pytest.mark.filterwarnings("ignore:Estimated shape")
def test_the_totals_of_one_chain_are_those_of_arviz(tmp_path: Path) -> None:
    """Two standardised targets, some missing; with one chain ArviZ takes a relative efficiency of 1 too."""
    spec = small_spec(tmp_path, data__standardize=["inputs", "targets"], data__inputs=["x1"], chains=1)
    tables = spec.to_dict()
    tables["data"] |= {"targets": ["x2", "y"], "train": str(tmp_path / "train.csv")}
    lines = (tmp_path / "train.csv").read_text().splitlines()
    lines[3] = lines[3].rsplit(",", 1)[0] + ","
    (tmp_path / "train.csv").write_text("\n".join(lines))
    tables["dtype"], tables["phase"][-1]["iterations"] = "float64", 60
    rayfbnn.sample(tables, tmp_path / "run.zarr", **HERE)
    found = rayfbnn.loo(tmp_path / "run.zarr")
    expected = az.loo(tree_of(joint(tmp_path / "run.zarr")), pointwise=True)
    for name in ("elpd", "se", "p", "good_k", "elpd_i", "pareto_k"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-8)
    for name in ("kind", "n_samples", "n_data_points", "scale", "warning"):
        assert found[name] == expected[name]
    assert found.log_weights is None


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a linear network on 30 cases; its posterior is Gaussian."""
    return linear_run(tmp_path_factory.mktemp("linear"))


def test_loo_is_that_of_the_closed_form(linear: Path) -> None:
    """The standard error of the estimate is that of chains as replicates, each of its own draws alone."""
    exact = loo_of_linear(linear)
    found = rayfbnn.loo(linear)
    densities = joint(linear).values
    by_chain = [
        sum(leave_out_one(chain[None, :, case])[0] for case in range(len(exact))) for chain in densities
    ]
    error = np.std(by_chain, ddof=1) / np.sqrt(len(by_chain))
    assert error < 0.05 * found.se
    assert abs(found.elpd - exact.sum()) < 2 * error  # the seed is fixed
    np.testing.assert_allclose(found.elpd_i, exact, atol=0.05)
    assert not found.warning and found.n_data_points == 30
    exact_p = loo_of_linear(linear, leaves_out=False).sum() - exact.sum()
    assert found.p == pytest.approx(exact_p, abs=0.1)


def test_results_do_not_depend_on_the_tiles(linear: Path) -> None:
    run = committed(Store.open(linear))
    at_once, in_tiles = leave_out(run), leave_out(run, memory_bytes=7 * 2 * 8 * run.total)
    for name in ("elpd", "p", "pareto_k"):
        np.testing.assert_allclose(getattr(at_once, name), getattr(in_tiles, name), rtol=1e-9)


def tile_of(run: Draws, cases: slice) -> TileJob:
    return TileJob(run.data.standardized_inputs[cases], run.data.standardized_targets[cases], True, 1e6)


def test_progress_is_the_share_of_the_cases(linear: Path) -> None:
    shares: list[float] = []
    run = committed(Store.open(linear))
    leave_out(run, memory_bytes=10 * 2 * 8 * run.total, on_progress=shares.append)
    assert shares == [1 / 3, 2 / 3, 1]


@pytest.mark.parametrize(("kept", "reads"), [(1.0, 8), (0.5, 8 + 2 * 4), (0.0, 3 * 8)])
def test_draws_that_are_kept_are_not_read_again(kept: float, reads: int) -> None:
    """Three tiles of eight chunks, of which a process keeps all, half, or none."""
    run = make_run(make_spec(draws_per_block=7), n_draws=28)
    source = Counting(run.source)
    run = replace(run, source=source)
    executor = TasksInProcess(kept_bytes=kept * bytes_of(run))
    leave_out(run, executor=executor, memory_bytes=4 * 2 * 8 * run.total)
    assert len(list(run.chunks())) == 8
    assert sum(n for (name, *_), n in source.reads.items() if name == "positions") == reads


class Counting:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.reads: Counter[tuple[Any, ...]] = Counter()

    def read(self, name: str, chains: slice, draws: slice) -> Array:
        self.reads[name, chains.start, draws.start] += 1
        return self.source.read(name, chains, draws)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shuffled_cases_are_in_the_order_of_their_table(dtype: str, tmp_path: Path) -> None:
    """Only the order of the cases differs, so each case has about the same result."""
    rayfbnn.sample(small_spec(tmp_path, dtype=dtype, data__shuffle=True), tmp_path / "run.zarr", **HERE)
    run = committed(Store.open(tmp_path / "run.zarr"))
    rows = rayfbnn.open(tmp_path / "run.zarr")["constant_data"]["row"].values
    assert rows.tolist() != sorted(rows.tolist())
    in_store = leave_out_tile(Reader([run]), tile_of(run, slice(0, 12)))
    np.testing.assert_array_equal(leave_out(run).elpd[rows], in_store[0])


def test_memory_is_bounded_whatever_the_number_of_draws_and_cases() -> None:
    """Four times the cases at twice the draws, and no more memory."""
    memory_bytes = 1e6
    assert 8 * 4 * 1000 * 240 > 7 * memory_bytes  # densities of all draws at all cases
    small, large = peak_bytes(500, 60, memory_bytes), peak_bytes(1000, 240, memory_bytes)
    assert large < memory_bytes and large < 1.5 * small


def test_memory_is_bounded_whatever_the_number_of_chains_in_a_batch() -> None:
    assert peak_bytes(4, 300, 4e6, chains=256, chains_per_batch=256) < 4e6


def peak_bytes(n_draws: int, n_cases: int, memory_bytes: float, **changes: int) -> int:
    spec = make_spec(draws_per_block=50, **changes)
    store = make_run(spec).store
    store.data = make_data(spec, n_cases)
    run = committed(Endless(store, n_draws))
    leave_out_tile(Reader([run]), tile_of(run, slice(0, 1)))  # imports and the targets are not counted
    tracemalloc.start()
    try:
        leave_out(run, executor=TasksInProcess(kept_bytes=0), memory_bytes=memory_bytes)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# Densities to which no Pareto distribution can be fitted, and those of chains.


def test_equal_densities_need_no_weights() -> None:
    found = leave_out_one(np.full((4, 30), -2.0))
    np.testing.assert_allclose(found, (-2, 0, -math.inf), atol=1e-12)


def test_the_mean_is_harmonic_if_the_largest_weights_are_equal() -> None:
    values = normal(5, (4, 50))
    values[0] = values.min() - 1  # a chain that stands still
    elpd, p, k = leave_out_one(values)
    assert elpd == pytest.approx(math.log(200) - logsumexp(-values))
    assert p == pytest.approx(logsumexp(values) - math.log(200) - elpd) and k == math.inf


def test_a_draw_that_most_of_the_tail_repeats_leaves_k_unknown() -> None:
    values = normal(5, (4, 50))
    values[0] = np.sort(values[1:].ravel())[5]  # five weights are larger
    elpd, p, k = leave_out_one(values)
    assert elpd == pytest.approx(math.log(200) - logsumexp(-values)) and math.isfinite(p) and k == math.inf


def test_a_draw_in_which_a_case_is_impossible_makes_it_impossible() -> None:
    values = normal(5, (4, 50))
    values[2, 3] = -math.inf
    assert leave_out_one(values) == (-math.inf, math.inf, math.inf)


def test_weights_that_differ_beyond_all_numbers_have_an_infinite_k() -> None:
    values = normal(5, (4, 50))
    values[2, 3] = -2000
    elpd, _, k = leave_out_one(values)
    assert elpd == pytest.approx(-2000 + math.log(200)) and k == math.inf


def test_the_relative_efficiency_is_that_of_the_density() -> None:
    independent = normal(7, (4, 500))
    repeated: Array = np.repeat(independent[:, ::10], 10, axis=1)
    assert 0.8 < relative_efficiency(independent) < 1.3
    assert 0.05 < relative_efficiency(repeated) < 0.2
    assert relative_efficiency(independent[:1]) == relative_efficiency(independent[:, :3]) == 1
    assert relative_efficiency(np.zeros((4, 50))) == 1


def test_unreliable_cases_are_marked(linear: Path) -> None:
    left_out = leave_out(committed(Store.open(linear)))
    left_out.pareto_k[[3, 8]] = 0.71, math.nan
    assert elpd_data(left_out).warning
    assert n_unreliable(elpd_data(left_out)) == 2
    left_out.pareto_k[3] = 0.69
    assert elpd_data(left_out).warning and n_unreliable(elpd_data(left_out)) == 1
    left_out.pareto_k[8] = -math.inf
    assert not elpd_data(left_out).warning and n_unreliable(elpd_data(left_out)) == 0


@pytest.mark.filterwarnings("ignore:invalid value")
def test_outputs_that_are_not_finite_are_an_error() -> None:
    run = make_run(make_spec(dtype="float32"))
    run.store.positions[0, [3, 5], -1] = np.inf  # an output bias
    with pytest.raises(
        StoreError, match="at least 2 of the draws have outputs that are not finite in float32"
    ):
        leave_out(run)
