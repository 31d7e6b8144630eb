"""Groups of parameters with an integrated-out common precision: their density, and draws of the precision."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.layout import PrecisionGroup
from rayfbnn.model.posterior import Posterior
from rayfbnn.model.updates import gibbs
from rayfbnn.state import ChainState
from rayfbnn.streams import Streams


@dataclass(frozen=True, eq=False)
class Integrated:
    """A group of parameters with a common precision that is integrated out.

    part        its parameters in the flat vector
    adjustments columns of the adjustments of its destination units, or None
    """

    precision: PrecisionGroup
    part: slice
    adjustments: slice | None

    @property
    def size(self) -> int:
        """Number of parameters of the group."""
        return int(self.part.stop - self.part.start)


def integrated_groups(posterior: Posterior, names: set[str]) -> tuple[Integrated, ...]:
    """Return the named groups with a free common precision that governs only Gaussian parameters."""
    layout = posterior.precision_layout
    integrated = []
    for group in layout.groups:
        alpha_common, _, alpha_value = group.prior.alphas
        is_alone = math.isfinite(alpha_common) and group.units is None and math.isinf(alpha_value)
        if group.name in names and is_alone:
            part = posterior.parameter_layout.slices[group.name]
            adjusted = layout.adjusted.get(group.name)
            integrated.append(Integrated(group, part, None if adjusted is None else adjusted[1]))
    return tuple(integrated)


def add_integrated(
    position: Array, precisions: Array, groups: tuple[Integrated, ...], *, gradient: Array
) -> Array:
    """Return -log density of the groups' parameters up to a constant, (n_chains,), and add its gradient.

    Let n be the number of parameters of a group, and a the adjustments of the destination units (1 without
    adjustments). The energy and its gradient are

    ((alpha + n)/2) log(alpha/omega + sum a w**2) ;    (alpha + n) a w / (alpha/omega + sum a w**2)

    They come from the integral over tau of Gamma(tau; shape alpha/2, mean omega)
    prod_i Normal(w_i; 0, 1/(a_i tau)).

    gradient  (n_chains, n_parameters), changed in place
    """
    xp = array_namespace(position)
    energy = xp.zeros(len(position))
    for group in groups:
        alpha = group.precision.prior.alphas[0]
        w = position[:, group.part].astype(xp.float64)
        scaled = w
        if group.adjustments is not None:
            rows = w.reshape(len(w), -1, group.adjustments.stop - group.adjustments.start)
            scaled = (rows * precisions[:, None, group.adjustments]).reshape(w.shape)
        rate = alpha / group.precision.mean + (scaled * w).sum(axis=1)
        energy += (alpha + group.size) / 2 * xp.log(rate)
        slopes = ((alpha + group.size) / rate)[:, None] * scaled
        gradient[:, group.part] += slopes.astype(gradient.dtype)
    return energy


def draw_integrated(
    posterior: Posterior,
    state: ChainState,
    groups: tuple[Integrated, ...],
    streams: Streams,
) -> ChainState:
    """Draw the common precisions of the groups given the parameters, as sample-sigmas does."""
    if not groups:
        return state
    layout = replace(
        posterior.precision_layout, groups=tuple(group.precision for group in groups), adjustments=()
    )
    values = posterior.parameter_layout.views(state.position)
    return replace(state, precisions=gibbs.update_groups(values, state.precisions, streams, layout=layout))


def with_columns(precisions: Array, groups: tuple[Integrated, ...], *, value: float | None = None) -> Array:
    """Return the precisions with the common ones of `groups` set to a value, or to their prior means."""
    if not groups:
        return precisions
    changed = precisions.copy()
    for group in groups:
        changed[:, group.precision.common] = group.precision.mean if value is None else value
    return changed
