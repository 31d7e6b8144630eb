"""The positions of groups of parameters and precisions in a chain's flat vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.model.architecture import DISPERSION, NOISE, GroupSpec, ModelSpec, NetworkSpec, PriorSpec


@dataclass(frozen=True)
class ParameterLayout:
    """All parameters of a chain as one vector, group after group, each in C order (source major).

    groups        the groups, in the order of the vector
    slices        group name -> its part of the vector
    """

    groups: tuple[GroupSpec, ...]
    n_parameters: int
    slices: dict[str, slice]

    @staticmethod
    def from_network(network: NetworkSpec) -> ParameterLayout:
        slices: dict[str, slice] = {}
        start = 0
        for group in network.groups():
            slices[group.name] = slice(start, start + group.size)
            start += group.size
        return ParameterLayout(network.groups(), start, slices)

    @property
    def group_sizes(self) -> tuple[int, ...]:
        return tuple(group.size for group in self.groups)

    @cached_property
    def parts_of_t(self) -> tuple[tuple[slice, float], ...]:
        """The part of each group of t parameters, and its degrees of freedom."""
        alphas = {group.name: group.prior.alphas[2] for group in self.groups}
        return tuple((self.slices[name], alpha) for name, alpha in alphas.items() if math.isfinite(alpha))

    @cached_property
    def parts_of_mixtures(self) -> tuple[tuple[slice, PriorSpec], ...]:
        """The part of each group of parameters with a mixture prior, and the prior."""
        priors = {group.name: group.prior for group in self.groups}
        return tuple((self.slices[name], spec) for name, spec in priors.items() if spec.mixture is not None)

    def views(self, position: Array) -> dict[str, Array]:
        """Return each group of `position` (..., n_parameters) as a view (..., *group.shape)."""
        leading = position.shape[:-1]
        return {
            group.name: position[..., self.slices[group.name]].reshape(*leading, *group.shape)
            for group in self.groups
        }


@dataclass(frozen=True)
class PrecisionGroup:
    """The explicit precisions of one group of parameters, or of the targets: of their noise or dispersion.

    mean    omega: the mean of the common precision, scaled if the prior is scaled
    common  column of the common precision, also present if it is fixed at its mean
    n_units number of source units (targets); 1 for biases and offsets, which have no such level
    omitted numbers of the inputs that are not among the source units
    """

    name: str
    prior: PriorSpec
    mean: float
    common: int
    n_units: int
    omitted: tuple[int, ...] = ()

    @cached_property
    def units(self) -> slice | None:
        """The columns of the precisions of the source units (of the targets, for noise and dispersion).

        It is None if the unit alpha is infinite, because these precisions then equal the common one.
        """
        if math.isinf(self.prior.alphas[1]):
            return None
        return slice(self.common + 1, self.common + 1 + self.n_units)

    @property
    def common_column(self) -> slice:
        """The column of the common precision, as a slice."""
        return slice(self.common, self.common + 1)

    @property
    def lowest_columns(self) -> slice:
        """The columns of the lowest level: those of units, or the common one."""
        return self.common_column if self.units is None else self.units

    @property
    def is_of_targets(self) -> bool:
        """True if the precisions govern targets instead of parameters."""
        return self.name in (NOISE, DISPERSION)

    @property
    def is_fixed(self) -> bool:
        """True if no precision of the group is free."""
        return math.isinf(self.prior.alphas[0]) and self.units is None and self.prior.rectified is None


@dataclass(frozen=True)
class AdjustmentGroup:
    """The adjustments of one layer: a precision for each of its units, Gamma(alpha/2) with mean 1.

    It multiplies the precisions of the weights and biases that lead into the unit, Neal (2022) eq. 16.

    columns  one column for each unit
    """

    name: str
    alpha: float
    columns: slice

    @property
    def n_units(self) -> int:
        return int(self.columns.stop - self.columns.start)


@dataclass(frozen=True, eq=False)
class PrecisionLayout:
    """All precisions of a chain as one vector: for each group the common one, then one per unit.

    The precisions of the targets, of their noise or dispersion, are last. Adjustments are between the groups
    of parameters and these.

    is_free            (n_precisions,) bool: False for precisions that are fixed at their mean
    parameter_columns  (n_parameters,) int: the column that governs each parameter
    noise_columns      (n_targets,) int: the column that governs each target; empty without noise or
                       dispersion
    adjustments        one entry for each layer that has them
    adjusted           group of parameters with adjustments -> its part of a chain's parameters, and the
                       columns of the adjustments of its destination units
    """

    groups: tuple[PrecisionGroup, ...]
    n_precisions: int
    is_free: Array
    parameter_columns: Array
    noise_columns: Array
    adjustments: tuple[AdjustmentGroup, ...] = ()
    adjusted: dict[str, tuple[slice, slice]] = field(default_factory=dict)

    @staticmethod
    def from_specs(network: NetworkSpec, model: ModelSpec, n_targets: int) -> PrecisionLayout:
        groups: list[PrecisionGroup] = []
        free: list[bool] = []
        parameter_columns: list[Array] = []
        for spec in network.groups():
            n_units = spec.shape[0] if spec.is_weights else 1
            of_units = _add(
                groups, free, spec.name, spec.prior, spec.mean_precision, n_units, omitted=spec.omitted
            )
            parameter_columns.append(np.repeat(of_units, spec.size // n_units))
        adjustments = _adjustments(network, free)
        columns = {group.name: group.columns for group in adjustments}
        parameters = ParameterLayout.from_network(network)
        noise_columns = np.zeros(0, dtype=np.int64)
        if model.of_targets is not None:
            name, prior = model.of_targets
            noise_columns = _add(groups, free, name, prior, prior.mean_precision(n_targets), n_targets)
        return PrecisionLayout(
            groups=tuple(groups),
            n_precisions=len(free),
            is_free=np.array(free, dtype=bool),
            parameter_columns=np.concatenate([np.zeros(0, dtype=np.int64), *parameter_columns]),
            noise_columns=noise_columns,
            adjustments=adjustments,
            adjusted={
                spec.name: (parameters.slices[spec.name], columns[spec.adjustments])
                for spec in parameters.groups
                if spec.adjustments is not None
            },
        )

    @property
    def common(self) -> dict[str, int]:
        """The column of the common precision of each group."""
        return {group.name: group.common for group in self.groups}

    @property
    def units(self) -> dict[str, slice]:
        """The columns of the precisions of units, for each group that has them."""
        return {group.name: group.units for group in self.groups if group.units is not None}


def _adjustments(network: NetworkSpec, free: list[bool]) -> tuple[AdjustmentGroup, ...]:
    groups: list[AdjustmentGroup] = []
    for name, n_units in network.possible_adjustments().items():
        if name in network.adjustments:
            start = len(free)
            free.extend([True] * n_units)
            groups.append(AdjustmentGroup(name, network.adjustments[name], slice(start, len(free))))
    return tuple(groups)


def _add(
    groups: list[PrecisionGroup],
    free: list[bool],
    name: str,
    prior: PriorSpec,
    mean: float,
    n_units: int,
    *,
    omitted: tuple[int, ...] = (),
) -> Array:
    """Append a group and its columns; return the column that governs each of its units, (n_units,)."""
    group = PrecisionGroup(name, prior, mean, len(free), n_units, omitted)
    groups.append(group)
    free.append(math.isfinite(prior.alphas[0]) or prior.rectified is not None)
    if group.units is None:
        return np.full(n_units, group.common)
    free.extend([True] * n_units)
    return np.arange(group.units.start, group.units.stop)
