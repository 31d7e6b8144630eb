"""Draws are thinned by the same errors, however few cases are looked at together."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rayfbnn.answers import predictor
from rayfbnn.answers.predictor import thin
from rayfbnn.draws.outputs import outputs_by_case
from rayfbnn.draws.quantities import noise_sigmas
from rayfbnn.draws.subsets import spread
from rayfbnn.draws.view import Draws
from rayfbnn.reduce.effective import mcse_mean
from tests.support.store.standin_store import make_data, make_run, make_spec


def slow_run(n_draws: int = 300) -> Draws:
    """A run of chains that mix slowly."""
    spec = make_spec()
    run = make_run(spec, make_data(spec, n_cases=30), n_draws=n_draws)
    positions = run.store.positions  # type: ignore[attr-defined]
    for draw in range(1, n_draws):
        positions[:, draw] = 0.9 * positions[:, draw - 1] + 0.4 * positions[:, draw]
    return run


def plain_error(run: Draws, n_wanted: int) -> float:
    """The largest error at 20 cases, from an array of all of them."""
    data = run.data
    inputs = data.standardized(data.inputs[np.unique(np.linspace(0, 29, 20).round().astype(int))])
    means = outputs_by_case(run, inputs, memory_bytes=1e8)
    flat = means.reshape(*means.shape[:2], -1)
    noise = (noise_sigmas(run).reshape(1, -1, run.total) ** 2).mean(axis=2)
    sd = np.sqrt(noise + flat.var(axis=2))
    return float((mcse_mean(means[..., spread(run.n_draws, n_wanted)]) / sd).max())


@pytest.mark.parametrize("max_mcse", [0.02, 0.08, 0.15, 0.3])
@pytest.mark.parametrize("cases_bytes", [1.0, 1e9])
def test_the_first_number_of_draws_that_is_enough_is_taken(
    max_mcse: float, cases_bytes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictor, "_CASES_BYTES", cases_bytes)
    run = slow_run()
    thinning = thin(run, draws=None, max_mcse=max_mcse)
    of_all, wanted = plain_error(run, 300), 25
    while wanted < 300 and plain_error(run, wanted) > max(max_mcse, 1.05 * of_all):
        wanted = math.ceil(1.25 * wanted)
    assert len(thinning.numbers) == min(wanted, 300)
    assert thinning.mcse == pytest.approx(plain_error(run, len(thinning.numbers)), rel=1e-9)
    assert thinning.mcse_of_all == pytest.approx(of_all, rel=1e-9)


def test_a_given_number_of_draws_is_taken_with_its_error() -> None:
    run = slow_run()
    thinning = thin(run, draws=200, max_mcse=0.05)
    assert len(thinning.numbers) == 50
    assert thinning.mcse == pytest.approx(plain_error(run, 50), rel=1e-9)
