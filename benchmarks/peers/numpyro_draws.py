"""Draws a posterior with NumPyro within a time limit; runs in the peers' environment, called by draws.py.

    python numpyro_draws.py PROBLEM.json ARRAYS.npz OUT.npz SETTINGS.json

The model is the same: Gamma precisions over groups and source units, Gaussian or t weights, the same data
model. NUTS on everything; or HMCGibbs, HMC on the weights with Gibbs draws of the conjugate precisions.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from functools import partial
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402, after its settings
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import numpyro  # noqa: E402
from numpyro import distributions as dist  # noqa: E402
from numpyro.infer import HMC, MCMC, NUTS, HMCGibbs  # noqa: E402

ACTIVATIONS = {"tanh": jnp.tanh, "softplus": jax.nn.softplus, "sigmoid": jax.nn.sigmoid}


def ends(name: str) -> tuple[int, int]:
    """Source and destination layer of a group of weights: -1 for the inputs, -2 for the outputs."""
    if name == "io":
        return -1, -2
    if name.startswith("ho"):
        return int(name[2:]), -2
    if name.startswith("ih"):
        return -1, int(name[2:])
    source, destination = re.findall(r"h(\d+)", name)
    return int(source), int(destination)


def outputs(problem: dict[str, Any], weights: dict[str, Any], inputs: Any) -> Any:
    """The network's outputs (n_outputs, n_cases) at inputs (n_inputs, n_cases)."""
    layers = {-1: inputs}
    for number in [*range(len(problem["hidden"])), -2]:
        total: Any = 0.0
        for name, value in weights.items():
            if name[0] == "b":
                place = -2 if name == "bo" else int(name[2:])
                total = total + value[:, None] if place == number else total
            elif ends(name)[1] == number:
                total = total + value.T @ layers[ends(name)[0]]
        layers[number] = ACTIVATIONS[problem["hidden"][number]](total) if number >= 0 else total
    return layers[-2]


def gamma(alpha: float, mean: Any) -> Any:
    """A precision of shape alpha/2 with the given mean."""
    return dist.Gamma(alpha / 2, alpha / (2 * mean))


def levels(name: str, group: dict[str, Any], n_units: int) -> tuple[Any, Any]:
    """The common precision of a group, and those of its units (or the common one)."""
    common_alpha, unit_alpha, _ = group["alphas"]
    common = group["mean"]
    if common_alpha is not None:
        common = numpyro.sample(f"tau_{name}", gamma(common_alpha, group["mean"]))
    if unit_alpha is None:
        return common, common
    with numpyro.plate(f"units_{name}", n_units):
        return common, numpyro.sample(f"tau_{name}_unit", gamma(unit_alpha, common))


def model(problem: dict[str, Any], noncentered: bool, inputs: Any, targets: Any) -> None:
    weights = {}
    for name, group in problem["groups"].items():
        shape = group["shape"]
        _, unit = levels(name, group, shape[0])
        scale = jnp.broadcast_to(jnp.asarray(unit) ** -0.5, (shape[0],) if jnp.ndim(unit) else ())
        scale = scale[:, None] if jnp.ndim(unit) and len(shape) == 2 else scale
        alpha = group["alphas"][2]
        standard = dist.Normal(0.0, 1.0) if alpha is None else dist.StudentT(alpha, 0.0, 1.0)
        if noncentered:
            weights[name] = numpyro.sample(f"z_{name}", standard.expand(shape).to_event(len(shape))) * scale
        else:
            full = jnp.broadcast_to(scale, shape)
            prior = dist.Normal(0.0, full) if alpha is None else dist.StudentT(alpha, 0.0, full)
            weights[name] = numpyro.sample(name, prior.to_event(len(shape)))
        numpyro.deterministic(f"w_{name}", weights[name])
    fitted = outputs(problem, weights, inputs)
    if problem["kind"] == "class":
        numpyro.sample("y", dist.Categorical(logits=fitted.T), obs=targets)
    elif problem["kind"] == "binary":
        numpyro.sample("y", dist.Bernoulli(logits=fitted), obs=targets)
    else:
        _, unit = levels("noise", problem["noise"], len(targets))
        scale = jnp.asarray(unit) ** -0.5
        scale = scale[:, None] if jnp.ndim(scale) else scale
        alpha = problem["noise"]["alphas"][2]
        noise = dist.Normal(fitted, scale) if alpha is None else dist.StudentT(alpha, fitted, scale)
        numpyro.sample("y", noise, obs=targets)


