"""Checks that must pass for every architecture, called by each architecture's tests."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from rayfbnn.model.architecture import NetworkSpec
from tests.support.model.batches import assert_independent
from tests.support.model.derivatives import mutated, worst_error
from tests.support.model.reference import outputs_by_loops, stepsizes_by_loops
from tests.support.problems import MODELS, problem, streams


def assert_right(spec: NetworkSpec, *, name: str, models: tuple[str, ...] = tuple(MODELS)) -> None:
    """Check that outputs, gradients and stepsizes agree with the formulas, for every data model that fits."""
    for model in models:
        if model == "class" and spec.outputs != 3:
            continue
        target = problem(model, spec=spec)
        state = target.initial_state(streams(f"{name} {model}", 3), sigmas=None)
        inputs = target.inputs[:-1].T
        outputs = target.outputs(state.position, inputs)
        expected = [[outputs_by_loops(target, chain, case) for case in inputs] for chain in state.position]
        assert np.allclose(outputs, expected, rtol=1e-11, atol=1e-11 * np.abs(expected).max())
        steps = [stepsizes_by_loops(target, chain) for chain in state.precisions]
        assert np.allclose(target.stepsizes(state.precisions), steps, rtol=1e-11, atol=0)
        assert worst_error(target, n_draws=20, name=f"{name} {model}") < 1e-6


def assert_batch_independent(spec: NetworkSpec) -> None:
    for dtype in ("float32", "float64"):
        assert_independent(problem(spec=spec, dtype=dtype, n_cases=50))


def seen_as_wrong(spec: NetworkSpec, module: ModuleType, *replacements: tuple[str, str]) -> bool:
    """Return True if outputs, gradients or stepsizes show a bug in one of the modules of a posterior."""
    target = problem("t", spec=spec, posterior=mutated(module, *replacements))
    state = target.initial_state(streams("mutant", 3), sigmas=None)
    inputs = target.inputs[:-1].T
    outputs = target.outputs(state.position, inputs)
    expected = [[outputs_by_loops(target, chain, case) for case in inputs] for chain in state.position]
    steps = [stepsizes_by_loops(target, chain) for chain in state.precisions]
    return (
        not np.allclose(outputs, expected, rtol=1e-6)
        or not np.allclose(target.stepsizes(state.precisions), steps, rtol=1e-6)
        or worst_error(target, n_draws=5, name="mutant") > 1e-3
    )
