"""Records that describe a target to compiled code: its wiring, data model and priors as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class PriorSegment:
    """Consecutive parameters start .. stop - 1 with one kind of prior.

    alpha  infinite for Gaussian parameters, otherwise the degrees of freedom of their t distribution
    """

    start: int
    stop: int
    alpha: float


@dataclass(frozen=True)
class IntegratedPlan:
    """Gaussian parameters start .. stop - 1 with their common precision integrated out.

    Minus their log density is shape/2 log(rate + sum a w**2), where factors a replace their precisions.
    """

    start: int
    stop: int
    shape: float
    rate: float


@dataclass(frozen=True)
class MovedPlan:
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
