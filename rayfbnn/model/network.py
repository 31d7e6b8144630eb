"""Outputs of a batch of networks, and backpropagation of derivatives.

Activations have the shape (n_chains, n_units, n_cases), because for small networks that order of the axes is
up to twice as fast. Matrix products use matmul over the leading chain axis, one product for each chain. The
bits of a chain therefore do not depend on the other chains in its batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace, special_functions
from rayfbnn.errors import ConfigError
from rayfbnn.model.architecture import Subgroups
from rayfbnn.model.wiring import Link, Wiring

LOG_2 = math.log(2)
AT_ONCE = 2048  # cases


@dataclass(frozen=True)
class Activity:
    """The values computed by a forward pass.

    values   for each hidden layer, its values before any factor and offset, (n_chains, n_units, n_cases)
    kept     for each hidden layer, further values for its derivatives: the slopes of sin units, the scales of
             normalization layers, otherwise None
    sources  for the inputs and each hidden layer, values with offsets, then the row of ones. The inputs may
             lack the chain axis if all chains have the same inputs
    outputs  (n_chains, n_outputs, n_cases)
    """

    values: list[Array]
    kept: list[Array | None]
    sources: list[Array]
    outputs: Array


class Buffers:
    """Arrays that one thread reuses from call to call.

    If arrays larger than about 100 kB are allocated at every call, the operating system allocates and frees
    their pages each time. For 2-16-2 with 200 cases and 16 chains this took 30 us per chain in float32 and
    57 us in float64. With reused arrays it takes 7 us and 14 us.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, tuple[int, ...]], Array] = {}

    def empty(self, name: str, shape: tuple[int, ...], *, like: Array) -> Array:
        """Return an array of this name and shape in the dtype of `like`; its values are arbitrary."""
        array = self._arrays.get((name, shape))
        if array is None or array.dtype != like.dtype:
            array = array_namespace(like).empty(shape, dtype=like.dtype)
            self._arrays[name, shape] = array
        return array


def input_rows(inputs: Array, dtype: str) -> Array:
    """Return inputs (n_cases, n_inputs) as sources (n_inputs + 1, n_cases), the last row ones."""
    xp = array_namespace(inputs)
    return xp.concatenate([inputs.T, xp.ones((1, inputs.shape[0]))]).astype(dtype, order="C")


def forward(position: Array, inputs: Array, wiring: Wiring, *, buffers: Buffers) -> Activity:
    """Return the values of all units of networks with parameters `position`; Neal (2022) eqs. 1-3.

    position  (n_chains, n_parameters)
    inputs    from `input_rows`: (n_inputs + 1, n_cases), or with a leading chain axis
    buffers   arrays for the results; the next pass with the same buffers overwrites them
    """
    n_chains, n_cases = position.shape[0], inputs.shape[-1]
    sources = [_with_offset(inputs, position, wiring.offsets[0])]
    values: list[Array] = []
    kept = []
    for layer in range(1, len(wiring.units) - 1):
        n_units = wiring.units[layer]
        rows = buffers.empty(f"rows{layer}", (n_chains, n_units + 1, n_cases), like=position)
        rows[:, n_units] = 1
        values.append(rows[:, :n_units])
        summed_inputs(position, sources, wiring.incoming[layer], out=values[-1])
        kept.append(_activate_layer(values[-1], wiring, layer, buffers=buffers))
        factor = wiring.factors[layer - 1]
        if factor is not None:
            copy = buffers.empty(f"own{layer}", values[-1].shape, like=position)
            copy[...] = values[-1]
            values[-1] *= sources[factor][:, :-1]
            values[-1] = copy
        sources.append(_with_offset(rows, position, wiring.offsets[layer]))
    outputs = buffers.empty("outputs", (n_chains, wiring.units[-1], n_cases), like=position)
    summed_inputs(position, sources, wiring.incoming[-1], out=outputs)
    if wiring.added_input is not None:
        outputs += inputs[..., wiring.added_input, None, :]
    return Activity(values, kept, sources, outputs)


