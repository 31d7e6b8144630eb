"""Products over all chains agree with array code where outputs or common precisions are integrated out.

The element-wise kernels between them are compiled by g++ with a shim, as in test_chip.py, which says what
this cannot show; the products and the factors are NumPy's.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.kernels import choose
from rayfbnn.kernels.backend import Compiled, NotCovered
from rayfbnn.kernels.cuda import cublas, forward
from rayfbnn.kernels.cuda import network_pass as wide_pass
from rayfbnn.kernels.cuda import products as wide
from rayfbnn.kernels.cuda import products_marginal as wide_marginal
from rayfbnn.kernels.cuda.advance import CudaAdvance
from rayfbnn.mcmc import leapfrog
from rayfbnn.model.integrated import OutputMarginal, WithoutOutputs
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import Advance
from rayfbnn.streams import Purpose
from tests.support import problems
from tests.support.joint import PROBLEMS, stays_exact
from tests.support.kernels.marginals import (
    CASES,
    JOINT,
    NOT_COVERED,
    TOLERANCES,
    beginning,
    short_operations,
    worst_error,
)
from tests.support.kernels.networks import (
    H100_SHARED_BYTES,
    end_of,
    small,
)
from tests.support.model.marginals import BOTH, COMMON, OUTPUTS, PRECISIONS, conditional, made
from tests.support.mutants import importing, mutant
from tests.support.problems import parse, problem, streams
from tests.support.shim.compiled import ShimBuild, needs_gxx

pytestmark = needs_gxx
BUILD = ShimBuild()
A_CHAIN, SOME_CHAINS = 1, 40_000
"""The bytes held at a time: those of a single chain, or of two or three of the networks below."""


def advance_of(
    target: Any, *, tile_bytes: int = SOME_CHAINS, outputs: Any = wide_marginal, others: Any = wide
) -> Advance:
    """The products for a target, even if it would fit on the chip, from the given modules."""
    if isinstance(target, WithoutOutputs):
        advance = outputs.compile_for(target.marginal, build=BUILD, tile_bytes=tile_bytes)
    else:
        advance = others.compile_for(target, build=BUILD, tile_bytes=tile_bytes)
    assert not isinstance(advance, NotCovered), advance
    return advance  # type: ignore[no-any-return]


PRIMAL = [case[1:] for case in CASES if case[0] == "primal"]


@pytest.mark.parametrize("tile_bytes", [A_CHAIN, SOME_CHAINS])
@pytest.mark.parametrize("name, model, over, dtype, is_missing", PRIMAL)
def test_a_trajectory_is_that_of_the_array_code(
    name: str, model: str, over: tuple[str, ...], dtype: str, is_missing: bool, tile_bytes: int
) -> None:
    target = made(name, model, "primal", is_missing=is_missing, n_cases=50, dtype=dtype)
    state, given = conditional(target, over, f"wide {name} {model}", 5)
    advance = advance_of(given, tile_bytes=tile_bytes)
    assert worst_error(given, beginning(given, state), advance, n_steps=3) < TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", ["gaussian", "gaussian by target", "t"])
@pytest.mark.parametrize("n_cases", [5, 70])
def test_matrices_of_the_cases(n_cases: int, model: str, dtype: str) -> None:
    """Some problems have more cases than a block's tile."""
    priors = parse({"ih0": "0.7:3", "bh0": "0.7:3", "ho0": "0.7:3", "io": "0.5:3", "bo": "1"})
    target = problem(model, spec=replace(small((83,)), priors=priors), n_cases=n_cases, dtype=dtype)
    state, given = conditional(target, BOTH, f"wide dual {n_cases}", 3)
    assert given.regression.is_dual
    advance = advance_of(given)
    assert worst_error(given, beginning(given, state), advance, n_steps=3) < TOLERANCES[dtype]


PLAIN = problems.network({name: prior for name, prior in COMMON.items() if name != "ti"})


