"""How often the verdict on fit is wrong: simulated problems, each with a short run of the real sampler.

    python -m benchmarks.reduction.fit_verdict --problems 400 --kinds true
    python -m benchmarks.reduction.fit_verdict --problems 100 --kinds misfits
    python -m benchmarks.reduction.fit_verdict --problems 30 --kinds power --out power.jsonl
    python -m benchmarks.reduction.fit_verdict --problems 100 --kinds exact --out exact.jsonl

docs/diagnostics.md has the results. A problem has 200 cases with two inputs. The mean of the target, its log
rate, log odds or log hazard is strength * (sin(1.5 x1) + x2 / 2), with a strength of 0, 0.5 or 2 in turn.
The problems of the power are those of tests/support/model/linear.py, by runs of linear networks or by
the exact posterior. Problems that the file of --out has already are not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import rayfbnn
from rayfbnn.answers.judging.fit import FitVerdict, judge_fit
from rayfbnn.answers.judging.fit_evidence import FitEvidence, evidence_at, evidence_left_out
from rayfbnn.arrays import Array
from rayfbnn.draws.view import committed
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.model.likelihood.real import RealTargets
from rayfbnn.store.store import Store
from tests.support.model import linear

N_CASES = 200
STRENGTHS = (0.0, 0.5, 2.0)
NETWORK = {
    "hidden": [{"units": 8, "activation": "tanh"}],
    "priors": {"ih0": "0.4:4", "bh0": "1:4", "ho0": "x1:4", "bo": "3"},
}
LINEAR = {"hidden": [], "priors": {"io": "1", "bo": "3"}}
REAL = {"kind": "real", "noise": "0.3:0.5"}
CLASSES = 3


def _real(f: Array, x: Array, rng: np.random.Generator) -> Array:
    return f + 0.5 * rng.normal(size=len(f))


def _t4(f: Array, x: Array, rng: np.random.Generator) -> Array:
    return f + 0.5 * rng.standard_t(4, size=len(f))


def _t2(f: Array, x: Array, rng: np.random.Generator) -> Array:
    return f + 0.5 * rng.standard_t(2, size=len(f))


def _changing(f: Array, x: Array, rng: np.random.Generator) -> Array:
    """The noise grows by a factor of 4 from the least x1 to the greatest."""
    return f + 0.25 * 4 ** ((x[:, 0] + 2) / 4) * rng.normal(size=len(f))


def _count(f: Array, x: Array, rng: np.random.Generator) -> Array:
    return rng.poisson(np.exp(1 + f / 2)).astype(float)


def _negative_binomial(f: Array, x: Array, rng: np.random.Generator) -> Array:
    return rng.poisson(np.exp(1 + f / 2) * rng.gamma(1.0, size=len(f))).astype(float)


def _binary(f: Array, x: Array, rng: np.random.Generator) -> Array:
    return (rng.uniform(size=len(f)) < 1 / (1 + np.exp(-f))).astype(float)


def _class(f: Array, x: Array, rng: np.random.Generator) -> Array:
    p = np.exp(np.stack([f, np.zeros(len(f)), -f]))
    return (rng.uniform(size=len(f)) > (p / p.sum(axis=0)).cumsum(axis=0)).sum(axis=0).astype(float)


def _survival(f: Array, x: Array, rng: np.random.Generator) -> Array:
    """A quarter of the times or so are censored."""
    times, ends = rng.exponential(np.exp(-f)), rng.exponential(3 * np.exp(-f.mean()), size=len(f))
    return np.where(times <= ends, times, -ends)


Draw = Callable[[Array, Array, np.random.Generator], Array]
TRUE: dict[str, tuple[dict[str, Any], Draw]] = {
    "real": (REAL, _real),
    "t noise": ({"kind": "real", "noise": "0.3:0.5::4"}, _t4),
    "heteroscedastic": ({"kind": "heteroscedastic"}, _changing),
    "count": ({"kind": "count"}, _count),
    "binary": ({"kind": "binary"}, _binary),
    "class": ({"kind": "class", "classes": CLASSES}, _class),
    "survival": ({"kind": "survival", "hazard": "constant"}, _survival),
}
MISFITS: dict[str, tuple[dict[str, Any], Draw]] = {
    "negative binomial counts, Poisson model": ({"kind": "count"}, _negative_binomial),
    "noise of ratio 4, constant noise": (REAL, _changing),
    "t noise of 2 degrees, Gaussian noise": (REAL, _t2),
}


Problem = tuple[dict[str, Any], dict[str, Any], Array, Array]
"""The model, the network, and inputs and targets of training and test cases."""


def of_network(model: dict[str, Any], draw: Draw, number: int) -> Problem:
    """Return a problem of two uniform inputs."""
    rng = np.random.default_rng([2026, number])
    inputs = rng.uniform(-2, 2, size=(2 * N_CASES, 2))
    f = STRENGTHS[number % len(STRENGTHS)] * (np.sin(1.5 * inputs[:, 0]) + inputs[:, 1] / 2)
    return model, NETWORK, inputs, draw(f, inputs, rng)[:, None]


def of_linear(missed: str, number: int) -> Problem:
    """Return a problem of a linear network, which misses something."""
    inputs, targets = linear.problem(missed, N_CASES, np.random.default_rng([57, number]))
    return {"kind": "count"} if missed == "zeros" else REAL, LINEAR, inputs, targets[:, None]


def configuration(
    model: dict[str, Any], network: dict[str, Any], number: int, iterations: int
) -> dict[str, Any]:
    """Return a short run of four chains."""
    hybrid = {"op": "hybrid", "steps": 15, "stepsize": 0.35, "stepsize_jitter": -1.1}
    first = [{"op": "sample-noise"}] if model["kind"] == "real" else []
    warm = [*first, {"op": "heatbath"}, hybrid]
    operations = [{"op": "sample-sigmas"}, {"op": "heatbath"}, hybrid]
    return {
        "seed": number,
        "chains": 4,
        "dtype": "float64",
        "data": {"train": "train.csv", "inputs": ["x1", "x2"], "targets": ["y"]},
        "model": model,
        "network": network,
        "phase": [
            {"iterations": iterations // 10, "keep": False, "operations": warm},
            {"iterations": iterations // 2, "keep": False, "operations": operations},
            {"iterations": iterations, "operations": operations},
        ],
    }


def of_run(problem: Problem, number: int, iterations: int) -> tuple[FitVerdict, ...]:
    """Return the verdicts of a run by leave-one-out and by as many held-out cases."""
    model, network, inputs, targets = problem
    with tempfile.TemporaryDirectory() as folder:
        rows = np.column_stack([inputs, targets])[:N_CASES]
        lines = ["x1,x2,y", *(",".join(map(repr, row)) for row in rows.tolist())]
        (Path(folder) / "train.csv").write_text("\n".join(lines) + "\n")
        raw = configuration(model, network, number, iterations)
        spec = rayfbnn.RunSpec.from_dict(raw, base_dir=Path(folder))
        rayfbnn.sample(spec, Path(folder) / "run.zarr", workers=0, progress=False)
        run = committed(Store.open(Path(folder) / "run.zarr"))
        held_out = inputs[N_CASES:], targets[N_CASES:]
        return _judged(
            [evidence_left_out([run]), evidence_at([run], *held_out)], run.spec.data_model, targets
        )


def of_posterior(problem: Problem, number: int) -> tuple[FitVerdict, ...]:
    """Return the verdicts of the exact posterior of a linear model."""
    _, _, inputs, targets = problem
    x, y, rng = inputs, targets[:, 0], np.random.default_rng([58, number])
    exact = linear.LinearModel(x[:N_CASES], y[:N_CASES])
    evidences = [exact.left_out(rng), exact.at(x[N_CASES:], y[N_CASES:], rng)]
    return _judged(evidences, RealTargets(math.inf), targets)


def _judged(evidences: list[FitEvidence], model: DataModel, targets: Array) -> tuple[FitVerdict, ...]:
    positive = {"y": bool((targets > 0).all())}
    return tuple(judge_fit([evidence], model, is_positive=positive) for evidence in evidences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=100, help="of each kind; with true, of all together")
    parser.add_argument("--kinds", choices=["true", "misfits", "power", "exact"], required=True)
    parser.add_argument("--only", help="one kind")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    of_networks = {"true": TRUE, "misfits": MISFITS}.get(options.kinds, {})
    kinds: dict[str, Callable[[int], Problem]] = {
        name: partial(of_network, model, draw) for name, (model, draw) in of_networks.items()
    }
    if not kinds:
        kinds = {name: partial(of_linear, name) for name in linear.MISSED}
    if options.kinds == "exact":
        del kinds["zeros"]
    kinds = {name: kind for name, kind in kinds.items() if options.only in (None, name)}
    per_kind = -(-options.problems // len(kinds)) if options.kinds == "true" else options.problems
    done = _done(options.out)
    for name, problem in kinds.items():
        for number in range(per_kind):
            key = options.kinds, name, number
            if key in done:
                continue
            if options.kinds == "exact":
                both = of_posterior(problem(number), number)
            else:
                both = of_run(problem(number), number, options.iterations)
            done[key] = [[one.grade, one.p_value, one.reasons, one.advice] for one in both]
            with options.out.open("a") as lines:
                lines.write(json.dumps([key, done[key]]) + "\n")
        found = [done[options.kinds, name, number] for number in range(per_kind)]
        misfits = [sum(one[way][1] <= 0.05 for one in found) for way in (0, 1)]
        print(f"{name}: misfit in {misfits[0]} of {per_kind} left out, {misfits[1]} held out", flush=True)


def _done(path: Path) -> dict[tuple[str, str, int], list[Any]]:
    """Return the verdicts that a file has."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {tuple(key): verdicts for key, verdicts in map(json.loads, lines)}


if __name__ == "__main__":
    main()
