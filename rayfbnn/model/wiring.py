"""The connections of a network: for each pair of layers, the part of the flat vector that connects them.

Every layer of sources has a row of ones after its units. The biases of a layer follow its last weight matrix
in the flat vector. Both are one matrix, and biases have no extra cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.model.architecture import NetworkSpec, Subgroups
from rayfbnn.model.connections import Configured, configured
from rayfbnn.model.layout import ParameterLayout


@dataclass(frozen=True, eq=False)
class Link:
    """Part of the flat vector that leads from one layer of sources to one layer of destinations.

    source, destination  0 is the inputs, l + 1 hidden layer l, the last number the outputs
    parameters           its part of the flat vector: weights, possibly with the biases as the last row
    rows                 rows of the source that the matrix multiplies: its units (or those not omitted), then
                         the ones if there are biases
    n_units              number of units among these rows; 0 for biases without weights
    configured           connections that are not a full matrix, otherwise None
    """

    source: int
    destination: int
    parameters: slice
    rows: slice | Array
    n_units: int
    configured: Configured | None = None

    def matrix(self, vector: Array) -> Array:
        """Return the link's part of (n_chains, n_parameters) as a view (n_chains, n_rows, n_destinations)."""
        return vector[:, self.parameters].reshape(vector.shape[0], self._n_rows, -1)

    @cached_property
    def _n_rows(self) -> int:
        return self.rows.stop - self.rows.start if isinstance(self.rows, slice) else len(self.rows)

    @property
    def units(self) -> slice | Array:
        return self.rows[: self.n_units] if not isinstance(self.rows, slice) else slice(0, self.n_units)


@dataclass(frozen=True)
class Wiring:
    """The connections of a network's layers.

    units        number of units of each layer: inputs, hidden layers, outputs
    activations  activation of each hidden layer
    subgroups    sub-groups of units for each hidden layer, used by softmax and normalize layers
    factors      for each hidden layer, the layer that multiplies its values, or None
    incoming     the links into each layer (none into the inputs)
    outgoing     the links out of each layer's units (none out of the outputs)
    offsets      the part of the flat vector added to each layer's values, or None
    added_input  number of the input that is added to every output, or None
    """

    units: tuple[int, ...]
    activations: tuple[str, ...]
    subgroups: tuple[Subgroups, ...]
    factors: tuple[int | None, ...]
    incoming: tuple[tuple[Link, ...], ...]
    outgoing: tuple[tuple[Link, ...], ...]
    offsets: tuple[slice | None, ...]
    added_input: int | None = None

    @staticmethod
    def from_network(network: NetworkSpec, xp: ModuleType = np) -> Wiring:
        slices = ParameterLayout.from_network(network).slices
        n_hidden = len(network.hidden)
        units = (network.inputs, *(layer.units for layer in network.hidden), network.outputs)
        incoming: list[tuple[Link, ...]] = [()]
        for layer in range(n_hidden):
            names = [(0, f"ih{layer}"), *((k + 1, f"h{k}h{layer}") for k in range(layer))]
            incoming.append(_links(network, slices, units, layer + 1, names, f"bh{layer}", xp))
        names = [(layer + 1, f"ho{layer}") for layer in range(n_hidden)] + [(0, "io")]
        incoming.append(_links(network, slices, units, n_hidden + 1, names, "bo", xp))
        links = [link for into in incoming for link in into if link.n_units > 0]
        return Wiring(
            units=units,
            activations=tuple(layer.activation for layer in network.hidden),
            subgroups=tuple(layer.subgroups for layer in network.hidden),
            factors=tuple(None if x.product is None else x.product + 1 for x in network.hidden),
            incoming=tuple(incoming),
            outgoing=tuple(tuple(x for x in links if x.source == layer) for layer in range(len(units))),
            offsets=(slices.get("ti"), *(slices.get(f"th{layer}") for layer in range(n_hidden))),
            added_input=network.added_input,
        )


def _links(
    network: NetworkSpec,
    slices: dict[str, slice],
    units: tuple[int, ...],
    destination: int,
    names: list[tuple[int, str]],
    bias_name: str,
    xp: ModuleType,
) -> tuple[Link, ...]:
    """Return the links into one layer, with the biases joined to the weights that they follow."""

    def link(name: str, source: int, n_units: int) -> Link:
        connections = network.connections[name]
        connection = configured(connections, units[source], units[destination], xp)
        return Link(source, destination, slices[name], slice(0, units[source] + 1), n_units, connection)

    links = []
    for source, name in names:
        if name not in slices:
            continue
        if name in network.connections:
            links.append(link(name, source, units[source]))
            continue
        n_units = units[source] - len(network.omitted.get(name, ()))
        rows: slice | Array = slice(0, n_units)
        if n_units < units[source]:
            rows = xp.asarray([i for i in range(units[source]) if i not in network.omitted[name]])
        links.append(Link(source, destination, slices[name], rows, n_units))
    bias = slices.get(bias_name)
    if bias is None:
        return tuple(links)
    if bias_name in network.connections:
        return (*links, link(bias_name, 0, 0))
    if not links or links[-1].configured is not None:
        return (*links, Link(0, destination, bias, slice(units[0], units[0] + 1), 0))
    last = links.pop()
    joined = slice(last.parameters.start, bias.stop)
    rows = slice(0, last.n_units + 1)
    if not isinstance(last.rows, slice):
        rows = xp.concatenate([last.rows, xp.asarray([units[last.source]])])
    return (*links, Link(last.source, destination, joined, rows, last.n_units))