def test_features_that_leave_out_inputs() -> None:
    """Features are runs of rows that are no whole layer."""
    target = problem(spec=replace(PLAIN, omitted={"io": (1,)}), n_cases=30)
    state, given = conditional(target, BOTH, "wide runs", 3)
    assert worst_error(given, beginning(given, state), advance_of(given), n_steps=3) < TOLERANCES["float64"]


@pytest.mark.parametrize(
    "before, after",
    [
        ("blocks.cases(first, first + n)", "blocks.cases(0, n)"),
        ("ascontiguousarray(targets), weights", "ascontiguousarray(targets), None"),
        (".at(part)", ".at(0 * part)"),
    ],
)
def test_a_mutant_of_partial_gradients_is_seen(before: str, after: str) -> None:
    """19 cases are taken in blocks of 6 and 7, one case at a time."""
    state, given = conditional(problem(spec=PLAIN, n_cases=19), PRECISIONS, "wide partial", 4)
    order = streams("order", 4).permutation(3, Purpose.PARTITION_ORDER)
    changed = importing(wide, mutant(wide_pass, (before, after)))
    errors = [
        worst_error(
            given,
            beginning(given, state),
            advance_of(given, tile_bytes=A_CHAIN, others=module),
            n_steps=4,
            order=order,
        )
        for module in (wide, changed)
    ]
    assert errors[0] < TOLERANCES["float64"] and errors[1] > 1e-6


def test_a_matrix_that_is_not_positive_definite_is_infinite() -> None:
    state, given = conditional(problem(spec=PLAIN, n_cases=19), OUTPUTS, "wide indefinite", 3)
    data, start = given.regression, beginning(given, state)
    prior = data.prior.copy()
    prior[1] *= -1e9
    with np.errstate(invalid="ignore"):
        indefinite = replace(given, regression=replace(data, prior=prior))
        errors = end_of(advance_of(given), indefinite, start, n_steps=2)
    assert errors[2][1] == np.inf and np.isfinite(errors[2][[0, 2]]).all()


def test_data_that_would_be_misread_are_refused_by_name() -> None:
    state, given = conditional(problem(spec=PLAIN, dtype="float32", n_cases=19), BOTH, "wide misread", 3)
    start, advance = beginning(given, state), advance_of(given)
    data, posterior = given.regression, given.marginal.posterior
    for name in ("noise", "prior", "targets"):
        array = getattr(data, name)
        for kind, values in ((TypeError, array.astype(np.float32)), (ValueError, array[:, :0])):
            changed = replace(given, regression=replace(data, **{name: values}))
            with pytest.raises(kind, match=f"{name}: must"):
                end_of(advance, changed, start, n_steps=2)
    for kind, values in (
        (TypeError, posterior.inputs.astype(np.float64)),
        (ValueError, np.asfortranarray(posterior.inputs)),
        (ValueError, posterior.inputs[:, :-1].copy()),
    ):
        other = replace(given.marginal, posterior=replace(posterior, inputs=values))
        with pytest.raises(kind, match="inputs: must"):
            end_of(advance, replace(given, marginal=other), start, n_steps=2)


@pytest.mark.parametrize("over, expected", [(BOTH, {False}), (PRECISIONS, {True, False})])
def test_features_of_a_regression_are_never_in_tf32(
    monkeypatch: pytest.MonkeyPatch, over: tuple[str, ...], expected: set[bool]
) -> None:
    """Gradients of all parameters may use TF32; energies do not."""
    dtypes = set()

    def recorded(a: Array, b: Array, *, uses_tf32: bool) -> Array:
        dtypes.add(uses_tf32)
        return a @ b

    monkeypatch.setattr(cublas, "product", recorded)
    state, given = conditional(problem(spec=PLAIN, dtype="float32", n_cases=19), over, "wide TF32", 3)
    end_of(advance_of(given), given, beginning(given, state), n_steps=2)
    assert dtypes == expected


