"""Networks of every architecture as lists of single connections; outputs and stepsizes by plain loops."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rayfbnn.model.architecture import LayerSpec, NetworkSpec
from rayfbnn.model.connections import Connections, ConnectionTable
from rayfbnn.model.sampled import SampledPosterior

INPUTS, OUTPUTS = -1, 10_000  # layers; the hidden ones are 0, 1, ...
FUNCTIONS = {
    "tanh": math.tanh,
    "softplus": lambda u: math.log1p(math.exp(u)),
    "softplus0": lambda u: math.log1p(math.exp(u)) - math.log(2),
    "identity": lambda u: u,
    "sigmoid": lambda u: 1 / (1 + math.exp(-u)),
    "relu": lambda u: max(u, 0.0),
    "sin": lambda u: math.sqrt(2) * math.sin(math.sqrt(2) * u),
}


@dataclass(frozen=True)
class Connection:
    """A connection, which adds parameter times the source's value to a unit; a bias has no source."""

    source: tuple[int, int] | None
    destination: tuple[int, int]
    parameter: int


def ends(group: str) -> tuple[int | None, int]:
    """Source layer (None for biases) and destination layer of a group."""
    matched = re.fullmatch(r"b(o|h(\d+))|io|ih(\d+)|ho(\d+)|h(\d+)h(\d+)", group)
    assert matched is not None, group
    _, bias, inputs_to, to_outputs, source, destination = matched.groups()
    if group[0] == "b":
        return None, OUTPUTS if bias is None else int(bias)
    if group == "io":
        return INPUTS, OUTPUTS
    if inputs_to is not None:
        return INPUTS, int(inputs_to)
    if to_outputs is not None:
        return int(to_outputs), OUTPUTS
    return int(source), int(destination)


def connections(network: NetworkSpec) -> Iterator[tuple[str, Connection]]:
    """Every connection with the name of its group."""
    first = 0
    for group in network.groups():
        if group.name in network.connections:
            source, destination = ends(group.name)
            for i, j, k in triples(network.connections[group.name]):
                start = None if source is None else (source, i)
                yield group.name, Connection(start, (destination, j), first + k)
        elif group.name[0] != "t":
            source, destination = ends(group.name)
            kept = [i for i in range(network.inputs) if i not in group.omitted]
            for number, places in enumerate(np.ndindex(*group.shape)):
                start = None if source is None else (source, places[0])
                if source == INPUTS:
                    start = (INPUTS, kept[places[0]])
                yield group.name, Connection(start, (destination, places[-1]), first + number)
        first += group.size


def triples(connections: Connections) -> Iterator[tuple[int, int, int]]:
    """(source unit, destination unit, weight) of each configured connection; biases have source 0."""
    if isinstance(connections, ConnectionTable):
        sources = connections.sources or (0,) * len(connections.weights)
        yield from zip(sources, connections.destinations, connections.weights, strict=True)
        return
    g = connections
    (height, width), (down, right) = g.grid, g.places
    if g.kind == "dense":
        yield from ((i, j, i * g.filters + j) for i in range(g.n_sources) for j in range(g.filters))
    elif g.kind == "channels":
        size = height * width
        yield from ((0, c * size + p, c) for c in range(g.channels) for p in range(size))
    else:
        outs = range(g.filters) if g.kind == "convolution" else [None]
        for c, o, y, x, a, b in itertools.product(
            range(g.channels), outs, range(down), range(right), range(g.window[0]), range(g.window[1])
        ):
            row, column = y * g.stride[0] + a - g.padding[0], x * g.stride[1] + b - g.padding[1]
            if 0 <= row < height and 0 <= column < width:
                channel = c if o is None else o
                tap = (c * g.window[0] + a) * g.window[1] + b
                weight = c if o is None else tap * g.filters + o
                yield (c * height + row) * width + column, (channel * down + y) * right + x, weight


