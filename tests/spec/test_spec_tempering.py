"""Simulated tempering and tempered transitions in configurations: round trips, `show`, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayfbnn
from rayfbnn.describe.configuration import describe
from rayfbnn.errors import ConfigError
from rayfbnn.mcmc.operation import gradient_evaluations
from rayfbnn.mcmc.operations import Heatbath, Hybrid, SampleSigmas, SimulatedTempering, TemperedTransition
from rayfbnn.spec import RunSpec
from rayfbnn.store.store import Store
from tests.support.small import small, small_spec

INNER = [{"op": "sample-sigmas"}, {"op": "heatbath"}, {"op": "hybrid", "steps": 3, "stepsize": 0.2}]
SIMULATED: dict[str, Any] = {
    "op": "simulated-tempering",
    "inverse_temperatures": [1, 0.5, 0.25],
    "log_weights": [0, -3.5, -5],
    "operations": INNER,
}
TRANSITION: dict[str, Any] = {
    "op": "tempered-transition",
    "inverse_temperatures": [1, 0.5],
    "operations": INNER,
}


def raw_with(*operations: dict[str, Any]) -> dict[str, Any]:
    return small(phase=[{"iterations": 4, "operations": list(operations)}])


def test_tempering_is_read_and_written_back() -> None:
    spec = RunSpec.from_dict(raw_with(SIMULATED, TRANSITION))
    inner = (SampleSigmas(), Heatbath(), Hybrid(steps=3, stepsize=0.2))
    assert spec.phase[0].operations == (
        SimulatedTempering((1.0, 0.5, 0.25), (0.0, -3.5, -5.0), inner),
        TemperedTransition((1.0, 0.5), inner),
    )
    assert RunSpec.from_json(spec.to_json()) == spec


def test_a_direction_that_persists_is_read_written_and_described() -> None:
    spec = RunSpec.from_dict(raw_with({**SIMULATED, "direction": "persistent"}))
    (walk,) = spec.phase[0].operations
    assert isinstance(walk, SimulatedTempering) and walk.direction == "persistent"
    assert RunSpec.from_json(spec.to_json()) == spec
    assert "0.25, in a direction that is kept until a step is rejected, at each step:" in describe(spec)
    assert gradient_evaluations(spec.phase[0].operations) == 3 * (2 * 3 - 1)


def test_toml_holds_tempering_too(tmp_path: Path) -> None:
    spec = RunSpec.from_dict(raw_with(SIMULATED, TRANSITION))
    (tmp_path / "run.toml").write_text(spec.to_toml())
    assert RunSpec.from_toml(tmp_path / "run.toml") == spec


WRONG: list[tuple[dict[str, Any], str]] = [
    ({**TRANSITION, "inverse_temperatures": [0.9, 0.5]}, "inverse_temperatures: must begin with 1"),
    ({**TRANSITION, "inverse_temperatures": [1]}, "inverse_temperatures: must begin with 1"),
    ({**TRANSITION, "inverse_temperatures": [1, 0.5, 0.5]}, "inverse_temperatures: must begin with 1"),
    ({**TRANSITION, "inverse_temperatures": [1, 1.5]}, "inverse_temperatures: must begin with 1"),
    ({**TRANSITION, "inverse_temperatures": [1, -0.1]}, "inverse_temperatures: must begin with 1"),
    ({**TRANSITION, "inverse_temperatures": [1, float("nan")]}, "inverse_temperatures"),
    ({**TRANSITION, "inverse_temperatures": [1, "0.5"]}, "a number from 0 to 1"),
    ({**TRANSITION, "inverse_temperatures": 0.5}, "a list of numbers that begins with 1"),
    ({**TRANSITION, "log_weights": [0, 0]}, "log_weights: unknown key"),
    ({**TRANSITION, "operations": []}, "operations: must name at least one operation"),
    ({**TRANSITION, "operations": [TRANSITION]}, "operations: must be reversible"),
    ({**TRANSITION, "operations": [{"op": "slice-1", "stepsize": 1.0}]}, "got slice-1"),
    (
        {**TRANSITION, "operations": [{"op": "hybrid", "steps": 0, "stepsize": 1}]},
        "steps: must be at least 1",
    ),
    ({**SIMULATED, "log_weights": [0, 1]}, "log_weights: must have one number for each of the 3"),
    ({**SIMULATED, "log_weights": [0, 1, float("inf")]}, "log_weights"),
    ({**SIMULATED, "direction": "persist"}, 'direction: must be "random" or "persistent", got "persist"'),
    ({**SIMULATED, "direction": 1}, 'direction: must be "random" or "persistent", got 1'),
    ({**TRANSITION, "direction": "random"}, "direction: unknown key"),
    ({**SIMULATED, "operations": [SIMULATED]}, "operations: must be exact and must not be tempering"),
    (
        {**SIMULATED, "operations": [{"op": "dynamic", "steps": 2, "stepsize": 0.1}]},
        "must be exact and must not be tempering operations themselves, got dynamic",
    ),
    ({"op": "simulated-tempering", "operations": INNER}, "inverse_temperatures: missing"),
]


@pytest.mark.parametrize(("operation", "message"), WRONG)
def test_tempering_that_makes_no_sense_is_named(operation: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RunSpec.from_dict(raw_with(operation))
    assert "phase[0].operations[0]" in str(caught.value)
    assert message in str(caught.value)


def test_partitions_inside_tempering_are_checked_against_the_cases() -> None:
    inner = [{"op": "hybrid", "steps": 3, "stepsize": 0.2, "partitions": 50}]
    spec = RunSpec.from_dict(raw_with({**TRANSITION, "operations": inner}))
    key = r"phase\[0\]\.operations\[0\]\.operations\[0\]\.partitions"
    with pytest.raises(ConfigError, match=f"{key}: must be at most"):
        spec.check_data(12)


def test_show_names_the_temperatures_and_counts_both_ways() -> None:
    spec = RunSpec.from_dict(raw_with(SIMULATED, TRANSITION))
    text = describe(spec)
    assert "simulated-tempering: inverse temperatures 1, 0.5, 0.25, at each" in text
    assert "tempered-transition: inverse temperatures 1, 0.5, at each" in text
    assert "no sample-sigmas" not in text
    assert gradient_evaluations(spec.phase[0].operations) == 3 * 3 + 2 * 3


@pytest.mark.long
def test_a_run_with_tempering_resumes_to_the_same_bits(tmp_path: Path) -> None:
    operations = [SIMULATED, TRANSITION]
    once = small_spec(tmp_path, phase=[{"iterations": 4, "operations": operations}])
    twice = small_spec(tmp_path, phase=[{"iterations": 2, "operations": operations}])
    rayfbnn.sample(once, tmp_path / "once.zarr", workers=0, progress=False)
    rayfbnn.sample(twice, tmp_path / "twice.zarr", workers=0, progress=False)
    rayfbnn.resume(tmp_path / "twice.zarr", iterations=4, workers=0, progress=False)
    positions = [Store.open(tmp_path / name).read_positions() for name in ("once.zarr", "twice.zarr")]
    assert np.isfinite(positions[0]).all()
    assert np.array_equal(*positions)
