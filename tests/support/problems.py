"""Small networks and data for the tests of the model."""

from __future__ import annotations

from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.kernels import choose
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.posterior import Posterior
from rayfbnn.model.prior import noise_precisions
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.selftest.pivots import seed_of
from rayfbnn.streams import Purpose, Streams

# A network of two hidden layers with every group it can have; every combination of levels occurs among them.
PRIORS = {
    "ti": "0.4::5",
    "ih0": "0.7:3:4",
    "bh0": "0.7:3",
    "th0": "0.3:4:5",
    "ih1": "0.5::4",
    "h0h1": "x0.8:4::6",
    "bh1": "0.6::6",
    "th1": "0.3",
    "ho0": "x1:5:4:6",
    "ho1": "x1.2:4",
    "io": "0.5:::4",
    "bo": "1",
}
MODELS = {
    "gaussian": ModelSpec("real", PriorSpec.parse("0.3:4", key="noise")),
    "gaussian by target": ModelSpec("real", PriorSpec.parse("0.3:4:5", key="noise")),
    "t": ModelSpec("real", PriorSpec.parse("0.3:4::5", key="noise")),
    "t by target": ModelSpec("real", PriorSpec.parse("0.3:4:5:6", key="noise")),
    "binary": ModelSpec("binary"),
    "class": ModelSpec("class", classes=3),
}


def parse(priors: dict[str, str]) -> dict[str, PriorSpec]:
    return {
        name: PriorSpec.parse(text, key=name, two_levels=name[0] == "b" or name[0] == "t")
        for name, text in priors.items()
    }


def network(
    priors: dict[str, str] = PRIORS,
    *,
    inputs: int = 3,
    outputs: int = 2,
    units: tuple[int, ...] = (4, 3),
    activations: tuple[Any, ...] = ("tanh", "tanh"),
) -> NetworkSpec:
    layers = tuple(LayerSpec(n, a) for n, a in zip(units, activations, strict=True))
    return NetworkSpec(inputs, outputs, layers, parse(priors))


def streams(name: str, n_chains: int, *, iteration: int = 0) -> Streams:
    """Random numbers of a test, as a function of its name."""
    return chain_streams(seed_of(name), n_chains, iteration=iteration)


def log_density(target: SampledPosterior, outputs: Any, targets: Any, precisions: Any) -> Any:
    """Return the log density of each case's targets given its outputs, (n_chains, n_cases)."""
    noise = noise_precisions(precisions, target.precision_layout)
    return target.data_model.log_density(outputs, targets, noise)


def problem(
    model: str = "gaussian",
    *,
    spec: NetworkSpec | None = None,
    n_cases: int = 7,
    dtype: Any = "float64",
    posterior: Any = SampledPosterior,
) -> SampledPosterior:
    """A posterior on made-up data, of the given class, which is the package's or a mutant's."""
    spec = network(outputs=3 if model == "class" else 2) if spec is None else spec
    random = streams(f"data {model}", 1)
    inputs = random.normal(Purpose.PROPOSAL, (n_cases, spec.inputs))[0]
    n_targets = 1 if model == "class" else spec.outputs
    values = random.normal(Purpose.TARGET_VALUE, (n_cases, n_targets))[0]
    if model == "binary":
        values = (values > 0).astype(float)
    if model == "class":
        values = np.floor(random.uniform(Purpose.TARGET_VALUE, (n_cases, 1))[0] * 3)
    posterior_on_data: SampledPosterior = posterior.from_spec(
        spec, MODELS[model], inputs, values, dtype=dtype
    )
    return posterior_on_data


def chain_streams(seed: int, n_chains: int, *, iteration: int = 0) -> Streams:
    """Return the streams of chains 0 to n_chains - 1 on the host: compiled or not, the same bits."""
    return streams_on_array(seed, np.arange(n_chains, dtype=np.uint64), iteration=iteration)


def streams_on_array(seed: int, chains: Array, *, iteration: int = 0) -> Streams:
    """Return the streams of the chains in an array, in array code if that is not one of NumPy's."""
    streams = choose.streams_class("cpu") if isinstance(chains, np.ndarray) else Streams
    return streams(seed, chains, iteration)


def covariates_of(target: Posterior) -> Array:
    """Return inputs (n_cases, n_inputs) float64, without those that the data model adds."""
    if target.covariates is not None:
        return target.covariates
    return np.ascontiguousarray(target.inputs[:-1].T, dtype=np.float64)
