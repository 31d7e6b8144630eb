"""Checks of whether the draws of several runs belong together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.data.dataset import names_that_differ, unshuffled
from rayfbnn.draws.view import Draws
from rayfbnn.errors import ConfigError, StoreMismatchError, at_most_ten
from rayfbnn.spec import differences

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.store.storage.places import Place
    from rayfbnn.store.store import Store


_SAME = (
    "data.standardize",
    "data.transform",
    "model",
    "network",
    "temperature",
)  # the posterior, apart from the data


def check_same_posterior(
    runs: Sequence[Draws], *, is_prior_allowed: bool = False, is_approximation_allowed: bool = False
) -> None:
    """Raise StoreMismatchError unless all runs have draws of one posterior.

    If allowed, some may be from its prior, or from approximations of it.
    """
    first = runs[0]
    for other in runs[1:]:
        reasons = [
            difference for difference in differences(first.spec, other.spec) if difference.startswith(_SAME)
        ]
        if (first.kind == "prior") != (other.kind == "prior") and not is_prior_allowed:
            reasons.append(f"kind: {first.kind} and {other.kind} draws, of the prior and of the posterior")
        is_mixed = (first.kind == "approximate") != (other.kind == "approximate")
        if is_mixed and not is_approximation_allowed:
            reasons.append(
                f"kind: {first.kind} and {other.kind} draws; use `compare` to compare an approximation"
                " with the posterior"
            )
        if labels_of(first) != labels_of(other):
            reasons.append("data: the labels of the targets differ")
        if first.data.hash != other.data.hash:
            reasons.append("data: the training cases differ")
        if reasons:
            raise StoreMismatchError(
                f"{other.path}: is not from the posterior of {first.path}: {'; '.join(at_most_ten(reasons))}"
            )


def labels_of(run: Draws) -> dict[str, tuple[str, ...]]:
    """Return the labels of each target that has labels, by its name."""
    return {} if run.spec.encoding is None else run.spec.encoding.labels


def check_independent(runs: Sequence[Draws]) -> None:
    """Raise StoreMismatchError if two of the runs were sampled with the same random numbers."""
    seen: dict[tuple[str, int], Draws] = {}
    for run in runs:
        key = (run.kind, run.spec.seed)
        if key in seen:
            raise StoreMismatchError(
                f"{run.path}: has the same seed ({run.spec.seed}) as {seen[key].path}, so their draws are not"
                " independent and cannot be pooled; sample one of the two with another seed"
            )
        seen[key] = run


def check_given_once(paths: Sequence[Place]) -> None:
    """Raise ConfigError if a store is given twice, also by a link or by another spelling of its path."""
    seen = set()
    for path in paths:
        place = path.resolve() if isinstance(path, Path) else path
        if place in seen:
            raise ConfigError(f"path: {path} is given twice; give each store once")
        seen.add(place)


def check_distinct(stores: Sequence[Store]) -> None:
    """Raise an error unless all stores have their own draws: ConfigError for a store that is given twice.

    StoreMismatchError for a copy of a store, which may have been lengthened since.
    """
    check_given_once([store.path for store in stores])
    seen: dict[str, Store] = {}
    for store in stores:
        before = seen.setdefault(store.root.identity, store)
        if before is not store:
            raise StoreMismatchError(
                f"{store.path}: is a copy of {before.path} and has the same draws; give only one of the two"
            )


def check_same_targets(runs: Sequence[Draws]) -> None:
    """Raise StoreMismatchError unless all runs have densities of the same targets of the same cases.

    Everything else may differ: a comparison with and without some inputs is a usual question.
    """
    first = runs[0]
    for other in runs[1:]:
        if reason := _difference_of_targets(first, other):
            raise StoreMismatchError(f"{other.path}: cannot be compared with {first.path}: {reason}")


def _difference_of_targets(first: Draws, other: Draws) -> str:
    data, other_data = _in_order_of_table(first), _in_order_of_table(other)
    if data.target_names != other_data.target_names:
        names = names_that_differ(data.target_names, other_data.target_names)
        return f"the targets differ: {' and '.join(names)}"
    if data.n_cases != other_data.n_cases:
        return f"the numbers of training cases differ: {data.n_cases:,} and {other_data.n_cases:,}"
    if labels_of(first) != labels_of(other):
        return "the labels of the targets differ"
    if not np.array_equal(data.targets, other_data.targets, equal_nan=True):
        return "the targets of the training cases differ, or are in another order"
    if _has_densities(first) != _has_densities(other):
        return "one has densities of its targets, the other probabilities"
    return ""


def _in_order_of_table(run: Draws) -> Dataset:
    return unshuffled(run.data) if run.spec.data.shuffle else run.data


def _has_densities(run: Draws) -> bool:
    model = run.spec.data_model
    return model.is_real or model.are_times
