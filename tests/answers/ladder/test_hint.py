"""An ordinary run is told of ladders if its chains are steady in different modes, and not otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rayfbnn.answers.judging.ladder_hint import are_steady, ladder_hint, with_hint
from rayfbnn.answers.judging.verdicts import Verdict
from rayfbnn.arrays import Array
from rayfbnn.draws.view import committed
from rayfbnn.state import ChainState
from rayfbnn.store.records import Block
from rayfbnn.streams import Purpose, Streams
from tests.support.small import make_store, small_spec

N = 200


def stored(folder: Path, log_likelihood: Array, **replaced: object) -> str:
    """Make the store of a run that has kept these log likelihoods, and return the hint on it."""
    phases = [
        {"iterations": N, "operations": [{"op": "heatbath"}, {"op": "hybrid", "steps": 9, "stepsize": 1}]}
    ]
    spec = small_spec(folder, chains=4, chains_per_batch=4, draws_per_block=None, phase=phases, **replaced)
    store = make_store(folder / "run.zarr", spec)
    shape = (4, N)
    positions = np.zeros((*shape, store.parameter_layout.n_parameters), dtype=np.float32)
    precisions = np.ones((*shape, store.precision_layout.n_precisions))
    state = ChainState(positions[:, 0], positions[:, 0], precisions[:, 0])
    stats = {"log_likelihood": log_likelihood}
    store.commit(0, Block(1, N, "posterior", 0, positions, precisions, stats, state))
    return ladder_hint(committed(store), rhat=1.9)


def noise() -> Array:
    return Streams(3, np.arange(4, dtype=np.uint64)).normal(Purpose.TARGET_VALUE, (N,))


MODES = 50.0 * np.array([[0], [0], [1], [1]])


def test_steady_chains_in_modes_are_offered_a_ladder_with_its_cost(tmp_path: Path) -> None:
    hint = stored(tmp_path, noise() + MODES)
    assert "rayfbnn sample run.toml ladder.zarr --set ladder.levels=auto --set chains=8" in hint
    # 8 ladders of 1200 gradients in 2800 iterations, against 4 chains of 9 steps in 200.
    assert "about 4,000 times the gradients of this run" in hint
    usable, bad = Verdict("predictions", "usable"), Verdict("predictions", "not usable")
    assert with_hint(usable, hint) == usable and with_hint(bad, hint).advice == (hint,)


def test_chains_that_still_move_are_not(tmp_path: Path) -> None:
    assert stored(tmp_path, noise() + MODES + np.linspace(0, 20, N)) == ""
    assert are_steady(noise() + MODES) and not are_steady(noise() + np.linspace(0, 20, N))


def test_models_without_a_ladder_are_not(tmp_path: Path) -> None:
    assert stored(tmp_path, noise() + MODES, model__noise="0.3") == ""
