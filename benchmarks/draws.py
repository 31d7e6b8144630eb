"""Effective draws per second: the least over sigmas, noise, log likelihood and outputs, on one core.

    python benchmarks/draws.py robot_arm --seconds 60
    python benchmarks/draws.py boston led --seconds 300 --methods gibbs:100 gibbs:500 nuts
    python benchmarks/draws.py led --draws 2000 --seed 2 --methods gibbs:100 gibbs:100+rescale:sigmas
    python benchmarks/draws.py mnist --folder mnist --methods gibbs:100 hmc-gibbs:100

Problems are those of examples/ (mnist: a folder that examples/mnist/prepare.py made) and of
small_problems.py. Methods:

    gibbs:L       Gibbs draws of the precisions, hybrid Monte Carlo of L leapfrog steps (windows of 10)
    marginal:L    the same with output layer and precisions integrated out in the trajectory
    example       the example's own last phase
    default:N     the schedule of a configuration without phases, N iterations long (1000): settings are found
                  in the first half as many, which are not kept
    unscaled:N    the same without scales of groups of parameters
    nuts, nuts:D  NumPyro's NUTS with trees of depth 10 or D at most
    hmc-gibbs:L   NumPyro's HMCGibbs, HMC of L steps
    METHOD+rescale:ALONG:S  one of those above, and `rescale` along sigmas or incoming at the iteration's
                  end, of stepsize S (0.3); an energy counts as half a gradient
    NAME={...}    operations of one iteration as JSON, [{"op": "sample-sigmas"}, ...]

Bulk effective sample sizes and R-hat are those of Vehtari et al. (2021), by arviz-stats, for all alike. Time
is that of the draws kept; what went before is beside it. Beside other jobs the clock says little: with
--processor-time our own methods are timed by what they had of the core. An R-hat above 1.01 says that the
rest of the row cannot be believed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402, after the threads are set
import small_problems  # noqa: E402
from machine import PEERS, ROOT, append, conditions, heading, peers_python, pin  # noqa: E402

from rayfbnn.arrays import Array  # noqa: E402
from rayfbnn.data import read_dataset  # noqa: E402
from rayfbnn.draws.quantities import quantities  # noqa: E402
from rayfbnn.draws.view import committed  # noqa: E402
from rayfbnn.mcmc.operation import gradient_evaluations, unrolled  # noqa: E402
from rayfbnn.mcmc.operations import Rescale  # noqa: E402
from rayfbnn.model.updates.metropolis import orbits_along  # noqa: E402
from rayfbnn.reduce.effective import MIN_DRAWS, ess_bulk, rhat  # noqa: E402
from rayfbnn.run.executor import InProcess  # noqa: E402
from rayfbnn.run.hardware import kernel_name  # noqa: E402
from rayfbnn.run.running import run_rounds  # noqa: E402
from rayfbnn.run.sampler import acceptance_by_operation, build_posterior  # noqa: E402
from rayfbnn.spec import RunSpec  # noqa: E402
from rayfbnn.store.store import Store  # noqa: E402

N_CASES = 10
ITERATIONS, MOST_ITERATIONS = 4000, 100_000
STEPSIZES = {"robot_arm": 0.3, "boston": 0.5, "led": 0.4, "mnist": 0.02, "classes": 0.4, "binary": 0.4}
MARGINAL_STEPSIZES = {"robot_arm": 0.7, "boston": 0.5}  # the class targets have no marginal form


def configuration(problem: str, folder: Path | None) -> Path:
    """The problem's configuration file."""
    if problem in small_problems.CONFIGURATIONS:
        return small_problems.made(problem)
    if problem == "mnist":
        if folder is None:
            raise SystemExit("mnist: give --folder, made by examples/mnist/prepare.py")
        return folder / "mnist.toml"
    return ROOT / "examples" / problem / f"{problem}.toml"


