"""The gates of ladders by problem: ladders and chains of the default schedule at equal processor time.

    python -m benchmarks.ladder
    python -m benchmarks.ladder robot_arm --evidence 16 --temperatures 60000
    python -m benchmarks.ladder boston --units 8 --evidence 100
    python -m benchmarks.ladder diabetes --units 8 --evidence 100
    python -m benchmarks.ladder yacht --uci FOLDER --units 8 --seconds 120
    python -m benchmarks.ladder yacht --uci FOLDER --units 8 --seconds 250 --hot 0.3 --alone
    python -m benchmarks.ladder energy --uci FOLDER --units 8 --seconds 100 --alone
    python -m benchmarks.ladder diabetes --device gpu --ladders 64 --evidence 1000

Seconds are those of the processor, and on a device those of the clock.
Without a name the problems are robot_arm, boston and diabetes with eight units, some six minutes in all. They
come with the examples and with scikit-learn. Any other name is a folder in FOLDER, with
data/data.txt, index_features.txt, index_target.txt, and index_train_K.txt or index_test_K.txt. Priors are
the default ones, and so is the network without --units.

The gates: on robot_arm, boston and diabetes the least effective draws at least 0.67 of those of the chains,
and log evidence within 0.3 nats of annealing; on yacht the least effective draws 1.5 times those of the
chains, and R-hat below 1.01 with sides within 0.02 at levels with noise of 0.05 and more; on energy a
verdict that names the false phase, with a gap of 30 nats or more.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import rayfbnn
from rayfbnn.answers.judging.ladder_evidence import ladder_evidence
from rayfbnn.answers.judging.ladder_verdict import judge_ladders
from rayfbnn.data import read_training
from rayfbnn.draws.ladders import LadderDraws, ladder_draws
from rayfbnn.draws.quantities import quantities
from rayfbnn.draws.view import Draws, committed
from rayfbnn.reduce.effective import ess_bulk, rhat
from rayfbnn.run.evidence import evidence
from rayfbnn.run.executor import InProcess
from rayfbnn.run.hardware import kernel_name
from rayfbnn.run.running import run_rounds
from rayfbnn.spec import RunSpec
from rayfbnn.spec.defaults import default_annealing
from rayfbnn.store.store import Store

_WITH_THE_PROJECT = ("robot_arm", "boston", "diabetes")
_EXAMPLES = Path(__file__).parents[2] / "examples"
_MANY = 100_000  # iterations, more than the time allows
_LOOK = 2.0  # seconds between looks at the clock
_POWER = 4.0  # of the temperatures, as for `evidence`
_LEAST_NOISE = 0.05  # of the levels with a gate of their own


def main() -> None:
    """Run the ladders, then as long the chains, and print what the gates ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("problem", nargs="*", help="robot_arm, boston, diabetes, or a folder in --uci")
    parser.add_argument("--uci", type=Path, default=Path(), help="the folder of the published splits")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--units", type=int, help="units of a single layer; the default network without it")
    parser.add_argument("--ladders", type=int, default=8, help="and as many chains")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60, help="of each, with the warm-up")
    parser.add_argument("--annealing", type=int, default=200, help="iterations")
    parser.add_argument("--adaptation", type=int, default=800, help="iterations")
    parser.add_argument("--hot", type=float, help="noise of the hot level; found by the ladders without it")
    parser.add_argument("--alone", action="store_true", help="no chains beside the ladders")
    parser.add_argument("--evidence", type=int, default=0, help="annealing runs for log evidence")
    parser.add_argument("--temperatures", type=int, default=5000, help="of these runs")
    given = parser.parse_args()
    if not given.problem:
        given.problem, given.units = _WITH_THE_PROJECT, given.units or 8
    for problem in given.problem:
        print(f"== {problem}", flush=True)
        _run(problem, given)


