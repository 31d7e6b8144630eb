"""What a network, its priors and its data model are, as plain records that need only the standard library."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from rayfbnn.errors import ConfigError
from rayfbnn.model.connections import Connections

Activation: TypeAlias = Literal[
    "tanh",
    "softplus",
    "softplus0",
    "identity",
    "sigmoid",
    "relu",
    "sin",
    "softmax",
    "normalize",
    "step",
    "erf",
]
ModelKind: TypeAlias = Literal["real", "binary", "class", "count", "survival", "heteroscedastic"]

ACTIVATIONS = ("tanh", "softplus", "softplus0", "identity", "sigmoid", "relu", "sin")
LAYER_ACTIVATIONS = ("softmax", "normalize")  # of a whole layer, or of sub-groups of its units
# Units for draws from the prior: their derivatives are not written, or say nothing (a step has none).
PRIOR_ACTIVATIONS = ("step", "erf")
MODEL_KINDS = get_args(ModelKind)
INFINITY = math.inf


@dataclass(frozen=True)
class PriorSpec:
    """A prior of three levels: common precision of a group, of a source unit, of a parameter.

    The common precision is Gamma with shape alphas[0]/2 and mean 1/width**2 (after scaling), each unit's
    is Gamma with shape alphas[1]/2 and the common one as mean, each parameter's is Gamma with shape
    alphas[2]/2 and the unit's as mean; an infinite alpha ties a level to the one above.
    Neal (2022) eqs. 13, 14, 17. `text` of FBM: [x]width[:group[:unit[:parameter]]].
    """

    width: float
    alphas: tuple[float, float, float] = (INFINITY, INFINITY, INFINITY)
    scaled: bool = False

    @staticmethod
    def parse(text: str, *, key: str, two_levels: bool = False) -> PriorSpec:
        """Read FBM's notation. Biases and offsets have two levels, width:group:parameter.

        An empty alpha is infinite ("0.7:4::4"); "+" as width is 1e10. Raises ConfigError naming `key`.
        """

        def wrong(reason: str) -> ConfigError:
            form = "width[:group[:parameter]]" if two_levels else "[x]width[:group[:unit[:parameter]]]"
            return ConfigError(f'{key}: {reason}, got "{text}"; the form is {form}, such as "0.5:0.2"')

        scaled = text.startswith("x")
        parts = text[1:].split(":") if scaled else text.split(":")
        if scaled and two_levels:
            raise wrong("x (scaling by the number of source units) is for weights, not biases or offsets")
        if len(parts) > (3 if two_levels else 4):
            raise wrong(f"at most {2 if two_levels else 3} alphas are allowed")
        try:
            width = 1e10 if parts[0] == "+" else float(parts[0])
        except ValueError:
            raise wrong("width must be a positive number") from None
        if not (width > 0 and math.isfinite(width)):
            raise wrong("width must be a positive number")
        alphas = []
        for part in parts[1:]:
            try:
                alpha = INFINITY if part == "" else float(part)
            except ValueError:
                raise wrong("alpha must be a positive number") from None
            if not alpha > 0:
                raise wrong("alpha must be positive")
            alphas.append(alpha)
        alphas += [INFINITY] * ((2 if two_levels else 3) - len(alphas))
        if two_levels:
            alphas = [alphas[0], INFINITY, alphas[1]]
        return PriorSpec(width, (alphas[0], alphas[1], alphas[2]), scaled)

    def mean_precision(self, n_sources: int) -> float:
        """omega, the mean of the common precision, scaled by the number of source units if `scaled`.

        Neal (2022) eq. 26; alpha there is the parameter's if finite, else the unit's.
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


@dataclass(frozen=True)
class LayerSpec:
    """One hidden layer.

    groups   of softmax and normalize layers: "i // n", sub-groups of n consecutive units, or "i % n", n
             sub-groups of units n apart; None for the whole layer
    product  the earlier hidden layer whose units (or whose only unit) multiply the units' values, or None
    """

    units: int
    activation: Activation = "tanh"
    groups: str | None = None
    product: int | None = None

    @property
    def subgroups(self) -> Subgroups:
        return Subgroups.parse(self.groups, self.units)


