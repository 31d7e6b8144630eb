"""Features of cases that predictions may miss: slopes, curves, products, and a trend over the rows.

All are functions of ranks, so inputs may have any distribution.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from rayfbnn.answers.judging.p_values import ranks
from rayfbnn.arrays import Array

VALUE, INPUTS, ROWS, PRODUCTS = "value", "inputs", "rows", "products"
SHARES = {VALUE: 0.1, INPUTS: 0.45, ROWS: 0.15, PRODUCTS: 0.3}
PREDICTED_VALUE = "the predicted value"
SLOPE_OF_VALUE = f"a slope in {PREDICTED_VALUE}"
_LEADING = 5  # inputs with products that are tested
_ONE_WAY = 0.9  # share of the steps between rows that go one way, if the rows are sorted by the target
_MIXED = 0.5  # changes of label between rows, relative to a random order; fewer if rows are sorted by label


@dataclass(frozen=True)
class Feature:
    """A function of the cases.

    name    in words, such as "a curve in x1"
    group   VALUE, INPUTS, ROWS or PRODUCTS
    of      the names of the inputs; none for the predicted value and the rows
    low     where the function is lowest, in words
    high    where it is highest
    values  (n_cases,) of ranks, with mean zero and a sum of squares of one; all zeros if it does not vary
    plain   (n_cases,) the same function of the covariates themselves
    """

    name: str
    group: str
    of: tuple[str, ...]
    low: str
    high: str
    values: Array
    plain: Array


def features(inputs: Mapping[str, Array], predicted: Array | None, *, has_order: bool) -> Iterator[Feature]:
    """Yield all features of some cases.

    inputs     (n_cases,) by name
    predicted  (n_cases,) predicted values; None without features of them
    has_order  whether the order of the rows is a feature
    """
    if predicted is not None:
        yield from _alone(VALUE, PREDICTED_VALUE, (), predicted)
    for name, values in inputs.items():
        yield from _alone(INPUTS, name, (name,), values)
    n_cases = len(next(iter(inputs.values()), ()))
    if has_order and n_cases:
        where = "in the first third of the rows", "in the last third"
        numbers = np.arange(float(n_cases))
        yield Feature("a trend over the rows", ROWS, (), *where, _ranks(numbers), numbers)
    for first, second in itertools.combinations(_leading(inputs, predicted), 2):
        one, other = inputs[first], inputs[second]
        plain = (one - np.median(one)) * (other - np.median(other))
        one, other = _ranks(one), _ranks(other)
        both = f"where {first} and {second} deviate from their medians"
        where = f"{both} in opposite directions", "where they do in the same direction"
        values = _beyond(one * other, one, other)
        yield Feature(f"a product of {first} and {second}", PRODUCTS, (first, second), *where, values, plain)


def _alone(group: str, name: str, of: tuple[str, ...], covariate: Array) -> Iterator[Feature]:
    """Yield a slope and a curve; a covariate of two values has no curve."""
    ranked = _ranks(covariate)
    where = f"where {name} is lowest", "where it is highest"
    yield Feature(f"a slope in {name}", group, of, *where, ranked, covariate)
    curve = _beyond(ranked**2, ranked)
    if curve.any():
        where = f"where {name} is near its median", "where it is far from it"
        plain = (covariate - np.median(covariate)) ** 2
        yield Feature(f"a curve in {name}", group, of, *where, curve, plain)


def _leading(inputs: Mapping[str, Array], predicted: Array | None) -> list[str]:
    """Return the names of the inputs that predicted values depend on most, in the order of the inputs."""
    if len(inputs) <= _LEADING or predicted is None:
        return list(inputs)[:_LEADING]
    ranked = _ranks(predicted)
    strength = [-abs(float(_ranks(values) @ ranked)) for values in inputs.values()]
    leading = np.sort(np.argsort(strength, kind="stable")[:_LEADING])
    return [list(inputs)[at] for at in leading]


def _ranks(values: Array) -> Array:
    return np.asarray(ranks(values[None])[0])


def _beyond(values: Array, *others: Array) -> Array:
    """Return the part of a feature that no straight function of others, with means of zero, explains."""
    basis = np.column_stack([np.ones(len(values)), *others])
    rest = values - basis @ np.linalg.lstsq(basis, values, rcond=None)[0]
    size, before = np.linalg.norm(rest), np.linalg.norm(values)
    return np.asarray(rest / size if size > 1e-6 * before else np.zeros_like(rest))


def has_order(targets: Array) -> bool:
    """Return True if numbers are not sorted, because only then can a trend over their rows mean something.

    The rows may be sorted in one piece or in several; equal neighbours say nothing.

    targets  (n_cases,) without missing values
    """
    steps = np.sign(np.diff(targets))
    n_up, n_down = int((steps > 0).sum()), int((steps < 0).sum())
    return max(n_up, n_down) < _ONE_WAY * (n_up + n_down)


def labels_have_order(has_label: Array) -> bool:
    """Return whether cases are not sorted or grouped by their label."""
    share, n_changes = has_label.mean(), int((has_label[1:] != has_label[:-1]).sum())
    return bool(n_changes > _MIXED * 2 * share * (1 - share) * len(has_label))
