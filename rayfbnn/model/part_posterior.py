"""The posterior given only one part of the training cases, for runs that divide their cases into parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.case_blocks import columns_of_blocks
from rayfbnn.model.network import Buffers
from rayfbnn.model.posterior import Posterior

AnyPosterior = TypeVar("AnyPosterior", bound=Posterior)


def cases_of_part(n_cases: int, part: int, n_parts: int) -> tuple[int, int]:
    """Return the first case of a part, and the case after its last. Parts are divided like blocks."""
    return n_cases * part // n_parts, n_cases * (part + 1) // n_parts


def posterior_of_chains(posterior: AnyPosterior, rows: Array) -> AnyPosterior:
    """Return the posterior of some of the chains, if chains have separate targets or temperatures.

    Otherwise return `posterior`.

    rows  the numbers of the chains among the chains of `posterior`
    """
    b, observed = posterior.inverse_temperature, posterior.observed
    has_own = posterior.targets.ndim == 3
    if not has_own and isinstance(b, float):
        return posterior
    return replace(
        posterior,
        targets=posterior.targets[rows] if has_own else posterior.targets,
        observed=observed[rows] if observed is not None and observed.ndim == 3 else observed,
        inverse_temperature=b if isinstance(b, float) else b[rows],
        blocks={},
    )


def columns_of_parts(n_columns: int, starts: Array | None, *, numbers: Sequence[int], n_parts: int) -> Array:
    """Return the columns of some parts, (n_numbers, longest) int, padded as in `posterior_of_part`."""
    n_cases = n_columns if starts is None else len(starts) - 1
    columns, _ = columns_of_blocks(n_cases, n_parts, starts=starts)
    return columns[list(numbers)]


def posterior_of_part(
    whole: AnyPosterior, part: int, n_parts: int, *, inputs: Array | None = None
) -> AnyPosterior:
    """Return the posterior given the cases of one part, with the same prior and temperature.

    With `tempered(n_parts)`, its energy and gradient have the same bits as `whole.potential_and_gradient`
    with partition = part and n_partitions = n_parts. For this, all parts have as many columns as the longest
    part: a shorter part is padded with its last column, at weight 0. The number of cases and the counts are
    those of the part. The mean squares of inputs and the typical curvature remain those of all cases.
    Stepsizes depend on all of these, and therefore need the posterior of all cases.

    inputs  inputs of the part (`columns_of_parts`), needed if `whole` does not have the inputs of all cases
    """
    xp = array_namespace(whole.inputs)
    numbers, counts = columns_of_blocks(whole.n_cases, n_parts, starts=whole.starts)
    columns, is_case = xp.asarray(numbers[part]), np.arange(numbers.shape[1]) < counts[part]
    observed = whole.observed
    if observed is not None:
        observed = xp.ascontiguousarray(observed[..., columns])
    if not is_case.all():
        full = xp.ones((whole.n_targets, len(is_case))) if observed is None else observed
        observed = full * xp.asarray(is_case)
    first, end = cases_of_part(whole.n_cases, part, n_parts)
    starts = whole.starts
    return replace(
        whole,
        n_cases=end - first,
        inputs=xp.ascontiguousarray(whole.inputs[:, columns] if inputs is None else inputs),
        targets=xp.ascontiguousarray(whole.targets[..., columns]),
        observed=observed,
        covariates=None if whole.covariates is None else whole.covariates[first:end],
        starts=None if starts is None else starts[first : end + 1] - starts[first],
        blocks={},
        buffers=Buffers(),
    )