def _run(problem: str, given: argparse.Namespace) -> None:
    """Run one problem."""
    frame, targets = _table(problem, given)
    keys: dict[str, Any] = {
        "seed": given.seed,
        "device": given.device,
        "chains": given.ladders,
        "chains_per_batch": given.ladders,
        "iterations": _MANY,
        "data": {"targets": targets},
        "model": {"kind": "real"},
    }
    if given.units is not None:
        keys["network"] = {"hidden": [{"units": given.units, "activation": "tanh"}]}
    with tempfile.TemporaryDirectory() as folder:
        settings = {"annealing": given.annealing, "adaptation": given.adaptation, "hot": given.hot or "auto"}
        ladders = Timed.run(Path(folder) / "ladders", keys | {"ladder": settings}, frame, given.seconds)
        _show_levels(ladder_draws(ladders.draws))
        _show_verdict(ladders.draws)
        _show_quantities(
            {"ladders": ladders}
            if given.alone
            else {
                "ladders": ladders,
                "chains": Timed.run(Path(folder) / "chains", keys, frame, given.seconds),
            }
        )
        if given.evidence:
            _show_evidence(ladders.draws, keys, frame, given.evidence, given.temperatures)


def _table(problem: str, given: argparse.Namespace) -> tuple[pd.DataFrame, list[str]]:
    """Return the training cases of a problem, and the names of the targets."""
    if problem == "diabetes":
        from sklearn.datasets import load_diabetes

        return load_diabetes(as_frame=True).frame, ["target"]
    examples = {"robot_arm": ["y1", "y2"], "boston": ["MEDV"]}
    if problem in examples:
        return pd.read_csv(_EXAMPLES / problem / "train.csv"), examples[problem]
    data = given.uci / problem / "data"
    table = np.loadtxt(data / "data.txt")
    inputs, target = (np.loadtxt(data / f"index_{name}.txt", dtype=int) for name in ("features", "target"))
    train = data / f"index_train_{given.split}.txt"
    rows = (
        np.loadtxt(train, dtype=int)
        if train.exists()
        else np.setdiff1d(
            np.arange(len(table)), np.loadtxt(data / f"index_test_{given.split}.txt", dtype=int)
        )
    )
    names = [*(f"x{i}" for i in range(len(inputs))), "y"]
    return pd.DataFrame(table[rows][:, [*inputs, int(target)]], columns=names), ["y"]


@dataclass(frozen=True)
class Timed:
    """The draws of a run, its time in seconds, and the part of it before the first kept draw."""

    draws: Draws
    seconds: float
    before: float

    @classmethod
    def run(cls, path: Path, keys: dict[str, Any], frame: pd.DataFrame, seconds: float) -> Timed:
        """Sample until the time is over, with some kept draws in any case."""
        spec, data = read_training(RunSpec.from_dict(keys), frame)
        store = Store.create(path, spec, data, kernel=kernel_name(spec))
        last, count = spec.total_iterations - spec.phase[-1].iterations, 20
        clock = _clock(spec.device)
        start = clock()
        with store.lock(), InProcess() as executor:
            for _ in run_rounds(store, executor, last=last):
                pass
            before = spent = clock() - start
            while last < spec.total_iterations and (spent < seconds or spent == before):
                last = min(last + count, spec.total_iterations)
                for _ in executor.run(store.path, range(store.n_batches), until=last):
                    pass
                spent, previous = clock() - start, spent
                count = max(10, int(count * _LOOK / (spent - previous)))
        draws = committed(Store.open(store.path))
        print(
            f"{path.name}: {draws.n_draws} draws of each of {draws.n_chains} in {spent:.1f} s, of which"
            f" {before:.1f} before the first; {data.n_cases} cases, {store.root.kernel}"
        )
        return cls(draws, spent, before)


