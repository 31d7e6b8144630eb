"""The obstacles between ladders that more kept iterations cannot remove."""

from __future__ import annotations

import numpy as np

from rayfbnn.answers.judging.advice import RHAT_IN_REACH
from rayfbnn.answers.ladder.hint import are_steady
from rayfbnn.draws.ladders import LadderDraws
from rayfbnn.reduce.effective import rhat

# With fewer draws, levels may only seem to disagree or not to exchange. Neighbours that exchange in one of
# fifty iterations would have eight exchanges in these.
_LEAST_DRAWS = 400


def lasting_obstacle(levels: LadderDraws) -> str:
    """Return why more iterations with the same levels would not make ladders converge; "" if they may.

    Levels do not change any more once draws are kept. If neighbours hardly exchange, or if ladders disagree
    at the hot end where each of them is steady, that will stay so.
    """
    if levels.measure.shape[1] < _LEAST_DRAWS:
        return ""
    return _without_exchange(levels) or _without_agreement(levels)


def _without_exchange(levels: LadderDraws) -> str:
    """Name the neighbours that are expected to exchange less than once in all draws."""
    n_draws = levels.measure.shape[1]
    exchanges = n_draws * (1 - levels.rejection)
    ladder, pair = np.unravel_index(np.argmin(exchanges), exchanges.shape)
    if not exchanges[ladder, pair] < 1:
        return ""
    return (
        f"{levels.name_of(int(pair))} and {levels.name_of(int(pair) + 1)} exchange less than once in"
        f" {n_draws} iterations of ladder {levels.ladders[ladder]}"
    )


def _without_agreement(levels: LadderDraws) -> str:
    """Say that ladders disagree at all hotter levels, if each is steady where they disagree least."""
    hot_half = levels.measure[..., : levels.n_levels // 2].astype(float)
    of_levels = [float(rhat(hot_half[..., level])) for level in range(hot_half.shape[2])]
    least = int(np.argmin(of_levels))
    if not of_levels[least] > RHAT_IN_REACH or not are_steady(hot_half[..., least]):
        return ""
    return (
        f"the ladders are steady but disagree at all levels of the hotter half (R-hat at least"
        f" {of_levels[least]:.2f})"
    )
