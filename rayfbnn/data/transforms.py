"""Targets on a log scale, and the conversion of targets between a table and the network's scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.errors import DataError

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
