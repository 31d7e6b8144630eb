"""Plain records of a network, its priors and its data model.

The records are simple frozen dataclasses. spec/ reads the hidden layers of a configuration directly into
`LayerSpec`, and builds the other records from the keys of a configuration.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from rayfbnn.errors import ConfigError
from rayfbnn.model.connections import Connections
from rayfbnn.numerals import read_number

ACTIVATIONS = ("tanh", "softplus", "softplus0", "identity", "sigmoid", "relu", "sin")
# These act on a whole layer, or on sub-groups of its units.
LAYER_ACTIVATIONS = ("softmax", "normalize")
# Only draws from the prior can use these units: erf has no derivative here, and a step's derivative is zero.
PRIOR_ACTIVATIONS = ("step", "erf")
if TYPE_CHECKING:
    Activation: TypeAlias = str
else:
    Activation = Literal[(*ACTIVATIONS, *LAYER_ACTIVATIONS, *PRIOR_ACTIVATIONS)]
INFINITY = math.inf
# The names of the groups of precisions that govern targets.
NOISE, DISPERSION = "noise", "dispersion"
_MAX_UNITS = 1_000_000


@dataclass(frozen=True)
class PriorSpec:
    """A hierarchical prior with three levels of precisions: for the group, each source unit, each parameter.

    The group's (common) precision is Gamma distributed with shape alphas[0]/2 and mean 1/width**2 (after
    scaling). A source unit's precision has shape alphas[1]/2 and the common precision as its mean. A
    parameter's precision has shape alphas[2]/2 and its unit's precision as its mean. An infinite alpha makes
    a level equal to the level above it. Neal (2022) eqs. 13, 14, 17. `parse` reads FBM's notation
    [x]width[:group[:unit[:parameter]]]; the x sets `scaled`.

    Two other forms, which FBM does not have, have infinite alphas:

    mixture    (share, width): a parameter is Normal(0, self.width**2) with probability `share`, and otherwise
               Normal(0, width**2); Gelbaum (2019), eq. 4. No precision varies
    rectified  v0: the common precision has the density of |z| with z ~ Normal(0, v0), instead of a Gamma
               density; Olobatuyi, eq. 18, with location 0. `width` corresponds to its mean
    """

    width: float
    alphas: tuple[float, float, float] = (INFINITY, INFINITY, INFINITY)
    scaled: bool = False
    mixture: tuple[float, float] | None = None
    rectified: float | None = None

    @staticmethod
    def parse(text: str, *, key: str, two_levels: bool = False) -> PriorSpec:
        """Read a prior in FBM's notation, or "mixture(share, width, width)" or "rect(v0)".

        Biases and offsets have two levels, width:group:parameter. An empty alpha is infinite, as in
        "0.7:4::4", and the width "+" is 1e10. Raises a ConfigError that names `key`.
        """
        if text.startswith(("mixture(", "rect(")):
            return _other_form(text, key=key)

        def wrong(reason: str) -> ConfigError:
            form = "width[:group[:parameter]]" if two_levels else "[x]width[:group[:unit[:parameter]]]"
            return ConfigError(f'{key}: {reason}, got "{text}"; the form is {form}, such as "0.5:0.2"')

        scaled = text.startswith("x")
        parts = text[1:].split(":") if scaled else text.split(":")
        n_levels = 2 if two_levels else 3
        if scaled and two_levels:
            raise wrong("x (scaling by the number of source units) is for weights, not biases or offsets")
        if len(parts) > n_levels + 1:
            raise wrong(f"at most {n_levels} alphas are allowed")
        width = _positive(parts[0], when_special={"+": 1e10})
        if width is None or math.isinf(width):
            raise wrong("width must be a positive number")
        alphas = [INFINITY] * n_levels
        for level, part in enumerate(parts[1:]):
            alpha = _positive(part, when_special={"": INFINITY})
            if alpha is None:
                raise wrong("alpha must be a positive number")
            alphas[level] = alpha
        if two_levels:
            alphas.insert(1, INFINITY)
        return PriorSpec(width, (alphas[0], alphas[1], alphas[2]), scaled)

    def mean_precision(self, n_sources: int) -> float:
        """Return omega, the mean of the common precision, after scaling for `n_sources` units if `scaled`.

        Neal (2022) eq. 26. The alpha in it is the alpha of the parameters if that is finite, and otherwise
        the alpha of the units.
        """
        omega = self.width**-2
        if not self.scaled:
            return omega
        alpha = self.alphas[2] if math.isfinite(self.alphas[2]) else self.alphas[1]
        n = n_sources
        if math.isinf(alpha):
            return omega * n
        if alpha > 2:
            return omega * n * alpha / (alpha - 2)
        if alpha == 2:
            return omega * n * (math.log(n) if n >= 3 else 1.0)
        return float(omega * float(n) ** (2 / alpha))


def _other_form(text: str, *, key: str) -> PriorSpec:
    """Read "mixture(share, width, width)" or "rect(v0)"."""
    name, _, inside = text.partition("(")
    numbers = [_positive(part.strip(), when_special={}) for part in inside.removesuffix(")").split(",")]
    if not text.endswith(")") or None in numbers or len(numbers) != (3 if name == "mixture" else 1):
        forms = "mixture(share, width, width), such as mixture(0.5, 1, 0.0025), or rect(v0), such as rect(4)"
        raise ConfigError(f'{key}: must be {forms}, with positive numbers, got "{text}"')
    first, *others = (number for number in numbers if number is not None)
    if name == "rect":
        return PriorSpec((2 * first / math.pi) ** -0.25, rectified=first)
    if first >= 1:
        raise ConfigError(f'{key}: the share of a mixture must be below 1, got "{text}"')
    return PriorSpec(others[0], mixture=(first, others[1]))


def _positive(text: str, *, when_special: dict[str, float]) -> float | None:
    """Return a positive number, or the value of a special text; None if the text is neither."""
    if text in when_special:
        return when_special[text]
    try:
        value = read_number(text)
    except ValueError:
        return None
    return value if value > 0 else None


@dataclass(frozen=True)
class LayerSpec:
    """One hidden layer.

    units       number of units of the layer, from 1 to 1,000,000
    activation  the function that the units apply to their summed inputs; "tanh" if left out, as in FBM
    groups      only for softmax and normalize layers: "i // n" for sub-groups of n consecutive units, or
                "i % n" for n sub-groups of units that are n apart; None for the whole layer
    product     number of an earlier hidden layer. The values of this layer are multiplied by its units one
                by one, or all by its only unit. None for no product

    Raises ValueError "key: problem, got value".
    """

    units: int
    activation: Activation = "tanh"
    groups: str | None = None
    product: int | None = None
    # pydantic reads this attribute, and then rejects other keys and "16" for 16.
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    def __post_init__(self) -> None:
        if not 1 <= self.units <= _MAX_UNITS:
            raise ValueError(f"units: must be a whole number from 1 to {_MAX_UNITS}, got {self.units}")
        if self.groups is not None and self.activation not in LAYER_ACTIVATIONS:
            raise ValueError(
                f"groups: only {' and '.join(LAYER_ACTIVATIONS)} layers can have groups, "
                f'got "{self.groups}" with {self.activation}; leave it out'
            )
        try:
            Subgroups.parse(self.groups, self.units)
        except ValueError as exc:
            raise ValueError(f'groups: {exc}, got "{self.groups}"') from None

    @property
    def subgroups(self) -> Subgroups:
        return Subgroups.parse(self.groups, self.units)


@dataclass(frozen=True)
class Subgroups:
    """Sub-groups of a layer's units.

    The units are arranged in rows of `width`: unit i is in row i // width and column i % width. Each row is a
    sub-group if `by_row`; otherwise each column is one.
    """

    n_rows: int
    width: int
    by_row: bool

    @staticmethod
    def parse(text: str | None, units: int) -> Subgroups:
        """Read "i // n" or "i % n"; None means one group. Raises ValueError if the text is neither."""
        if text is None:
            return Subgroups(1, units, True)
        match = re.fullmatch(r"\s*i\s*(//|%)\s*([0-9]{1,7})\s*", text)
        if match is None or int(match[2]) < 1 or units % int(match[2]) != 0:
            raise ValueError(
                f'must be "i // n" or "i % n" with n a divisor of the {units} units, such as "i // {units}"'
            )
        width = int(match[2])
        return Subgroups(units // width, width, match[1] == "//")

    @property
    def size(self) -> int:
        return self.width if self.by_row else self.n_rows


@dataclass(frozen=True)
class GroupSpec:
    """One group of parameters that share a prior: a weight matrix, or a vector of biases or offsets.

    shape        (source units, destination units) for weights, (units,) for biases and offsets, and
                 (weights,) for configured connections
    adjustments  name of the adjustments that multiply the parameters' precisions by destination unit, or None
    omitted      for weights from the inputs, the numbers of the inputs that are not connected
    """

    name: str
    shape: tuple[int, ...]
    prior: PriorSpec
    adjustments: str | None = None
    omitted: tuple[int, ...] = ()

    @property
    def is_weights(self) -> bool:
        """True for fully connected weights; their rows are source units."""
        return len(self.shape) == 2

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def mean_precision(self) -> float:
        """The mean of the group's common precision, after scaling for its number of source units."""
        return self.prior.mean_precision(self.shape[0])


