"""A store returns exactly the committed data, read by this library, by xarray and by ArviZ."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import zarr

from rayfbnn.arrays import Array
from rayfbnn.data import make_dataset
from rayfbnn.errors import StoreCorruptError, StoreError, StoreMismatchError
from rayfbnn.spec import RunSpec
from rayfbnn.state import ChainState
from rayfbnn.store.catalogue import STATS, parameter_dims
from rayfbnn.store.hierarchy import array_metadata, encoded
from rayfbnn.store.records import NO_SEAL, SEAL, Block, seal
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.store import Store
from rayfbnn.streams import Purpose, Streams
from tests.support.store import toy

OPERATIONS = [{"op": "heatbath"}]
EVERYTHING: dict[str, Any] = {
    "chains": 5,
    "chains_per_batch": 3,
    "draws_per_block": 4,
    "data": {"train": "train.csv", "inputs": ["x one", "é"], "targets": ["y", "z"]},
    "model": {"kind": "real", "noise": "0.1:2:4"},
    "network": {
        "hidden": [{"units": 3, "activation": "tanh"}, {"units": 2, "activation": "relu"}],
        "priors": {
            "ti": "1",
            "ih0": "1:2:3",
            "bh0": "1:0.5",
            "th0": "1",
            "h0h1": "x1:0.5:1",
            "bh1": "1",
            "ho0": "1:2",
            "ho1": "x1:0.2",
            "io": "1:1:1",
            "bo": "1:3",
        },
    },
    "phase": [
        {"iterations": 2, "keep": "warmup", "operations": OPERATIONS},
        {"iterations": 10, "operations": OPERATIONS},
    ],
}


def make(path: Path, **changes: Any) -> Store:
    spec = RunSpec.from_dict({**EVERYTHING, **changes})
    n_inputs, n_targets = len(spec.data.inputs), len(spec.data.targets)
    values = normal(1, (7, n_inputs + n_targets))
    targets = np.floor(np.abs(values[:, n_inputs:])) % 2
    data = make_dataset(
        values[:, :n_inputs],
        targets,
        input_names=spec.data.inputs,
        target_names=spec.data.targets,
        standardize=["inputs"],
    )
    return Store.create(path, spec, data, kernel="plain NumPy", draws_per_chunk=4)


def normal(seed: int, shape: tuple[int, ...]) -> Array:
    return Streams(seed, np.arange(1, dtype=np.uint64)).normal(Purpose.PROPOSAL, shape)[0]


def block(store: Store, batch: int, first: int, n: int, section: Any, first_draw: int) -> Block:
    n_chains = len(store.header.batch_chains(batch))
    positions = normal(100 * batch + first, (n_chains, n, store.parameter_layout.n_parameters))
    precisions = np.exp(normal(100 * batch + first + 50, (n_chains, n, store.precision_layout.n_precisions)))
    positions = positions.astype(store.spec.dtype)
    return Block(
        first_iteration=first,
        n_iterations=n,
        section=section,
        first_draw=first_draw,
        positions=positions,
        precisions=precisions,
        stats={name: positions[:, :, 0] + i for i, name in enumerate(STATS)},
        state=ChainState(positions[:, -1], 2 * positions[:, -1], precisions[:, -1]),
        summary={"accepted": 0.5 * n, "seconds": 0.25},
    )


def fill(store: Store, *, n_draws: int = 10, is_gathered: bool = True) -> dict[str, Array]:
    """Commit warm-up, then draws in blocks of four; return the committed data, (n_chains, n_draws, ...)."""
    committed: list[list[Block]] = []
    for batch in range(store.n_batches):
        blocks = [block(store, batch, 1, 2, "warmup", 0)]
        for first in range(0, n_draws, 4):
            blocks.append(block(store, batch, 3 + first, min(4, n_draws - first), "posterior", first))
        for one in blocks:
            store.commit(batch, one)
        if is_gathered:
            store.gather(batch, everything=True)
        committed.append(blocks)

    def joined(read: Callable[[Block], Array]) -> Array:
        of_batches = [np.concatenate(list(map(read, blocks[1:])), axis=1) for blocks in committed]
        return np.concatenate(of_batches)

    return {
        "positions": joined(lambda one: one.positions),
        "precisions": joined(lambda one: one.precisions),
        "energy": joined(lambda one: one.stats["energy"]),
        "warmup": np.concatenate([blocks[0].positions for blocks in committed]),
    }


@pytest.mark.parametrize("is_gathered", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_draws_are_read_as_they_were_committed(tmp_path: Path, dtype: str, is_gathered: bool) -> None:
    committed = fill(make(tmp_path / "run.zarr", dtype=dtype), is_gathered=is_gathered)
    store = Store.open(tmp_path / "run.zarr")
    assert store.committed_draws == 10
    assert store.read_positions().dtype == dtype
    assert (store.read_positions() == committed["positions"]).all()
    assert (store.read_positions(section="warmup") == committed["warmup"]).all()
    assert (store.read_stat("energy") == committed["energy"]).all()
    np.testing.assert_allclose(store.read_precisions(), committed["precisions"], rtol=1e-15)
    part = slice(3, 9), slice(2, 4)
    assert (store.read_positions(*part) == committed["positions"][2:4, 3:9]).all()
    assert (store.read_stat("energy", *part) == committed["energy"][2:4, 3:9]).all()
    assert store.read_positions(slice(4, 4)).shape == (5, 0, committed["positions"].shape[2])
    assert store.read_positions(slice(8, 100)).shape[1] == 2


def test_opening_a_store_imports_no_kernel(tmp_path: Path) -> None:
    fill(make(tmp_path / "run.zarr"))
    code = """
        import sys
        from rayfbnn.store.store import Store
        store = Store.open(sys.argv[1])
        store.read_positions(), store.load_state(0), store.data, store.verify()
        print([name for name in sys.modules if name.startswith("rayfbnn.kernels")])
    """
    command = [sys.executable, "-c", dedent(code), str(tmp_path / "run.zarr")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("order", [">", "<"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_chunks_are_the_bytes_that_zarr_writes(
    tmp_path: Path, dtype: str, order: str, is_whole: bool
) -> None:
    hierarchy = make(tmp_path / "run.zarr", dtype=dtype).hierarchy
    seen = set()
    for seed, plan in enumerate(hierarchy.plans.values()):
        if plan.is_text:
            continue
        most = np.minimum(plan.shape, plan.chunks)
        values = 100 * normal(seed, tuple(most if is_whole else np.maximum(most - 1, 1)))
        values = np.where(values > 150, np.nan if plan.dtype != "int64" else 0, values)
        values = np.asfortranarray(values.astype(np.dtype(plan.dtype).newbyteorder(order)))
        assert encoded(values, plan) == toy.written_by_zarr(plan, values)
        seen.add(plan.dtype)
    assert {"float64", dtype} <= seen


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_metadata_are_those_that_zarr_writes(tmp_path: Path, dtype: str) -> None:
    plans = make(tmp_path / "run.zarr", dtype=dtype).hierarchy.plans.values()
    assert {plan.dtype for plan in plans} == {dtype, "float64", "int64", "string"}
    for plan in plans:
        files: dict[str, Any] = {}
        zarr.create_array(
            zarr.storage.MemoryStore(files),
            shape=plan.shape,
            chunks=plan.chunks,
            dtype=plan.dtype,
            fill_value={"int64": 0, "string": ""}.get(plan.dtype, np.nan),
            compressors=[zarr.codecs.Crc32cCodec()],
            dimension_names=plan.dims,
            chunk_key_encoding={"name": "default", "separator": "."},
            attributes={SEAL: NO_SEAL},
        )
        assert seal(json.loads(files["zarr.json"].to_bytes())) == array_metadata(plan)


def test_chunks_are_read_as_zarr_reads_them(tmp_path: Path) -> None:
    store = make(tmp_path / "run.zarr")
    fill(store)
    n_chains, n_draws = store.read_positions().shape[:2]
    assert n_chains > 2 and n_draws > 2
    selections = [
        (slice(0, n_chains), slice(0, n_draws)),
        (slice(1, n_chains), slice(1, n_draws - 1)),
        (slice(n_chains - 1, n_chains + 5), slice(2, 3)),
        (slice(1, 1), slice(0, n_draws)),
        (slice(0, 2), slice(3, 2)),
    ]
    paths = [path for path in store.hierarchy.plans if path.startswith(("posterior/", "sample_stats/"))]
    paths = [path for path in paths if store.hierarchy.plans[path].dims[:2] == ("chain", "draw")]
    assert len(paths) > 5
    arrays = zarr.open_group(store.hierarchy.zarr_store(), mode="r")
    for path in paths:
        for selection in selections:
            ours = store.hierarchy.read(path, *selection)
            zarrs = arrays[path][selection]
            assert ours.dtype == zarrs.dtype and ours.shape == zarrs.shape
            assert ours.tobytes() == zarrs.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_state_is_loaded_to_the_bit(tmp_path: Path, dtype: str) -> None:
    store = make(tmp_path / "run.zarr", dtype=dtype)
    assert store.load_state(1) is None
    committed = block(store, 1, 1, 2, "warmup", 0)
    store.commit(1, committed)
    loaded = Store.open(tmp_path / "run.zarr").load_state(1)
    assert loaded is not None and loaded[1] == 2
    for name in ("position", "momentum", "precisions"):
        values, expected = getattr(loaded[0], name), getattr(committed.state, name)
        assert values.dtype == expected.dtype and values.flags.c_contiguous
        assert (values == expected).all()


def test_the_training_cases_come_back(tmp_path: Path) -> None:
    store = make(tmp_path / "run.zarr")
    data = Store.open(tmp_path / "run.zarr").data
    assert data.input_names == ("x one", "é") and data.target_names == ("y", "z")
    assert data.hash == store.root.header.data_hash
    assert data.input_scale[0] != 1 and (data.target_scale == 1).all()
    assert abs(data.standardized_inputs.mean(axis=0)).max() < 1e-12


def test_only_what_every_chain_has_is_read(tmp_path: Path) -> None:
    store = make(tmp_path / "run.zarr")
    assert store.read_positions().shape[1] == 0
    store.commit(0, block(store, 0, 1, 2, "warmup", 0))
    store.commit(0, block(store, 0, 3, 4, "posterior", 0))
    assert (store.progress(0).draws, store.committed_draws) == (4, 0)
    assert store.read_positions(section="warmup").shape[1] == 0
    store.commit(1, block(store, 1, 1, 2, "warmup", 0))
    store.commit(1, block(store, 1, 3, 3, "posterior", 0))
    assert store.committed_draws == 3


def test_progress_sums_up_the_blocks(tmp_path: Path) -> None:
    store = make(tmp_path / "run.zarr")
    assert store.progress(0).iteration == 0
    store.commit(0, block(store, 0, 1, 2, "warmup", 0))
    progress = store.commit(0, block(store, 0, 3, 4, "posterior", 0))
    assert progress == store.progress(0) == Store.open(tmp_path / "run.zarr").progress(0)
    assert (progress.iteration, progress.draws, progress.warmup_draws, progress.blocks) == (6, 4, 2, 2)
    assert progress.totals == {"accepted": 3.0, "seconds": 0.5}
    assert progress.last == {"accepted": 2.0, "seconds": 0.25}


def test_the_same_block_again_changes_nothing_and_another_is_refused(tmp_path: Path) -> None:
    """FAULTS 3 and 4."""
    store = make(tmp_path / "run.zarr")
    first = block(store, 0, 1, 2, "warmup", 0)
    store.commit(0, first)
    store.commit(0, block(store, 0, 3, 4, "posterior", 0))
    before = {file: file.read_bytes() for file in store.path.rglob("*") if file.is_file()}
    assert store.commit(0, first).iteration == 6
    slower = Block(**{**first.__dict__, "summary": {"accepted": 1.0, "seconds": 99.0}})
    store.commit(0, slower)
    assert first.positions is not None
    other = Block(**{**first.__dict__, "positions": first.positions + 1})
    with pytest.raises(StoreCorruptError, match="iterations 1 to 2: are committed with other values"):
        store.commit(0, other)
    shorter = Block(**{**first.__dict__, "n_iterations": 1})
    with pytest.raises(StoreError, match="another worker has committed later ones"):
        store.commit(0, shorter)
    assert {file: file.read_bytes() for file in store.path.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2, 2, "warmup", 0), "starts at iteration 2, expected 1"),
        ((1, 2, "warmup", 1), "starts at draw 1, expected 0"),
        ((1, 3, "warmup", 0), "ends at draw 3, but 2 are planned"),
    ],
)
def test_a_block_out_of_place_is_refused(tmp_path: Path, arguments: Any, message: str) -> None:
    store = make(tmp_path / "run.zarr")
    with pytest.raises(StoreError, match=message):
        store.commit(0, block(store, 0, *arguments))
    with pytest.raises(StoreError, match="batch 1 has 2 chains, but its block has 3"):
        store.commit(1, block(store, 0, 1, 2, "warmup", 0))


def test_stores_of_the_same_run_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.zarr", "b.zarr"):
        fill(make(tmp_path / name))
    a, b = (
        {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
        for path in (tmp_path / "a.zarr", tmp_path / "b.zarr")
    )
    assert a == b


def test_exact_draws_need_no_state_and_no_statistics(tmp_path: Path) -> None:
    source = make(tmp_path / "run.zarr")
    store = Store.create(
        tmp_path / "exact.zarr",
        spec=source.spec,
        data=source.data,
        kernel="plain NumPy",
        kind="exact",
        n_draws=6,
        chains=1,
    )
    positions = normal(3, (1, 4, store.parameter_layout.n_parameters)).astype(np.float32)
    store.commit(
        0, Block(1, 4, "posterior", 0, positions, np.ones((1, 4, store.precision_layout.n_precisions)))
    )
    store = Store.open(tmp_path / "exact.zarr")
    assert store.kind == "exact" and store.load_state(0) is None
    assert (store.read_positions() == positions).all()
    assert np.isnan(store.read_stat("energy")).all()
    assert store.verify().ok


@pytest.mark.parametrize("is_complete", [False, True])
def test_xarray_opens_a_store_as_it_stands_without_a_warning(tmp_path: Path, is_complete: bool) -> None:
    import xarray as xr

    store = make(tmp_path / "run.zarr")
    committed = fill(store, n_draws=10 if is_complete else 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with store.lock():
            tree = xr.open_datatree(tmp_path / "run.zarr", engine="zarr", consolidated=False)
            tree.load()
    posterior = tree["posterior"]
    assert posterior["ih0"].dims == ("chain", "draw", "input", "hidden0")
    assert posterior["sigma_ih0"].dims == ("chain", "draw")
    assert posterior["sigma_ih0_unit"].dims == ("chain", "draw", "input")
    assert posterior["sigma_noise"].dims == ("chain", "draw", "target")
    assert posterior["sigma_noise_common"].dims == ("chain", "draw")
    assert list(posterior["input"].values) == ["x one", "é"]
    assert list(posterior["output"].values) == ["y", "z"]
    assert list(posterior["draw"].values) == list(range(10))
    first = store.parameter_layout.slices["h0h1"]
    values = posterior["h0h1"].values
    n_draws = committed["positions"].shape[1]
    assert (values[:, :n_draws].reshape(5, n_draws, -1) == committed["positions"][..., first]).all()
    assert np.isnan(values[:, n_draws:]).all()
    stats = ["log_likelihood_total" if name == "log_likelihood" else name for name in STATS]
    assert tree["sample_stats"]["statistics"].dims == ("chain", "draw", "statistic")
    assert list(tree["sample_stats"]["statistic"].values) == stats
    assert tree["observed_data"]["targets"].dims == ("case", "target")
    assert tree["constant_data"]["inputs"].dims == ("case", "input")


def test_the_datatree_holds_the_committed_draws_alone(tmp_path: Path) -> None:
    store = make(tmp_path / "run.zarr")
    committed = fill(store, n_draws=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tree = store.datatree().load()
    assert sorted(tree.children) == sorted(
        [
            "posterior",
            "sample_stats",
            "warmup_posterior",
            "warmup_sample_stats",
            "observed_data",
            "constant_data",
        ]
    )
    assert tree["posterior"].sizes["draw"] == tree["sample_stats"].sizes["draw"] == 8
    assert tree["warmup_posterior"].sizes["draw"] == 2
    assert (tree["sample_stats"]["energy"].values == committed["energy"]).all()
    assert list(tree["posterior"].data_vars)[:2] == ["ti", "ih0"]
    assert not tree["posterior"]["ih0"].attrs


@pytest.fixture
def trees(tmp_path: Path) -> list[Any]:
    """A store as its own datatree, and as xarray opens it."""
    import xarray as xr

    fill(make(tmp_path / "run.zarr"))
    opened = xr.open_datatree(tmp_path / "run.zarr", engine="zarr", consolidated=False)
    return [Store.open(tmp_path / "run.zarr").datatree(), opened]


def test_arviz_takes_a_store_without_conversion(trees: list[Any]) -> None:
    from arviz_stats.base import array_stats

    for tree in trees:
        values = tree["posterior"]["sigma_ih0_unit"].values
        assert np.isfinite(array_stats.ess(values, chain_axis=0, draw_axis=1)).all()


def test_arviz_s_summary_takes_a_store_without_conversion(trees: list[Any]) -> None:
    pytest.importorskip("arviz_base", reason="summary comes with ArviZ as a whole")
    import arviz_stats

    for tree in trees:
        table = arviz_stats.summary(tree, var_names=["sigma_ih0_unit", "bo"])
        assert {"sigma_ih0_unit[x one]", "sigma_ih0_unit[é]", "bo[y]", "bo[z]"} == set(table.index)


@pytest.mark.parametrize(
    ("kind", "outputs"), [("binary", ["y"]), ("class", ["0", "1", "2"])], ids=["binary", "class"]
)
def test_outputs_are_named_by_target_or_class(tmp_path: Path, kind: str, outputs: list[str]) -> None:
    store = make(
        tmp_path / "run.zarr",
        data={**EVERYTHING["data"], "targets": ["y"]},
        model={"kind": kind, **({"classes": 3} if kind == "class" else {})},
    )
    tree = store.datatree()
    assert list(tree["posterior"]["output"].values) == outputs
    assert "sigma_noise" not in tree["posterior"]


@pytest.mark.parametrize(
    ("group", "dims"),
    [
        ("ti", ("input",)),
        ("ih12", ("input", "hidden12")),
        ("h9h10", ("hidden9", "hidden10")),
        ("bh1", ("hidden1",)),
        ("th0", ("hidden0",)),
        ("ho3", ("hidden3", "output")),
        ("io", ("input", "output")),
        ("bo", ("output",)),
    ],
)
def test_axes_are_named_by_what_they_join(group: str, dims: tuple[str, ...]) -> None:
    assert parameter_dims(group) == dims


def test_a_sealed_file_is_plain_json_that_names_its_version(tmp_path: Path) -> None:
    make(tmp_path / "run.zarr")
    attributes = json.loads((tmp_path / "run.zarr" / "zarr.json").read_text())["attributes"]
    assert (attributes["format"], attributes["format_version"]) == ("rayfbnn", 4)
    assert RunSpec.from_dict(attributes["spec"]).kept_draws == 10


def test_an_extended_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    import xarray as xr

    store = make(tmp_path / "run.zarr")
    committed = fill(store)
    store.extend(store.spec.with_iterations(23), 23)
    store = Store.open(tmp_path / "run.zarr")
    assert store.spec.kept_draws == 23 and store.committed_draws == 10
    for batch in range(2):
        for first in range(10, 23, 4):
            n = min(4, 23 - first)
            store.commit(batch, block(store, batch, first + 3, n, "posterior", first))
        store.gather(batch, everything=True)
    assert store.committed_draws == 23
    assert (store.read_positions(slice(10)) == committed["positions"]).all()
    assert store.verify().ok
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tree = xr.open_datatree(tmp_path / "run.zarr", engine="zarr", consolidated=False).load()
    assert list(tree["posterior"]["draw"].values) == list(range(23))
    assert not np.isnan(tree["posterior"]["bo"].values).any()
    store.extend(store.spec.with_iterations(40), 40)
    store.extend(store.spec, 40)  # nothing to do
    assert Store.open(tmp_path / "run.zarr").root.n_extensions == 2
    assert Store.open(tmp_path / "run.zarr").verify().ok


def test_a_run_keeps_what_is_sampled_and_all_else_of_its_specification(tmp_path: Path) -> None:
    store = make(tmp_path / "run.zarr")
    fill(store)
    with pytest.raises(StoreMismatchError, match="12 iterations are sampled, but 5 draws would be fewer"):
        store.extend(store.spec.with_iterations(5), 5)
    other = RunSpec.from_dict({**EVERYTHING, "seed": 99}).with_iterations(20)
    with pytest.raises(StoreMismatchError, match="seed: was 1, now 99"):
        store.extend(other, 20)
    assert Store.open(tmp_path / "run.zarr").root.n_extensions == 0


def test_cases_are_read_in_pieces(tmp_path: Path) -> None:
    store = toy.create(FileSystem(), tmp_path / "run.zarr")
    pieces, targets = Store.open(store.path).standardized_cases()
    assert (np.concatenate(list(pieces)) == store.data.standardized_inputs).all()
    assert (targets == store.data.standardized_targets).all()
    chunks = sorted(file.name for file in (tmp_path / "run.zarr/constant_data/inputs").glob("c.*"))
    assert chunks == ["c.0.0", "c.1.0"]
    assert store.verify().problems == ()
