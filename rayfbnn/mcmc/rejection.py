"""Exact, independent draws by rejection."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.errors import SamplingError
from rayfbnn.streams import Purpose, Streams

# No iteration has an operation with this number. Therefore a run and its check share no random numbers, even
# if they have the same seed.
_OPERATION = 2**32 - 1
_CHAINS = 2**32  # number of chains that a stream can tell apart
_GIVE_UP_LEVEL = 1e-6  # probability, at one check, of giving up although max_proposals would have sufficed


Propose: TypeAlias = Callable[[Streams], tuple[Array, Array, Array]]
"""Makes proposals: positions, precisions, and the log acceptance probability (n_chains,) of each."""


def rejection_draws(
    propose: Propose,
    *,
    seed: int,
    draws: int,
    chains_per_round: int,
    max_proposals: int,
    streams_class: type[Streams] = Streams,
    on_progress: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[Array, Array]]:
    """Yield the accepted (positions, precisions) of each round that has any, `draws` of them in total.

    A proposal is accepted with the probability that `propose` gives; Neal (2022), "Rejection sampling". By
    construction it is at most one, and this is asserted. The random numbers of a proposal depend only on its
    number, and so the draws do not depend on chains_per_round.

    Parameters
    ----------
    propose : makes the proposals of one round
    chains_per_round : int   number of proposals made at once, which is limited by memory
    max_proposals : int      largest number of proposals. SamplingError is raised once they are used up, or
        earlier if it becomes clear that they will not suffice
    streams_class : the class of the random numbers; it may draw the same numbers by compiled code
    on_progress : called after each round with the numbers of draws and of proposals so far; after the last
        round, the proposals are counted up to the last draw
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
        streams = streams_class(seed, chains, iteration=1 + block, operation=_OPERATION)
        position, precisions, log_acceptance = propose(streams)
        if bool((log_acceptance > 1e-9).any()):
            raise AssertionError(
                "rejection: an acceptance probability is above one, so the draws would not be exact:"
                f" exp({float(np.nanmax(log_acceptance))})"
            )
        # Prior draws far out in the tails overflow to NaN. Their likelihood is zero to machine precision, and
        # the comparison with NaN rejects them.
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
    """Return the largest expected number of acceptances that is compatible with observing `n_accepted`.

    The number of acceptances X is nearly Poisson. With mean m, P(X <= k) <= exp(-(m - k)**2 / (2 m)) for
    k <= m (Chernoff). The result is the m that makes this bound one in a million.
    """
    log_odds = -math.log(_GIVE_UP_LEVEL)
    return n_accepted + log_odds + math.sqrt(log_odds**2 + 2 * n_accepted * log_odds)
