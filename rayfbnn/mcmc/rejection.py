"""Exact, independent draws by rejection."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.errors import SamplingError
from rayfbnn.streams import Purpose, Streams

# No iteration has an operation of this number: with the same seed a run and its check share no random number.
_OPERATION = 2**32 - 1
_CHAINS = 2**32  # chain numbers that a stream can tell apart
_GIVE_UP_LEVEL = 1e-6  # chance, at one look, of giving up where max_proposals would have sufficed


class Propose(Protocol):
    """A batch of proposals: position, precisions, log acceptance probability (n_chains,)."""

    def __call__(self, streams: Streams) -> tuple[Array, Array, Array]: ...


def rejection_draws(
    propose: Propose,
    *,
    seed: int,
    draws: int,
    chains_per_round: int,
    max_proposals: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[Array, Array]]:
    """Accepted (positions, precisions) of each round that has any, `draws` of them in all.

    A proposal is accepted with the probability that `propose` gives, Neal (2022), "Rejection sampling": at
    most one by construction, which is asserted. A proposal's number alone decides its random numbers, so the
    draws do not depend on chains_per_round.

    Parameters
    ----------
    propose : streams -> position, precisions, log acceptance probability
    chains_per_round : int   proposals made at once, a matter of memory
    max_proposals : int      give up after so many, or as soon as it is plain that they will not suffice
    on_progress : called after each round with the draws and the proposals so far, in the last round up to
        the last draw
    """
    n_accepted, n_proposals = 0, 0
    while n_accepted < draws:
        if n_proposals >= max_proposals:
            raise SamplingError(_too_few(n_accepted, draws, n_proposals) + _WHAT_TO_CHANGE)
        if most_expected(n_accepted) * max_proposals < draws * n_proposals:
            cannot = f"; max_proposals = {max_proposals:,} cannot suffice"
            raise SamplingError(_too_few(n_accepted, draws, n_proposals) + cannot + _WHAT_TO_CHANGE)
        block, first = divmod(n_proposals, _CHAINS)
        n = min(chains_per_round, max_proposals - n_proposals, _CHAINS - first)
        chains = np.arange(first, first + n, dtype=np.uint64)
        streams = Streams(seed, chains, iteration=1 + block, operation=_OPERATION)
        position, precisions, log_acceptance = propose(streams)
        if bool((log_acceptance > 1e-9).any()):
            raise AssertionError(
                "rejection: the draws would not be exact, an acceptance probability is above one:"
                f" exp({float(np.nanmax(log_acceptance))})"
            )
        # Prior draws far out in the tails overflow to NaN; their density of the data is zero to any digit.
        is_accepted = np.log(streams.uniform(Purpose.REJECTION_ACCEPT)) < log_acceptance
        chosen = np.flatnonzero(is_accepted)[: draws - n_accepted]
        n_accepted += len(chosen)
        n_proposals += n if n_accepted < draws else int(chosen[-1]) + 1
        if on_progress is not None:
            on_progress(n_accepted, n_proposals)
        if len(chosen) > 0:
            yield position[chosen], precisions[chosen]


def _too_few(n_accepted: int, draws: int, n_proposals: int) -> str:
    rate = f"about one in {n_proposals // n_accepted:,}" if n_accepted else "none of them"
    return f"rejection: {n_accepted:,} of {draws:,} draws after {n_proposals:,} proposals ({rate} accepted)"


_WHAT_TO_CHANGE = (
    "; use fewer training cases, since the share accepted falls fast with their number, or less vague priors,"
    " ask for fewer draws, or allow more proposals (max_proposals, --max-proposals in the shell)"
)


def most_expected(n_accepted: int) -> float:
    """The largest number of acceptances one could have expected where `n_accepted` were seen.

    The number X is nearly Poisson. With mean m, P(X <= k) <= exp(-(m - k)**2 / (2 m)) for k <= m (Chernoff);
    this is the m at which that is one in a million.
    """
    log_odds = -math.log(_GIVE_UP_LEVEL)
    return n_accepted + log_odds + math.sqrt(log_odds**2 + 2 * n_accepted * log_odds)
