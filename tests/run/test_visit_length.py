"""Ring or star, and visits that are too short, by the operations of a gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn.describe.data import describe_parts
from rayfbnn.run.in_parts import visit_length
from rayfbnn.spec import RunSpec
from tests.support.small import SMALL, small_spec

FULL = {"op": "hybrid", "steps": 6, "stepsize": 0.3}
PARTIAL = {**FULL, "partitions": 4, "order": "cyclic"}


def spec_with(folder: Path, *operations: dict[str, Any], units: int = 100) -> RunSpec:
    return small_spec(
        folder,
        data={**SMALL["data"], "parts": 4},
        network={"hidden": [{"units": units, "activation": "tanh"}], "priors": {"ih": "1", "ho": "x1"}},
        chains=16,
        chains_per_batch=8,
        phase=[{"iterations": 1, "operations": [{"op": "heatbath"}, *operations]}],
    )


def test_a_visit_is_as_long_as_its_products(tmp_path: Path) -> None:
    """Two inputs and one output: 2 (2 x 200 + 3 x 100) operations a case."""
    full = visit_length(spec_with(tmp_path, FULL), 400_000)
    assert full.seconds == pytest.approx(8 * 100_000 * 1400 / 5e10)
    assert (full.n_chains, full.n_batches, full.has_full, full.is_short) == (8, 2, True, False)
    partial = visit_length(spec_with(tmp_path, PARTIAL), 400_000)
    assert partial.seconds == pytest.approx(full.seconds / 2)  # half of the chains go either way


def test_a_star_is_for_full_gradients_of_fewer_batches_than_owners(tmp_path: Path) -> None:
    full = visit_length(spec_with(tmp_path, FULL, PARTIAL), 400_000)
    assert [full.takes_star(n_owners) for n_owners in (1, 2, 3, 4)] == [False, False, True, True]
    assert not visit_length(spec_with(tmp_path, PARTIAL), 400_000).takes_star(4)
    assert not visit_length(spec_with(tmp_path, FULL), 400).takes_star(4)


@pytest.mark.parametrize(
    ("operation", "n_cases", "texts"),
    [
        (FULL, 400_000, ("22 ms", "more workers than batches (2)", "a star")),
        (PARTIAL, 400_000, ("11 ms", "partial gradients follow one another", "shorter than 20 ms")),
        (FULL, 400, ("0.022 ms", "too short to ask all workers at once", "use fewer parts")),
    ],
)
def test_show_says_which_and_why(operation: dict[str, Any], n_cases: int, texts: Any, tmp_path: Path) -> None:
    targets = np.random.default_rng(1).normal(size=(n_cases, 1))
    text = "\n".join(describe_parts(spec_with(tmp_path, operation), targets))
    assert all(part in text for part in texts)
    assert ("warning" in text) == (operation is PARTIAL or n_cases == 400)
