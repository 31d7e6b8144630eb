"""Networks of given shapes with generated cases, such as "2-16-2/200", for timing."""

from __future__ import annotations

import numpy as np

from rayfbnn.arrays import device_namespace
from rayfbnn.errors import ConfigError
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.streams import Purpose, Streams
from rayfbnn.timing.results import Dtype

# Neal's first network, the robot arm, a wide layer, two layers, and a network dominated by matrix products.
STANDARD_SHAPES = ("1-8-1/100", "2-16-2/200", "10-100-1/1000", "13-50-50-1/506", "784-100-10/10000")


def generated_posterior(shape: str, *, dtype: Dtype = "float32", device: str = "cpu") -> SampledPosterior:
    """Return the posterior of a network of tanh units with real targets.

    Inputs and targets are standard normal numbers, which depend on the shape alone.
    """
    layers, n_cases = parsed_shape(shape)
    n_inputs, *hidden, n_outputs = layers
    names = ["ih0", *(f"h{layer - 1}h{layer}" for layer in range(1, len(hidden)))]
    names += [f"bh{layer}" for layer in range(len(hidden))] + [f"ho{len(hidden) - 1}", "bo"]
    network = NetworkSpec(
        inputs=n_inputs,
        outputs=n_outputs,
        hidden=tuple(LayerSpec(units, "tanh") for units in hidden),
        priors={name: PriorSpec(1.0) for name in names},
    )
    streams = Streams(seed=1, chains=np.zeros(1, dtype=np.uint64))
    inputs = streams.normal(Purpose.PROPOSAL, (n_cases, n_inputs))[0]
    targets = streams.normal(Purpose.TARGET_VALUE, (n_cases, n_outputs))[0]
    model = ModelSpec("real", PriorSpec(0.3))
    return SampledPosterior.from_spec(
        network, model, inputs, targets, dtype=dtype, xp=device_namespace(device)
    )


def parsed_shape(shape: str) -> tuple[list[int], int]:
    """Return the units of each layer, including inputs and outputs, and the number of cases."""
    try:
        units, _, cases = shape.partition("/")
        layers, n_cases = [int(part) for part in units.split("-")], int(cases)
    except ValueError:
        layers, n_cases = [], 0
    if len(layers) < 3 or min(layers) < 1 or n_cases < 1:
        raise ConfigError(
            "shape: must be inputs-hidden-...-outputs/cases, each at least 1, such as 2-16-2/200,"
            f" got {shape}"
        )
    return layers, n_cases


def shape_of(posterior: SampledPosterior) -> str:
    """Return the shape of a posterior's network, such as "2-16-2/200"."""
    network = posterior.network
    layers = [network.inputs, *(layer.units for layer in network.hidden), network.outputs]
    return f"{'-'.join(map(str, layers))}/{posterior.n_cases}"
