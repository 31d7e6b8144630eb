"""Effective draws per second: the least over sigmas, noise, log likelihood and outputs, on one core.

    python tests/benchmarks/draws.py robot_arm --seconds 60
    python tests/benchmarks/draws.py boston led --seconds 300 --methods gibbs:100 gibbs:500 nuts
    python tests/benchmarks/draws.py led --draws 2000 --seed 2 --methods gibbs:100 gibbs:100+rescale:sigmas
    python tests/benchmarks/draws.py mnist --folder mnist --methods gibbs:100 hmc-gibbs:100

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
from rayfbnn.mcmc.operation import gradient_evaluations, unrolled  # noqa: E402
from rayfbnn.mcmc.operations import Rescale  # noqa: E402
from rayfbnn.model.updates.rescaling import orbits_along  # noqa: E402
from rayfbnn.reduce.draws import committed  # noqa: E402
from rayfbnn.reduce.effective import MIN_DRAWS, ess_bulk, rhat  # noqa: E402
from rayfbnn.reduce.quantities import quantities  # noqa: E402
from rayfbnn.run.executor import InProcess  # noqa: E402
from rayfbnn.run.kernel import kernel_for  # noqa: E402
from rayfbnn.run.running import run_rounds  # noqa: E402
from rayfbnn.run.sampler import acceptance_by_operation, build_posterior  # noqa: E402
from rayfbnn.spec import RunSpec  # noqa: E402
from rayfbnn.spec.defaults import KEPT_ITERATIONS  # noqa: E402
from rayfbnn.store.store import Store  # noqa: E402

N_CASES = 10
MOST_ITERATIONS = 100_000
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


def operations_of(method: str, problem: str, spec: dict[str, Any], given: Any) -> list[dict[str, Any]]:
    """What one iteration of the last phase does."""
    name, _, rest = method.partition(":")
    stepsize = given.stepsize or STEPSIZES[problem]
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
        stepsize = given.marginal_stepsize or MARGINAL_STEPSIZES[problem]
        last = {"op": "hybrid-marginal", "over": ["outputs", "precisions"], "steps": int(rest)}
        return [{"op": "sample-sigmas"}, {"op": "heatbath"}, {**last, "stepsize": stepsize}]
    raise SystemExit(f"methods: {method} is none; see --help")


def our_draws(path: Path, method: str, problem: str, given: Any) -> dict[str, Any]:
    """Run the whole program in this process for the time given: (quantities, seconds, gradients)."""
    raw = RunSpec.from_toml(path).to_dict()
    raw["data"]["train"] = str(RunSpec.from_toml(path).train_path.resolve())
    raw["chains"] = raw["chains_per_batch"] = given.chains
    raw["draws_per_block"] = given.draws_per_block
    raw["seed"] = given.seed
    method, _, rescaled = method.partition("+rescale:")
    name, _, rest = method.partition(":")
    if name in ("default", "unscaled"):
        raw = {key: value for key, value in raw.items() if key != "phase"}
        raw = RunSpec.from_dict({**raw, "iterations": int(rest or KEPT_ITERATIONS)}).to_dict()
        for each in (each for phase in raw["phase"] for each in phase["operations"] if name == "unscaled"):
            each.pop("scaling", None)
    else:
        raw["phase"][-1]["operations"] = operations_of(method, problem, raw, given)
    if rescaled:
        along, _, stepsize = rescaled.partition(":")
        last = {"op": "rescale", "along": along, "stepsize": float(stepsize or 0.3)}
        raw["phase"][-1]["operations"] = [*raw["phase"][-1]["operations"], last]
    raw["phase"][-1]["iterations"] = given.draws or MOST_ITERATIONS
    if given.burn_in:
        burn_in = {**raw["phase"][-1], "iterations": given.burn_in, "keep": False}
        raw["phase"].insert(-1, burn_in)
    spec = RunSpec.from_dict(raw)
    with tempfile.TemporaryDirectory() as folder:
        store = Store.for_run(Path(folder) / "run.zarr", spec, read_dataset(spec), kernel=kernel_for(spec))
        clock = time.process_time if given.processor_time else time.perf_counter
        begun = clock()
        kept_from, is_last = begun, len(spec.phase) - 1
        with store.lock(), InProcess() as executor:
            for progress in run_rounds(store, executor):
                now = clock()
                if progress.phase < is_last:
                    kept_from = now
                elif not given.draws and now - kept_from > given.seconds:
                    executor.request_stop()
        ended = clock()
        store = Store.open(store.path)
        found = quantities(committed(store), cases=N_CASES)
        del found["log_prior"]  # the peers have none
        draws = store.committed_draws
        operations = with_found_settings(spec.phase[-1].operations, store)
        shares = acceptance_by_operation(store, is_last)
        each = gradient_evaluations(operations) + gradients_of_rescaling(operations, store)
    return {
        "quantities": found,
        "seconds": ended - kept_from,
        "seconds_initial": kept_from - begun,
        "gradients": draws * spec.chains * each,
        "accepted": {
            " ".join((each.op, *([each.along] if isinstance(each, Rescale) else ()))): share
            for each, share in shares.items()
        },
    }


def gradients_of_rescaling(operations: tuple[Any, ...], store: Store) -> float:
    """What the energies of `rescale` cost, one to begin with and one an orbit, half a gradient each."""
    target = build_posterior(store.spec, store.data, device="cpu")
    n_orbits = [
        len(orbits_along(each.along, target.network, target.parameter_layout, target.precision_layout))
        for each in unrolled(operations)
        if isinstance(each, Rescale)
    ]
    return sum((1 + n) / 2 for n in n_orbits)


def with_found_settings(operations: tuple[Any, ...], store: Store) -> tuple[Any, ...]:
    """Operations with what was found for those whose steps are automatic."""
    found = store.tuning.latest()[1] if store.tuning.rounds else {}
    return tuple(replace(each, steps=found[each].steps) if each in found else each for each in operations)


def peer_draws(path: Path, method: str, given: Any) -> dict[str, Any]:
    """The same of NumPyro, in the peers' environment."""
    spec = RunSpec.from_toml(path)
    dataset = read_dataset(spec)
    chosen = np.unique(np.linspace(0, dataset.n_cases - 1, N_CASES).round().astype(int))
    name, _, rest = method.partition(":")
    settings = {
        "method": name,
        "depth": int(rest or 10),
        "steps": int(rest or 100),
        "chains": given.peer_chains,
        "warmup": given.peer_warmup,
        "chunk": given.peer_chunk,
        "accept": given.peer_accept,
        "seconds": given.seconds,
        "seed": given.seed,
        "noncentered": given.noncentered and name == "nuts",
    }
    with tempfile.TemporaryDirectory() as folder:
        files = {key: str(Path(folder) / key) for key in ("problem", "arrays.npz", "out.npz", "settings")}
        Path(files["problem"]).write_text(json.dumps(described(spec, dataset.n_targets)))
        Path(files["settings"]).write_text(json.dumps(settings))
        inputs = dataset.standardized_inputs
        np.savez(
            files["arrays.npz"], inputs=inputs, targets=dataset.standardized_targets, points=inputs[chosen]
        )
        script = str(Path(__file__).parent / "numpyro_draws.py")
        subprocess.run([peers_python(given.peers), script, *files.values()], check=True)
        found = dict(np.load(files["out.npz"]))
    return {
        "quantities": {
            name.removeprefix("q_"): value.astype(float) for name, value in found.items() if name[:2] == "q_"
        },
        **{name: float(found[name]) for name in ("seconds", "seconds_initial", "gradients", "diverged")},
    }