def parameters_in_words(group: str) -> str:
    """Return a group's name in words, such as "weights from the inputs to hidden layer 0" for ih0."""
    layers = {"i": "the inputs", "o": "the outputs"}
    ends = [layers.get(end, f"hidden layer {end[1:]}") for end in re.findall(r"h\d+|[io]", group)]
    if group[0] in "bt":
        return f"{'biases' if group[0] == 'b' else 'offsets'} of {ends[0]}"
    # FBM writes ho2 for hidden layer 2 to the outputs: the number belongs to the h.
    source, destination = ends if len(ends) == 2 else (f"hidden layer {group[2:]}", "the outputs")
    return f"weights from {source} to {destination}"


def group_in_words(group: str) -> str:
    """Return a group's name in fewer words: "weights, inputs to hidden layer 0"; names of noise stay."""
    if group in ("noise", "dispersion"):
        return group
    return parameters_in_words(group).replace(" from", ",").replace("the ", "")


@dataclass(frozen=True)
class NetworkSpec:
    """A feed-forward network: its layers, and a prior for each group of parameters that is present.

    Groups have the same names as in FBM: ti (offsets of the inputs), ih<l> (weights from the inputs to
    hidden layer l), h<k>h<l> (weights from hidden layer k to a later hidden layer l), bh<l> (biases of hidden
    layer l), th<l> (offsets of its units), ho<l> (weights from hidden layer l to the outputs), io (weights
    from the inputs to the outputs), bo (biases of the outputs). Layers are fully connected unless `omitted`
    or `connections` says otherwise.

    inputs, outputs  numbers of inputs and outputs
    priors           group -> prior, for the groups that are present
    adjustments      ah<l> or ao -> alpha. Each unit of hidden layer l (or each output) then has a precision
                     that multiplies the precisions of the weights and biases into it. It is Gamma distributed
                     with shape alpha/2 and mean 1; Neal (2022) eqs. 15, 16, 19
    omitted          ih<l> or io -> numbers of the inputs that this group does not connect
    connections      group of weights or biases -> its configured connections
    added_input      number of the input that is added to every output, the log of an exposure; all groups of
                     weights omit it. None if there is none
    """

    inputs: int
    outputs: int
    hidden: tuple[LayerSpec, ...] = ()
    priors: dict[str, PriorSpec] = field(default_factory=dict)
    adjustments: dict[str, float] = field(default_factory=dict)
    omitted: dict[str, tuple[int, ...]] = field(default_factory=dict)
    connections: dict[str, Connections] = field(default_factory=dict)
    added_input: int | None = None

    def possible_groups(self) -> dict[str, tuple[int, ...]]:
        """Return every group that this network could have, with its shape.

        The groups are in the order of the flat parameter vector.
        """
        shapes: dict[str, tuple[int, ...]] = {"ti": (self.inputs,)}
        units = [layer.units for layer in self.hidden]
        for layer, n_units in enumerate(units):
            shapes[f"ih{layer}"] = (self.inputs, n_units)
            for earlier in range(layer):
                shapes[f"h{earlier}h{layer}"] = (units[earlier], n_units)
            shapes[f"bh{layer}"] = (n_units,)
            shapes[f"th{layer}"] = (n_units,)
        for layer, n_units in enumerate(units):
            shapes[f"ho{layer}"] = (n_units, self.outputs)
        shapes["io"] = (self.inputs, self.outputs)
        shapes["bo"] = (self.outputs,)
        for name, omitted in self.omitted.items():
            if name in shapes:
                shapes[name] = (self.inputs - len(omitted), shapes[name][1])
        for name, connections in self.connections.items():
            if name in shapes:
                shapes[name] = (connections.n_weights,)
        return shapes

    def groups(self) -> tuple[GroupSpec, ...]:
        """Return the groups that are present, in the order of the flat parameter vector."""
        return tuple(
            GroupSpec(name, shape, self.priors[name], self._adjustments_of(name), self.omitted.get(name, ()))
            for name, shape in self.possible_groups().items()
            if name in self.priors
        )

    def possible_adjustments(self) -> dict[str, int]:
        """Return the adjustments that this network could have, each with its number of units."""
        hidden = {f"ah{layer}": spec.units for layer, spec in enumerate(self.hidden)}
        return hidden | {"ao": self.outputs}

    def _adjustments_of(self, group: str) -> str | None:
        """Return the name of the adjustments for a group's destination units, or None if it has none."""
        name = f"a{destination(group)}"
        return name if name in self.adjustments and group not in self.connections else None

    @property
    def n_parameters(self) -> int:
        return sum(group.size for group in self.groups())


