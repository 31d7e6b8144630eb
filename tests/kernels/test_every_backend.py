"""Requirements on every backend of trajectories, for each kind of target, over the registry of backends.

A backend that is added to kernels/choose.py is tested by all of them. The CUDA sources run on the CPU by
the shim, and on arrays of CuPy with the stand-in or on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.kernels.backend import NotCovered
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.leapfrog import reversed_order
from rayfbnn.model.integrated import WithoutOutputs
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import Trajectory
from rayfbnn.streams import Purpose
from tests.support.kernels.every_backend import BackendUnderTest, every_backend
from tests.support.kernels.marginals import NOT_COVERED, beginning, largest_error
from tests.support.kernels.networks import Start, chains_of, end_of, values_of
from tests.support.marks import some_long
from tests.support.model import data_models
from tests.support.model.marginals import BOTH, OUTPUTS, PRECISIONS, conditional, made
from tests.support.problems import covariates_of, network, problem, streams

N_CHAINS = 4
Made = tuple[Any, Trajectory]


@pytest.fixture(params=every_backend())
def backend(request: pytest.FixtureRequest) -> Iterator[BackendUnderTest]:
    tested: BackendUnderTest = request.param
    with tested.ready():
        yield tested


def of_posterior(model: str, dtype: str, **changes: Any) -> Made:
    """A posterior with every group of parameters that a network of two hidden layers can have."""
    spec = network(outputs=3 if model == "class" else 2)
    target = problem(model, spec=spec, dtype=dtype, n_cases=changes.get("n_cases", 37))
    if changes.get("is_missing", False):
        values = values_of(target)
        values[[0, 3], 0] = values[2, -1] = np.nan
        target = SampledPosterior.from_spec(spec, target.model, covariates_of(target), values, dtype=dtype)
    return started(changes.get("change", lambda same: same)(target))


def of_data_model(name: str, dtype: str, **changes: Any) -> Made:
    """A posterior of counts, times or targets with noise of their own."""
    n_cases, is_missing = changes.get("n_cases", 37), changes.get("is_missing", False)
    target = data_models.problem(name, n_cases=n_cases, missing=is_missing, dtype=dtype)
    return started(changes.get("change", lambda same: same)(target))


def started(target: SampledPosterior) -> Made:
    start = Start.of(target, n_chains=N_CHAINS)
    return target, Trajectory(start.position, start.momentum, start.precisions, start.stepsizes)


def of_marginal(model: str, over: tuple[str, ...], form: str, dtype: str, **changes: Any) -> Made:
    """A density with variables integrated out, given auxiliary variables, perhaps with common precisions."""
    target = made("common precisions", model, form, dtype=dtype, is_missing=changes.get("is_missing", False))
    target = changes.get("change", lambda same: same)(target)
    state, given = conditional(target, over, f"backends {model}", N_CHAINS)
    return given, beginning(given, state)


# Together they have every kind of target, one system of equations and several, noise that is the same in all
# cases or not, and matrices of the features and of the cases.
TARGETS: dict[str, Callable[..., Made]] = {
    "posterior": lambda dtype, **changes: of_posterior("gaussian by target", dtype, **changes),
    "t noise": lambda dtype, **changes: of_posterior("t", dtype, **changes),
    "binary": lambda dtype, **changes: of_posterior("binary", dtype, **changes),
    "classes": lambda dtype, **changes: of_posterior("class", dtype, **changes),
    "counts": lambda dtype, **changes: of_data_model("count", dtype, **changes),
    "dispersed": lambda dtype, **changes: of_data_model("count, dispersion of each", dtype, **changes),
    "times": lambda dtype, **changes: of_data_model("constant hazard", dtype, **changes),
    "own noise": lambda dtype, **changes: of_data_model("heteroscedastic", dtype, **changes),
    "own noise, floor": lambda dtype, **changes: of_data_model("heteroscedastic, floor", dtype, **changes),
    "without precisions": lambda dtype, **c: of_marginal("gaussian", PRECISIONS, "primal", dtype, **c),
    "without outputs": lambda dtype, **c: of_marginal("t by target", OUTPUTS, "primal", dtype, **c),
    "without either": lambda dtype, **c: of_marginal("gaussian", BOTH, "primal", dtype, **c),
    "matrices of the cases": lambda dtype, **c: of_marginal("gaussian by target", BOTH, "dual", dtype, **c),
    "binary, without either": lambda dtype, **c: of_marginal("binary", BOTH, "primal", dtype, **c),
}
# In the long tests, if counts are in the quick ones.
LATER = ["dispersed", "times", "own noise", "own noise, floor"]
DATA_MODELS = ["counts", *LATER]
SUMS_OVER_CASES = ["posterior", "t noise", "binary", "classes", *DATA_MODELS, "without precisions"]
WITHOUT_OUTPUTS = [name for name in TARGETS if name not in SUMS_OVER_CASES]


def assert_agrees(backend: BackendUnderTest, given: Any, start: Trajectory, **options: Any) -> None:
    """Check the end of a trajectory against array code, and its potential against a start at this end."""
    found = backend.run(given, start, **options)
    expected = end_of(leapfrog.advance, given, start, **{"n_steps": 3, **options})
    dtype = str(start.position.dtype)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert largest_error(a, b) < backend.tolerances[dtype]
    again = backend.run(given, start.moved(*found[:2]), **{**options, "n_steps": 0})
    assert all(np.array_equal(a, b) for a, b in zip(again, found, strict=True))


def on_host_only(backend: BackendUnderTest) -> None:
    if backend.is_on_device:
        pytest.skip("what depends on the host's side of a backend alone is tested there")


@pytest.mark.parametrize("name", TARGETS)
def test_a_trajectory_is_that_of_the_array_code(backend: BackendUnderTest, name: str) -> None:
    assert_agrees(backend, *TARGETS[name]("float64"))


@pytest.mark.parametrize("name", some_long(TARGETS, ["t noise", *LATER, *WITHOUT_OUTPUTS]))
def test_a_trajectory_in_float32_is_that_of_the_array_code(backend: BackendUnderTest, name: str) -> None:
    assert_agrees(backend, *TARGETS[name]("float32"))


@pytest.mark.parametrize("name", some_long(SUMS_OVER_CASES, LATER))
def test_partial_gradients_are_those_of_the_array_code(backend: BackendUnderTest, name: str) -> None:
    order = streams("order", N_CHAINS).permutation(3, Purpose.PARTITION_ORDER)
    assert_agrees(backend, *TARGETS[name]("float64"), order=order)


@pytest.mark.parametrize("name", some_long(TARGETS, [*DATA_MODELS, *WITHOUT_OUTPUTS]))
def test_a_kick_is_that_of_the_array_code(backend: BackendUnderTest, name: str) -> None:
    given, start = TARGETS[name]("float64")
    before = start.position.copy(), start.momentum.copy()
    momentum = backend.kick(given, start, share=1.0)
    expected = leapfrog.kick(given, start, share=1.0)
    assert (
        momentum.dtype == expected.dtype and largest_error(momentum, expected) < backend.tolerances["float64"]
    )
    assert largest_error(momentum, start.momentum) > 1e-3
    assert (before[0] == start.position).all() and (before[1] == start.momentum).all()


@pytest.mark.parametrize("name", ["posterior", "classes"])
def test_kicks_and_drifts_are_a_trajectory(backend: BackendUnderTest, name: str) -> None:
    given, start = TARGETS[name]("float64")
    at = start
    for share in (0.5, 1.0, 0.5):
        if at is not start:
            at = replace(at, position=at.position + at.stepsizes * at.momentum)
        at = replace(at, momentum=backend.kick(given, at, share=share))
    end = end_of(leapfrog.advance, given, start, n_steps=2)
    assert largest_error(at.position, end[0]) < backend.tolerances["float64"]
    assert largest_error(at.momentum, end[1]) < backend.tolerances["float64"]


HAVE_TARGETS = [name for name in TARGETS if name != "binary, without either"]
CAN_BE_MISSING = [
    "posterior",
    "classes",
    *DATA_MODELS,
    "without precisions",
    "without either",
    "matrices of the cases",
]


@pytest.mark.parametrize("name", some_long(CAN_BE_MISSING, DATA_MODELS))
def test_missing_targets_are_left_out(backend: BackendUnderTest, name: str) -> None:
    assert_agrees(backend, *TARGETS[name]("float64", is_missing=True))


def with_targets_of_each_chain(target: SampledPosterior) -> SampledPosterior:
    values = values_of(target)
    return target.with_targets(np.stack([np.roll(values, chain, axis=0) for chain in range(N_CHAINS)]))


@pytest.mark.parametrize("name", some_long(HAVE_TARGETS, LATER))
def test_each_chain_may_have_its_own_targets(backend: BackendUnderTest, name: str) -> None:
    on_host_only(backend)
    assert_agrees(backend, *TARGETS[name]("float64", change=with_targets_of_each_chain))


@pytest.mark.parametrize("name", some_long(SUMS_OVER_CASES, LATER))
def test_each_chain_may_have_its_own_temperature(backend: BackendUnderTest, name: str) -> None:
    temperatures = np.array([0.3, 1.0, 0.7, 0.1])
    assert_agrees(backend, *TARGETS[name]("float64", change=lambda target: target.tempered(temperatures)))


@pytest.mark.parametrize("name", some_long(TARGETS, LATER))
def test_each_chain_may_have_its_own_stepsize(backend: BackendUnderTest, name: str) -> None:
    """The levels of a ladder are chains of one batch, and each has a stepsize of its own."""
    given, start = TARGETS[name]("float64")
    factors = np.array([0.1, 1.0, 0.5, 2.0])[:, None]
    assert_agrees(backend, given, replace(start, stepsizes=start.stepsizes * factors))


@pytest.mark.parametrize("name", ["posterior", "classes"])
def test_chains_may_have_targets_of_which_some_are_missing_at_temperatures(
    backend: BackendUnderTest, name: str
) -> None:
    on_host_only(backend)

    def change(target: SampledPosterior) -> SampledPosterior:
        values = np.stack([values_of(target)] * N_CHAINS)
        values[1, 5, 0] = np.nan
        return target.with_targets(values).tempered(np.array([1.0, 0.5, 0.1, 0.3]))

    order = streams("order", N_CHAINS).permutation(3, Purpose.PARTITION_ORDER)
    assert_agrees(backend, *TARGETS[name]("float64", change=change), order=order)


@pytest.mark.parametrize("name", some_long(TARGETS, LATER))
def test_negative_stepsizes_and_the_reversed_order_lead_back(backend: BackendUnderTest, name: str) -> None:
    given, start = TARGETS[name]("float64")
    order = None
    if name in SUMS_OVER_CASES:
        order = streams("order", N_CHAINS).permutation(3, Purpose.PARTITION_ORDER)
    position, momentum, _ = backend.run(given, start, n_steps=4, order=order)
    back = Trajectory(position, momentum, start.precisions, -start.stepsizes)
    returned = backend.run(given, back, n_steps=4, order=None if order is None else reversed_order(order))
    # On a host, sums over cases are reversed only up to rounding.
    is_close = name in SUMS_OVER_CASES and not backend.is_on_device
    tolerance = 1e-12 if is_close else backend.tolerances["float64"]
    assert largest_error(returned[0], start.position) < tolerance
    assert largest_error(returned[1], start.momentum) < tolerance


@pytest.mark.parametrize("name", some_long(TARGETS, LATER))
def test_chains_do_not_depend_on_their_batch(backend: BackendUnderTest, name: str) -> None:
    if not backend.is_independent_of_batch:
        pytest.skip("products take fewer cases at a time for more chains: sums are rounded in another order")
    given, start = TARGETS[name]("float32")
    whole = backend.run(given, start)
    for chains in (slice(0, 1), slice(2, 4)):
        alone = backend.run(of_some_chains(given, chains), chains_of(start, chains))
        assert all(np.array_equal(a, b[chains]) for a, b in zip(alone, whole, strict=True))


def of_some_chains(given: Any, chains: slice) -> Any:
    """Restrict the target to the data of these chains."""
    if not isinstance(given, WithoutOutputs):
        return given
    data = given.regression
    targets = data.targets[chains] if len(data.targets) > 1 else data.targets
    part = replace(data, noise=data.noise[chains], prior=data.prior[chains], targets=targets)
    return replace(given, regression=part)


@pytest.mark.parametrize("name", some_long(TARGETS, LATER))
def test_a_chain_that_blows_up_ends_at_infinity_and_alone(backend: BackendUnderTest, name: str) -> None:
    given, start = TARGETS[name]("float32")
    good = backend.run(given, start)
    for value in (1e30, np.inf, np.nan):
        position = start.position.copy()
        position[1] = value
        found = backend.run(given, start.moved(position, start.momentum))
        assert not np.isfinite(found[2][1]) and found[2][1] == np.inf
        assert all(np.array_equal(a[[0, 2, 3]], b[[0, 2, 3]]) for a, b in zip(found, good, strict=True))


@pytest.mark.parametrize("name", some_long(TARGETS, LATER))
def test_arrays_that_would_be_misread_are_refused_by_name(backend: BackendUnderTest, name: str) -> None:
    on_host_only(backend)
    given, start = TARGETS[name]("float32")
    advance = backend.advance_for(given)
    names = ["position", "momentum", "stepsizes", *(["precisions"] if backend.checks_precisions else [])]
    for field in names:
        array = getattr(start, field)
        wrong: dict[str, tuple[type[Exception], Array]] = {
            "float": (TypeError, array.astype(np.float32 if field == "precisions" else np.float64)),
            "shape": (ValueError, np.ascontiguousarray(array[:, 1:])),
        }
        if field != "precisions":  # the kernel may get other arrays, made from these
            wrong["C-contiguous"] = (ValueError, np.asfortranarray(array))
        for words, (kind, values) in wrong.items():
            with pytest.raises(kind, match=f"{field}: must .*{words}"):
                advance(given, replace(start, **{field: values}), n_steps=2)


@pytest.mark.parametrize("name", ["inputs", "targets", "observed"])
@pytest.mark.parametrize("is_of_each_chain", [False, True])
def test_data_that_would_be_misread_are_refused_by_name(
    backend: BackendUnderTest, name: str, is_of_each_chain: bool
) -> None:
    on_host_only(backend)
    target, start = of_posterior("gaussian", "float32", n_cases=7)
    values = np.where(np.arange(14).reshape(7, 2) == 5, np.nan, target.targets.T)
    target = target.with_targets(np.stack([values] * N_CHAINS) if is_of_each_chain else values)
    good = getattr(target, name)
    wrong: dict[str, tuple[type[Exception], Array]] = {
        "float": (TypeError, good.astype(np.float64 if name == "inputs" else np.float32)),
        "C-contiguous": (ValueError, np.asfortranarray(good)),
        "shape": (ValueError, good[..., :-1].copy()),
    }
    if name == "targets" and is_of_each_chain:
        wrong["have the shape .4, 2, 7."] = (ValueError, good[:2])  # has fewer chains
    # Compiled code takes dtype and number of cases from the inputs, and uses the name weights for the array
    # that says are observed.
    named = {"inputs": "(inputs|position|targets)", "observed": "(observed|weights)"}.get(name, name)
    for words, (kind, array) in wrong.items():
        changed = replace(target, **{name: array})
        with pytest.raises(kind, match=f"{named}: must .*{words}"):
            backend.advance_for(changed)(changed, start, n_steps=2)


@pytest.mark.parametrize("name", WITHOUT_OUTPUTS)
def test_regressions_that_would_be_misread_are_refused_by_name(backend: BackendUnderTest, name: str) -> None:
    on_host_only(backend)
    given, start = TARGETS[name]("float32")
    advance = backend.advance_for(given)
    for field in ("noise", "prior", "targets"):
        array = getattr(given.regression, field)
        for kind, values in ((TypeError, array.astype(np.float32)), (ValueError, array[:, :0])):
            changed = replace(given, regression=replace(given.regression, **{field: values}))
            with pytest.raises(kind, match=f"{field}: must"):
                advance(changed, start, n_steps=2)


def test_more_blocks_than_cases_are_refused(backend: BackendUnderTest) -> None:
    on_host_only(backend)
    target, start = of_posterior("gaussian", "float32", n_cases=7)
    order = streams("order", N_CHAINS).permutation(8, Purpose.PARTITION_ORDER)
    with pytest.raises(ValueError, match="must have at most 7 partitions.* got 8|n_partitions"):
        backend.run(target, start, order=order)


@pytest.mark.parametrize("name", NOT_COVERED)
@pytest.mark.parametrize("over", [None, OUTPUTS, PRECISIONS])
def test_what_is_not_covered_is_said(
    backend: BackendUnderTest, over: tuple[str, ...] | None, name: str
) -> None:
    target: Any = made(name, "gaussian", "primal")
    if over is not None:
        _, target = conditional(target, over, "not covered", 3)
    assert backend.backend.check(target) == NotCovered(NOT_COVERED[name])
    assert backend.backend.compile(target) == NotCovered(NOT_COVERED[name])


@pytest.mark.parametrize("name", NOT_COVERED)
def test_what_is_not_covered_is_run_by_array_code(backend: BackendUnderTest, name: str) -> None:
    on_host_only(backend)
    covered = made("common precisions", "gaussian", "primal")
    advance = backend.advance_for(covered)
    state, given = conditional(made(name, "gaussian", "primal"), OUTPUTS, "not covered", 3)
    start = beginning(given, state)
    found, expected = (end_of(each, given, start, n_steps=2) for each in (advance, leapfrog.advance))
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