def described(spec: RunSpec, n_targets: int) -> dict[str, Any]:
    """A fully connected network and its priors in plain numbers; an infinite alpha is null."""

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


def judged(found: dict[str, Array]) -> dict[str, dict[str, float]]:
    """R-hat and bulk effective sample size of each quantity (n_chains, n_draws)."""
    return {
        name: {"ess_bulk": float(ess_bulk(values)), "rhat": float(rhat(values)), "mean": float(values.mean())}
        for name, values in found.items()
        if np.ptp(values) > 0
    }


def row(problem: str, method: str, found: dict[str, Any]) -> dict[str, Any]:
    """What the table has of one run."""
    values = found.pop("quantities")
    n_chains, n_draws = next(iter(values.values())).shape
    if n_draws < MIN_DRAWS:
        raise SystemExit(f"{problem}, {method}: {n_draws} draws are too few; give more --seconds")
    each = judged(values)
    least = min(each, key=lambda name: each[name]["ess_bulk"])
    worst = max(each, key=lambda name: each[name]["rhat"])
    is_function = [name for name in each if not name.startswith(("sigma_", "log_"))]
    return {
        "problem": problem,
        "method": method,
        "chains": n_chains,
        "draws": n_draws,
        **found,
        "min_ess": each[least]["ess_bulk"],
        "min_ess_of": least,
        "min_ess_per_second": each[least]["ess_bulk"] / found["seconds"],
        "min_ess_per_million_gradients": 1e6 * each[least]["ess_bulk"] / found["gradients"],
        "functions_min_ess_per_second": min(each[name]["ess_bulk"] for name in is_function)
        / found["seconds"],
        "max_rhat": each[worst]["rhat"],
        "max_rhat_of": worst,
        "quantities": each,
    }


HEADINGS = (
    "| problem | method | chains x draws | s before | s | 10^6 gradients | least ESS (of) | a second |"
    " a 10^6 gradients | outputs a second | worst R-hat (of) | accepted |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def line(found: dict[str, Any]) -> str:
    shares = found.get("accepted", {})
    accepted = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
    return (
        f"| {found['problem']} | {found['method']} | {found['chains']} x {found['draws']} |"
        f" {found['seconds_initial']:.0f} | {found['seconds']:.0f} | {found['gradients'] / 1e6:.3g} |"
        f" {found['min_ess']:.0f} ({found['min_ess_of']}) | {found['min_ess_per_second']:.3g} |"
        f" {found['min_ess_per_million_gradients']:.3g} | {found['functions_min_ess_per_second']:.3g} |"
        f" {found['max_rhat']:.3f} ({found['max_rhat_of']}) | {accepted} |"
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
    given = parser.parse_args(arguments)
    about = conditions(seconds=given.seconds, processor_time=given.processor_time)
    pin(given.core)
    print(heading(about) + "\n\n" + HEADINGS, flush=True)
    for problem in given.problems:
        path = configuration(problem, given.folder)
        for method in given.methods:
            is_peer = method.startswith(("nuts", "hmc-gibbs"))
            found = peer_draws(path, method, given) if is_peer else our_draws(path, method, problem, given)
            found = row(problem, method, found)
            append(given.out, {"benchmark": "draws", **about, **found})
            print(line(found), flush=True)


if __name__ == "__main__":
    main()
