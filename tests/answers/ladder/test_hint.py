"""An ordinary run is told of ladders if its chains are steady in different modes, and not otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rayfbnn.answers.diagnostics import diagnose_draws
from rayfbnn.answers.judging.ladder_evidence import lasting_obstacle
from rayfbnn.answers.judging.words import are_steady, ladder_hint
from rayfbnn.arrays import Array
from rayfbnn.draws.ladders import LadderDraws
from rayfbnn.draws.view import committed
from rayfbnn.state import ChainState
from rayfbnn.store.records import Block
from rayfbnn.store.store import Store
from rayfbnn.streams import Purpose, Streams
from tests.support.small import make_store, small_spec

_N, _LEVELS = 500, 4


def levels_of(measure: Array, reverse: Array) -> LadderDraws:
    """Return four ladders with these values of log RSS and of the energy differences from above."""
    n = measure.shape[1]
    return LadderDraws(
        kind="noise",
        held=(0.9, 0.3, 0.1),
        ladders=(0, 1, 2, 3),
        measured="log_rss",
        families=("chains", "prior") * 2,
        measure=measure,
        forward=np.zeros((4, n, _LEVELS - 1)),
        reverse=reverse,
        replica=np.zeros((4, n)),
        trips=np.zeros(4, dtype=int),
    )


def drawn() -> tuple[Array, Array]:
    """Return log RSS of ladders that agree, and energy differences at which neighbours often exchange."""
    normal = Streams(5, np.arange(4, dtype=np.uint64)).normal(Purpose.TARGET_VALUE, (_N, _LEVELS))
    return normal, np.full((4, _N, _LEVELS - 1), 0.7)


def test_ladders_that_agree_and_exchange_have_no_obstacle() -> None:
    assert lasting_obstacle(levels_of(*drawn())) == ""


def test_neighbours_that_never_exchange_are_named_even_in_one_ladder() -> None:
    measure, reverse = drawn()
    reverse[2, :, 1] = 9.0  # exp(-9) times 500 draws is less than one exchange
    said = lasting_obstacle(levels_of(measure, reverse))
    assert said == "noise 0.3 and noise 0.1 exchange less than once in 500 iterations of ladder 2"
    reverse[2, :, 1] = 5.0
    assert lasting_obstacle(levels_of(measure, reverse)) == ""


def test_ladders_that_stay_apart_at_the_hot_end_are_an_obstacle_and_drifting_ones_are_not() -> None:
    measure, reverse = drawn()
    apart = measure + np.arange(4)[:, None, None]
    said = lasting_obstacle(levels_of(apart, reverse))
    assert said.startswith("the ladders are steady but disagree at all levels of the hotter half (R-hat at ")
    drift = np.linspace(0, 9, _N)[:, None] * np.array([1, -1, 1, -1])[:, None, None]
    assert lasting_obstacle(levels_of(measure + drift, reverse)) == ""
    apart_when_cold = measure + np.arange(4)[:, None, None] * (np.arange(_LEVELS) > 0)
    assert lasting_obstacle(levels_of(apart_when_cold, reverse)) == ""


def test_few_draws_do_not_show_an_obstacle() -> None:
    measure, reverse = drawn()
    apart = measure + np.arange(4)[:, None, None]
    assert lasting_obstacle(levels_of(apart[:, :300], np.full_like(reverse, 50.0)[:, :300])) == ""


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
    diagnosis = diagnose_draws(committed(Store.open(tmp_path / "run.zarr")), fit=False)
    assert not diagnosis.predictions.ok and "ladder.levels=auto" in diagnosis.predictions.advice[-1]
    assert not any("ladder.levels" in advice for advice in diagnosis.hyperparameters.advice)


def test_chains_that_still_move_are_not(tmp_path: Path) -> None:
    assert stored(tmp_path, noise() + MODES + np.linspace(0, 20, N)) == ""
    assert are_steady(noise() + MODES) and not are_steady(noise() + np.linspace(0, 20, N))


def test_models_without_a_ladder_are_not(tmp_path: Path) -> None:
    assert stored(tmp_path, noise() + MODES, model__noise="0.3") == ""