def test_what_is_not_covered_is_said() -> None:
    def reason(target: SampledPosterior, over: tuple[str, ...]) -> str:
        left = target.marginal(over)
        module: Any = wide_marginal if isinstance(left, OutputMarginal) else wide
        answer = module.compile_for(left)
        assert isinstance(answer, NotCovered)
        return answer.reason

    for over in (OUTPUTS, PRECISIONS):
        for name, words in NOT_COVERED.items():
            assert reason(made(name, "gaussian", "primal"), over) == words
    nothing = problems.network({"io": "1", "bo": "1"}, units=(), activations=())
    assert reason(problem(spec=nothing, n_cases=30), OUTPUTS) == "no parameters are kept"


# Their regression takes 479 KiB of a block's 227 in float64.
LARGE = replace(small((160,)), priors=parse(dict.fromkeys(("ih0", "bh0", "ho0"), "0.7:3") | {"bo": "1"}))
OUTPUTS_DO_NOT_FIT = "regression on 161 features: their state takes 4"


@pytest.mark.parametrize("form, n_cases", [("primal", 170), ("dual", 70)])
def test_what_does_not_fit_on_the_chip_is_run_by_products_and_said(form: str, n_cases: int) -> None:
    target = problem(spec=LARGE, n_cases=n_cases)
    kernel = CudaAdvance(BUILD, H100_SHARED_BYTES)
    why = OUTPUTS_DO_NOT_FIT if form == "primal" else "(more than 64 cases in the dual form)"
    for over in (OUTPUTS, BOTH):
        state, given = conditional(target, over, "too large", 2)
        assert given.regression.is_dual == (form == "dual")
        advance, name = chosen(kernel, given)
        assert name.startswith("CUDA, products over all chains (") and why in name
        start = beginning(given, state)
        kernel_name = end_of(kernel, given, start, n_steps=2)
        expected = end_of(advance, given, start, n_steps=2)
        assert all(np.array_equal(a, b) for a, b in zip(kernel_name, expected, strict=True))
    _, given = conditional(target, PRECISIONS, "small enough", 2)
    assert chosen(kernel, given)[1] == "CUDA, whole trajectories, a block a chain"


def chosen(kernel: CudaAdvance, target: Any) -> tuple[Advance, str]:
    compiled = kernel.chosen(target)
    assert isinstance(compiled, Compiled), compiled
    return compiled.advance, compiled.name


@pytest.mark.parametrize("dtype, tf32", [("float64", ""), ("float32", ", gradients in TF32")])
def test_the_name_is_that_of_what_runs(dtype: str, tf32: str) -> None:
    """The whole choice for a device is tested, also for one with next to no shared memory."""
    target = problem(spec=PLAIN, dtype=dtype, n_cases=19)
    graphs = ", full gradients as CUDA graphs"
    for over, expected in {
        BOTH: "CUDA, products over all chains (51 parameters",
        PRECISIONS: f"CUDA, products over all chains{tf32}{graphs} (69 parameters",
    }.items():
        _, given = conditional(target, over, "names", 2)
        assert choose.advance_for(given, device="gpu", max_shared_bytes=0)[1].startswith(expected)
    fits = made("common precisions", "gaussian", "primal")
    _, given = conditional(fits, BOTH, "names", 2)
    _, name = choose.advance_for(given, device="gpu", max_shared_bytes=10_000)
    assert name == "CUDA, whole trajectories, a block a chain"
    nothing = problem(spec=problems.network({"io": "1", "bo": "1"}, units=(), activations=()), n_cases=30)
    _, given = conditional(nothing, OUTPUTS, "names", 2)
    assert choose.advance_for(nothing, device="gpu", max_shared_bytes=10_000)[0] is not leapfrog.advance
    chosen_for_marginal = choose.advance_for(given, device="gpu", max_shared_bytes=10_000)
    assert chosen_for_marginal == (leapfrog.advance, "plain CuPy (no parameters are kept)")