def destination(group: str) -> str:
    """Return the layer that a group of weights or biases leads into: "h<l>" or "o"; "" for offsets."""
    if group[0] == "t":
        return ""
    return "o" if "o" in group else group[group.rindex("h") :]


@dataclass(frozen=True)
class ModelSpec:
    """The settings of a data model, which defines how the targets depend on the network's outputs.

    kind     the name of the data model (likelihood/registry.py)
    noise    only for real targets: the prior of the noise precision, with the levels common, target and case
    dispersion  only for counts: the prior of the shape of the Gamma variables that multiply the rates, with
             the levels common and target; None if counts are Poisson distributed
    classes  only for class targets: the number of classes; labels are 0 to classes - 1
    labels   for each target, the text of its labels 0, 1, ..., or () if the target is a number; () if no
             target is text
    times    only for survival: the increasing times of changes of the hazard; empty for a constant hazard.
             Otherwise the network's first input is the time, or its logarithm if `log_time`
    noise_floor  only for heteroscedastic targets: the smallest standard deviation of the noise
    """

    kind: str
    noise: PriorSpec | None = None
    classes: int | None = None
    times: tuple[float, ...] = ()
    log_time: bool = False
    noise_floor: float = 0.0
    labels: tuple[tuple[str, ...], ...] = ()
    dispersion: PriorSpec | None = None

    @property
    def of_targets(self) -> tuple[str, PriorSpec] | None:
        """The name and the prior of the precisions that govern targets, or None if there are none."""
        if self.noise is not None:
            return NOISE, self.noise
        return None if self.dispersion is None else (DISPERSION, self.dispersion)
