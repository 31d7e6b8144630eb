"""The linear regression at the end of a network, and groups of parameters with an integrated-out precision.

The features of the regression are units, and its coefficients are parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.architecture import DISPERSION, NOISE, NetworkSpec, destination
from rayfbnn.model.layout import PrecisionGroup
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.model.network import Activity, Buffers
from rayfbnn.model.posterior import Posterior
from rayfbnn.model.updates import gibbs
from rayfbnn.model.wiring import Link, Wiring
from rayfbnn.state import ChainState
from rayfbnn.streams import Streams

# If one prior is this much wider than another, the dual form loses all digits of the narrower one.
_MAX_RATIO_OF_DUAL = 1e6


@dataclass(frozen=True, eq=False)
class OutputLayer:
    """The linear regression at the end of a network: its features and coefficients.

    links        the links into the outputs, with parts counted from the first output parameter
    n_kept       number of parameters that do not feed the outputs; they come before the others
    features     for each link, its part of all features. The output parameters (n_chains, n) can be reshaped
                 to (n_chains, n_features, n_outputs)
    n_outputs    number of targets
    n_systems    1 if one matrix A serves all targets, otherwise the number of targets
    wiring       the network without these links and without outputs
    is_dual      whether there are more features than cases (and no prior is too vague for the dual form)
    """

    links: tuple[Link, ...]
    n_kept: int
    features: tuple[slice, ...]
    n_outputs: int
    n_systems: int
    wiring: Wiring
    is_dual: bool

    @staticmethod
    def from_posterior(posterior: Posterior) -> OutputLayer:
        network, wiring = posterior.network, posterior.wiring
        of_outputs = [group for group in network.groups() if feeds_outputs(group.name)]
        n_kept = posterior.parameter_layout.slices[of_outputs[0].name].start
        links, features, n_features = [], [], 0
        for link in wiring.incoming[-1]:
            part = slice(link.parameters.start - n_kept, link.parameters.stop - n_kept)
            links.append(replace(link, parameters=part))
            n_rows = (part.stop - part.start) // network.outputs
            features.append(slice(n_features, n_features + n_rows))
            n_features += n_rows
        last = len(wiring.units) - 1
        means = [group.mean_precision for group in of_outputs]
        return OutputLayer(
            links=tuple(links),
            n_kept=n_kept,
            features=tuple(features),
            n_outputs=network.outputs,
            n_systems=1 if _targets_are_alike(posterior) else network.outputs,
            wiring=replace(
                wiring,
                units=(*wiring.units[:-1], 0),
                incoming=(*wiring.incoming[:-1], ()),
                outgoing=tuple(
                    tuple(link for link in out if link.destination != last) for out in wiring.outgoing
                ),
            ),
            is_dual=n_features > posterior.n_cases and max(means) < _MAX_RATIO_OF_DUAL * min(means),
        )

    @property
    def n_features(self) -> int:
        return int(self.features[-1].stop)

    def features_of(self, group: Integrated) -> slice:
        """Return the features that the parameters of a group multiply."""
        start, stop = group.part.start - self.n_kept, group.part.stop - self.n_kept
        return slice(start // self.n_outputs, stop // self.n_outputs)

    def phi(self, activity: Activity, *, n_chains: int, buffers: Buffers) -> Array:
        """Return the features (n_chains, n_features, n_cases) float64."""
        xp = array_namespace(activity.sources[0])
        n_cases = activity.sources[0].shape[-1]
        like = xp.empty(0, dtype=xp.float64)
        phi = buffers.empty("features", (n_chains, self.n_features, n_cases), like=like)
        for link, part in zip(self.links, self.features, strict=True):
            phi[:, part] = activity.sources[link.source][..., link.rows, :]
        return phi

    def value_gradients(self, slopes: Array, dtype: type) -> dict[int, Array]:
        """Return derivatives by the units of each layer that feeds the outputs, given those by features."""
        gradients: dict[int, Array] = {}
        for link, part in zip(self.links, self.features, strict=True):
            if link.n_units > 0:
                of_source = slopes[:, part.start : part.start + link.n_units]
                gradients[link.source] = of_source.astype(dtype)
        return gradients


def _targets_are_alike(posterior: Posterior) -> bool:
    """Return whether all targets always have the same noise, and parameters with the same priors."""
    network, layout = posterior.network, posterior.precision_layout
    noise = posterior.model.noise
    if posterior.n_targets == 1:
        return True
    if noise is None or any(math.isfinite(alpha) for alpha in noise.alphas[1:]):
        return False
    if posterior.observed is not None or "ao" in network.adjustments:
        return False
    return all(math.isinf(group.prior.alphas[2]) for group in layout.groups if feeds_outputs(group.name))


def feeds_outputs(name: str) -> bool:
    """Return whether the parameters of the named group feed the outputs."""
    return name not in (NOISE, DISPERSION) and destination(name) == "o"


def why_outputs_stay(network: NetworkSpec, data_model: DataModel, *, is_tempered: bool = False) -> str | None:
    """Return why the parameters that feed the outputs cannot be integrated out and an alternative, or None.

    They can be integrated out if the outputs are linear in them, and the targets are Gaussian given the
    outputs and auxiliary variables.
    """
    if reason := data_model.why_outputs_stay(is_tempered=is_tempered):
        return reason
    for group in network.groups():
        if not feeds_outputs(group.name):
            continue
        if group.name in network.connections:
            reason = f"network.connections.{group.name} feeds the outputs"
        elif group.prior.mixture is not None:
            reason = f"network.priors.{group.name} is a mixture"
        if reason is not None:
            return f'{reason}; use over = ["precisions"] or hybrid'
    return None


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
    position: Array, precisions: Array, groups: tuple[Integrated, ...], *, gradient: Array | None = None
) -> Array:
    """Return -log density of the groups' parameters up to a constant, (n_chains,), and add its gradient.

    Let n be the number of parameters of a group, and a the adjustments of the destination units (1 without
    adjustments). The energy and its gradient are

    ((alpha + n)/2) log(alpha/omega + sum a w**2) ;    (alpha + n) a w / (alpha/omega + sum a w**2)

    They come from the integral over tau of Gamma(tau; shape alpha/2, mean omega)
    prod_i Normal(w_i; 0, 1/(a_i tau)).

    gradient  (n_chains, n_parameters), changed in place if it is given
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
        if gradient is not None:
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
