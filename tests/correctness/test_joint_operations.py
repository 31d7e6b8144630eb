"""Every corrected operation keeps the joint distribution of parameters, precisions and data of a network."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import (
    Heatbath,
    Hybrid,
    HybridMax,
    Metropolis1,
    Negate,
    RadialHeatbath,
    SampleSigmas,
    Slice1,
)
from tests.support.joint import FEW, PROBLEMS, stays_exact

pytestmark = pytest.mark.long  # takes a minute or more on one core

OPERATIONS: dict[str, tuple[Operation, ...]] = {
    "langevin": (SampleSigmas(), Heatbath(decay=0.9), Hybrid(steps=1, stepsize=1.5), Negate()),
    "jump": (SampleSigmas(), Heatbath(), Hybrid(steps=6, stepsize=1.5, window=2, jump=2, partitions=3)),
    "hybrid-max": (
        SampleSigmas(),
        Heatbath(decay=0.9),
        HybridMax(max_steps=5, max_ok=2, stepsize=1.5, partitions=3),
        Negate(),
    ),
    "fourth-order": (SampleSigmas(), Heatbath(), Hybrid(steps=2, stepsize=3.0, integrator="fourth-order")),
    "radial-heatbath": (SampleSigmas(), RadialHeatbath(), Hybrid(steps=4, stepsize=1.5)),
    "metropolis-1": (SampleSigmas(), Heatbath(), Metropolis1(stepsize=2.0)),
    "slice-1": (SampleSigmas(), Heatbath(), Slice1(stepsize=2.0, max_steps=3)),
}


@pytest.mark.parametrize("problem", ["real", "t", "class"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_joint_distribution_stays(name: str, problem: str) -> None:
    changed = replace(PROBLEMS[problem], operations=OPERATIONS[name])
    assert stays_exact(changed, f"{name}, {problem}", n_chains=FEW)
