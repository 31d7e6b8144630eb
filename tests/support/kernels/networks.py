"""Networks, states, and trajectories on which the tests compare kernels with array code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings

from rayfbnn.arrays import Array
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import Advance, Target, Trajectory
from rayfbnn.streams import Purpose
from tests.support.problems import covariates_of, network, problem, streams

H100_SHARED_BYTES = 227 * 1024


def small(
    units: tuple[int, ...] = (16,), *, inputs: int = 2, outputs: int = 2, activation: str = "tanh"
) -> Any:
    """A network of sequential layers with biases, like those that are timed."""
    names = ["ih0", *(f"h{layer - 1}h{layer}" for layer in range(1, len(units)))]
    names += [f"bh{layer}" for layer in range(len(units))] + [f"ho{len(units) - 1}", "bo"]
    priors = dict.fromkeys(names, "1")
    return network(
        priors, inputs=inputs, outputs=outputs, units=units, activations=(activation,) * len(units)
    )


@dataclass(frozen=True)
class Start:
    """Arguments of `advance`: a state away from the prior's centre, and short steps."""

    position: Array
    momentum: Array
    precisions: Array
    stepsizes: Array
    order: Array | None

    @staticmethod
    def of(
        target: SampledPosterior,
        *,
        n_chains: int = 3,
        n_partitions: int = 1,
        name: str = "kernels",
        are_unlike: bool = False,
    ) -> Start:
        """Make a start for a target; with are_unlike all precisions differ, otherwise each sigma is 0.5."""
        random = streams(name, n_chains)
        state = target.initial_state(random, sigmas=0.5)
        position = 0.5 * random.normal(Purpose.PROPOSAL, (target.n_parameters,))
        precisions = state.precisions
        if are_unlike:  # All differ, so that the use of one in another's place shows.
            precisions = precisions * np.exp(0.5 * random.normal(Purpose.GRID, (target.n_precisions,)))
        order = random.permutation(n_partitions, Purpose.PARTITION_ORDER) if n_partitions > 1 else None
        return Start(
            position.astype(target.dtype),
            state.momentum,
            precisions,
            (0.1 * target.stepsizes(precisions)).astype(target.dtype),
            order,
        )

    def run(
        self, advance: Advance, target: SampledPosterior, *, n_steps: int = 3
    ) -> tuple[Array, Array, Array]:
        """Position, momentum and potential after n_steps steps."""
        start = Trajectory(self.position, self.momentum, self.precisions, self.stepsizes)
        return end_of(advance, target, start, n_steps=n_steps, order=self.order)


def potential_and_gradient(
    advance: Advance, target: Target, position: Array, precisions: Array
) -> tuple[Array, Array]:
    """Potential and gradient from a step too short to move: two half kicks of a zero momentum."""
    stepsizes = np.full_like(position, 2.0**-60)  # a power of two, by which products are exact
    start = Trajectory(position, np.zeros_like(position), precisions, stepsizes)
    end, potential = advance(target, start, n_steps=1)
    return potential, -end.momentum / stepsizes


def assert_end_is_a_start(
    advance: Advance, target: Target, ended: tuple[Array, ...], *rest: Array, order: Array | None = None
) -> None:
    """Check that zero steps from an end change nothing and give the same potential bit for bit."""
    again = end_of(advance, target, Trajectory(*ended[:2], *rest), n_steps=0, order=order)
    assert all(np.array_equal(a, b) for a, b in zip(again, ended, strict=True))


def assert_close(got: tuple[Array, ...], expected: tuple[Array, ...], dtype: str) -> None:
    """Check that position, momentum and potential agree up to rounding after a few steps."""
    tolerance = 3e-6 if dtype == "float32" else 1e-12
    for values, others in zip(got, expected, strict=True):
        assert values.dtype == others.dtype and values.shape == others.shape
        scale = np.maximum(np.abs(others), 1)
        assert np.max(np.abs(values - others) / scale) < tolerance


def are_equal(results: list[tuple[Array, ...]]) -> bool:
    return all(
        np.array_equal(values, others)
        for result in results[1:]
        for values, others in zip(result, results[0], strict=True)
    )


def end_of(
    advance: Advance, target: Target, start: Trajectory, *, n_steps: int, order: Array | None = None
) -> tuple[Array, Array, Array]:
    """Position, momentum and potential after n_steps steps of `advance`."""
    end, potential = advance(target, start, n_steps=n_steps, order=order)
    return end.position, end.momentum, potential


def chains_of(trajectory: Trajectory, chains: slice) -> Trajectory:
    """Some of the chains of a trajectory."""
    return Trajectory(
        trajectory.position[chains],
        trajectory.momentum[chains],
        trajectory.precisions[chains],
        trajectory.stepsizes[chains],
    )


# Each network takes half a second to compile, so quick tests use few, and Hypothesis shrinks none.
N_EXAMPLES = [3, pytest.param(60, marks=pytest.mark.long)]


def examples(n: int) -> settings:
    return settings(max_examples=n, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


# Tolerances are relative to a chain's largest number. Rounding errors, 1e-16 and 6e-8, grow with the
# condition numbers of matrices and the depth of the network. In float32 matrices are in float64, so only
# depth matters.
TOLERANCES = {"float64": 1e-10, "float32": 3e-5}


def on_device(values: Array) -> Array:
    import cupy

    return None if values is None else cupy.asarray(values)


def device_copy(host: SampledPosterior, values: Array) -> SampledPosterior:
    import cupy

    return SampledPosterior.from_spec(
        host.network, host.model, covariates_of(host), values, dtype=host.dtype, xp=cupy
    )


def values_of(target: SampledPosterior) -> Array:
    """Targets (n_cases, n_targets) as `SampledPosterior.from_spec` takes them."""
    rows = target.targets
    if target.model.kind == "class":
        values = rows.argmax(axis=0)[:, None].astype(float)
    elif target.model.kind == "survival":
        times = np.where(rows[1] > -np.inf, np.exp(rows[1]), np.nan)
        values = np.where(rows[0] > 0, times, -times)[:, None]
    else:
        values = rows[: target.n_targets].T.copy()
    if target.observed is not None:  # targets that are missing are kept as zeros
        values[target.observed.T == 0] = np.nan
    return values


def both(model: str, dtype: Any, spec: Any, n_cases: int) -> tuple[SampledPosterior, SampledPosterior]:
    host = problem(model, spec=spec, dtype=dtype, n_cases=n_cases)
    return host, device_copy(host, values_of(host))