def offsets(network: NetworkSpec) -> dict[tuple[int, int], int]:
    """Map (layer, unit) to the parameter that is added to the unit's output."""
    places, first = {}, 0
    for group in network.groups():
        if group.name[0] == "t":
            layer = INPUTS if group.name == "ti" else int(group.name[2:])
            places.update({(layer, unit): first + unit for unit in range(group.size)})
        first += group.size
    return places


def groups_of(layer: LayerSpec) -> list[list[int]]:
    """Units of each sub-group, parsed from the words of the specification."""
    units = range(layer.units)
    if layer.groups is None:
        return [list(units)]
    _, operator, number = layer.groups.split()
    n = int(number)
    keys = [i % n if operator == "%" else i // n for i in units]
    return [[i for i in units if keys[i] == key] for key in dict.fromkeys(keys)]


def activated(network: NetworkSpec, layer: int, u: list[float]) -> list[float]:
    """Values of a hidden layer from its summed inputs."""
    spec = network.hidden[layer]
    if spec.activation in FUNCTIONS:
        return [FUNCTIONS[spec.activation](value) for value in u]
    values = [0.0] * len(u)
    for group in groups_of(spec):
        if spec.activation == "softmax":
            total = sum(math.exp(u[i]) for i in group)
        else:
            scale = math.sqrt(0.01 + sum(u[i] ** 2 for i in group) / len(group))
        for i in group:
            values[i] = math.exp(u[i]) / total if spec.activation == "softmax" else u[i] / scale
    return values


def factor_of(network: NetworkSpec, layer: int, unit: int) -> tuple[int, int]:
    """The unit that multiplies a unit's value: the one with the same number, or the only one."""
    earlier = network.hidden[layer].product
    assert earlier is not None
    return earlier, unit if network.hidden[earlier].units > 1 else 0


def outputs_by_loops(target: SampledPosterior, position: np.ndarray, case: np.ndarray) -> list[float]:
    """Outputs of one network at one case by Neal (2022), eqs. 1-7, connection by connection."""
    network = target.network
    added = offsets(network)
    sent = {
        (INPUTS, i): x + (position[added[INPUTS, i]] if (INPUTS, i) in added else 0)
        for i, x in enumerate(case)
    }
    links = [link for _, link in connections(network)]

    def summed(layer: int, n_units: int) -> list[float]:
        u = [0.0] * n_units
        for link in links:
            if link.destination[0] == layer:
                u[link.destination[1]] += position[link.parameter] * (
                    1 if link.source is None else sent[link.source]
                )
        return u

    for layer, spec in enumerate(network.hidden):
        for unit, value in enumerate(activated(network, layer, summed(layer, spec.units))):
            place = (layer, unit)
            if spec.product is not None:
                value *= sent[factor_of(network, layer, unit)]
            sent[place] = value + (position[added[place]] if place in added else 0)
    return summed(OUTPUTS, network.outputs)


def parameter_precisions(target: SampledPosterior, precisions: np.ndarray) -> np.ndarray:
    """Precision of each parameter of one chain, computed from all levels of its prior."""
    layout = target.precision_layout
    specs = {group.name: group for group in layout.groups}
    adjustments = {group.name: group for group in layout.adjustments}
    result = []
    for group in target.network.groups():
        spec = specs[group.name]
        for places in np.ndindex(*group.shape):
            column = spec.common if spec.units is None else spec.units.start + places[0]
            tau = float(precisions[column])
            if group.name[0] != "t" and group.name not in target.network.connections:
                layer = ends(group.name)[1]
                name = "ao" if layer == OUTPUTS else f"ah{layer}"
                if name in adjustments:
                    tau *= float(precisions[adjustments[name].columns.start + places[-1]])
            result.append(tau)
    return np.array(result)


def typical_squares(network: NetworkSpec, layer: int, u: list[float]) -> list[float]:
    """Typical squares of a hidden layer's values from those of its summed inputs."""
    rule = {
        "tanh": lambda square: min(square, 1.0),
        "sigmoid": lambda square: 1.0,
        "softmax": lambda square: 1.0,
        "softplus": lambda square: max(square, math.log(2) ** 2),
        "sin": lambda square: 1 - math.exp(-4 * square),
        "normalize": lambda square: float(len(groups_of(network.hidden[layer])[0])),
    }.get(network.hidden[layer].activation, lambda square: square)
    return [rule(value) for value in u]


def squared_slopes(network: NetworkSpec, layer: int, u: list[float]) -> list[float]:
    """The largest squared slope of each unit of a hidden layer."""
    spec = network.hidden[layer]
    slopes = [{"sigmoid": 1 / 16, "softmax": 1 / 16, "sin": 4.0}.get(spec.activation, 1.0)] * len(u)
    if spec.activation == "normalize":
        for group in groups_of(spec):
            for i in group:
                slopes[i] = 1 / (0.01 + sum(u[j] for j in group) / len(group))
    return slopes


def stepsizes_by_loops(target: SampledPosterior, precisions: np.ndarray) -> np.ndarray:
    """Stepsizes of one chain by Neal (2022), "Heuristic choice of stepsizes", connection by connection."""
    network = target.network
    tau = parameter_precisions(target, precisions)
    links = [link for _, link in connections(network)]
    added = offsets(network)
    spread, curvature = 1 / tau, tau.copy()
    first = 0
    for group in network.groups():
        alpha, part = group.prior.alphas[2], slice(first, first + group.size)
        first += group.size
        if math.isfinite(alpha):
            spread[part] *= 3 if alpha < 3 else alpha / (alpha - 2)
            curvature[part] *= (alpha + 1) / alpha

    inputs = target.inputs[:-1].T
    n_cases = len(inputs)
    square = {(INPUTS, i): float(x) for i, x in enumerate((inputs**2).mean(axis=0))}
    summed: dict[int, list[float]] = {}
    squares: dict[int, list[float]] = {}
    from_products: dict[tuple[int, int], float] = {}

    def send(place: tuple[int, int]) -> float:
        return square[place] + (spread[added[place]] if place in added else 0)

    for layer, spec in enumerate(network.hidden):
        u = [0.0] * spec.units
        for link in links:
            if link.destination[0] == layer:
                u[link.destination[1]] += spread[link.parameter] * (
                    1 if link.source is None else send(link.source)
                )
        summed[layer] = u
        squares[layer] = typical_squares(network, layer, u)
        for i, value in enumerate(squares[layer]):
            other = 1.0 if spec.product is None else send(factor_of(network, layer, i))
            square[layer, i] = value * other

    if target.model.kind == "real":
        group = next(group for group in target.precision_layout.groups if group.name == "noise")
        factor = (
            1 if math.isinf(group.prior.alphas[2]) else (group.prior.alphas[2] + 1) / group.prior.alphas[2]
        )
        columns = [
            group.common if group.units is None else group.units.start + j for j in range(network.outputs)
        ]
        seconds = {(OUTPUTS, j): factor * float(precisions[column]) for j, column in enumerate(columns)}
    else:
        seconds = {(OUTPUTS, j): 0.25 for j in range(network.outputs)}

    def of_values(layer: int, n_units: int) -> list[float]:
        values = [from_products.get((layer, i), 0.0) for i in range(n_units)]
        for link in links:
            if link.source is not None and link.source[0] == layer:
                values[link.source[1]] += seconds[link.destination] / tau[link.parameter]
        for unit in range(n_units):
            if (layer, unit) in added:
                curvature[added[layer, unit]] += n_cases * values[unit]
        return values

    for layer in reversed(range(len(network.hidden))):
        slopes = squared_slopes(network, layer, summed[layer])
        values = of_values(layer, network.hidden[layer].units)
        if network.hidden[layer].product is not None:
            for i, value in enumerate(values):
                place = factor_of(network, layer, i)
                from_products[place] = from_products.get(place, 0.0) + value * squares[layer][i]
                values[i] = value * send(place)
        seconds |= {
            (layer, i): slope * value for i, (slope, value) in enumerate(zip(slopes, values, strict=True))
        }
    of_values(INPUTS, network.inputs)
    for link in links:
        curvature[link.parameter] += (
            n_cases * seconds[link.destination] * (1 if link.source is None else send(link.source))
        )
    return curvature**-0.5
