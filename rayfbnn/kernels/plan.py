"""What a compiled kernel needs to know of a posterior: wiring, data model and priors, as plain numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model import prior
from rayfbnn.model.posterior import Posterior
from rayfbnn.model.wiring import Wiring

# The numbers that arithmetic.hpp knows activations and data models by.
ACTIVATION_CODES = {
    "identity": 0,
    "tanh": 1,
    "sigmoid": 2,
    "relu": 3,
    "softplus": 4,
    "softplus0": 5,
    "sin": 6,
}
MODEL_CODES = {"gaussian": 0, "t": 1, "binary": 2, "class": 3}


@dataclass(frozen=True)
class ProgramLink:
    """A full matrix from one layer of sources to one layer of destinations.

    source, destination  0 is the inputs, l + 1 hidden layer l, the last the outputs
    start                of its part of the flat vector, (n_rows, n_destinations) in C order
    first_row            row of the source (its units, then the ones) that the matrix's first row multiplies
    n_rows               of the matrix: n_units, and one more where its last row are biases
    n_units              how many of its rows are units'; 0 for biases alone
    """

    source: int
    destination: int
    start: int
    first_row: int
    n_rows: int
    n_units: int

    @property
    def has_biases(self) -> bool:
        return self.n_rows > self.n_units


@dataclass(frozen=True)
class PriorSegment:
    """Consecutive parameters start .. stop - 1 with one kind of prior.

    alpha  infinite for Gaussian parameters, else the degrees of freedom of their t distribution
    """

    start: int
    stop: int
    alpha: float


@dataclass(frozen=True)
class ProgramIntegrated:
    """Gaussian parameters start .. stop - 1 whose common precision is integrated out.

    With a the factors in place of their precisions, minus the log density is shape/2 log(rate + sum a w**2).
    """

    start: int
    stop: int
    shape: float
    rate: float


@dataclass(frozen=True)
class ProgramMoved:
    """Features first .. stop - 1, whose prior precisions are multiplied by exp of a coordinate x.

    x has the density of the log of a Gamma variable of shape `half` and mean `mean`.
    """

    first: int
    stop: int
    half: float
    mean: float


@dataclass(frozen=True)
class ProgramRegression:
    """What the outputs are, their parameters integrated out: a regression on features; model/regression.py.

    features           (layer, row) of each, row -1 for ones
    n_systems, n_each  sets of targets with a matrix A of their own, and targets of each
    is_dual            whether by matrices of the cases
    moved              coordinates behind the parameters of the network
    """

    features: tuple[tuple[int, int], ...]
    n_systems: int
    n_each: int
    is_dual: bool
    moved: tuple[ProgramMoved, ...]


@dataclass(frozen=True)
class Program:
    """A fully connected network with element-wise activations, its data model, and the kinds of its priors.

    units        of each layer: inputs, hidden layers, outputs
    activations  of each hidden layer, as ACTIVATION_CODES
    links        by destination, in the order that the plain code adds them
    offsets      start in the flat vector of the offsets of the inputs and each hidden layer, -1 without
    model        as MODEL_CODES
    alpha        degrees of freedom of t noise, infinite otherwise
    n_targets    rows of weights for missing targets: output o belongs to target o % n_targets
    segments     of the flat vector, in order, all of it
    integrated   parts of it
    regression   in place of outputs, of which there are then none
    """

    units: tuple[int, ...]
    activations: tuple[int, ...]
    links: tuple[ProgramLink, ...]
    offsets: tuple[int, ...]
    model: int
    alpha: float
    n_targets: int
    n_parameters: int
    segments: tuple[PriorSegment, ...]
    integrated: tuple[ProgramIntegrated, ...] = ()
    regression: ProgramRegression | None = None

    @staticmethod
    def of(posterior: Posterior) -> Program | str:
        """The program of a posterior, or in words what of it the compiled kernels do not cover."""
        wiring, model = posterior.wiring, posterior.data_model
        if model.compiled_name is None:
            return f"{model.kind} targets"
        links = links_of(wiring)
        if isinstance(links, str):
            return links
        noise = posterior.model.noise
        return Program(
            units=wiring.units,
            activations=activations_of(wiring),
            links=links,
            offsets=offsets_of(wiring),
            model=MODEL_CODES[model.compiled_name],
            alpha=math.inf if noise is None else noise.alphas[2],
            n_targets=posterior.n_targets,
            n_parameters=posterior.n_parameters,
            segments=segments_of(posterior, posterior.n_parameters),
        )


def links_of(wiring: Wiring) -> tuple[ProgramLink, ...] | str:
    """The links of a network of element-wise layers, or in words what of it the kernels do not cover."""
    for activation in wiring.activations:
        if activation not in ACTIVATION_CODES:
            return f"{activation} layers"
    if any(factor is not None for factor in wiring.factors):
        return "layers with products"
    links = []
    for link in (link for into in wiring.incoming for link in into):
        if link.configured is not None:
            return "configured connections"
        if not isinstance(link.rows, slice):
            return "connections that leave out inputs"
        first, n_rows = link.rows.start, link.rows.stop - link.rows.start
        links.append(
            ProgramLink(link.source, link.destination, link.parameters.start, first, n_rows, link.n_units)
        )
    return tuple(links)


def activations_of(wiring: Wiring) -> tuple[int, ...]:
    """Their codes, of each hidden layer."""
    return tuple(ACTIVATION_CODES[activation] for activation in wiring.activations)


def offsets_of(wiring: Wiring) -> tuple[int, ...]:
    """Where those of the inputs and of each hidden layer start, -1 without."""
    return tuple(-1 if offset is None else offset.start for offset in wiring.offsets)


def segments_of(posterior: Posterior, n_parameters: int) -> tuple[PriorSegment, ...]:
    """One for each run of groups whose parameters' alphas are equal, of the first n_parameters."""
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


@dataclass(frozen=True)
class ChainNumbers:
    """What differs from chain to chain besides position and momentum, all float64.

    precisions  (n_chains, n_parameters): the precision that governs each parameter
    noise       (n_chains, n_targets): the precision that governs each target; (n_chains, 0) without noise
    inverse_temperature  (n_chains,): the power of the likelihood
    normaliser  (n_chains,): what the terms of all cases leave out of the log likelihood
    """

    precisions: Array
    noise: Array
    inverse_temperature: Array
    normaliser: Array

    def potential(self, prior_energy: Array, terms: Array) -> Array:
        """The potential (n_chains,) from the prior's energy and the summed terms of the likelihood."""
        return prior_energy - self.inverse_temperature * (terms + self.normaliser)


def prior_of(posterior: Posterior, precisions: Array) -> ChainNumbers:
    """Each chain's numbers given its precisions (n_chains, n_precisions)."""
    xp = array_namespace(precisions)
    with np.errstate(all="ignore"):
        noise = prior.noise_precisions(precisions, posterior.precision_layout)
        power = xp.broadcast_to(
            xp.asarray(posterior.inverse_temperature, dtype=xp.float64), (precisions.shape[0],)
        )
        return ChainNumbers(
            precisions=xp.ascontiguousarray(
                prior.parameter_precisions(precisions, posterior.precision_layout)
            ),
            noise=xp.ascontiguousarray(noise),
            inverse_temperature=xp.ascontiguousarray(power),
            normaliser=posterior.data_model.total_log_normaliser(noise, posterior.counts),
        )
