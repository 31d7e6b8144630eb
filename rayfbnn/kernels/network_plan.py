"""A target in plain numbers for compiled code, or the reason why compiled code does not cover it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from rayfbnn.kernels.backend import NotCovered
from rayfbnn.model.integrated import OutputMarginal, WithoutOutputs, WithoutPrecisions
from rayfbnn.model.likelihood.survival import SurvivalTargets
from rayfbnn.model.output_layer import Integrated, OutputLayer
from rayfbnn.model.posterior import Posterior
from rayfbnn.model.wiring import Wiring
from rayfbnn.state import Target

# The codes of activations and data models in arithmetic.hpp.
ACTIVATION_CODES = {
    "identity": 0,
    "tanh": 1,
    "sigmoid": 2,
    "relu": 3,
    "softplus": 4,
    "softplus0": 5,
    "sin": 6,
}
MODEL_CODES = {
    "gaussian": 0,
    "t": 1,
    "binary": 2,
    "class": 3,
    "count": 4,
    "survival": 5,
    "heteroscedastic": 6,
    "dispersed count": 7,
}


@dataclass(frozen=True)
class LinkPlan:
    """A full matrix from one layer of sources to one layer of destinations.

    source, destination  0 is the inputs, l + 1 is hidden layer l, and the last number is the outputs
    start                where the matrix starts in the flat vector, (n_rows, n_destinations) in C order
    first_row            row of the source (its units, then the ones) that the matrix's first row multiplies
    n_rows               rows of the matrix: n_units, plus one if the last row holds biases
    n_units              rows that belong to units; 0 if there are only biases
    """

    source: int
    destination: int
    start: int
    first_row: int
    n_rows: int
    n_units: int

    @property
    def has_biases(self) -> bool:
        """True if the last row holds biases."""
        return self.n_rows > self.n_units


class PriorSegment(NamedTuple):
    """Consecutive parameters start .. stop - 1 with one kind of prior.

    alpha  infinite for Gaussian parameters, otherwise the degrees of freedom of their t distribution
    """

    start: int
    stop: int
    alpha: float


class IntegratedPlan(NamedTuple):
    """Gaussian parameters start .. stop - 1 with their common precision integrated out.

    Minus their log density is shape/2 log(rate + sum a w**2), where factors a replace their precisions.
    """

    start: int
    stop: int
    shape: float
    rate: float


class MovedPlan(NamedTuple):
    """Features first .. stop - 1, with prior precisions multiplied by exp(x) for a coordinate x.

    x is distributed as the log of a Gamma variable with shape `half` and mean `mean`.
    """

    first: int
    stop: int
    half: float
    mean: float


@dataclass(frozen=True)
class RegressionPlan:
    """A regression on features, which replaces the outputs when their parameters are integrated out.

    The mathematics is in model/regression.py.

    features   (layer, row) of each feature; row -1 is the row of ones
    n_systems  number of sets of targets; each set has its own matrix A
    n_each     targets in each set
    is_dual    whether the matrices are over cases instead of features
    moved      coordinates that follow the parameters of the network
    """

    features: tuple[tuple[int, int], ...]
    n_systems: int
    n_each: int
    is_dual: bool
    moved: tuple[MovedPlan, ...]


@dataclass(frozen=True)
class NetworkPlan:
    """A fully connected network with element-wise activations, its data model, and the kinds of its priors.

    units        units of each layer: inputs, hidden layers, outputs
    activations  code of each hidden layer's activation (ACTIVATION_CODES)
    links        the links by destination, in the order array code adds them
    offsets      where the offsets of inputs and hidden layers start in the flat vector; -1 for none
    model        code of the data model (MODEL_CODES)
    alpha        degrees of freedom of t noise, infinite for other noise; if the noise variance is an output,
                 the log of its least value
    n_targets    rows of weights for missing targets: output o belongs to target o % n_targets
    n_rows       rows of numbers for the targets of a case (DataModel.target_rows); 0 with a regression
    segments     segments that cover the flat vector completely, in order
    integrated   parts of the flat vector with common precisions integrated out
    regression   replaces the outputs when they are integrated out
    """

    units: tuple[int, ...]
    activations: tuple[int, ...]
    links: tuple[LinkPlan, ...]
    offsets: tuple[int, ...]
    model: int
    alpha: float
    n_targets: int
    n_rows: int
    n_parameters: int
    segments: tuple[PriorSegment, ...]
    integrated: tuple[IntegratedPlan, ...] = ()
    regression: RegressionPlan | None = None


_NO_MODEL = 0  # the data model's code when outputs are integrated out; no kernel reads it


def plan_of(target: Target | OutputMarginal) -> NetworkPlan | NotCovered:
    """Return the plan of a posterior, or of a posterior with outputs or common precisions integrated out."""
    if isinstance(target, Posterior):
        return _plan_of_posterior(target, target.data_model.compiled_name)
    if isinstance(target, WithoutPrecisions):
        plan = plan_of(target.posterior)
        integrated = tuple(_integrated(group) for group in target.groups)
        return plan if isinstance(plan, NotCovered) else replace(plan, integrated=integrated)
    if isinstance(target, WithoutOutputs | OutputMarginal):
        return _plan_of_output_marginal(target if isinstance(target, OutputMarginal) else target.marginal)
    return NotCovered("a target that is not a posterior")


def plan_of_predictions(posterior: Posterior) -> NetworkPlan | NotCovered:
    """Return the plan of a posterior's networks and data model for sums over draws of predictions."""
    return _plan_of_posterior(posterior, posterior.data_model.predicted_name)


