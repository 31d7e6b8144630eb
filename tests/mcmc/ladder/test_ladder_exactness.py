"""The top of a ladder has the posterior's means and evidence: importance sampling from the prior agrees."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.kernels import choose
from rayfbnn.mcmc.ladder.bennett import LogRatios, bennett
from rayfbnn.mcmc.ladder.iteration import build
from rayfbnn.mcmc.ladder.records import LadderInfo, LadderSettings, LadderState, Path, rows_of, started
from rayfbnn.mcmc.ladder.starts import log_weights_of_level
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import Heatbath, Hybrid, HybridMarginal, Rescale, SampleSigmas
from rayfbnn.mcmc.tempering.annealing import Normaliser, inverse_temperatures, normaliser
from rayfbnn.model.ladder_path import path_of
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import Advance, LadderEnds
from rayfbnn.streams import Streams
from tests.support.ladder.posteriors import posterior_of, quantities, weighted
from tests.support.problems import streams_on_array

_LADDERS, _WARM, _KEPT = 60, 40, 160
_MARGINAL = (
    SampleSigmas(),
    Rescale(along="incoming", stepsize=1.0),
    Heatbath(),
    HybridMarginal(over=("outputs", "precisions"), steps="auto", stepsize="auto", stepsize_jitter=-0.2),
)
_HYBRID = (
    SampleSigmas(),
    Rescale(along="incoming", stepsize=1.0),
    Heatbath(),
    Hybrid(steps=8, stepsize="auto", stepsize_jitter=-0.2),
)


@pytest.mark.parametrize(
    "table, kind, levels",
    [
        ("tiny3.csv", "real", (-12.0, -4.0, -2.5, -1.0)),
        ("tiny7.csv", "real", (-12.0, -4.0, -2.5, -1.0)),
        ("tiny7.csv", "binary", (-9.0, -3.0, -1.5, -0.7)),
    ],
)
def test_ladder_agrees_with_importance_sampling(
    table: str, kind: Literal["real", "binary"], levels: tuple[float, ...]
) -> None:
    """Every |z| is below 4, 1 in 16,000 each if correct; seeds are fixed.

    The hottest level is so hot that its own evidence is known: the likelihood varies by less than 0.01.
    """
    _agrees(posterior_of(table, kind), levels, _MARGINAL if kind == "real" else _HYBRID)


@pytest.mark.parametrize(
    "noise, n_targets, multipliers",
    [("1:10::4", 1, ()), ("1::10:4", 2, (0.7, 1.4)), ("1:6:10", 2, (0.7, 1.4))],
)
def test_ladder_agrees_where_the_noise_is_proposed(
    noise: str, n_targets: int, multipliers: tuple[float, ...]
) -> None:
    """The noise has the posterior's means too, although it is drawn from a fitted density at the top."""
    posterior = posterior_of("tiny7.csv", noise=noise, n_targets=n_targets)
    assert path_of(posterior).ends == LadderEnds("noise", math.inf)
    _agrees(posterior, (-12.0, -4.0, -2.5, -1.0), _MARGINAL, multipliers)


def _agrees(
    posterior: SampledPosterior,
    levels: tuple[float, ...],
    operations: tuple[Operation, ...],
    multipliers: tuple[float, ...] = (),
) -> None:
    path = path_of(posterior)
    advance, _ = choose.advance_for(posterior)
    settings = LadderSettings(levels, (0.6,) * 5, (8,) * 5, multipliers=multipliers)
    streams = lambda rows: streams_on_array(11, rows)  # noqa: E731
    state = started(path.prior_draw(streams(rows_of(range(_LADDERS), 5)).at(iteration=0)), 5)
    state, _ = run(path, operations, state, settings, streams, 1, _WARM, advance=advance)
    ladders = frozen(path, operations, state, settings, streams, _WARM + 1, _KEPT, advance=advance)
    exact = weighted(posterior, 300_000, seed=12)
    values = np.array(
        [quantities(posterior, *draw) for draw in zip(ladders.position, ladders.precisions, strict=True)]
    ).mean(axis=0)  # (n_ladders, n_quantities)
    error = values.std(axis=0, ddof=1) / math.sqrt(_LADDERS)
    z = (values.mean(axis=0) - exact.means) / np.hypot(error, exact.errors)
    assert abs(z).max() < 4
    # The evidence: Bennett's from level to level, and that of the hottest level by its own energies.
    totals = np.array([ratios.total for ratios in ladders.log_ratios])
    hot = _hot(posterior, levels[0], 20_000, multipliers).log_value
    error_of_total = totals.std(ddof=1) / math.sqrt(_LADDERS)
    z = (totals.mean() + hot - exact.log_evidence) / math.hypot(error_of_total, exact.error_of_evidence)
    assert abs(z) < 4
    claimed = np.array([ratios.standard_error for ratios in ladders.log_ratios])
    assert 0.7 < claimed.mean() / totals.std(ddof=1) < 1.4  # the standard deviation is known to 9 %


