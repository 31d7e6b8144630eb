"""Runs of networks beyond plain layers: draws come back from the store under descriptive names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rayfbnn.draws.quantities import sigmas
from rayfbnn.draws.view import committed
from rayfbnn.store.store import Store
from tests.support.small import make_store, small_spec
from tests.support.store.fits import run_all

NETWORK: dict[str, Any] = {
    "hidden": [
        {"units": 4, "activation": "softmax", "groups": "i % 2"},
        {"units": 3, "activation": "tanh"},
        {"units": 3, "activation": "sin", "product": 1},
    ],
    "priors": {
        "ih0": "0.7:3:4",
        "bh0": "1:3",
        "ah0": "3",
        "h0h1": "0.5:3",
        "bh1": "1",
        "h0h2": "x1:3:2",
        "ho2": "x1:3",
        "bo": "1",
        "ao": "5",
    },
    "omit": {"ih0": ["x1"]},
    "connections": {
        "h0h1": {"generator": "conv1d", "size": 2, "channels": 2, "filters": 3, "window": 2},
        "bh1": {"generator": "channels", "size": 3},
    },
}


def store_of(folder: Path, **replaced: Any) -> Store:
    return make_store(folder / "store", small_spec(folder, network=NETWORK, **replaced))


def test_draws_of_every_kind_of_network_are_stored_by_name(tmp_path: Path) -> None:
    store = run_all(store_of(tmp_path))
    posterior = store.datatree()["posterior"].to_dataset()
    assert posterior["ih0"].dims == ("chain", "draw", "input_ih0", "hidden0")
    assert list(posterior["input_ih0"].values) == ["x2"]
    assert posterior["sigma_ih0_unit"].dims == ("chain", "draw", "input_ih0")
    assert posterior["h0h1"].dims == ("chain", "draw", "weight_h0h1")
    assert posterior["bh1"].dims == ("chain", "draw", "weight_bh1")
    assert posterior["h0h2"].dims == ("chain", "draw", "hidden0", "hidden2")
    assert posterior["adjustment_ah0"].dims == ("chain", "draw", "hidden0")
    assert posterior["adjustment_ao"].dims == ("chain", "draw", "output")
    layout = store.precision_layout
    (hidden, outputs) = layout.adjustments
    precisions = store.read_precisions()
    assert np.allclose(posterior["adjustment_ah0"].values ** -2, precisions[..., hidden.columns], rtol=1e-12)
    assert np.allclose(posterior["adjustment_ao"].values ** -2, precisions[..., outputs.columns], rtol=1e-12)
    assert len(np.unique(precisions[..., hidden.columns])) == precisions[..., hidden.columns].size
    assert "sigma_ih0_unit[x2]" in sigmas(committed(store))


def test_such_a_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    run_all(store_of(tmp_path / "one"))
    run_all(store_of(tmp_path / "other", chains_per_batch=5), stop_every=2)
    one, other = (Store.open(tmp_path / name / "store") for name in ("one", "other"))
    assert one.read_positions().tobytes() == other.read_positions().tobytes()
    assert one.read_precisions().tobytes() == other.read_precisions().tobytes()