def outputs_alone(position: Array, inputs: Array, wiring: Wiring, *, buffers: Buffers) -> Array:
    """Return the outputs of `forward`, (n_chains, n_outputs, n_cases), in a new array.

    The CPU processes AT_ONCE cases at a time, to keep their values in the caches. For 10-100-1 with 50,000
    cases and 8 chains this halves the time and needs a twentieth of the memory.
    """
    xp = array_namespace(position)
    n_cases = inputs.shape[-1]
    step = AT_ONCE if xp is np else n_cases
    outputs = xp.empty((position.shape[0], wiring.units[-1], n_cases), dtype=position.dtype)
    for first in range(0, n_cases, step):
        some = slice(first, first + step)
        outputs[..., some] = forward(position, inputs[..., some], wiring, buffers=buffers).outputs
    return outputs


def _activate_layer(u: Array, wiring: Wiring, layer: int, *, buffers: Buffers) -> Array | None:
    """Turn one layer's summed inputs into its values, in place; return its entry of Activity.kept."""
    activation, groups = wiring.activations[layer - 1], wiring.subgroups[layer - 1]
    if activation == "sin":
        return activate_sin(u)
    if activation == "normalize":
        return activate_normalize(u, groups)
    if activation == "softmax":
        activate_softmax(u, groups)
    else:
        activate(u, activation, buffers=buffers)
    return None


def _with_offset(rows: Array, position: Array, offset: slice | None) -> Array:
    """Return the rows with offsets added to the units, in a new array, or the rows without offsets."""
    if offset is None:
        return rows
    xp = array_namespace(position)
    shifted = xp.broadcast_to(rows, (position.shape[0], *rows.shape[-2:])).copy()
    shifted[:, :-1] += position[:, offset, None]
    return shifted


def summed_inputs(position: Array, sources: list[Array], links: tuple[Link, ...], *, out: Array) -> None:
    """Write u = sum over links of matrix' @ source to out (n_chains, n_units, n_cases)."""
    xp = array_namespace(position)
    if not links:
        out[...] = 0
    for number, link in enumerate(links):
        if link.configured is not None:
            summed = link.configured.forward(position[:, link.parameters], sources[link.source])
            out[...] = summed if number == 0 else out + summed
            continue
        matrix = link.matrix(position).swapaxes(1, 2)
        source = sources[link.source][..., link.rows, :]
        if number == 0:
            xp.matmul(matrix, source, out=out)
        else:
            out += xp.matmul(matrix, source)


def activate(u: Array, activation: str, *, buffers: Buffers) -> None:
    """Set v = a(u), in place."""
    xp = array_namespace(u)
    if activation == "tanh":
        xp.tanh(u, out=u)  # measured: no slower than a formula with exp, on AVX2 and on AVX-512
    elif activation in ("softplus", "softplus0"):
        # max(u, 0) + log(1 + exp(-|u|)): nine times as fast as logaddexp
        tail = buffers.empty("scratch", u.shape, like=u)
        xp.abs(u, out=tail)
        xp.negative(tail, out=tail)
        xp.exp(tail, out=tail)
        xp.log1p(tail, out=tail)
        xp.maximum(u, 0, out=u)
        u += tail
        if activation == "softplus0":
            u -= LOG_2
    elif activation == "sigmoid":
        u *= 0.5
        xp.tanh(u, out=u)  # 1 / (1 + exp(-u)) without overflow
        u *= 0.5
        u += 0.5
    elif activation == "relu":
        xp.maximum(u, 0, out=u)
    elif activation == "step":
        xp.sign(u, out=u)
    elif activation == "erf":
        special_functions(u).erf(u, out=u)
    elif activation != "identity":
        raise AssertionError(f"no activation named {activation}")


def multiply_by_slope(derivative: Array, v: Array, activation: str, *, buffers: Buffers) -> None:
    """Set derivative *= a'(u) given v = a(u), in place; Neal (2022) eq. 42 and below eq. 45."""
    if activation == "identity":
        return
    xp = array_namespace(v)
    slope = buffers.empty("scratch", v.shape, like=v)
    if activation == "tanh":
        xp.multiply(v, v, out=slope)
        xp.subtract(1, slope, out=slope)
    elif activation == "sigmoid":
        xp.subtract(1, v, out=slope)
        slope *= v
    elif activation == "relu":
        xp.greater(v, 0, out=slope)
    elif activation in ("softplus", "softplus0"):
        xp.subtract(0 if activation == "softplus" else -LOG_2, v, out=slope)
        xp.expm1(slope, out=slope)
        xp.negative(slope, out=slope)
    else:
        raise ConfigError(f"network.hidden: {activation} units have no gradient; use them only for the prior")
    derivative *= slope


