"""How many random networks a kernel is tested on, and how closely it must agree."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings

# A network is a compilation of half a second: few in the quick tests, and none is made smaller.
N_EXAMPLES = [6, pytest.param(100, marks=pytest.mark.long)]


def examples(n: int) -> settings:
    return settings(max_examples=n, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


# Relative to a chain's largest number. The rounding of a number, 1e-16 and 6e-8, grows with the condition
# numbers of matrices and the depth of the network; in float32 matrices are in double, and the second is left.
TOLERANCES = {"float64": 1e-10, "float32": 3e-5}
