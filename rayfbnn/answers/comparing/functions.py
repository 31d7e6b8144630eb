"""The functions that draws give at some cases: their spread, and averages over them or all their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.draws.outputs import activation_bytes, output_blocks

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws

_SMALLEST = 1e-12  # probability; smaller ones have the same log odds
_COPIES = 6  # of all draws of a function at some cases, while methods are compared


@dataclass(frozen=True)
class Functions:
    """The functions of a run at some cases: averages over draws for labels, all draws for numbers.

    n_draws        number of draws of all chains together
    probabilities  (n_cases, n_targets, n_labels) for labels, None for numbers
    log_odds       (2, n_cases, n_targets, n_labels), the mean and the mean square over draws of each label's
                   log odds, None for numbers
    outputs        (n_cases, n_outputs, n_draws) on the networks' scale, None for labels
    """

    n_draws: int
    probabilities: Array | None = None
    log_odds: Array | None = None
    outputs: Array | None = None

    @property
    def spread(self) -> Array:
        """Standard deviation over draws of log odds or outputs, (n_cases, n_functions)."""
        if self.outputs is not None:
            return np.asarray(self.outputs.std(axis=2, dtype=np.float64))
        assert self.log_odds is not None
        mean, square = self.log_odds.reshape(2, self.log_odds.shape[1], -1)
        return np.sqrt(np.maximum(square - mean**2, 0.0))


def cases_at_once(runs: list[Draws], memory_bytes: float) -> int:
    """Return the number of cases to compare these runs at together."""
    spec, model = runs[0].spec, runs[0].spec.data_model
    n_draws = max(run.total for run in runs)
    per_case = 8 * _COPIES * spec.network.outputs * model.n_cells * (1 if model.has_labels else n_draws)
    per_case = max(per_case, 4 * model.n_cells * activation_bytes(spec.network, spec.dtype))
    return max(1, int(memory_bytes / 2 / per_case))


def functions_of(run: Draws, inputs: Array, *, memory_bytes: float) -> Functions:
    """Return the functions of all draws of a run.

    Parameters
    ----------
    inputs : (n_cases, n_inputs)   standardised
    memory_bytes : float           approximate memory for a block of draws
    """
    model = run.spec.data_model
    sums: list[Array] = []
    kept = []
    for _, _, outputs, _ in output_blocks(run, inputs, memory_bytes=memory_bytes):
        flat = outputs.reshape(-1, len(inputs), outputs.shape[-1])
        if model.has_labels:
            sums = [_sums_of_labels(distributions(run, model.probabilities(flat)), sums)]
        else:
            kept.append(np.moveaxis(flat, 0, 2))
    if model.has_labels:
        probabilities, *log_odds = sums[0] / run.total
        return Functions(run.total, probabilities, np.stack(log_odds))
    return Functions(run.total, outputs=np.concatenate(kept, axis=2))


def distributions(run: Draws, probabilities: Array) -> Array:
    """Return probabilities (..., n_outputs) as a distribution for each target, (..., n_targets, n_labels)."""
    has_opposites = run.spec.data_model.n_labels == 2
    return (
        np.stack([1 - probabilities, probabilities], axis=-1)
        if has_opposites
        else probabilities[..., None, :]
    )


def merged(first: Functions, second: Functions) -> Functions:
    """Return the functions of the draws of both together."""
    n_draws = first.n_draws + second.n_draws
    share = first.n_draws / n_draws

    def mean(a: Array | None, b: Array | None) -> Array | None:
        return None if a is None or b is None else share * a + (1 - share) * b

    if first.outputs is None or second.outputs is None:
        probabilities = mean(first.probabilities, second.probabilities)
        return Functions(n_draws, probabilities, mean(first.log_odds, second.log_odds))
    return Functions(n_draws, outputs=np.concatenate([first.outputs, second.outputs], axis=2))


def _sums_of_labels(p: Array, before: list[Array]) -> Array:
    """Sum probabilities (n_draws, n_cases, n_targets, n_labels), their log odds, and the squares of these.

    The result is (3, n_cases, n_targets, n_labels). `before` is empty or contains the sum so far.
    """
    odds = scipy.special.logit(np.clip(p, _SMALLEST, 1 - _SMALLEST))
    now = np.stack([p.sum(axis=0), odds.sum(axis=0), np.square(odds).sum(axis=0)])
    return now + before[0] if before else now
