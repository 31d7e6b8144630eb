"""A run in a bucket, killed and resumed by the commands of the shell, against a server on loopback."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rayfbnn import api
from rayfbnn.cli import app
from rayfbnn.errors import StoreExistsError
from rayfbnn.spec import RunSpec
from rayfbnn.store.storage.bucket import Bucket
from rayfbnn.store.storage.places import ObjectPath, place_of
from rayfbnn.store.store import Store
from tests.support.drivers import finish, iterations_done, slow_spec, start, wait_until
from tests.support.small import assert_same_draws, make_store, small_spec
from tests.support.store.buckets import azure_server, s3_server

ADDRESS = "s3://bucket/runs/run.zarr"


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    with s3_server() as environment:
        yield environment


@pytest.fixture(scope="module")
def azure() -> Iterator[dict[str, str]]:
    with azure_server() as environment:
        yield environment


def records(address: str) -> int:
    """Count commit records by one request; a poll that opened the store would keep the server busy."""
    time.sleep(0.05)
    place = place_of(address)
    assert isinstance(place, ObjectPath)
    keys = Bucket.from_place(place).keys(f"{place.key}/commits/batch0000")
    return sum(not key.endswith("head.json") for key in keys)


@pytest.mark.parametrize(
    ("scheme", "kills"),
    [
        ("s3", 1),
        pytest.param("s3", 10, marks=pytest.mark.long),
        pytest.param("az", 3, marks=pytest.mark.long),
    ],
)
def test_a_run_in_a_bucket_killed_and_resumed_has_the_bits_of_a_local_run(
    tmp_path: Path, request: pytest.FixtureRequest, scheme: str, kills: int
) -> None:
    request.getfixturevalue({"s3": "server", "az": "azure"}[scheme])
    address = f"{scheme}://bucket/runs/{kills}.zarr"
    spec = slow_spec(tmp_path, iterations=20 * (kills + 1), steps=40, chains=2)
    make_store(address, spec)
    for kill in range(kills):
        driver = start("resume", address, "--workers", "0", "--no-progress")
        done = records(address)
        wait_until(lambda: records(address) > done, driver)  # noqa: B023, called in this turn
        driver.kill()
        driver.wait()
        assert iterations_done(address) < spec.total_iterations, f"kill {kill} came too late"
    code, _, errors = finish(start("resume", address, "--workers", "0", "--no-progress"))
    assert code == 0, errors
    local = make_store(tmp_path / "local.zarr", spec)
    api.resume(local.path, workers=0, progress=False)
    assert api.verify(address).problems == ()
    assert_same_draws(address, local.path)


@pytest.fixture(scope="module")
def finished(server: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    """The configuration of a run that is finished at ADDRESS."""
    operations = [{"op": "sample-sigmas"}, {"op": "hybrid", "steps": 5, "stepsize": 0.2}]
    phase = [{"iterations": 8, "operations": operations}]
    spec = small_spec(tmp_path_factory.mktemp("run"), chains=2, draws_per_block=8, phase=phase)
    summary = api.sample(spec, ADDRESS, workers=0, progress=False)
    assert summary.path == ADDRESS
    return spec


@pytest.mark.long
def test_every_verb_of_results_reads_a_bucket(finished: RunSpec, tmp_path: Path) -> None:
    local = tmp_path / "run.zarr"
    api.sample(finished, local, workers=0, progress=False)
    here, there = (api.predict(path, data=finished.train_path) for path in (local, ADDRESS))
    assert here.table.equals(there.table)
    assert str(api.diagnose(ADDRESS)) == str(api.diagnose(local)).replace(str(local), ADDRESS)
    assert api.open(ADDRESS).equals(api.open(local))
    assert "s3://bucket/runs/run.zarr" in api.show(ADDRESS)
    assert api.verify(ADDRESS).ok
    assert api.prior(finished, "s3://bucket/runs/prior.zarr", draws=3).draws == 3


def test_xarray_reads_a_bucket_through_zarr(finished: RunSpec) -> None:
    xarray = pytest.importorskip("xarray")
    from obstore.store import S3Store
    from zarr.storage import ObjectStore

    objects = ObjectStore(S3Store("bucket", prefix="runs/run.zarr"), read_only=True)
    tree = xarray.open_datatree(objects, engine="zarr", consolidated=False)
    ours = Store.open(ADDRESS).read_stat("energy")
    energy = tree["sample_stats"]["statistics"].sel(statistic="energy")
    assert np.array_equal(energy.values, ours)


def test_a_second_store_at_an_address_is_refused(finished: RunSpec) -> None:
    with pytest.raises(StoreExistsError):
        api.sample(finished, ADDRESS, workers=0, progress=False)


def test_no_object_holds_a_credential(finished: RunSpec, server: dict[str, str]) -> None:
    secret = server["AWS_SECRET_ACCESS_KEY"].encode()
    bucket = Bucket.from_place(place_of(ADDRESS))
    for key in bucket.keys("runs/run.zarr"):
        assert secret not in bucket.get(key)[0], key


def said(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code in (0, 3), result.output
    return result.output + result.stderr


def assert_address_is_whole(text: str, address: str) -> None:
    assert address in text
    assert "s3:/b" not in text


def test_a_study_in_a_bucket_is_named_by_its_address(finished: RunSpec, tmp_path: Path) -> None:
    spec, address = tmp_path / "run.toml", "s3://bucket/studies/one"
    spec.write_text(finished.to_toml())
    for words in (
        ["create", address, spec, "--seeds", 2, "--data", finished.train_path],
        ["add", address, "--seeds", 1],
        ["status", address],
    ):
        assert_address_is_whole(said("study", *words), address)
    assert "rayfbnn study run s3://bucket/studies/one" in said("study", "add", address, "--seeds", 1)


@pytest.mark.parametrize("verb", ["show", "status"])
def test_a_store_in_a_bucket_is_named_by_its_address(finished: RunSpec, verb: str) -> None:
    assert_address_is_whole(said(verb, ADDRESS), ADDRESS)


@pytest.mark.long
def test_advice_and_titles_name_the_address(
    finished: RunSpec, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said("predict", ADDRESS, "--data", finished.train_path)
    assert_address_is_whole(caplog.text, ADDRESS)
    said("report", ADDRESS, "--out", tmp_path / "page.html", "--no-progress")
    assert "s3:/b" not in (tmp_path / "page.html").read_text()
    address = "s3://bucket/elsewhere/run.zarr"
    api.sample(finished, address, workers=0, progress=False)
    said("report", ADDRESS, address, "--out", tmp_path / "page.html", "--no-progress")
    assert_address_is_whole((tmp_path / "page.html").read_text(), address)


@pytest.mark.long
@pytest.mark.ray
def test_workers_of_ray_write_to_a_bucket(server: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    spec = small_spec(tmp_path, chains=4)
    address = "s3://bucket/runs/ray.zarr"
    code, _, errors = finish(
        start("resume", make_store(address, spec).path, "--workers", "2", "--no-progress")
    )
    assert code == 0, errors
    local = make_store(tmp_path / "local.zarr", spec)
    api.resume(local.path, workers=0, progress=False)
    assert_same_draws(address, local.path)
