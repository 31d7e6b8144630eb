"""Compiled steps of sghmc and of Bayes by Backprop are those of array code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rayfbnn.approximate.variational import Variational, VariationalFit
from rayfbnn.arrays import Array
from rayfbnn.kernels.cpu.advance import CompiledAdvance
from rayfbnn.kernels.cpu.compiled_module import CompiledStreams, instruction_sets
from rayfbnn.mcmc.sghmc import sghmc
from rayfbnn.model.approximated_posterior import ApproximatedPosterior
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import ChainState
from rayfbnn.streams import Streams
from tests.support.kernels.networks import Start, small, values_of
from tests.support.marks import some_long
from tests.support.model import data_models
from tests.support.problems import covariates_of, network, problem

SETS = instruction_sets()
pytestmark = pytest.mark.skipif(not SETS, reason="installed without a C++ compiler: no compiled kernels")
N_CHAINS = 3
MODELS = [
    *("gaussian by target", "t", "binary", "class", "count", "count, dispersion", "heteroscedastic"),
    "constant hazard",
]
TOLERANCES = {"float64": 1e-6, "float32": 1e-4}
"""Relative; normal numbers are of single precision, and rounded differently by array code."""


def posterior(
    model: str, dtype: str = "float64", *, is_missing: bool = False, n_cases: int = 37
) -> ApproximatedPosterior:
    """A posterior, some of whose targets may be missing."""
    if model in data_models.MODELS:
        target = data_models.problem(model, n_cases=n_cases, missing=is_missing, dtype=dtype)
    else:
        spec = network(outputs=3 if model == "class" else 2)
        target = problem(model, spec=spec, dtype=dtype, n_cases=n_cases)
    values = values_of(target).astype(float)
    if is_missing:
        values[[0, 3, 20], 0] = np.nan
    return ApproximatedPosterior.from_spec(
        target.network, target.model, covariates_of(target), values, dtype=target.dtype
    )


def streams_of() -> Streams:
    return CompiledStreams(5, np.arange(N_CHAINS, dtype=np.uint64) + 2, iteration=3)


def state_of(target: SampledPosterior) -> ChainState:
    start = Start.of(target, n_chains=N_CHAINS)
    return ChainState(position=start.position, precisions=start.precisions, momentum=start.momentum)


def assert_close(found: Array, expected: Array, dtype: str) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


def check_friction(
    target: SampledPosterior, instruction_set: str = SETS[0] if SETS else "", **changes: Any
) -> None:
    settings = {"steps": 9, "stepsize": 0.05, "batch": 10, "friction": 2.0, **changes}
    advance, state = CompiledAdvance(instruction_set), state_of(target)
    assert advance.friction_steps(target, settings["batch"]) is not None
    found, _ = sghmc(state, streams_of(), target=target, advance=advance, **settings)
    expected, _ = sghmc(state, streams_of(), target=target, **settings)
    assert_close(found.position, expected.position, target.dtype)
    assert_close(found.momentum, expected.momentum, target.dtype)
    assert np.abs(found.position - state.position).max() > 0.01


def check_variational(target: ApproximatedPosterior, instruction_set: str, batch: int) -> None:
    (found, objectives), (expected, of_array_code) = (
        ended(target, is_compiled=each, name=instruction_set, batch=batch) for each in (True, False)
    )
    for name in ("mean", "rho"):
        assert_close(found[name].astype(target.dtype), expected[name].astype(target.dtype), target.dtype)
    assert_close(objectives.astype(target.dtype), of_array_code.astype(target.dtype), target.dtype)


@pytest.mark.parametrize("batch", [None, 10])  # 37 cases make batches of 9 and of 10
@pytest.mark.parametrize("integrator", ["splitting", "euler"])
@pytest.mark.parametrize("model", some_long(MODELS, ["t", "binary", "heteroscedastic", "constant hazard"]))
def test_steps_with_friction_are_those_of_array_code(model: str, integrator: str, batch: int | None) -> None:
    check_friction(posterior(model), integrator=integrator, batch=batch)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_instruction_set_takes_the_same_steps(instruction_set: str, dtype: str) -> None:
    check_friction(posterior("gaussian by target", dtype, is_missing=True), instruction_set)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_smaller_batches_of_a_pass_may_leave_a_pack_empty(instruction_set: str, dtype: str) -> None:
    """33 cases make batches of 16 and of 17."""
    target = posterior("gaussian by target", dtype, is_missing=True, n_cases=33)
    check_friction(target, instruction_set, batch=17)
    check_variational(target, instruction_set, batch=17)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_inputs_of_a_batch_are_laid_out_a_square_at_a_time(instruction_set: str, dtype: str) -> None:
    """There are 37, which is not a multiple of any width."""
    made = problem("gaussian", spec=small((4,), inputs=37), dtype=dtype, n_cases=60)
    target = ApproximatedPosterior.from_spec(
        made.network, made.model, covariates_of(made), values_of(made), dtype=made.dtype
    )
    check_friction(target, instruction_set, batch=25, stepsize=0.2)


@pytest.mark.parametrize("is_missing", [False, True])
def test_chains_with_targets_of_their_own_take_their_own_steps(is_missing: bool) -> None:
    target = posterior("gaussian by target", is_missing=is_missing)
    values = np.stack([target.targets.T + chain for chain in range(N_CHAINS)])
    if is_missing:
        values[:, :5, 1] = np.nan
        values[1, 7, 0] = np.nan
    check_friction(target.with_targets(values))


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n_cases", "batch"), [(33, 17), (50, 50)])
def test_passes_put_short_records_in_order(
    n_cases: int, batch: int, dtype: str, instruction_set: str
) -> None:
    """With three inputs and one target a record has four numbers."""
    made = problem("gaussian", spec=small((4,), inputs=3, outputs=1), dtype=dtype, n_cases=n_cases)
    target = ApproximatedPosterior.from_spec(
        made.network, made.model, covariates_of(made), values_of(made), dtype=made.dtype
    )
    assert target.records.shape == (n_cases, 4)
    check_friction(target, instruction_set, batch=batch)
    check_variational(target, instruction_set, batch=batch)


def test_chains_of_their_own_temperature_take_their_own_steps() -> None:
    check_friction(posterior("class").tempered(np.array([1.0, 0.5, 0.0])))


def test_large_matrices_take_batches_too() -> None:
    """The inputs of a batch are gathered in several blocks, and the first link is a large one."""
    made = problem("gaussian", spec=small((90,), inputs=40), dtype="float64", n_cases=900)
    target = ApproximatedPosterior.from_spec(made.network, made.model, covariates_of(made), values_of(made))
    check_friction(target, batch=700, steps=2, stepsize=0.2)


def test_cases_of_several_cells_take_steps_by_array_code() -> None:
    target = data_models.problem("hazard of pieces", n_cases=37)
    advance = CompiledAdvance(SETS[0])
    assert target.starts is not None
    assert advance.friction_steps(target, 5) is None and advance.variational_steps(target, 5) is None


def ended(
    target: ApproximatedPosterior, *, is_compiled: bool, most: int = 20, name: str = "", **changes: Any
) -> tuple[Any, Array]:
    """Return the state after 20 steps, and the objectives."""
    options = {"steps": 20, "samples": 4, "batch": 10, "refresh": 7, **changes}
    advance = CompiledAdvance(name or SETS[0])
    compiled = advance.variational_steps(target, options["batch"]) if is_compiled else None
    fit, random = VariationalFit(target, Variational(**options), compiled), streams_of()
    state, objectives = fit.initial(random.at(iteration=0)), []
    while len(objectives) < 20:
        number = len(objectives) + 1
        state, found = fit.steps(state, random.at(iteration=number), min(most, 21 - number))
        objectives += list(found)
    return state, np.array(objectives)


VARIATIONAL: list[dict[str, Any]] = [{"batch": None}, {}, {"antithetic": False, "samples": 3}]


@pytest.mark.parametrize("changes", VARIATIONAL, ids=["all cases", "batches", "no pairs"])
@pytest.mark.parametrize("model", some_long(MODELS[:-1], ["t", "binary", "heteroscedastic"]))
def test_steps_of_bayes_by_backprop_are_those_of_array_code(model: str, changes: dict[str, Any]) -> None:
    target = posterior(model, is_missing=model not in ("class", "binary"))
    found, objectives = ended(target, is_compiled=True, **changes)
    expected, of_array_code = ended(target, is_compiled=False, **changes)
    for name, values in expected.items():
        assert_close(found[name], values, "float64")
    assert_close(objectives, of_array_code, "float64")
    assert np.isfinite(objectives).all() and np.ptp(found["mean"]) > 0


@pytest.mark.parametrize("instruction_set", SETS)
def test_steps_in_float32_are_those_of_array_code(instruction_set: str) -> None:
    target = posterior("class", "float32")
    (found, objectives), (expected, of_array_code) = (
        ended(target, is_compiled=each, name=instruction_set) for each in (True, False)
    )
    for name in ("mean", "rho", "precisions"):
        assert_close(found[name], expected[name], "float32")
    assert_close(objectives, of_array_code, "float32")


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("is_missing", [False, True])
def test_it_makes_no_difference_how_many_steps_are_taken_together(
    is_missing: bool, dtype: str, instruction_set: str
) -> None:
    """Blocks end after any step, and resumed fits must go on to the same bits."""
    target = posterior("gaussian by target", dtype, is_missing=is_missing)
    (one, of_one), (many, of_many) = (
        ended(target, is_compiled=True, most=most, name=instruction_set) for most in (1, 20)
    )
    assert all(np.array_equal(one[name], many[name], equal_nan=True) for name in one)
    assert np.array_equal(of_one, of_many)


@pytest.fixture(name="call")
def a_call(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The kernel and the arguments of a call that takes steps with friction on batches."""
    target, made = posterior("gaussian by target"), {}
    advance = CompiledAdvance(SETS[0])
    kernel = advance._of_batch(target, 10)

    class Recording:
        def follow(self, **arrays: Any) -> None:
            made.update(arrays)

    monkeypatch.setattr(CompiledAdvance, "_of_batch", lambda *_: Recording())
    sghmc(state_of(target), streams_of(), target=target, advance=advance, steps=1, stepsize=0.1, batch=10)
    yield {"kernel": kernel, "arguments": made}


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("shuffles", lambda place: None, "shuffles, records: must be given for batches"),
        ("records", lambda records: None, "shuffles, records: must be given for batches"),
        ("records", lambda records: records.astype(np.float32), "records: must be of dtype float64"),
        ("records", lambda records: records[:, :3], "records: must have the shape"),
        ("records", lambda records: np.stack([records] * 2), "records: must have the shape"),
        ("records", np.asfortranarray, "records: must be C-contiguous"),
        ("first_batch", lambda first: -1, "first_batch: must be at least 0"),
        ("position", lambda values: values.astype(np.float32), "position: must be of dtype float64"),
        ("momentum", np.asfortranarray, "momentum: must be C-contiguous"),
        ("chains", lambda chains: chains.astype(np.int64), "chains: must be of dtype"),
        ("n_steps", lambda n: 0, "n_steps"),
    ],
)
def test_misread_arrays_are_refused(call: dict[str, Any], name: str, change: Any, error: str) -> None:
    arguments = call["arguments"]
    call["kernel"].follow(**arguments)
    with pytest.raises((TypeError, ValueError), match=error):
        call["kernel"].follow(**{**arguments, name: change(arguments[name])})
