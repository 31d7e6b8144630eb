"""Records that describe a target to compiled code: its wiring, data model and priors as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

# The numbers by which arithmetic.hpp knows activations and data models.
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
}


@dataclass(frozen=True)
class LinkPlan:
    """A full matrix from one layer of sources to one layer of destinations.

    source, destination  0 is the inputs, l + 1 is hidden layer l, and the last number is the outputs
    start                where the matrix starts in the flat vector, (n_rows, n_destinations) in C order
    first_row            row of the source (its units, then the ones) that the matrix's first row multiplies
    n_rows               rows of the matrix: n_units, and one more where the last row holds biases
    n_units              rows that belong to units; 0 where there are only biases
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
    """Gaussian parameters start .. stop - 1 whose common precision is integrated out.

    Minus their log density is shape/2 log(rate + sum a w**2), with factors a in place of their precisions.
    """

    start: int
    stop: int
    shape: float
    rate: float


@dataclass(frozen=True)
class MovedPlan:
    """Features first .. stop - 1, whose prior precisions are multiplied by exp(x), with x a coordinate.

    x has the density of the log of a Gamma variable of shape `half` and mean `mean`.
    """

    first: int
    stop: int
    half: float
    mean: float


@dataclass(frozen=True)
class RegressionPlan:
    """A regression on features, in place of outputs whose parameters are integrated out.

    The mathematics is in model/marginal/regression.py.

    features   (layer, row) of each feature; row -1 is the row of ones
    n_systems  sets of targets that have a matrix A of their own
    n_each     targets in each set
    is_dual    whether the matrices are over cases, in place of features
    moved      coordinates behind the parameters of the network
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
    links        by destination, in the order in which array code adds them
    offsets      where the offsets of inputs and hidden layers start in the flat vector; -1 for none
    model        code of the data model (MODEL_CODES)
    alpha        degrees of freedom of t noise, infinite for other noise; the log of the least variance of
                 noise that is an output
    n_targets    rows of weights for missing targets: output o belongs to target o % n_targets
    n_rows       rows of numbers that say the targets of a case (DataModel.target_rows); 0 with a regression
    segments     the flat vector in pieces, in order and complete
    integrated   parts of the flat vector whose common precisions are integrated out
    regression   takes the place of the outputs where these are integrated out
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