def _show_levels(levels: LadderDraws) -> None:
    """Print each level below the top: agreement of all ladders, of both sides, and of neighbours."""
    print("level    held   R-hat  chains less prior  rejection")
    r_hat = [float(rhat(levels.measure[..., level].astype(float))) for level in range(levels.n_levels)]
    means = levels.measure.mean(axis=1)
    sides = means[0::2].mean(axis=0) - means[1::2].mean(axis=0)
    for level, (held, rejection) in enumerate(zip(levels.held, levels.rejection.mean(axis=0), strict=True)):
        print(f"{level:5d}  {held:6.3f}  {r_hat[level]:6.3f}  {sides[level]:17.3f}  {rejection:9.2f}")
    wide = [level for level, held in enumerate(levels.held) if held >= _LEAST_NOISE]
    if levels.kind == "noise" and wide:
        print(
            f"levels with noise of {_LEAST_NOISE} and more: R-hat at most {max(r_hat[k] for k in wide):.3f},"
            f" sides within {max(abs(sides[k]) for k in wide):.3f}"
        )


def _show_verdict(draws: Draws) -> None:
    verdict = judge_ladders(ladder_evidence(draws))
    print(f"verdict on the ladders: {verdict.grade}")
    for sentence in (*verdict.reasons, *verdict.remarks):
        print(f"  {sentence}")


def _show_quantities(runs: dict[str, Timed]) -> None:
    """Print R-hat and effective draws of the log likelihood, the noise, and the worst of the other sigmas."""
    least: dict[str, float] = {}
    for run_name, timed in runs.items():
        kinds: dict[str, list[tuple[float, str, float]]] = {}
        for name, values in quantities(timed.draws).items():
            if name == "log_likelihood" or name.startswith("sigma_"):
                kind = "noise" if name.startswith("sigma_noise") else name.split("_")[0]
                kinds.setdefault(kind, []).append((ess_bulk(values), name, rhat(values)))
        for ess, name, r_hat in map(min, kinds.values()):
            print(
                f"{run_name}: {name}: R-hat {r_hat:.3f}, {ess:.0f} effective draws, {ess / timed.seconds:.2f}"
                f" a second, {ess / (timed.seconds - timed.before):.2f} without the time before"
            )
        least[run_name] = min(min(of_kind)[0] for of_kind in kinds.values())
    if len(least) == 2:
        print(f"least effective draws: {least['ladders'] / least['chains']:.2f} of those of the chains")


def _show_evidence(
    draws: Draws, keys: dict[str, Any], frame: pd.DataFrame, runs: int, temperatures: int
) -> None:
    """Print log evidence by the ladders and annealing to their common level, and by annealing alone."""
    spec, data = read_training(RunSpec.from_dict(keys), frame)
    with _seconds("log evidence by ladders, annealing to a level", spec.device):
        by_ladders = rayfbnn.evidence(
            str(draws.store.path), runs=runs, temperatures=temperatures, progress=False
        )
    print(f"  {by_ladders.to_text()}")
    with _seconds("log evidence by annealing to the posterior", spec.device):
        alone = evidence(
            spec, data, temperatures=temperatures, power=_POWER, runs=runs, operations=default_annealing()
        )
    print(
        f"  {alone.log_marginal_likelihood:.2f} +- {alone.standard_error:.2f},"
        f" {alone.effective_runs:.0f} effective runs of {runs}"
    )
    difference = by_ladders.log_marginal_likelihood - alone.log_marginal_likelihood
    error = math.hypot(by_ladders.standard_error, alone.standard_error)
    print(f"  difference {difference:.2f} +- {error:.2f}")


@contextmanager
def _seconds(name: str, device: str) -> Iterator[None]:
    clock = _clock(device)
    start = clock()
    yield
    print(f"{name}: {clock() - start:.1f} s")


def _clock(device: str) -> Callable[[], float]:
    """Return the clock of the processor, or of the wall for a device."""
    return time.process_time if device == "cpu" else time.perf_counter


if __name__ == "__main__":
    main()