def hazard_starts(posterior: Posterior) -> tuple[float, ...]:
    """Return the times when the pieces of a hazard start; one number for other data models."""
    model = posterior.data_model
    if isinstance(model, SurvivalTargets) and model.n_cells > 1:
        return model.hazard.piece_starts
    return (0.0,)


def _plan_of_posterior(posterior: Posterior, name: str | None) -> NetworkPlan | NotCovered:
    wiring, model = posterior.wiring, posterior.data_model
    if name is None:
        return NotCovered(f"{model.kind} targets")
    if wiring.added_input is not None:
        return NotCovered("an exposure")
    links = _links(wiring, posterior)
    if isinstance(links, NotCovered):
        return links
    noise = posterior.model.noise
    return NetworkPlan(
        units=wiring.units,
        activations=tuple(ACTIVATION_CODES[activation] for activation in wiring.activations),
        links=links,
        offsets=tuple(-1 if offset is None else offset.start for offset in wiring.offsets),
        model=MODEL_CODES[name],
        alpha=model.compiled_setting if noise is None else noise.alphas[2],
        n_targets=posterior.n_targets,
        n_rows=posterior.targets.shape[-2],
        n_parameters=posterior.n_parameters,
        segments=_segments(posterior, posterior.n_parameters),
    )


def _plan_of_output_marginal(marginal: OutputMarginal) -> NetworkPlan | NotCovered:
    layer, wiring = marginal.layer, marginal.layer.wiring
    links = _links(wiring, marginal.posterior)
    if isinstance(links, NotCovered):
        return links
    n_parameters = layer.n_kept + len(marginal.moved)
    kept = _segments(marginal.posterior, layer.n_kept)
    return NetworkPlan(
        units=wiring.units,
        activations=tuple(ACTIVATION_CODES[activation] for activation in wiring.activations),
        links=links,
        offsets=tuple(-1 if offset is None else offset.start for offset in wiring.offsets),
        model=_NO_MODEL,
        alpha=math.inf,
        n_targets=layer.n_outputs,
        n_rows=0,
        n_parameters=n_parameters,
        segments=(*kept, PriorSegment(layer.n_kept, n_parameters, math.inf)),
        integrated=tuple(_integrated(group) for group in marginal.groups),
        regression=RegressionPlan(
            features=_features(layer),
            n_systems=layer.n_systems,
            n_each=layer.n_outputs // layer.n_systems,
            is_dual=layer.is_dual,
            moved=tuple(_moved(group, layer) for group in marginal.moved),
        ),
    )


def _links(wiring: Wiring, posterior: Posterior) -> tuple[LinkPlan, ...] | NotCovered:
    """Return the links of a network of element-wise layers with Gaussian or t priors."""
    if any(group.prior.mixture is not None for group in posterior.parameter_layout.groups):
        return NotCovered("mixture priors")
    for activation in wiring.activations:
        if activation not in ACTIVATION_CODES:
            return NotCovered(f"{activation} layers")
    if any(factor is not None for factor in wiring.factors):
        return NotCovered("layers with products")
    links = []
    for link in (link for into in wiring.incoming for link in into):
        if link.configured is not None:
            return NotCovered("configured connections")
        if not isinstance(link.rows, slice):
            return NotCovered("connections that leave out inputs")
        first, n_rows = link.rows.start, link.rows.stop - link.rows.start
        links.append(
            LinkPlan(link.source, link.destination, link.parameters.start, first, n_rows, link.n_units)
        )
    return tuple(links)


def _segments(posterior: Posterior, n_parameters: int) -> tuple[PriorSegment, ...]:
    """Divide the first n_parameters into segments, joining neighbouring groups with the same alpha."""
    segments: list[PriorSegment] = []
    for group in posterior.parameter_layout.groups:
        part, alpha = posterior.parameter_layout.slices[group.name], group.prior.alphas[2]
        if part.start >= n_parameters:
            continue
        if segments and segments[-1].alpha == alpha:
            segments[-1] = PriorSegment(segments[-1].start, part.stop, alpha)
        else:
            segments.append(PriorSegment(part.start, part.stop, alpha))
    return tuple(segments)


def _integrated(group: Integrated) -> IntegratedPlan:
    alpha = group.precision.prior.alphas[0]
    return IntegratedPlan(group.part.start, group.part.stop, alpha + group.size, alpha / group.precision.mean)


def _moved(group: Integrated, layer: OutputLayer) -> MovedPlan:
    part = layer.features_of(group)
    return MovedPlan(part.start, part.stop, group.precision.prior.alphas[0] / 2, group.precision.mean)


def _features(layer: OutputLayer) -> tuple[tuple[int, int], ...]:
    """Return layer and row of each feature; the row after a layer's last unit is the row of ones."""
    features = []
    for link in layer.links:
        n_units = layer.wiring.units[link.source]
        for row in range(n_units + 1)[link.rows] if isinstance(link.rows, slice) else link.rows.tolist():
            features.append((link.source, -1 if row == n_units else int(row)))
    return tuple(features)