def gibbs(problem: dict[str, Any], inputs: Any, targets: Any) -> tuple[list[str], Any]:
    """Names of the precisions that have Gamma conditionals, and a function that draws them."""
    sites = {}
    for name, group in problem["groups"].items():
        common, unit, parameter = group["alphas"]
        if parameter is None and unit is not None:
            sites[f"tau_{name}_unit"] = name
        elif parameter is None and common is not None:
            sites[f"tau_{name}"] = name
    noise = problem.get("noise")
    if noise is not None and noise["alphas"][0] is not None and noise["alphas"][1:] == [None, None]:
        sites["tau_noise"] = "noise"

    def draw(rng_key: Any, gibbs_sites: dict[str, Any], hmc_sites: dict[str, Any]) -> dict[str, Any]:
        drawn = {}
        for key, (site, name) in zip(jax.random.split(rng_key, len(sites)), sites.items(), strict=True):
            if name == "noise":
                weights = {group: hmc_sites[group] for group in problem["groups"]}
                residuals = targets - outputs(problem, weights, inputs)
                squares, n = jnp.sum(residuals**2), residuals.size
                alpha, mean = noise["alphas"][0], noise["mean"]
            else:
                group = problem["groups"][name]
                alpha, mean, squares = group["alphas"][0], group["mean"], jnp.sum(hmc_sites[name] ** 2)
                n = math.prod(group["shape"])
                if site.endswith("_unit"):
                    alpha, squares = group["alphas"][1], jnp.sum(hmc_sites[name] ** 2, axis=1)
                    n = group["shape"][1]
                    mean = hmc_sites.get(f"tau_{name}", mean)
            draws = jax.random.gamma(key, (alpha + n) / 2, jnp.shape(squares))
            drawn[site] = draws / ((alpha / mean + squares) / 2)
        return drawn

    return list(sites), draw


def main() -> None:
    problem_path, arrays_path, out_path, settings_path = sys.argv[1:5]
    with open(problem_path) as file:
        problem = json.load(file)
    with open(settings_path) as file:
        settings = json.load(file)
    arrays = np.load(arrays_path)
    inputs = jnp.asarray(arrays["inputs"].T, dtype=jnp.float32)
    kind = problem["kind"]
    targets = (
        jnp.asarray(arrays["targets"][:, 0], dtype=jnp.int32)
        if kind == "class"
        else jnp.asarray(arrays["targets"].T, dtype=jnp.float32)
    )
    # Everything is bound here, because NumPyro compiles again at every call that takes arrays.
    bound = partial(model, problem, settings["noncentered"], inputs, targets)
    accept = settings["accept"]
    if settings["method"] == "nuts":
        kernel: Any = NUTS(bound, max_tree_depth=settings["depth"], target_accept_prob=accept)
    else:
        inner = HMC(bound, num_steps=settings["steps"], trajectory_length=None, target_accept_prob=accept)
        names, draw = gibbs(problem, inputs, targets)
        kernel = HMCGibbs(inner, gibbs_fn=draw, gibbs_sites=names)
    results = run(kernel, settings)
    points = jnp.asarray(arrays["points"].T, dtype=jnp.float32)
    results |= quantities(problem, results.pop("draws"), inputs, targets, points)
    np.savez(out_path, **results)


