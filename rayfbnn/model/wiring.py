"""Which parts of the flat vector connect which layers of a network.

Every layer of sources carries a row of ones behind its units. The biases of a layer follow its last weight
matrix in the flat vector, so the two are one matrix, and biases cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from rayfbnn.architecture import NetworkSpec, Subgroups
from rayfbnn.arrays import Array
from rayfbnn.model.layout import ParameterLayout


@dataclass(frozen=True)
class Link:
    """A matrix of the flat vector that leads from one layer of sources to one layer of destinations.

    source, destination  0 is the inputs, l + 1 hidden layer l, the last the outputs
    parameters           the matrix's part of the flat vector: weights, with the biases as last row or not
    rows                 rows of the source (its units, then the ones) that the matrix multiplies
    """

    source: int
    destination: int
    parameters: slice
    rows: slice

    def matrix(self, vector: Array) -> Array:
        """The link's part of (n_chains, n_parameters) as a view (n_chains, n_rows, n_destinations)."""
        return vector[:, self.parameters].reshape(vector.shape[0], self.rows.stop - self.rows.start, -1)


@dataclass(frozen=True)
class Wiring:
    """How a network's layers are connected.

    units        of each layer: inputs, hidden layers, outputs
    activations  of each hidden layer
    subgroups    of each hidden layer's units, which softmax and normalize layers treat apart
    factors      the layer whose units multiply each hidden layer's values, or None
    incoming     the links into each layer (none into the inputs)
    outgoing     the links out of each layer (none out of the outputs)
    offsets      the part of the flat vector added to each layer's values, or None
    """

    units: tuple[int, ...]
    activations: tuple[str, ...]
    subgroups: tuple[Subgroups, ...]
    factors: tuple[int | None, ...]
    incoming: tuple[tuple[Link, ...], ...]
    outgoing: tuple[tuple[Link, ...], ...]
    offsets: tuple[slice | None, ...]

    @staticmethod
    def of(network: NetworkSpec) -> Wiring:
        slices = ParameterLayout.of(network).slices
        n_hidden = len(network.hidden)
        units = (network.inputs, *(layer.units for layer in network.hidden), network.outputs)
        incoming: list[tuple[Link, ...]] = [()]
        for layer in range(n_hidden):
            names = [(0, f"ih{layer}"), *((k + 1, f"h{k}h{layer}") for k in range(layer))]
            incoming.append(_links(slices, units, layer + 1, names, f"bh{layer}"))
        names = [(layer + 1, f"ho{layer}") for layer in range(n_hidden)] + [(0, "io")]
        incoming.append(_links(slices, units, n_hidden + 1, names, "bo"))
        links = [link for into in incoming for link in into]
        return Wiring(
            units=units,
            activations=tuple(layer.activation for layer in network.hidden),
            subgroups=tuple(layer.subgroups for layer in network.hidden),
            factors=tuple(None if x.product is None else x.product + 1 for x in network.hidden),
            incoming=tuple(incoming),
            outgoing=tuple(tuple(x for x in links if x.source == layer) for layer in range(len(units))),
            offsets=(slices.get("ti"), *(slices.get(f"th{layer}") for layer in range(n_hidden))),
        )


def _links(
    slices: dict[str, slice],
    units: tuple[int, ...],
    destination: int,
    names: list[tuple[int, str]],
    bias_name: str,
) -> tuple[Link, ...]:
    """The links into one layer, the biases joined to the weights they lie behind."""
    links = [
        Link(source, destination, slices[name], slice(0, units[source]))
        for source, name in names
        if name in slices
    ]
    bias = slices.get(bias_name)
    if bias is None:
        return tuple(links)
    if not links:
        return (Link(0, destination, bias, slice(units[0], units[0] + 1)),)
    last = links.pop()
    joined = slice(last.parameters.start, bias.stop)
    return (*links, Link(last.source, destination, joined, slice(0, last.rows.stop + 1)))