@dataclass(frozen=True)
class Subgroups:
    """Sub-groups of a layer's units: the units written as rows of `width`, each row or each column is one.

    Unit i is in row i // width and column i % width.
    """

    n_rows: int
    width: int
    by_row: bool

    @staticmethod
    def parse(text: str | None, units: int) -> Subgroups:
        """From "i // n", "i % n" or None (one group); ValueError where that is no such partition."""
        if text is None:
            return Subgroups(1, units, True)
        match = re.fullmatch(r"\s*i\s*(//|%)\s*(\d{1,7})\s*", text)
        if match is None or int(match[2]) < 1 or units % int(match[2]) != 0:
            raise ValueError(
                f'must be "i // n" or "i % n" with n a divisor of the {units} units, such as "i // {units}"'
            )
        width = int(match[2])
        return Subgroups(units // width, width, match[1] == "//")

    @property
    def size(self) -> int:
        """Units in each group."""
        return self.width if self.by_row else self.n_rows


@dataclass(frozen=True)
class GroupSpec:
    """One group of parameters that share a prior: a weight matrix, or a vector of biases or offsets.

    shape is (source units, destination units) for weights, (units,) for biases and offsets, (weights,) for
    configured connections.
    omitted      numbers of the inputs that weights from the inputs leave out
    adjustments  the name of those that divide the parameters' precisions by destination unit, or None
    """

    name: str
    shape: tuple[int, ...]
    prior: PriorSpec
    adjustments: str | None = None
    omitted: tuple[int, ...] = ()

    @property
    def is_weights(self) -> bool:
        return len(self.shape) == 2

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def mean_precision(self) -> float:
        """omega after scaling."""
        return self.prior.mean_precision(self.shape[0])


@dataclass(frozen=True)
class NetworkSpec:
    """A fully connected network: which layers there are, and a prior for each group that is present.

    Group names are FBM's: ti (input offsets), ih<l> (inputs to hidden layer l), h<k>h<l> (hidden layer k to
    a later one l), bh<l> (biases), th<l> (offsets of hidden units), ho<l> (hidden layer l to outputs), io
    (inputs to outputs), bo.

    adjustments  ah<l> or ao -> alpha: every unit of hidden layer l (of the outputs) has a precision that
                 multiplies those of the weights and biases into it, Gamma with shape alpha/2 and mean 1;
                 Neal (2022) eqs. 15, 16, 19
    omitted      ih<l> or io -> numbers of the inputs that are not connected there
    connections  group of weights or biases -> its configured connections, in place of full ones
    """

    inputs: int
    outputs: int
    hidden: tuple[LayerSpec, ...] = ()
    priors: dict[str, PriorSpec] = field(default_factory=dict)
    adjustments: dict[str, float] = field(default_factory=dict)
    omitted: dict[str, tuple[int, ...]] = field(default_factory=dict)
    connections: dict[str, Connections] = field(default_factory=dict)

    def possible_groups(self) -> dict[str, tuple[int, ...]]:
        """Every group this network could have, with its shape, in the order of the flat vector."""
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
        configured = {name: (each.n_weights,) for name, each in self.connections.items() if name in shapes}
        return shapes | configured

    def groups(self) -> tuple[GroupSpec, ...]:
        """The groups that are present, in the order of the flat parameter vector."""
        return tuple(
            GroupSpec(name, shape, self.priors[name], self._adjustments_of(name), self.omitted.get(name, ()))
            for name, shape in self.possible_groups().items()
            if name in self.priors
        )

    def possible_adjustments(self) -> dict[str, int]:
        """The adjustments this network could have, with their numbers of units."""
        hidden = {f"ah{layer}": spec.units for layer, spec in enumerate(self.hidden)}
        return hidden | {"ao": self.outputs}

    def _adjustments_of(self, group: str) -> str | None:
        """The adjustments that apply to a group's destination units, if there are any."""
        name = f"a{destination(group)}"
        return name if name in self.adjustments and group not in self.connections else None

    @property
    def n_parameters(self) -> int:
        return sum(group.size for group in self.groups())


def destination(group: str) -> str:
    """The layer that a group of weights or biases leads into, "h<l>" or "o"; "" for offsets."""
    if group[0] == "t":
        return ""
    return "o" if "o" in group else group[group.rindex("h") :]


@dataclass(frozen=True)
class ModelSpec:
    """How targets depend on the network's outputs.

    kind     real (Gaussian noise, or t when noise.alphas[2] is finite), binary, class, count (Poisson, the
             output is the log rate), survival (the output is the log hazard; negative times are censored),
             or heteroscedastic (real; the second half of the outputs is the log precision of the noise)
    noise    for real targets: the prior of the noise precision, levels common, per target, per case
    classes  for class targets: how many; labels 0 .. classes - 1
    times    for survival: where the hazard changes, increasing; it is constant if there are none. Otherwise
             the network's first input is the time, or with log_time its logarithm
    noise_floor  for heteroscedastic targets: the least standard deviation of the noise
    """

    kind: ModelKind
    noise: PriorSpec | None = None
    classes: int | None = None
    times: tuple[float, ...] = ()
    log_time: bool = False
    noise_floor: float = 0.0

    @property
    def n_pieces(self) -> int:
        """Pieces of a piecewise-constant hazard, one where it is constant."""
        return len(self.times) + 1 if self.times else 1

    def n_inputs(self, n_covariates: int) -> int:
        """Inputs of the network: those of the data, and before them the time of a piecewise hazard."""
        return n_covariates + bool(self.times)

    def n_outputs(self, n_targets: int) -> int:
        if self.kind == "heteroscedastic":
            return 2 * n_targets
        return self.classes if self.kind == "class" and self.classes else n_targets


def why_outputs_stay(network: NetworkSpec, model: ModelSpec, *, is_tempered: bool = False) -> str | None:
    """Why the parameters that feed the outputs cannot be integrated out, and what to do; None if they can be.

    They can where the outputs are linear in them, and targets Gaussian given the outputs and auxiliary
    variables.
    """
    if model.kind not in ("real", "binary"):
        return f'model.kind = "{model.kind}" has no Gaussian noise; use over = ["precisions"] or hybrid'
    if model.kind == "binary" and is_tempered:
        # Powers of a logistic likelihood are mixtures too, over PG(b, v), for which polya_gamma has no draws.
        return 'model.kind = "binary" needs temperature 1; use over = ["precisions"] or hybrid'
    for group in network.groups():
        if destination(group.name) == "o" and group.name in network.connections:
            reason = f"network.connections.{group.name} feeds the outputs"
            return f'{reason}; use over = ["precisions"] or hybrid'
    return None
