"""Times JAX's steps of sghmc and bbb in the peers' environment.

batches.py sends requests to its standard input. Each is for a number of steps, in one jitted function that is
vmapped over chains. A pass over the cases is a lax.scan over the batches of a random permutation.
"""

from __future__ import annotations

import json
import math
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
            problem = {name: jnp.asarray(value) for name, value in np.load(request["path"]).items()}
            problem["layers"] = [(start, tuple(shape), bias) for start, shape, bias in request["layers"]]
            problem["compiled"] = {}
            answer: dict[str, Any] = {"jax": jax.__version__}
        else:
            answer = {"seconds": timed(problem, request)}
        print(json.dumps(answer), flush=True)


def timed(problem: dict[str, Any], request: dict[str, Any]) -> float:
    """Seconds of the steps, after one run that compiles if this length is new."""
    method, chains, batch, steps = (request[key] for key in ("method", "chains", "batch", "steps"))
    key = (method, chains, batch, steps)
    keys = jax.random.split(jax.random.key(1), chains)
    if method == "sghmc":
        arguments = [problem[name][:chains] for name in ("position", "momentum", "stepsizes")]
        steps_of = friction
    else:
        mean = problem["position"][:chains]
        arguments = [mean, jnp.full_like(mean, -3.9)]
        steps_of = backprop
    if key not in problem["compiled"]:
        run = partial(steps_of, problem=problem, batch=batch, steps=steps)
        problem["compiled"][key] = jax.jit(jax.vmap(run))
        jax.block_until_ready(problem["compiled"][key](keys, *arguments))
    started = time.process_time()
    jax.block_until_ready(problem["compiled"][key](keys, *arguments))
    return time.process_time() - started


def potential(flat: Any, inputs: Any, targets: Any, weight: float, problem: dict[str, Any]) -> Any:
    """Potential energy of one network on a batch; inputs (n, n_inputs)."""
    hidden = inputs
    layers = problem["layers"]
    for number, (start, (n_in, n_out), bias) in enumerate(layers):
        weights = flat[start : start + n_in * n_out].reshape(n_in, n_out)
        hidden = hidden @ weights + flat[bias : bias + n_out]
        if number < len(layers) - 1:
            hidden = jnp.tanh(hidden)
    residuals = targets - hidden
    return 0.5 * weight * problem["noise"] * jnp.sum(residuals**2) + 0.5 * jnp.sum(problem["prior"] * flat**2)


def over_batches(step: Any, state: Any, key: Any, problem: dict[str, Any], batch: int, steps: int) -> Any:
    """Take the steps: step(state, key, inputs, targets), on the batches of one permutation after another."""
    n_cases = len(problem["inputs"])
    n_batches = n_cases // batch

    def one(state: Any, given: Any) -> tuple[Any, None]:
        key, cases = given
        if n_batches == 1:
            return step(state, key, problem["inputs"], problem["targets"]), None
        return step(state, key, problem["inputs"][cases], problem["targets"][cases]), None

    def one_pass(state: Any, key: Any) -> tuple[Any, None]:
        of_order, of_steps = jax.random.split(key)
        order = jnp.arange(n_cases) if n_batches == 1 else jax.random.permutation(of_order, n_cases)
        cases = order[: n_batches * batch].reshape(n_batches, batch)
        return jax.lax.scan(one, state, (jax.random.split(of_steps, n_batches), cases))[0], None

    assert steps % n_batches == 0, "steps must be whole passes"
    return jax.lax.scan(one_pass, state, jax.random.split(key, steps // n_batches))[0]


def friction(key: Any, q: Any, p: Any, s: Any, *, problem: dict[str, Any], batch: int, steps: int) -> Any:
    """The splitting of mcmc/sghmc.py with friction 1 and stepsize factor 0.1."""
    eps = 0.1
    c = math.exp(-eps)
    weight = len(problem["inputs"]) / batch

    def step(state: Any, key: Any, inputs: Any, targets: Any) -> Any:
        q, p = state
        q = q + eps / 2 * s * p
        p = c * p + math.sqrt(1 - c**2) * jax.random.normal(key, p.shape, p.dtype)
        q = q + eps / 2 * s * p
        return q, p - eps * s * jax.grad(potential)(q, inputs, targets, weight, problem)

    return over_batches(step, (q, p), key, problem, batch, steps)


def backprop(key: Any, mean: Any, rho: Any, *, problem: dict[str, Any], batch: int, steps: int) -> Any:
    """Bayes by Backprop with Adam and two draws a step, mirror images of each other."""
    weight = len(problem["inputs"]) / batch

    def loss(values: Any, key: Any, inputs: Any, targets: Any) -> Any:
        mean, rho = values
        sigma = jax.nn.softplus(rho)
        e = jax.random.normal(key, mean.shape, mean.dtype)
        both = jnp.stack([mean + sigma * e, mean - sigma * e])
        energies = jax.vmap(lambda flat: potential(flat, inputs, targets, weight, problem))(both)
        return energies.mean() - jnp.log(sigma).sum()

    def step(state: Any, key: Any, inputs: Any, targets: Any) -> Any:
        values, first, second, number, _ = state
        objective, slope = jax.value_and_grad(loss)(values, key, inputs, targets)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, slope)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, second, slope)
        a, b = 1 - 0.9**number, 1 - 0.999**number
        values = jax.tree.map(
            lambda x, m, v: x - 1e-3 * m / a / (jnp.sqrt(v / b) + 1e-8), values, first, second
        )
        return values, first, second, number + 1, objective

    zeros = (jnp.zeros_like(mean), jnp.zeros_like(rho))
    state = ((mean, rho), zeros, zeros, jnp.float32(1), jnp.float32(0))
    return over_batches(step, state, key, problem, batch, steps)


if __name__ == "__main__":
    main()
