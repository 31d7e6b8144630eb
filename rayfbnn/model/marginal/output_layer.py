"""The linear regression at the end of a network: its features are units, its coefficients parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.architecture import DISPERSION, NOISE, NetworkSpec, destination
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.model.marginal.precisions import Integrated
from rayfbnn.model.network import Activity, Buffers
from rayfbnn.model.posterior import Posterior
from rayfbnn.model.wiring import Link, Wiring

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
        """Return the regression at the end of a posterior's network."""
        network, wiring = posterior.network, posterior.wiring
        of_outputs = [group for group in network.groups() if destination(group.name) == "o"]
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
        """Number of features of the regression."""
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
        if destination(group.name) == "o" and group.name in network.connections:
            reason = f"network.connections.{group.name} feeds the outputs"
            return f'{reason}; use over = ["precisions"] or hybrid'
        if destination(group.name) == "o" and group.prior.mixture is not None:
            reason = f"network.priors.{group.name} is a mixture"
            return f'{reason}; use over = ["precisions"] or hybrid'
    return None
