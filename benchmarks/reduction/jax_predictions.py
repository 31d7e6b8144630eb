"""Times JAX's predictions from draws, in the peers' environment.

    .venv-peers/bin/python benchmarks/reduction/jax_predictions.py arrays.npz

It prints processor seconds for a case. The networks are vmapped over draws. Moments are summed in a scan over
blocks of draws. Quantiles are those of the outputs plus noise of every draw, by jnp.quantile, as packages for
ensembles have them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

BLOCK = 500  # draws at once
PROBABILITIES = (0.01, 0.1, 0.5, 0.9, 0.99)


def outputs(inputs: Any, *layers: Any) -> Any:
    """Return the outputs of one network of two layers, (n_cases, n_outputs)."""
    weights, biases, out_weights, out_biases = layers
    return jnp.tanh(inputs @ weights + biases) @ out_weights + out_biases


@jax.jit
def moments(inputs: Any, networks: tuple[Any, ...]) -> Any:
    """Return sums of the outputs and of their squares over all draws."""
    blocks = tuple(part.reshape(-1, BLOCK, *part.shape[1:]) for part in networks)

    def add(sums: Any, block: tuple[Any, ...]) -> tuple[Any, None]:
        values = jax.vmap(partial(outputs, inputs))(*block)
        return sums + jnp.stack([values.sum(axis=0), jnp.square(values).sum(axis=0)]), None

    start = jnp.zeros((2, len(inputs), networks[3].shape[-1]))
    return jax.lax.scan(add, start, blocks)[0]


@jax.jit
def quantiles(inputs: Any, networks: tuple[Any, ...], noise: Any) -> Any:
    """Return quantiles of targets drawn given each draw, for some cases."""
    values = jax.vmap(partial(outputs, inputs))(*networks)
    values = values + noise[:, None, None] * jax.random.normal(jax.random.key(0), values.shape)
    return jnp.quantile(values, jnp.array(PROBABILITIES), axis=0)


def seconds(function: Callable[[], Any]) -> float:
    """Return the smallest processor time of three calls, after one that compiles."""
    jax.block_until_ready(function())
    found = []
    for _ in range(3):
        started = time.process_time()
        jax.block_until_ready(function())
        found.append(time.process_time() - started)
    return min(found)


def main() -> None:
    arrays = {name: jnp.asarray(values) for name, values in np.load(sys.argv[1]).items()}
    networks = tuple(arrays[name] for name in ("weights", "biases", "out_weights", "out_biases"))
    inputs, noise = arrays["inputs"], arrays["noise"]
    few = inputs[: max(1, len(inputs) // 10)]  # all values of a case are held
    print(
        json.dumps(
            {
                "jax": jax.__version__,
                "moments": seconds(lambda: moments(inputs, networks)) / len(inputs),
                "quantiles": seconds(lambda: quantiles(few, networks, noise)) / len(few),
                "sums": np.asarray(moments(inputs, networks))[0, :3].tolist(),
            }
        )
    )


if __name__ == "__main__":
    main()