def backward(
    position: Array,
    activity: Activity,
    output_gradient: Array,
    wiring: Wiring,
    *,
    buffers: Buffers,
    value_gradients: Mapping[int, Array] | None = None,
) -> Array:
    """Return the gradient by all parameters, (n_chains, n_parameters), Neal (2022) eqs. 41-43, 50-57.

    output_gradient  (n_chains, n_outputs, n_cases): derivatives with respect to the outputs, in the dtype of
                     position
    value_gradients  hidden layer -> derivatives (n_chains, n_units, n_cases) with respect to its values after
                     factor and offset, if the function depends on these not only through the outputs
    """
    xp = array_namespace(position)
    gradient = xp.empty_like(position)
    summed = {len(wiring.units) - 1: output_gradient}  # layer -> derivatives w.r.t. its summed inputs
    # layer -> derivatives w.r.t. its units as factors, or from value_gradients
    from_products = {layer: [values] for layer, values in (value_gradients or {}).items()}
    for layer in range(len(wiring.units) - 1, -1, -1):
        if layer < len(wiring.units) - 1 and layer > 0:
            values = activity.values[layer - 1]
            derivative = buffers.empty(f"derivative{layer}", values.shape, like=values)
            _value_gradient(position, summed, wiring, layer, out=derivative)
            for part in from_products.get(layer, ()):
                derivative += part
            offset = wiring.offsets[layer]
            if offset is not None:
                gradient[:, offset] = derivative.sum(axis=2)
            factor = wiring.factors[layer - 1]
            if factor is not None:
                part = derivative * values
                is_shared = wiring.units[factor] == 1
                part = part.sum(axis=1, keepdims=True) if is_shared else part
                from_products.setdefault(factor, []).append(part)
                derivative *= activity.sources[factor][:, :-1]
            _layer_backward(derivative, activity, wiring, layer, buffers=buffers)
            summed[layer] = derivative
        for link in wiring.incoming[layer]:
            if link.configured is not None:
                gradient[:, link.parameters] = link.configured.weight_gradient(
                    activity.sources[link.source], summed[layer]
                )
                continue
            source = activity.sources[link.source][..., link.rows, :]
            xp.matmul(source, summed[layer].swapaxes(1, 2), out=link.matrix(gradient))
    if wiring.offsets[0] is not None:
        gradient[:, wiring.offsets[0]] = _input_offset_gradient(position, summed, wiring)
    return gradient


def _layer_backward(
    derivative: Array, activity: Activity, wiring: Wiring, layer: int, *, buffers: Buffers
) -> None:
    """Turn derivatives by a layer's values into derivatives by its summed inputs, in place."""
    activation, groups = wiring.activations[layer - 1], wiring.subgroups[layer - 1]
    values, kept = activity.values[layer - 1], activity.kept[layer - 1]
    if activation == "sin":
        derivative *= kept
    elif activation == "normalize":
        normalize_backward(derivative, values, kept, groups)
    elif activation == "softmax":
        softmax_backward(derivative, values, groups)
    else:
        multiply_by_slope(derivative, values, activation, buffers=buffers)


def _value_gradient(
    position: Array, summed: dict[int, Array], wiring: Wiring, layer: int, *, out: Array
) -> None:
    """Write derivatives with respect to a layer's values to out, Neal (2022) eq. 41."""
    xp = array_namespace(position)
    if not wiring.outgoing[layer]:
        out[...] = 0
    for number, link in enumerate(wiring.outgoing[layer]):
        if link.configured is not None:
            weights = position[:, link.parameters]
            part = link.configured.source_gradient(weights, summed[link.destination])
            out[...] = part if number == 0 else out + part
            continue
        weights = link.matrix(position)[:, : wiring.units[layer]]
        # With one destination this is an outer product, and BLAS is four times slower than multiply.
        product = xp.multiply if weights.shape[2] == 1 else xp.matmul
        if number == 0:
            product(weights, summed[link.destination], out=out)
        else:
            out += product(weights, summed[link.destination])


