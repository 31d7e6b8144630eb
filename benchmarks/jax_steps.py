"""Times JAX's leapfrog steps in the peers' environment; steps.py sends requests to its standard input.

A whole trajectory is one lax.scan, jitted and vmapped over chains, with activities (units, cases). Of the
layouts tried (inputs @ weights, weights @ inputs, einsum over chains) this was the fastest on a CPU.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def main() -> None:
    """Answer each request, a line of standard input, with one line."""
    problem: dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "load":
            problem = load(request)
            answer: dict[str, Any] = {"jax": jax.__version__, "device": str(jax.devices()[0])}
        elif request["do"] == "end":
            answer = {"position": trajectory_end(problem, request["chains"], request["steps"])}
        else:
            answer = {"seconds": timed(problem, request["chains"], request["steps"])}
        print(json.dumps(answer), flush=True)


def load(request: dict[str, Any]) -> dict[str, Any]:
    """Put the arrays of one problem on the device, and compile its trajectory as a function of them."""
    arrays = {name: jnp.asarray(value) for name, value in np.load(request["path"]).items()}
    layers = [(start, tuple(shape), bias) for start, shape, bias in request["layers"]]
    energy = partial(potential, layers=layers, arrays=arrays)
    run = jax.vmap(partial(trajectory, energy=energy), in_axes=(0, 0, 0, None))
    return {"arrays": arrays, "run": jax.jit(run, static_argnums=3)}


def potential(flat: Any, *, layers: list[Any], arrays: dict[str, Any]) -> Any:
    """Potential energy of one network: Gaussian noise and Gaussian priors of given precisions."""
    hidden = arrays["inputs"]  # (n_inputs, n_cases)
    for number, (start, (n_in, n_out), bias) in enumerate(layers):
        weights = flat[start : start + n_in * n_out].reshape(n_in, n_out)
        hidden = weights.T @ hidden + flat[bias : bias + n_out, None]
        if number < len(layers) - 1:
            hidden = jnp.tanh(hidden)
    residuals = arrays["targets"] - hidden
    return 0.5 * arrays["noise"] * jnp.sum(residuals**2) + 0.5 * jnp.sum(arrays["prior"] * flat**2)


def trajectory(position: Any, momentum: Any, stepsizes: Any, n_steps: int, *, energy: Any) -> Any:
    """n_steps leapfrog steps, n_steps + 1 gradients; the half kicks between steps are merged."""
    gradient = jax.grad(energy)

    def step(carry: Any, _: None) -> tuple[Any, None]:
        position, momentum, slope = carry
        momentum = momentum - stepsizes * slope
        position = position + stepsizes * momentum
        return (position, momentum, gradient(position)), None

    # The momentum runs half a step ahead: each kick inside is whole, and half of it is undone at both ends.
    slope = gradient(position)
    carry = (position, momentum + 0.5 * stepsizes * slope, slope)
    (position, momentum, slope), _ = jax.lax.scan(step, carry, None, length=n_steps)
    return position, momentum - 0.5 * stepsizes * slope, energy(position)


def timed(problem: dict[str, Any], chains: int, n_steps: int) -> float:
    """Seconds of a trajectory, after one run that compiles if this length is new."""
    arguments = [problem["arrays"][name][:chains] for name in ("position", "momentum", "stepsizes")]
    compiled = problem.setdefault((chains, n_steps), False)
    if not compiled:
        jax.block_until_ready(problem["run"](*arguments, n_steps))
        problem[chains, n_steps] = True
    started = time.perf_counter()
    jax.block_until_ready(problem["run"](*arguments, n_steps))
    return time.perf_counter() - started


def trajectory_end(problem: dict[str, Any], chains: int, n_steps: int) -> list[float]:
    """Final position of the first chain, for comparison."""
    arguments = [problem["arrays"][name][:chains] for name in ("position", "momentum", "stepsizes")]
    position, _, _ = problem["run"](*arguments, n_steps)
    return [float(value) for value in position[0]]


if __name__ == "__main__":
    main()