def run(kernel: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Warm up, then draw in chunks until the time is over. Neither counts the compilation of the chunks.

    The chunks are our own loop around the kernel, because MCMC.run compiles again at every call.
    """
    chains, is_nuts = settings["chains"], settings["method"] == "nuts"
    mcmc = MCMC(
        kernel,
        num_warmup=settings["warmup"],
        num_samples=1,
        num_chains=chains,
        chain_method="vectorized" if is_nuts else "sequential",  # HMCGibbs cannot start vectorized
        progress_bar=False,
    )
    started = time.perf_counter()
    mcmc.warmup(jax.random.split(jax.random.PRNGKey(settings["seed"]), chains), collect_warmup=False)
    state = jax.block_until_ready(mcmc.last_state)
    seconds_initial = time.perf_counter() - started
    one = kernel.sample if is_nuts else jax.vmap(lambda state: kernel.sample(state, (), {}))

    @jax.jit
    def chunk(state: Any) -> tuple[Any, Any]:
        def step(state: Any, _: None) -> tuple[Any, Any]:
            state = one(state, (), {}) if is_nuts else one(state)
            inner = state if is_nuts else state.hmc_state
            return state, (state.z, inner.num_steps, inner.diverging)

        return jax.lax.scan(step, state, None, length=settings["chunk"])

    state, _ = jax.block_until_ready(chunk(state))  # the first call compiles
    parts, gradients, diverged = [], 0, 0
    started = time.perf_counter()
    while True:
        state, (z, steps, is_diverged) = jax.block_until_ready(chunk(state))
        parts.append(jax.tree.map(np.asarray, z))
        gradients, diverged = gradients + int(np.sum(steps)), diverged + int(np.sum(is_diverged))
        if (seconds := time.perf_counter() - started) > settings["seconds"]:
            break
    joined = {name: np.concatenate([part[name] for part in parts]).swapaxes(0, 1) for name in parts[0]}
    constrained = jax.jit(jax.vmap(jax.vmap(kernel.postprocess_fn((), {}))))(joined)
    return {
        "draws": {name: np.asarray(value) for name, value in constrained.items()},
        "seconds": seconds,
        "seconds_initial": seconds_initial,
        "gradients": gradients,
        "diverged": diverged,
    }


def quantities(
    problem: dict[str, Any], draws: dict[str, Any], inputs: Any, targets: Any, points: Any
) -> dict[str, Any]:
    """Sigmas, log likelihood and outputs (probabilities for classes) at the points: (n_chains, n_draws)."""
    results = {}
    for name, value in draws.items():
        if name.startswith("tau_"):
            sigma = value**-0.5
            names = problem["unit_names"].get(name.removeprefix("tau_").removesuffix("_unit"), [])
            if sigma.ndim == 2:
                results[f"q_sigma_{name.removeprefix('tau_')}"] = sigma
            elif names:
                for column, unit in enumerate(names):
                    results[f"q_sigma_{name.removeprefix('tau_')}[{unit}]"] = sigma[:, :, column]
    weights = {name.removeprefix("w_"): value for name, value in draws.items() if name.startswith("w_")}
    at_points = jax.jit(jax.vmap(jax.vmap(lambda weights_: outputs(problem, weights_, points))))
    values = np.asarray(at_points(weights))  # (n_chains, n_draws, n_outputs, n_points)
    if problem["kind"] == "class":
        values = np.asarray(jax.nn.softmax(values, axis=2))
    for output in range(values.shape[2]):
        for point in range(values.shape[3]):
            results[f"q_output_{output}[{point}]"] = values[:, :, output, point]
    results["q_log_likelihood"] = log_likelihood(problem, weights, draws, inputs, targets)
    return results


def log_likelihood(
    problem: dict[str, Any], weights: dict[str, Any], draws: dict[str, Any], inputs: Any, targets: Any
) -> Any:
    """Log likelihood of every draw, (n_chains, n_draws)."""

    def one(weights_: dict[str, Any], scale: Any) -> Any:
        values = outputs(problem, weights_, inputs)
        if problem["kind"] == "class":
            return dist.Categorical(logits=values.T).log_prob(targets).sum()
        if problem["kind"] == "binary":
            return dist.Bernoulli(logits=values).log_prob(targets).sum()
        alpha = problem["noise"]["alphas"][2]
        scale = scale[:, None] if jnp.ndim(scale) else scale
        noise = dist.Normal(values, scale) if alpha is None else dist.StudentT(alpha, values, scale)
        return noise.log_prob(targets).sum()

    shape = next(iter(weights.values())).shape[:2]
    scales = draws.get("tau_noise_unit", draws.get("tau_noise", np.ones(shape))) ** -0.5
    return np.asarray(jax.jit(jax.vmap(jax.vmap(one)))(weights, scales))


if __name__ == "__main__":
    main()
