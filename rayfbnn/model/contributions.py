"""The contributions of each hidden layer, the inputs and the biases to a network's outputs."""

from __future__ import annotations

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.network import Activity
from rayfbnn.model.wiring import Link, Wiring


def output_contributions(position: Array, activity: Activity, wiring: Wiring) -> dict[str, Array]:
    """Return the terms that add up to the outputs, (n_chains, n_outputs, n_cases) each; Neal (2022) eq. 3.

    The terms are h<l> for each hidden layer with weights ho<l>, inputs for weights io, and bias for biases
    bo, if the network has them, and exposure for an input that is added to the outputs. The term of a layer
    includes the offsets of its units.

    position  (n_chains, n_parameters)
    activity  from `network.forward` at this position
    """
    contributions: dict[str, Array] = {}
    if wiring.added_input is not None:
        added = activity.sources[0][..., wiring.added_input, None, :]
        contributions["exposure"] = array_namespace(position).broadcast_to(added, activity.outputs.shape)
    for link in wiring.incoming[-1]:
        name = "inputs" if link.source == 0 else f"h{link.source - 1}"
        of_weights, of_biases = _terms(position, activity.sources[link.source], link)
        if of_weights is not None:
            contributions[name] = of_weights
        if of_biases is not None:
            contributions["bias"] = array_namespace(position).broadcast_to(of_biases, activity.outputs.shape)
    return contributions


def _terms(position: Array, source: Array, link: Link) -> tuple[Array | None, Array | None]:
    """Return the terms that a link's weights and biases add to the outputs; None for a kind it lacks."""
    if link.configured is not None:
        added = link.configured.forward(position[:, link.parameters], source)
        return (added, None) if link.n_units else (None, added)
    matrix = link.matrix(position).swapaxes(1, 2)  # (n_chains, n_outputs, n_rows), the biases last
    weights, biases = matrix[..., : link.n_units], matrix[..., link.n_units :]
    xp = array_namespace(position)
    of_weights = xp.matmul(weights, source[..., link.units, :]) if link.n_units else None
    return of_weights, biases if biases.shape[-1] else None
