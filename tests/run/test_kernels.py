"""Kernels of runs: what a store records, what its workers use, and the message when that changes."""

from __future__ import annotations

import logging
from pathlib import Path
from socket import gethostname

import numpy as np
import pytest

from rayfbnn.errors import ConfigError
from rayfbnn.kernels import choose
from rayfbnn.kernels.cpu import compiled_module as cpu
from rayfbnn.run.resuming import compare_kernel
from rayfbnn.run.running import OtherKernels
from rayfbnn.run.sampler import Sampler
from rayfbnn.store.store import Store
from tests.support.small import make_store, small_spec
from tests.support.store.fits import run_all

needs_kernels = pytest.mark.skipif(not cpu.instruction_sets(), reason="installed without a C++ compiler")


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(choose.VARIABLE, raising=False)


@needs_kernels
def test_a_store_says_what_it_began_with_and_workers_keep_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = f"compiled, {cpu.instruction_sets()[0]}"
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    assert store.root.kernel == best
    assert Sampler(store).kernel == best
    monkeypatch.setenv(choose.VARIABLE, "plain")
    forced = make_store(tmp_path / "plain.zarr", small_spec(tmp_path))
    assert forced.root.kernel == "plain NumPy (RAYFBNN_KERNELS is plain)"
    monkeypatch.delenv(choose.VARIABLE)
    assert Sampler(Store.open(forced.path)).kernel == forced.root.kernel


def test_a_kernel_that_is_none_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(choose.VARIABLE, "avx")
    spec = small_spec(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="RAYFBNN_KERNELS: must be plain.*got avx"):
        make_store(tmp_path / "run.zarr", spec)
    assert sorted(tmp_path.rglob("*")) == before


@needs_kernels
def test_going_on_with_another_kernel_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    with caplog.at_level(logging.WARNING):
        compare_kernel(store)
        assert not caplog.records
        monkeypatch.setattr(cpu, "_cpu", None)
        compare_kernel(store)
    assert (
        f"run started with the kernel {store.root.kernel}, which {gethostname()} does not have" in caplog.text
    )
    assert "continues with plain NumPy (no compiled kernels" in caplog.text


@needs_kernels
def test_a_worker_elsewhere_without_the_kernel_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    observer = OtherKernels(store)
    with caplog.at_level(logging.WARNING):
        for news in Sampler(store, worker="elsewhere pid 1").run_block(0):
            observer.update(news)
        monkeypatch.setattr(cpu, "_cpu", None)
        for news in Sampler(store, worker=f"{gethostname()} pid 2").run_block(0):
            observer.update(news)
        assert not caplog.records
        for worker in ("elsewhere pid 3", "elsewhere pid 4"):
            for news in Sampler(store, worker=worker).run_block(0):
                observer.update(news)
    (record,) = caplog.records
    assert (
        f"{store.root.kernel}, which elsewhere pid 3 does not have; it continues with plain" in record.message
    )


@needs_kernels
def test_a_run_through_the_kernel_is_the_plain_run_until_rounding_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until rounding changes a decision, positions agree to float32's precision."""
    compiled = run_all(make_store(tmp_path / "run.zarr", small_spec(tmp_path))).read_positions()
    monkeypatch.setenv(choose.VARIABLE, "plain")
    plain = run_all(make_store(tmp_path / "plain.zarr", small_spec(tmp_path))).read_positions()
    assert not np.array_equal(compiled, plain)
    assert np.abs(compiled - plain).max() < 1e-3
