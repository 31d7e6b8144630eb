"""How many random networks a kernel is tested on, and how closely it must agree."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings

# Each network takes half a second to compile, so quick tests use few, and Hypothesis shrinks none.
N_EXAMPLES = [3, pytest.param(60, marks=pytest.mark.long)]


def examples(n: int) -> settings:
    return settings(max_examples=n, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


# Tolerances are relative to a chain's largest number. Rounding errors, 1e-16 and 6e-8, grow with the
# condition numbers of matrices and the depth of the network. In float32 matrices are in float64, so only
# depth matters.
TOLERANCES = {"float64": 1e-10, "float32": 3e-5}
