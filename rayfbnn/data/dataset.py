"""Training cases as arrays: standardisation, targets on a log scale, checks, a digest, a random order."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import zip_longest

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.errors import DataError, at_most_ten
from rayfbnn.model.cases import pieces_of, slices_of_cases
from rayfbnn.streams import SHARED, Purpose, Streams

LOG = "log"
"""The value of data.transform for a target whose logarithm the network models."""

_CLEAR_SKEWNESS = 1.5  # an exponential distribution has 2, a Gaussian 0
_LITTLE = 0.5  # of the skewness that may remain on the log scale, as a share of that without it
_ENOUGH = 50  # cases: the skewness of fewer Gaussian values is often beyond 0.7


@dataclass(frozen=True, eq=False)
class TargetUnits:
    """The conversion of targets between the data file and the network, monotone for each target.

    The network's value is (y - center) / scale, or (log y - center) / scale on a log scale.

    center, scale  (n_targets,) float64
    is_log         (n_targets,) bool
    """

    center: Array
    scale: Array
    is_log: Array

    @property
    def has_logs(self) -> bool:
        """True if any target is on a log scale."""
        return bool(self.is_log.any())

    def to_network(self, targets: Array) -> Array:
        """Return targets (..., n_targets) of the data file on the network's scale; NaN stays."""
        return (logs_of(targets, self.is_log) - self.center) / self.scale

    def to_file(self, values: Array) -> Array:
        """Return values (..., n_targets) on the network's scale as targets of the data file.

        The conversion is monotone, so it also converts medians, quantiles and draws; not means.
        """
        return self.from_logs(values * self.scale + self.center)

    def from_logs(self, values: Array) -> Array:
        """Return values (..., n_targets), some of them logarithms, as targets of the data file."""
        if not self.has_logs:
            return values
        with np.errstate(over="ignore"):
            return np.where(self.is_log, np.exp(np.where(self.is_log, values, 0.0)), values)

    def log_jacobian(self, targets: Array) -> Array:
        """Return log |dy/dx| of y in the data file by x on the network's scale, in the shape of `targets`.

        A log density in the units of the data file is that on the network's scale minus this. It is the log
        of the scale, plus log y on a log scale, and zero for a missing target (NaN).
        """
        slopes = np.log(self.scale) + np.where(self.is_log, logs_of(targets, self.is_log), 0.0)
        return np.where(np.isnan(targets), 0.0, slopes)

    def log_names(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the targets as the network models them: "log(price)" on a log scale."""
        return tuple(
            f"log({name})" if is_log else name for name, is_log in zip(names, self.is_log, strict=True)
        )


def logs_of(targets: Array, is_log: Array) -> Array:
    """Return targets (..., n_targets) with those on a log scale replaced by their logarithms."""
    if not is_log.any():
        return targets
    logs = np.log(np.where(is_log, targets, 1.0))  # NaN stays
    return np.where(is_log, logs, targets)


def is_log_of(names: Sequence[str], transform: Mapping[str, str] | None) -> Array:
    """Return which of the named targets data.transform puts on a log scale, (n_targets,) bool."""
    return np.array([(transform or {}).get(name) == LOG for name in names], dtype=bool)


def check_positive(
    source: str, targets: Array, names: Sequence[str], transform: Mapping[str, str] | None
) -> None:
    """Raise DataError for the first target on a log scale that is not above 0.

    targets  (n_cases, n_targets) as in the table, NaN if missing
    """
    wrong = np.argwhere(is_log_of(names, transform) & (targets <= 0))
    if len(wrong):
        row, column = (int(index) for index in wrong[0])
        raise DataError(
            f"{source}: row {row + 1}, column {names[column]}: a target on a log scale must be above 0, got"
            f" {targets[row, column]:g}; correct it, leave the row out, or leave {names[column]} out of"
            " data.transform"
        )


def log_scale_advice(name: str, values: Array) -> str | None:
    """Return advice to model a target on a log scale if it is positive and clearly skewed; None otherwise.

    It is clearly skewed if its skewness is above 1.5, and that of its logarithm at most half of this.

    values  (n_cases,) as in the table, NaN if missing
    """
    known = values[~np.isnan(values)]
    if len(known) < _ENOUGH or not known.min() > 0:
        return None
    plain, of_log = _skewness(known), _skewness(np.log(known))
    if not plain > _CLEAR_SKEWNESS or not abs(of_log) <= _LITTLE * plain:
        return None
    return (
        f"{name} is positive and skewed: its skewness is {plain:.1f}, and that of its logarithm"
        f' {of_log:.1f}; consider data.transform = {{ {name} = "{LOG}" }}'
    )


def _skewness(values: Array) -> float:
    """Return the third standardised moment, or 0 if all values are equal."""
    deviations = values - values.mean()
    sd = float(np.sqrt(np.square(deviations).mean()))
    return float((deviations**3).mean() / sd**3) if sd > 0 else 0.0


class CasesDigest:
    """SHA-256 of names, shape and values in order, independent of the file they came from.

    All inputs must be added before all targets, each (n_cases, ...) in any number of pieces.
    """

    def __init__(self, input_names: Sequence[str], target_names: Sequence[str], n_cases: int) -> None:
        """Begin with the names and the total number of cases."""
        names = {"inputs": list(input_names), "targets": list(target_names), "cases": n_cases}
        self._digest = hashlib.sha256(json.dumps(names, sort_keys=True).encode())

    def add(self, values: Array) -> None:
        """Add the values of some cases, (n, n_inputs) or (n, n_targets) float64."""
        values = np.where(np.isnan(values), np.nan, values + 0.0)  # one NaN of many; + 0.0 turns -0 into 0
        self._digest.update(np.ascontiguousarray(values, dtype="<f8").data)

    def hexdigest(self) -> str:
        """Return the digest of all values added so far, as 64 hexadecimal digits."""
        return self._digest.hexdigest()


INPUTS_TOGETHER = "inputs together"
"""The value of data.standardize that divides all inputs by one number."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training cases as in the file, and their standardisation for the network: (value - center) / scale.

    inputs  (n_cases, n_inputs)  float64, unstandardised     input_center, input_scale    (n_inputs,)
    targets (n_cases, n_targets) float64, unstandardised     target_center, target_scale  (n_targets,)
    A column that is not standardised has center 0 and scale 1. A missing target is NaN. The center and the
    scale of a target on a log scale are those of its logarithm.

    log_targets  names of the targets on a log scale
    """

    inputs: Array
    targets: Array
    input_names: tuple[str, ...]
    target_names: tuple[str, ...]
    input_center: Array
    input_scale: Array
    target_center: Array
    target_scale: Array
    log_targets: tuple[str, ...] = ()

    @property
    def n_cases(self) -> int:
        """Number of training cases."""
        return int(self.inputs.shape[0])

    @property
    def n_inputs(self) -> int:
        """Number of inputs of a case."""
        return int(self.inputs.shape[1])

    @property
    def n_targets(self) -> int:
        """Number of targets of a case."""
        return int(self.targets.shape[1])

    @property
    def standardized_inputs(self) -> Array:
        """The network's inputs, (n_cases, n_inputs) float64, computed at each access."""
        return self.standardized(self.inputs)

    def standardized(self, inputs: Array) -> Array:
        """Return inputs (n, n_inputs) standardised for the network, float64."""
        return (inputs - self.input_center) / self.input_scale

    def standardized_pieces(self) -> Iterator[Array]:
        """Yield the standardised inputs in pieces of some cases, in order."""
        return (self.standardized(piece) for piece in pieces_of(self.inputs))

    @cached_property
    def standardized_targets(self) -> Array:
        """The targets for the data model, (n_cases, n_targets) float64."""
        return self.target_units.to_network(self.targets)

    @cached_property
    def target_units(self) -> TargetUnits:
        """The conversion of targets between the data file and the network."""
        is_log = np.array([name in self.log_targets for name in self.target_names], dtype=bool)
        return TargetUnits(self.target_center, self.target_scale, is_log)

    @property
    def modelled_names(self) -> tuple[str, ...]:
        """The names of the targets as the network models them, such as "log(price)" on a log scale."""
        return self.target_units.log_names(self.target_names)

    @property
    def log_scale(self) -> float:
        """The log of the Jacobian of all observed targets (`TargetUnits.log_jacobian`).

        The log density of all targets in the units of the file is that of standardised targets minus this.
        """
        n_observed = np.isfinite(self.targets).sum(axis=0)
        total = float((n_observed * np.log(self.target_scale)).sum())
        is_log = self.target_units.is_log
        return total + float(np.nansum(np.log(self.targets[:, is_log])))

    def check_range(
        self, inputs: Array, targets: Array | None, *, dtype: str, source: str, is_training: bool = True
    ) -> None:
        """Raise DataError for cases that are too large for the network's arithmetic once standardised.

        The cases are in the units of the file. The error names `source`, row and column.
        """
        advice = "change its unit or standardise" if is_training else "correct it, or leave the row out"
        limit = math.sqrt(float(np.finfo(dtype).max))  # the energy of a larger value would overflow
        for cases in slices_of_cases(len(inputs), 8 * self.n_inputs):
            with np.errstate(over="ignore"):
                parts = [(inputs[cases], self.standardized(inputs[cases]), self.input_names)]
                if targets is not None:
                    values = targets[cases]
                    parts.append((values, self.target_units.to_network(values), self.target_names))
            for values, standardized, names in parts:
                large = np.argwhere(np.abs(standardized) > limit)
                if len(large) == 0:
                    continue
                row, column = (int(index) for index in large[0])
                value, number = values[row, column], standardized[row, column]
                what = f"{value:g}" if value == number else f"{value:g}, {number:g} once standardised,"
                raise DataError(
                    f"{source}: row {cases.start + row + 1}, column {names[column]}: {what} is beyond"
                    f" {limit:.2g}, too large for {dtype} arithmetic; {advice}"
                )

    @cached_property
    def hash(self) -> str:
        """SHA-256 of names, shape and values in order, independent of the file they came from."""
        digest = CasesDigest(self.input_names, self.target_names, self.n_cases)
        for values in (self.inputs, self.targets):
            for piece in pieces_of(values):
                digest.add(piece)
        return digest.hexdigest()


def scaled_inputs(standardize: Sequence[str]) -> bool:
    """Return True if inputs are standardised, either separately or together."""
    return "inputs" in standardize or INPUTS_TOGETHER in standardize


def make_dataset(
    inputs: Array,
    targets: Array,
    *,
    input_names: Sequence[str],
    target_names: Sequence[str],
    standardize: Sequence[str] = (),
    zero_one_names: Collection[str] = (),
    transform: Mapping[str, str] | None = None,
    dtype: str = "float64",
    source: str = "data",
) -> Dataset:
    """Return a Dataset of arrays (n_cases, n_inputs) and (n_cases, n_targets).

    "inputs" or "targets" in `standardize` centres these columns on their mean and divides them by their
    standard deviation (with divisor n, not n - 1) over the training cases, ignoring missing targets (NaN).
    With "inputs together" each input is centred, and all inputs are divided by the root of the mean of their
    variances. Inputs named in `zero_one_names` stay unchanged. Targets that `transform` maps to "log" are
    replaced by their logarithms before they are standardised.
    """
    inputs, targets = (np.array(values, dtype=np.float64, order="C") for values in (inputs, targets))
    scaled = []
    if scaled_inputs(standardize):
        scaled = [name for name in input_names if name not in zero_one_names]
    input_center, input_scale = _standardization(inputs, input_names, scaled, source)
    if INPUTS_TOGETHER in standardize:
        is_scaled = np.isin(input_names, scaled)
        input_scale[is_scaled] = np.sqrt(np.mean(input_scale[is_scaled] ** 2))
    scaled = list(target_names) if "targets" in standardize else []
    is_log = is_log_of(target_names, transform)
    target_center, target_scale = _standardization(logs_of(targets, is_log), target_names, scaled, source)
    dataset = Dataset(
        inputs,
        targets,
        tuple(input_names),
        tuple(target_names),
        input_center,
        input_scale,
        target_center,
        target_scale,
        tuple(name for name, has_log in zip(target_names, is_log, strict=True) if has_log),
    )
    dataset.check_range(inputs, targets, dtype=dtype, source=source)
    return dataset


def first_difference(ours: Dataset, other: Dataset) -> str | None:
    """Describe the first difference of two data sets: names, number of cases, or a cell; None if equal."""
    for what, in_store, in_file in (
        ("inputs", ours.input_names, other.input_names),
        ("targets", ours.target_names, other.target_names),
        ("number of rows", (str(ours.n_cases),), (str(other.n_cases),)),
    ):
        if in_store != in_file:
            store_words, file_words = names_that_differ(in_store, in_file)
            return f"{what}: {store_words} in the store, {file_words} in the file"
    names = ours.input_names + ours.target_names
    a, b = np.hstack([ours.inputs, ours.targets]), np.hstack([other.inputs, other.targets])
    differing = np.argwhere((a != b) & ~(np.isnan(a) & np.isnan(b)))
    if len(differing) == 0:
        return None
    row, column = (int(index) for index in differing[0])
    values = f"{float(a[row, column])!r} in the store, {float(b[row, column])!r} in the file"
    return f"row {row + 1}, column {names[column]}: {values} ({len(differing)} values differ in all)"


def names_that_differ(ours: Sequence[str], other: Sequence[str]) -> tuple[str, str]:
    """Return two different lists of names as text; if they are long, from the first name that differs."""
    if max(len(ours), len(other)) > 10:
        first = next(place for place, (a, b) in enumerate(zip_longest(ours, other)) if a != b)
        ours, other = ours[first:], other[first:]
    return ", ".join(at_most_ten(ours)) or "none", ", ".join(at_most_ten(other)) or "none"


def _standardization(
    values: Array, names: Sequence[str], scaled: Collection[str], source: str
) -> tuple[Array, Array]:
    """Return center and scale of each column, or 0 and 1 for columns that `scaled` does not name."""
    if not scaled:
        return np.zeros(values.shape[1]), np.ones(values.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isnan(values).any():
            center, scale = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
        else:
            center, scale = values.mean(axis=0), values.std(axis=0)
    for column, name in enumerate(names):
        if name not in scaled:
            center[column], scale[column] = 0.0, 1.0
            continue
        low, high = np.nanmin(values[:, column]), np.nanmax(values[:, column])
        if low == high:
            raise DataError(
                f"{source}: column {name}: the value is {low:g} in every row, so it cannot be standardised;"
                " leave the column out, or do not standardise"
            )
        if not (0 < scale[column] < math.inf):
            raise DataError(
                f"{source}: column {name}: values from {low:g} to {high:g} are too large or too small to"
                " standardise; change the unit"
            )
    return center, scale


@lru_cache(maxsize=1)
def order_of_cases(n_cases: int) -> Array:
    """Return each case's row in the table, counted from 0: a random permutation, (n_cases,) int64.

    The order depends on the number of cases alone, so runs with the same cases and other seeds have the same
    order. The array is read-only, because it is cached for the next call.
    """
    streams = Streams(0, np.array([SHARED], dtype=np.uint64))
    order: Array = streams.permutation(n_cases, Purpose.SHUFFLE)[0]
    order.flags.writeable = False
    return order


def shuffled(dataset: Dataset) -> Dataset:
    """Return the cases of a table in the order of `order_of_cases`."""
    return _taken(dataset, order_of_cases(dataset.n_cases))


def unshuffled(dataset: Dataset) -> Dataset:
    """Return shuffled cases in the original order of their table."""
    return _taken(dataset, np.argsort(order_of_cases(dataset.n_cases)))


def _taken(dataset: Dataset, rows: Array) -> Dataset:
    return replace(dataset, inputs=dataset.inputs[rows], targets=dataset.targets[rows])
