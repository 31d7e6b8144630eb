"""Ladders and chains of the default schedule have the same posterior means, by the whole way of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.draws.quantities import DENSITIES, quantities
from rayfbnn.draws.view import committed
from rayfbnn.spec import RunSpec
from tests.support.ladder.posteriors import TABLES
from tests.support.store.ladder_runs import run_ladders

_LADDER = {"warmup": 60, "annealing": 20, "adaptation": 100}


def _means(path: Path, *, chains: int, iterations: int, **keys: Any) -> dict[str, Array]:
    """Run chains or ladders on the table of seven cases; return each one's means, by quantity."""
    keys |= {
        "seed": 5,
        "chains": chains,
        "chains_per_batch": chains,
        "iterations": iterations,
        "dtype": "float32",
        "data": {
            "train": str(TABLES / "tiny7.csv"),
            "inputs": ["x0", "x1"],
            "targets": ["y"],
            "standardize": ["inputs", "targets"],
        },
        "model": {"kind": "real", "noise": "0.5:4"},
        "network": {"hidden": [{"units": 3, "activation": "tanh"}]},
    }
    store = run_ladders(path, RunSpec.from_dict(keys))
    by_name = quantities(committed(store), cases=3)
    are_sigmas = {name: name.startswith("sigma") for name in by_name}
    return {
        name: (np.log(values) if are_sigmas[name] else values).mean(axis=1)
        for name, values in by_name.items()
    }


@pytest.mark.parametrize("chains, iterations", [(16, 100), pytest.param(64, 1500, marks=pytest.mark.long)])
def test_ladders_and_chains_have_the_same_means(tmp_path: Path, chains: int, iterations: int) -> None:
    """Every |z| is below 4, 1 in 16,000 each if correct; the seed is fixed.

    Chains, and ladders, are independent of each other: the error of a mean comes from the spread of theirs,
    however autocorrelated the draws are. The spread of 16 is known to 18 %.
    """
    ladders = _means(tmp_path / "ladders.zarr", chains=chains, iterations=iterations, ladder=_LADDER)
    plain = _means(tmp_path / "chains.zarr", chains=chains, iterations=2 * iterations)
    assert ladders.keys() == plain.keys() and len(ladders) == 14 and set(DENSITIES) < set(ladders)
    z = {
        name: (ours.mean() - plain[name].mean())
        / math.hypot(*(values.std(ddof=1) / math.sqrt(chains) for values in (ours, plain[name])))
        for name, ours in ladders.items()
    }
    assert max(map(abs, z.values())) < 4, z
