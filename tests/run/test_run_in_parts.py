"""Whole runs whose cases are divided into parts: the same draws for any owners, batches and interruptions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn import api
from rayfbnn.data import read_dataset
from rayfbnn.errors import StoreMismatchError
from rayfbnn.mcmc.operations import OPERATIONS as ALL_OPERATIONS
from rayfbnn.model.batches import posterior_of_part
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.ring.rounds import Home, Ring, Star
from rayfbnn.ring.shared_posterior import SharedPosterior
from rayfbnn.ring.transport import LocalTransport, Owner
from rayfbnn.run import sampler
from rayfbnn.run.in_parts import divided, home_of_run, parts_of_run
from rayfbnn.run.sampler import posterior_of_run
from rayfbnn.spec import RunSpec
from rayfbnn.store.store import Store
from tests.support.problems import streams
from tests.support.ring.parts import DIVISIONS
from tests.support.small import SMALL, assert_same_draws, make_store
from tests.support.store.fits import MODELS, spec_of

DATA = {**SMALL["data"], "parts": 4}
PARTIAL = {"stepsize": 0.3, "partitions": 4, "order": "cyclic"}
OPERATIONS: list[dict[str, Any]] = [
    {"op": "sample-sigmas"},
    {"op": "rescale", "along": "incoming"},
    {"op": "heatbath", "decay": 0.3},
    {"op": "hybrid", "steps": 5, "window": 3, **PARTIAL},
    {"op": "hybrid", "steps": 2, "stepsize": 0.2},
    {"op": "negate"},
]
OTHERS: list[dict[str, Any]] = [
    {"op": "random-grid"},
    {"op": "metropolis", "stepsize": 0.1},
    {"op": "hybrid-marginal", "over": ["precisions"], "steps": 3, **PARTIAL},
    {"op": "hybrid-max", "max_steps": 4, "max_ok": 2, **PARTIAL},
    {"op": "hybrid", "steps": 1, "stepsize": 0.2, "integrator": "fourth-order"},
    {"op": "dynamic", "steps": 2, "stepsize": 0.1, "partitions": 4},
]


def test_every_operation_is_run_in_parts_or_refused() -> None:
    run = {operation["op"] for operation in OPERATIONS + OTHERS} | {
        "sample-noise",
        "radial-heatbath",
        "repeat",
    }
    refused = {"metropolis-1", "slice-1", "simulated-tempering", "tempered-transition", "sghmc"}
    assert run | refused == {operation.op for operation in ALL_OPERATIONS} and not run & refused
    for operation in ALL_OPERATIONS:
        is_always_possible = not operation.undivided
        assert is_always_possible or operation.op in refused | {"dynamic", "hybrid-marginal"}


def in_parts(name: str, folder: Path, **changes: Any) -> RunSpec:
    others = OTHERS if name == "t noise" else []
    phase = [{"iterations": 2, "operations": [*OPERATIONS, *others]}]
    return spec_of(name, folder, **{"data": DATA, "phase": phase, "chains": 3, **changes})


def sampled(spec: RunSpec, path: Path) -> Path:
    api.sample(spec, path, workers=0, progress=False)
    return path


def in_a_star(whole: SampledPosterior, n_parts: int, **settings: Any) -> tuple[SharedPosterior, str]:
    shared, kernel = divided(whole, n_parts, owners=DIVISIONS["three owners"], **settings)
    return replace(shared, ring=Star(shared.ring.home, n_parts)), kernel


QUICK = ("t noise", "class")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in MODELS]
)
def test_owners_have_no_influence_on_draws(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sampled(in_parts(name, tmp_path), tmp_path / "first.zarr")
    for division in ["two owners in turn"] if name in QUICK else DIVISIONS:
        monkeypatch.setattr(sampler, "divided", partial(divided, owners=DIVISIONS[division]))
        assert_same_draws(first, sampled(in_parts(name, tmp_path), tmp_path / f"{division}.zarr"))
    monkeypatch.setattr(sampler, "divided", in_a_star)
    assert_same_draws(first, sampled(in_parts(name, tmp_path), tmp_path / "star.zarr"))
    batches = sampled(in_parts(name, tmp_path, chains_per_batch=1), tmp_path / "batches.zarr")
    assert np.array_equal(Store.open(first).read_positions(), Store.open(batches).read_positions())


def test_a_run_in_parts_is_resumed_with_the_same_draws(tmp_path: Path) -> None:
    whole = sampled(in_parts("real", tmp_path), tmp_path / "run.zarr")
    shorter = in_parts("real", tmp_path).with_iterations(1)
    path = sampled(shorter, tmp_path / "short.zarr")
    api.resume(path, iterations=2, data=tmp_path / "train.csv", workers=0, progress=False)
    assert_same_draws(whole, path)


def test_a_store_says_which_row_each_case_is(tmp_path: Path) -> None:
    path = sampled(in_parts("real", tmp_path).with_iterations(1), tmp_path / "run.zarr")
    tree: Any = api.open(path)
    rows = tree["constant_data"]["row"].values
    table = read_dataset(in_parts("real", tmp_path, data={**DATA, "shuffle": False}))
    assert np.array_equal(tree["constant_data"]["inputs"].values, table.inputs[rows])
    assert api.verify(path).ok
    assert "4 parts of cases in random order, 3 in each; chains travel" in api.show(path)


def test_another_number_of_parts_is_refused_with_both(tmp_path: Path) -> None:
    path = sampled(in_parts("real", tmp_path).with_iterations(1), tmp_path / "run.zarr")
    hybrid = [{"op": "heatbath"}, {"op": "hybrid", "steps": 2, "stepsize": 0.2}]
    other = in_parts(
        "real", tmp_path, data={**DATA, "parts": 2}, phase=[{"iterations": 1, "operations": hybrid}]
    )
    with pytest.raises(StoreMismatchError, match=r"data\.parts: was 4, now 2"):
        api.resume(path, spec=other, workers=0, progress=False)


def test_rows_of_other_data_are_those_of_the_file(tmp_path: Path) -> None:
    path = sampled(in_parts("real", tmp_path).with_iterations(1), tmp_path / "run.zarr")
    lines = (tmp_path / "train.csv").read_text().splitlines()
    lines[3] = "0.5," + lines[3].split(",", 1)[1]
    (tmp_path / "other.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(StoreMismatchError, match=r"row 3, column x1: .* 0\.5 in the file"):
        api.resume(path, iterations=2, data=tmp_path / "other.csv", workers=0, progress=False)


def test_one_part_is_the_whole(tmp_path: Path) -> None:
    phase = [{"iterations": 2, "operations": OPERATIONS[:3] + OPERATIONS[4:]}]
    one = in_parts("real", tmp_path, data={**DATA, "parts": 1}, phase=phase)
    whole = in_parts("real", tmp_path, data=SMALL["data"], phase=phase)
    assert_same_draws(sampled(one, tmp_path / "one.zarr"), sampled(whole, tmp_path / "whole.zarr"))


@pytest.mark.long
def test_automatic_settings_are_found_in_parts(tmp_path: Path) -> None:
    automatic = {"op": "hybrid", "steps": "auto", "stepsize": "auto", "scaling": "auto"}
    operations = [{"op": "sample-sigmas"}, {"op": "heatbath"}, automatic]
    phase = [
        {"iterations": 40, "keep": False, "operations": operations},
        {"iterations": 2, "operations": operations},
    ]
    path = sampled(in_parts("real", tmp_path, phase=phase, temperature=2.0), tmp_path / "run.zarr")
    store = Store.open(path)
    assert store.committed_draws == 2 and np.isfinite(store.read_stat("energy")).all()


@pytest.mark.parametrize("name", ["t noise", "class", "hazard of pieces"])
def test_parts_and_homes_keep_no_other_cases(name: str, tmp_path: Path) -> None:
    """They have the bits that they have when they are cut from all cases, for any share of the parts."""
    store = make_store(tmp_path / "run.zarr", in_parts(name, tmp_path, temperature=2.0))
    whole = posterior_of_run(store)
    numbers = [1, 3]
    for number, part in zip(numbers, parts_of_run(store, numbers), strict=True):
        expected, ours = posterior_of_part(whole, number, 4), part.posterior
        assert ours.inputs.shape == expected.inputs.shape
        for field in ("inputs", "targets", "observed", "inverse_temperature", "counts", "n_cases"):
            assert np.array_equal(getattr(ours, field), getattr(expected, field)), field
        assert (part.number, part.kernel) == (number, store.root.kernel)
    ring = Ring(Home(LocalTransport([Owner(parts_of_run(store, [number])) for number in range(4)])), 4)
    home, (expected_home, _) = home_of_run(store, ring), divided(whole, 4, recorded=store.root.kernel)
    assert home.inputs.shape[1] <= 8
    state = whole.initial_state(streams("home", 3), sigmas=0.4)
    for method in ("stepsizes", "quantities", "log_prior", "potential"):
        arguments = (state.position, state.precisions)[method == "stepsizes" :]
        assert np.array_equal(getattr(home, method)(*arguments), getattr(expected_home, method)(*arguments))
    random = streams("home", 3, iteration=1)
    after, _ = home.sample_sigmas(state, random)
    assert np.array_equal(after.precisions, expected_home.sample_sigmas(state, random)[0].precisions)