def _input_offset_gradient(position: Array, summed: dict[int, Array], wiring: Wiring) -> Array:
    """Return derivatives with respect to the input offsets, (n_chains, n_inputs), Neal (2022) eqs. 43, 53.

    The sum over cases comes first, because all cases share the weights.
    """
    xp = array_namespace(position)
    total = xp.zeros((position.shape[0], wiring.units[0], 1), dtype=position.dtype)
    for link in wiring.outgoing[0]:
        over_cases = summed[link.destination].sum(axis=2, keepdims=True)
        if link.configured is not None:
            total += link.configured.source_gradient(position[:, link.parameters], over_cases)
        else:
            weights = link.matrix(position)[:, : link.n_units]
            total[:, link.units] += xp.matmul(weights, over_cases)
    return total[:, :, 0]


_ROOT_2 = math.sqrt(2)
_FLOOR = 0.01  # added to a normalization layer's mean square to keep the slope finite if all inputs are zero


def activate_sin(u: Array) -> Array:
    """Set v = sqrt(2) sin(sqrt(2) u) in place, and return the slope 2 cos(sqrt(2) u).

    The square roots follow FBM. With them, a wide layer of such units is a Gaussian process with covariance
    exp(-distance**2).
    """
    xp = array_namespace(u)
    u *= _ROOT_2
    slope = xp.cos(u)
    slope *= 2
    xp.sin(u, out=u)
    u *= _ROOT_2
    return slope


def activate_softmax(u: Array, groups: Subgroups) -> None:
    """Set v_i = exp(u_i) / sum_j exp(u_j) over each sub-group, in place; Neal (2022) eq. 4."""
    xp = array_namespace(u)
    u, axis = _in_groups(u, groups)
    u -= u.max(axis=axis, keepdims=True)
    xp.exp(u, out=u)
    u /= u.sum(axis=axis, keepdims=True)


def activate_normalize(u: Array, groups: Subgroups) -> Array:
    """Set v_i = u_i / s, s**2 = 0.01 + mean of u_j**2 over the sub-group, in place; Neal (2022) eqs. 5, 6.

    Returns s, (n_chains, n_rows or 1, width or 1, n_cases).
    """
    xp = array_namespace(u)
    u, axis = _in_groups(u, groups)
    scale = (u * u).sum(axis=axis, keepdims=True)
    scale /= groups.size
    scale += _FLOOR
    xp.sqrt(scale, out=scale)
    u /= scale
    return scale


def softmax_backward(derivative: Array, v: Array, groups: Subgroups) -> None:
    """Turn the derivative by v into the derivative by u, in place; Neal (2022) eqs. 46, 47.

    v_i (d_i - t),   t = sum_j d_j v_j

    Eq. 47 as printed has index j for the second i.
    """
    derivative, axis = _in_groups(derivative, groups)
    v, _ = _in_groups(v, groups)
    derivative -= (derivative * v).sum(axis=axis, keepdims=True)
    derivative *= v


def normalize_backward(derivative: Array, v: Array, scale: Array, groups: Subgroups) -> None:
    """Turn the derivative by v into the derivative by u, in place; Neal (2022) eqs. 48, 49.

    (d_i - v_i t)/s,   t = mean of d_j v_j

    Eq. 49 as printed has indices j and k for i.
    """
    derivative, axis = _in_groups(derivative, groups)
    v, _ = _in_groups(v, groups)
    derivative -= v * ((derivative * v).sum(axis=axis, keepdims=True) / groups.size)
    derivative /= scale


def largest_squared_slopes(summed: Array, activation: str, groups: Subgroups) -> Array | float:
    """Return the largest a'(u)**2 of each unit, Neal (2022) eq. 63.

    summed  typical squares of summed inputs, (n_chains, n_units)
    """
    if activation in ("sigmoid", "softmax"):
        return 1 / 16
    if activation == "sin":
        return 4.0
    if activation == "normalize":
        grouped, axis = _in_groups(summed[:, :, None], groups)
        xp = array_namespace(summed)
        squares = 1 / (_FLOOR + grouped.sum(axis=axis, keepdims=True) / groups.size)
        return xp.broadcast_to(squares, grouped.shape).reshape(summed.shape)
    return 1.0


def _in_groups(values: Array, groups: Subgroups) -> tuple[Array, int]:
    """Return values (n_chains, n_units, n_cases) as a 4-dimensional view, and the axis within a group."""
    n_chains, _, n_cases = values.shape
    return values.reshape(n_chains, groups.n_rows, groups.width, n_cases), 2 if groups.by_row else 1


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
