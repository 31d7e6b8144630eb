"""The verdict on a run: agreeing chains pass, and each kind of failure gives its reason.

Reducing a store on disk gives the same results as its draws in memory, also while it is being written.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arviz_stats.base import array_stats

from rayfbnn.answers.diagnostics import diagnose_draws
from rayfbnn.answers.judging.verdicts import summarize
from rayfbnn.answers.predict import predict_from_draws
from rayfbnn.draws.quantities import quantities
from rayfbnn.draws.view import committed
from rayfbnn.model.layout import ParameterLayout
from rayfbnn.spec import RunSpec
from rayfbnn.state import ChainState
from rayfbnn.store.records import Block
from rayfbnn.store.store import Store
from tests.support.store.standin_store import MemoryStore, make_data, make_run, make_spec, normal

SPEC = make_spec()


def independent() -> Any:
    return make_run(SPEC, n_draws=400)


def test_statistics_are_those_of_arviz() -> None:
    values = normal(1, (4, 50)) + 0.3 * np.arange(4)[:, None]
    row = summarize([("x", values)]).table.loc["x"]
    expected = {
        "mean": values.mean(),
        "sd": values.std(ddof=1),
        "rhat": float(array_stats.rhat(values)),
        "ess_bulk": float(array_stats.ess(values, method="bulk")),
        "ess_tail": float(array_stats.ess(values, method="tail", prob=(0.05, 0.95))),
        "mcse": float(array_stats.mcse(values, method="mean")),
    }
    assert row.to_dict() == pytest.approx(expected)


def test_a_quantity_that_never_changes_has_a_mean_alone() -> None:
    row = summarize([("x", np.full((4, 50), 3.0))]).table.loc["x"]
    assert (row["mean"], row["sd"]) == (3, 0)
    assert row[["rhat", "ess_bulk", "ess_tail", "mcse"]].isna().all()


@pytest.mark.parametrize("n_draws", [1, 2, 3])
def test_too_few_draws_are_a_reason_not_a_number(n_draws: int) -> None:
    diagnosis = diagnose_draws(make_run(SPEC, n_draws=n_draws))
    assert any(f"only {n_draws} draws in each chain; at least 4" in reason for reason in diagnosis.reasons)
    assert diagnosis.quantities["rhat"].isna().all()
    assert np.isfinite(diagnosis.quantities["mean"]).all()


def test_values_that_are_not_finite_are_a_reason() -> None:
    run = independent()
    run.store.stats["log_prior"][0, 5] = math.inf
    assert any("not finite: log_prior" in reason for reason in diagnose_draws(run).reasons)


def test_many_divergences_are_a_reason_and_few_are_counted() -> None:
    run = independent()
    run.store.stats["diverged"][0, :3] = 2
    few = diagnose_draws(run, max_rhat=1.02)
    assert few.ok and few.divergences == 6
    assert (few.warmup_divergences, few.warmup_acceptance) == (5, 0.75)
    run.store.stats["diverged"][:, :50] = 1
    assert any("200 updates diverged, in 12.5% of the iterations" in r for r in diagnose_draws(run).reasons)


def test_acceptance_is_the_mean_over_updates_and_absent_for_exact_draws() -> None:
    run = independent()
    run.store.stats["accepted"][:2] = 0.5
    assert diagnose_draws(run).acceptance == 0.75
    run.store.stats["accepted"][...] = math.nan
    assert diagnose_draws(run).acceptance is None


def test_json_has_the_documented_keys_and_null_for_what_is_unknown() -> None:
    read = json.loads(diagnose_draws(make_run(SPEC, n_draws=2)).to_json(), parse_constant=pytest.fail)
    counts = {"acceptance", "warmup_acceptance", "divergences", "warmup_divergences"}
    verdicts = {"predictions", "hyperparameters", "decisive", "modes"}
    assert {"quantities", *counts, *verdicts, "ok", "reasons", "thresholds"} == set(read)
    statistics = {"mean", "sd", "rhat", "ess_bulk", "ess_tail", "mcse", "iterations"}
    assert set(read["quantities"]["sigma_ih0"]) == statistics
    assert read["quantities"]["sigma_ih0"]["rhat"] is None and read["ok"] is False
    verdict = {"grade", "ok", "reasons", "remarks", "advice", "iterations"}
    assert set(read["hyperparameters"]) == verdict
    assert set(read["predictions"]) == verdict | {"error"}
    assert read["predictions"]["grade"] == "cannot tell" and read["predictions"]["ok"] is False


def test_quantities_are_sigmas_densities_and_functions() -> None:
    names = set(quantities(make_run(SPEC), cases=3))
    sigmas = {
        "sigma_ih0",
        "sigma_ih0_unit[x1]",
        "sigma_ih0_unit[x2]",
        "sigma_bh0",
        "sigma_ho0",
        "sigma_noise",
    }
    functions = {f"{target}[{case}]" for target in ("y1", "y2") for case in (0, 6, 11)}
    assert names == sigmas | functions | {"log_likelihood", "log_prior"}


def test_noise_of_each_target_is_named_after_it() -> None:
    run = make_run(make_spec(model__noise="0.3:4:2"))
    names = set(quantities(run))
    assert {"sigma_noise_common", "sigma_noise[y1]", "sigma_noise[y2]"} < names
    fixed_common = make_run(make_spec(model__noise="0.3::2"))
    assert "sigma_noise_common" not in quantities(fixed_common)


ADJUSTED = {"network__priors__ah0": "3", "network__priors__ao": "2"}


def test_adjustments_are_of_each_output_and_the_mean_of_hidden_units() -> None:
    run = make_run(make_spec(**ADJUSTED))
    values = quantities(run)
    assert {"adjustment_ah0", "adjustment_ao[y1]", "adjustment_ao[y2]"} < set(values)
    hidden, output = (levels.columns for levels in run.precision_layout.adjustments)
    factors = run.store.precisions[:, :, hidden] ** -0.5
    np.testing.assert_allclose(values["adjustment_ah0"], factors.prod(axis=2) ** (1 / 3), rtol=1e-12)
    np.testing.assert_allclose(
        values["adjustment_ao[y2]"], run.store.precisions[:, :, output.start + 1] ** -0.5, rtol=1e-12
    )
    of_classes = make_run(make_spec("class", network__priors__ao="2"))
    assert {f"adjustment_ao[{label}]" for label in range(3)} < set(quantities(of_classes))


def test_exchanging_hidden_units_changes_no_quantity() -> None:
    run = make_run(make_spec(**ADJUSTED))
    before = quantities(run)
    views = ParameterLayout.from_network(SPEC.network).views(run.store.positions)
    views["ih0"][1] = -views["ih0"][1][..., [2, 0, 1]]  # exchanged, and their signs turned
    views["bh0"][1] = -views["bh0"][1][..., [2, 0, 1]]
    views["ho0"][1] = -views["ho0"][1][..., [2, 0, 1], :]
    units = run.precision_layout.units["ho0"]
    run.store.precisions[1, :, units] = run.store.precisions[1, :, units][:, [2, 0, 1]]
    columns = run.precision_layout.adjustments[0].columns
    run.store.precisions[1, :, columns] = run.store.precisions[1, :, columns][:, [2, 0, 1]]
    for name, values in quantities(run).items():
        np.testing.assert_allclose(values, before[name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("kind", ["real", "binary", "class"])
def test_mean_of_a_function_is_the_prediction(kind: str) -> None:
    run = make_run(make_spec(kind, data__standardize='["inputs"]'))
    table = predict_from_draws([run], run.data.inputs).table
    columns = {"real": "y1_mean", "binary": "y1_p", "class": "p_1"}
    names = {"real": "y1[6]", "binary": "p_y1[6]", "class": "p_1[6]"}
    values = quantities(run, cases=3)
    assert values[names[kind]].mean() == pytest.approx(table[columns[kind]][6])


def test_functions_can_be_judged_at_other_inputs() -> None:
    run = make_run(SPEC)
    inputs = run.data.inputs[[4, 6]]
    there = quantities(run, inputs=inputs)
    every = quantities(run, cases=12)
    np.testing.assert_allclose(there["y2[1]"], every["y2[6]"], rtol=1e-12)
    assert "y2[2]" not in there


def write(path: Path, memory: MemoryStore) -> Store:
    spec: RunSpec = memory.spec
    sizes = {"chains": spec.chains, "chains_per_batch": 2, "draws_per_block": spec.draws_per_block}
    store = Store.create(
        path, spec=spec, data=memory.data, kernel="plain NumPy", n_draws=memory.committed_draws, **sizes
    )
    with store.lock():
        for batch in range(store.n_batches):
            commit(store, memory, batch, slice(0, memory.committed_draws))
    return store


def commit(store: Store, memory: MemoryStore, batch: int, draws: slice) -> None:
    chains = slice(store.header.batch_chains(batch)[0], store.header.batch_chains(batch)[-1] + 1)
    n = draws.stop - draws.start
    stats = {name: values[chains, draws] for name, values in memory.stats.items()}
    values = (memory.positions[chains, draws], memory.precisions[chains, draws])
    last = ChainState(values[0][:, -1], values[0][:, -1], values[1][:, -1])
    store.commit(batch, Block(draws.start + 1, n, "posterior", draws.start, *values, stats, last))


@pytest.mark.parametrize("kind", ["real", "binary", "class"])
def test_store_and_memory_give_the_same_tables(kind: str, tmp_path: Path) -> None:
    memory = make_run(make_spec(kind, dtype="float32"))
    store = committed(Store.open(write(tmp_path / "run.zarr", memory.store).path))
    unseen = make_data(memory.spec, 5, seed=41)
    there, here = (predict_from_draws([draws], unseen.inputs, unseen.targets) for draws in (store, memory))
    np.testing.assert_allclose(there.table, here.table, rtol=1e-5)
    stored, kept = (diagnose_draws(draws).quantities for draws in (store, memory))
    # A sigma's last bit decides the ranks of the two values about the median, which are equally far from it.
    np.testing.assert_allclose(stored.pop("rhat"), kept.pop("rhat"), atol=0.01)
    np.testing.assert_allclose(stored, kept, rtol=1e-9)


def test_draws_that_arrive_meanwhile_are_left_for_the_next_look(tmp_path: Path) -> None:
    memory: Any = make_run(make_spec()).store
    spec = memory.spec
    sizes = {"chains": spec.chains, "chains_per_batch": 4, "draws_per_block": 7}
    store = Store.create(
        tmp_path / "run.zarr", spec=spec, data=memory.data, kernel="plain NumPy", n_draws=20, **sizes
    )
    read = store.read_positions

    def read_while_writing(draws: slice, chains: slice, **known: int) -> Any:
        with store.lock():
            if store.committed_draws < 20:
                commit(store, memory, 0, slice(10, 20))
        return read(draws, chains, **known)

    with store.lock():
        commit(store, memory, 0, slice(0, 10))
    store.read_positions = read_while_writing  # type: ignore[method-assign, assignment]
    unseen = make_data(spec, 5, seed=41)
    assert predict_from_draws([committed(store)], unseen.inputs).summary["draws"] == 4 * 10
    assert predict_from_draws([committed(store)], unseen.inputs).summary["draws"] == 4 * 20