@pytest.mark.parametrize(
    "kind, noise, hot", [("real", "1:10", -2.0), ("binary", "", -1.0), ("real", "1:10::4", -1.0)]
)
def test_annealing_to_the_hot_level_agrees_with_importance_sampling(
    kind: Literal["real", "binary"], noise: str, hot: float
) -> None:
    posterior = posterior_of("tiny7.csv", kind, noise=noise)
    path = path_of(posterior)
    settings = LadderSettings((hot, hot + 0.5), (0.5,) * 3, (8,) * 3)
    advance, _ = choose.advance_for(posterior)
    runs = streams_on_array(21, np.arange(1000, dtype=np.uint64))
    weights = log_weights_of_level(
        path,
        settings,
        runs,
        inverse_temperatures=inverse_temperatures(20, power=4.0),
        advance=advance,
    )
    annealed, exact = normaliser(weights[-1]), _hot(posterior, hot, 200_000)
    z = (annealed.log_value - exact.log_value) / math.hypot(annealed.standard_error, exact.standard_error)
    assert abs(z) < 4


def _hot(posterior: SampledPosterior, x: float, n: int, multipliers: tuple[float, ...] = ()) -> Normaliser:
    """Return the normalising constant of a hot level, by importance sampling from the prior."""
    path = path_of(posterior).with_multipliers(multipliers)
    streams = streams_on_array(13, np.arange(n, dtype=np.uint64))
    drawn = path.prior_draw(streams.at(iteration=0))
    _, energies = path.offered(drawn, streams, is_below=np.ones(n, dtype=bool))
    return normaliser(-energies.at(np.full(n, x)))


@dataclass(frozen=True)
class Frozen:
    """The frozen iterations of ladders: arrays with the axes draw, ladder, level."""

    settings: LadderSettings
    state: LadderState
    measure: Array
    forward: Array
    reverse: Array
    rejection: Array
    accepted: Array
    top: Array
    position: Array  # of the top
    precisions: Array  # of the top

    @property
    def log_ratios(self) -> list[LogRatios]:
        """Bennett's estimates for each ladder."""
        return [bennett(self.forward[:, r], self.reverse[:, r]) for r in range(self.forward.shape[1])]


def run(
    path: Path,
    operations: tuple[Operation, ...],
    state: LadderState,
    settings: LadderSettings,
    streams: Callable[[Array], Streams],
    first: int,
    count: int,
    *,
    advance: Advance,
    on_iteration: Callable[[LadderState], None] = lambda _: None,
) -> tuple[LadderState, list[LadderInfo]]:
    """Run `count` iterations of all ladders with constant settings."""
    iteration = build(path, operations, settings, n_ladders=state.n_ladders, advance=advance)
    random = streams(rows_of(range(state.n_ladders), settings.n_levels))
    infos = []
    for number in range(first, first + count):
        state, info = iteration(state, random.at(iteration=number))
        infos.append(info)
        on_iteration(state)
    return state, infos


def frozen(
    path: Path,
    operations: tuple[Operation, ...],
    state: LadderState,
    settings: LadderSettings,
    streams: Callable[[Array], Streams],
    first: int,
    count: int,
    *,
    advance: Advance,
) -> Frozen:
    """Run iterations with frozen settings, and keep what they measure."""
    positions, precisions = [], []
    top = slice(settings.n_levels - 1, None, settings.n_levels)

    def keep(ladders: LadderState) -> None:
        positions.append(ladders.chain.position[top])
        precisions.append(ladders.chain.precisions[top])

    state, infos = run(
        path, operations, state, settings, streams, first, count, advance=advance, on_iteration=keep
    )

    def stacked(name: str) -> Array:
        return np.array([getattr(info, name) for info in infos])

    names = ("measure", "forward", "reverse", "rejection", "accepted", "top")
    arrays = {name: stacked(name) for name in names}
    return Frozen(
        settings=settings,
        state=state,
        position=np.array(positions),
        precisions=np.array(precisions),
        **arrays,
    )