def operations_of(method: str, problem: str, spec: dict[str, Any], arguments: Any) -> list[dict[str, Any]]:
    """Operations of one iteration of the last phase."""
    name, _, rest = method.partition(":")
    stepsize = arguments.stepsize or STEPSIZES[problem]
    if "=" in method:
        return json.loads(method.partition("=")[2])  # type: ignore[no-any-return]
    if name == "example":
        return spec["phase"][-1]["operations"]  # type: ignore[no-any-return]
    if name == "gibbs":
        steps = int(rest)
        window = max(1, min(10, steps // 10))
        last = {"op": "hybrid", "steps": steps, "window": window, "stepsize": stepsize}
        return [{"op": "sample-sigmas"}, {"op": "heatbath"}, last]
    if name == "marginal":
        stepsize = arguments.marginal_stepsize or MARGINAL_STEPSIZES[problem]
        last = {"op": "hybrid-marginal", "over": ["outputs", "precisions"], "steps": int(rest)}
        return [{"op": "sample-sigmas"}, {"op": "heatbath"}, {**last, "stepsize": stepsize}]
    raise SystemExit(f"methods: {method} is none; see --help")


def our_draws(path: Path, method: str, problem: str, arguments: Any) -> dict[str, Any]:
    """Run the whole program in this process for the given time: quantities, seconds and gradients."""
    raw = RunSpec.from_toml(path).to_dict()
    raw["data"]["train"] = str(RunSpec.from_toml(path).train_path.resolve())
    raw["chains"] = raw["chains_per_batch"] = arguments.chains
    raw["draws_per_block"] = arguments.draws_per_block
    raw["seed"] = arguments.seed
    method, _, rescaled = method.partition("+rescale:")
    name, _, rest = method.partition(":")
    if name in ("default", "unscaled"):
        raw = {key: value for key, value in raw.items() if key != "phase"}
        raw = RunSpec.from_dict({**raw, "iterations": int(rest or ITERATIONS)}).to_dict()
        for per_iteration in (
            per_iteration
            for phase in raw["phase"]
            for per_iteration in phase["operations"]
            if name == "unscaled"
        ):
            per_iteration.pop("scaling", None)
    else:
        raw["phase"][-1]["operations"] = operations_of(method, problem, raw, arguments)
    if rescaled:
        along, _, stepsize = rescaled.partition(":")
        last = {"op": "rescale", "along": along, "stepsize": float(stepsize or 0.3)}
        raw["phase"][-1]["operations"] = [*raw["phase"][-1]["operations"], last]
    raw["phase"][-1]["iterations"] = arguments.draws or MOST_ITERATIONS
    if arguments.burn_in:
        burn_in = {**raw["phase"][-1], "iterations": arguments.burn_in, "keep": False}
        raw["phase"].insert(-1, burn_in)
    spec = RunSpec.from_dict(raw)
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "run.zarr", spec, read_dataset(spec), kernel=kernel_name(spec))
        clock = time.process_time if arguments.processor_time else time.perf_counter
        started = clock()
        kept_from, is_last = started, len(spec.phase) - 1
        with store.lock(), InProcess() as executor:
            for progress in run_rounds(store, executor):
                now = clock()
                if progress.phase < is_last:
                    kept_from = now
                elif not arguments.draws and now - kept_from > arguments.seconds:
                    executor.request_stop()
        ended = clock()
        store = Store.open(store.path)
        drawn = quantities(committed(store), cases=N_CASES)
        del drawn["log_prior"]  # the peers do not report it
        draws = store.committed_draws
        operations = with_found_settings(spec.phase[-1].operations, store)
        shares = acceptance_by_operation(store, is_last)
        per_iteration = gradient_evaluations(operations) + gradients_of_rescaling(operations, store)
    return {
        "quantities": drawn,
        "seconds": ended - kept_from,
        "seconds_initial": kept_from - started,
        "gradients": draws * spec.chains * per_iteration,
        "accepted": {
            " ".join(
                (per_iteration.op, *([per_iteration.along] if isinstance(per_iteration, Rescale) else ()))
            ): share
            for per_iteration, share in shares.items()
        },
    }


def gradients_of_rescaling(operations: tuple[Any, ...], store: Store) -> float:
    """Cost of the energies of `rescale` in gradients.

    Each `rescale` takes one energy at the start and one per orbit, and an energy costs half a gradient."""
    target = build_posterior(store.spec, store.data, device="cpu")
    n_orbits = [
        len(orbits_along(operation.along, target.network, target.parameter_layout, target.precision_layout))
        for operation in unrolled(operations)
        if isinstance(operation, Rescale)
    ]
    return sum((1 + n) / 2 for n in n_orbits)


def with_found_settings(operations: tuple[Any, ...], store: Store) -> tuple[Any, ...]:
    """Operations with their automatic settings replaced by those that were found."""
    settings_found = store.tuning.latest()[1] if store.tuning.rounds else {}
    return tuple(
        replace(operation, steps=settings_found[operation].steps)
        if operation in settings_found
        else operation
        for operation in operations
    )


def peer_draws(path: Path, method: str, arguments: Any) -> dict[str, Any]:
    """Run NumPyro in the peers' environment, with results as those of our_draws."""
    spec = RunSpec.from_toml(path)
    dataset = read_dataset(spec)
    chosen = np.unique(np.linspace(0, dataset.n_cases - 1, N_CASES).round().astype(int))
    name, _, rest = method.partition(":")
    settings = {
        "method": name,
        "depth": int(rest or 10),
        "steps": int(rest or 100),
        "chains": arguments.peer_chains,
        "warmup": arguments.peer_warmup,
        "chunk": arguments.peer_chunk,
        "accept": arguments.peer_accept,
        "seconds": arguments.seconds,
        "seed": arguments.seed,
        "noncentered": arguments.noncentered and name == "nuts",
    }
    with tempfile.TemporaryDirectory() as folder:
        files = {key: str(Path(folder) / key) for key in ("problem", "arrays.npz", "out.npz", "settings")}
        Path(files["problem"]).write_text(json.dumps(described(spec, dataset.n_targets)))
        Path(files["settings"]).write_text(json.dumps(settings))
        inputs = dataset.standardized_inputs
        np.savez(
            files["arrays.npz"], inputs=inputs, targets=dataset.standardized_targets, points=inputs[chosen]
        )
        script = str(Path(__file__).parent / "peers" / "numpyro_draws.py")
        subprocess.run([peers_python(arguments.peers), script, *files.values()], check=True)
        results = dict(np.load(files["out.npz"]))
    return {
        "quantities": {
            name.removeprefix("q_"): value.astype(float)
            for name, value in results.items()
            if name[:2] == "q_"
        },
        **{name: float(results[name]) for name in ("seconds", "seconds_initial", "gradients", "diverged")},
    }


def described(spec: RunSpec, n_targets: int) -> dict[str, Any]:
    """A fully connected network and its priors as plain numbers; an infinite alpha is null."""

    def alphas(prior: Any) -> list[float | None]:
        return [alpha if math.isfinite(alpha) else None for alpha in prior.alphas]

    network, model = spec.network, spec.model
    groups = {
        group.name: {"shape": group.shape, "mean": group.mean_precision, "alphas": alphas(group.prior)}
        for group in network.groups()
    }
    names = {name: spec.data.inputs for name in groups if name == "io" or name.startswith("ih")}
    noise = model.noise
    return {
        "kind": model.kind,
        "hidden": [layer.activation for layer in network.hidden],
        "groups": groups,
        "noise": None
        if noise is None
        else {"mean": noise.mean_precision(n_targets), "alphas": alphas(noise)},
        "unit_names": names | {"noise": spec.data.targets},
    }


def judged(drawn: dict[str, Array]) -> dict[str, dict[str, float]]:
    """R-hat and bulk effective sample size of each quantity (n_chains, n_draws)."""
    return {
        name: {"ess_bulk": float(ess_bulk(values)), "rhat": float(rhat(values)), "mean": float(values.mean())}
        for name, values in drawn.items()
        if np.ptp(values) > 0
    }


def row(problem: str, method: str, result: dict[str, Any]) -> dict[str, Any]:
    """One row of the table of results."""
    values = result.pop("quantities")
    n_chains, n_draws = next(iter(values.values())).shape
    if n_draws < MIN_DRAWS:
        raise SystemExit(f"{problem}, {method}: {n_draws} draws are too few; give more --seconds")
    operation = judged(values)
    least = min(operation, key=lambda name: operation[name]["ess_bulk"])
    worst = max(operation, key=lambda name: operation[name]["rhat"])
    is_function = [name for name in operation if not name.startswith(("sigma_", "log_"))]
    return {
        "problem": problem,
        "method": method,
        "chains": n_chains,
        "draws": n_draws,
        **result,
        "min_ess": operation[least]["ess_bulk"],
        "min_ess_of": least,
        "min_ess_per_second": operation[least]["ess_bulk"] / result["seconds"],
        "min_ess_per_million_gradients": 1e6 * operation[least]["ess_bulk"] / result["gradients"],
        "functions_min_ess_per_second": min(operation[name]["ess_bulk"] for name in is_function)
        / result["seconds"],
        "max_rhat": operation[worst]["rhat"],
        "max_rhat_of": worst,
        "quantities": operation,
    }


HEADINGS = (
    "| problem | method | chains x draws | s before | s | 10^6 gradients | least ESS (of) | a second |"
    " a 10^6 gradients | outputs a second | worst R-hat (of) | accepted |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def line(result: dict[str, Any]) -> str:
    shares = result.get("accepted", {})
    accepted = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
    return (
        f"| {result['problem']} | {result['method']} | {result['chains']} x {result['draws']} |"
        f" {result['seconds_initial']:.0f} | {result['seconds']:.0f} | {result['gradients'] / 1e6:.3g} |"
        f" {result['min_ess']:.0f} ({result['min_ess_of']}) | {result['min_ess_per_second']:.3g} |"
        f" {result['min_ess_per_million_gradients']:.3g} | {result['functions_min_ess_per_second']:.3g} |"
        f" {result['max_rhat']:.3f} ({result['max_rhat_of']}) | {accepted} |"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("problems", nargs="+", choices=list(STEPSIZES))
    parser.add_argument("--methods", nargs="+", default=["gibbs:500", "gibbs:2000", "gibbs:8000", "nuts"])
    parser.add_argument("--seconds", type=float, default=60.0, help="of kept draws, for each method")
    parser.add_argument("--draws", type=int, help="kept draws of a chain of ours, whatever the seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chains", type=int, default=8)
    parser.add_argument("--burn-in", type=int, default=0, help="iterations of the method itself not kept")
    parser.add_argument("--draws-per-block", type=int, default=50)
    parser.add_argument("--stepsize", type=float, help="of gibbs, in place of the problem's")
    parser.add_argument("--marginal-stepsize", type=float, help="of marginal, in place of the problem's")
    parser.add_argument("--folder", type=Path, help="of mnist")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="that all run on")
    parser.add_argument("--processor-time", action="store_true", help="of this process, for our own methods")
    parser.add_argument("--peers", type=Path, default=PEERS, help="the interpreter that has NumPyro")
    parser.add_argument("--peer-chains", type=int, default=4)
    parser.add_argument("--peer-warmup", type=int, default=500, help="iterations in which NumPyro adapts")
    parser.add_argument("--peer-chunk", type=int, default=20, help="draws between looks at the clock")
    parser.add_argument("--peer-accept", type=float, default=0.8)
    parser.add_argument("--noncentered", action="store_true", help="NUTS on weights divided by their sigmas")
    parser.add_argument("--out", type=Path, help="a file that a line of JSON for each row is added to")
    options = parser.parse_args(arguments)
    about = conditions(seconds=options.seconds, processor_time=options.processor_time)
    pin(options.core)
    print(heading(about) + "\n\n" + HEADINGS, flush=True)
    for problem in options.problems:
        path = configuration(problem, options.folder)
        for method in options.methods:
            is_peer = method.startswith(("nuts", "hmc-gibbs"))
            found = (
                peer_draws(path, method, options) if is_peer else our_draws(path, method, problem, options)
            )
            found = row(problem, method, found)
            append(options.out, {"benchmark": "draws", **about, **found})
            print(line(found), flush=True)


if __name__ == "__main__":
    main()