MUTANTS = {
    "moved precisions stand still": ("target.add_slopes_of_moved(slopes, gradient=of_moved)", "pass"),
    "nothing comes back from the regression": ("value_gradients=value_gradients", "value_gradients={}"),
    "no prior of what moves": ("+ self.target.prior_of_moved(position)[0]", ""),
    "integrated precisions forgotten in gradients": (
        "add_integrated(position, self.precisions, self.target.marginal.groups, gradient=gradient)",
        "pass",
    ),
    "integrated precisions at one": ("integrated=0.0", "integrated=1.0"),
    "no biases": ("= 1 if layer < 0", "= 0 if layer < 0"),
    "energy of the first piece alone": ("energy[chains] +=", "energy[:1] +="),
    "slopes of the first piece alone": (
        "self._add_gradient(gradient[chains]",
        "self._add_gradient(gradient[:1]",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_products_is_seen(name: str) -> None:
    state, given = conditional(problem(spec=PLAIN, n_cases=19), BOTH, "wide mutants", 3)
    start, changed = beginning(given, state), mutant(wide_marginal, MUTANTS[name])
    advance = advance_of(given, tile_bytes=A_CHAIN, outputs=changed)
    assert worst_error(given, start, advance, n_steps=3) > 1e-6


@pytest.mark.parametrize(
    "before, after",
    [
        ("value=0.0", "value=1.0"),
        ("if groups:\n                add_integrated", "if False:\n                add_integrated"),
        ("potential += add_integrated", "potential += 0 * add_integrated"),
    ],
)
def test_a_mutant_without_common_precisions_is_seen(before: str, after: str) -> None:
    state, given = conditional(problem(spec=PLAIN, n_cases=19), PRECISIONS, "wide mutants", 3)
    start, changed = beginning(given, state), mutant(wide, (before, after))
    assert worst_error(given, start, advance_of(given, others=changed), n_steps=3) > 1e-6


@pytest.mark.parametrize(
    "module, before, after",
    [
        (forward, "summed += (matrix * offsets", "summed += 0 * (matrix * offsets"),
        (wide_pass, "part += offsets[:, :, None] * totals", "pass"),
        (wide_pass, "to_offsets += (matrix * totals).sum(axis=2)", "pass"),
        (wide_marginal, "part += offsets[:, row : row + size, None]", "pass"),
        (wide_marginal, "to_offsets[:, row : row + size] +=", "_ ="),
    ],
)
def test_a_mutant_without_offsets_of_the_inputs_is_seen(module: ModuleType, before: str, after: str) -> None:
    over = OUTPUTS if module is wide_marginal else PRECISIONS
    state, given = conditional(made("common precisions", "gaussian", "primal"), over, "wide mutants", 3)
    changed = mutant(module, (before, after))
    if module is forward:
        changed = importing(wide_pass, changed)
    modules = {"outputs": changed} if over == OUTPUTS else {"others": importing(wide, changed)}
    start, advance = beginning(given, state), advance_of(given, **modules)
    assert worst_error(given, start, advance, n_steps=3) > 1e-6


def stays_exact_through(
    name: str, *, n_chains: int, over: tuple[str, ...] = BOTH, problem: str = "binary", **modules: Any
) -> bool:
    def products(target: Any, *arguments: Any, **options: Any) -> Any:
        return advance_of(target, tile_bytes=2**20, **modules)(target, *arguments, **options)

    def advance_for(target: SampledPosterior) -> Advance:
        return products

    given = {**JOINT, **PROBLEMS}[problem]
    priors = {group: prior for group, prior in given.priors.items() if group != "ti"}
    changed = replace(given, priors=priors, operations=short_operations(over))
    return stays_exact(changed, name, n_chains=n_chains, advance_for=advance_for)


@pytest.mark.parametrize("over, form", [(BOTH, "binary"), (BOTH, "dual"), (PRECISIONS, "binary")])
def test_joint_distribution_stays_through_the_products(over: tuple[str, ...], form: str) -> None:
    assert stays_exact_through(f"wide {over} {form}", n_chains=1_000, over=over, problem=form)


def test_products_that_give_another_energy_are_killed() -> None:
    changed = mutant(wide_marginal, MUTANTS["no prior of what moves"])
    assert not stays_exact_through("wide wrong", n_chains=1_000, outputs=changed)
