"""Ladders on a published split: agreement of both families by level, log Z of each ladder, and plain chains.

    python -m tests.benchmarks.ladder FOLDER/energy --units 8
    python -m tests.benchmarks.ladder FOLDER/yacht --units 8 --seconds 150 --plain
    python -m tests.benchmarks.ladder FOLDER/yacht --evidence 200

FOLDER/energy has data/data.txt, data/index_features.txt, data/index_target.txt, and
data/index_train_K.txt or data/index_test_K.txt.
Without --units the network is the default one. Half of the ladders start from chains of their own that have
run the default warm-up, half are annealed from the prior. Seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from arviz_stats.base import array_stats
from threadpoolctl import threadpool_limits

from rayfbnn.arrays import Array
from rayfbnn.data.training import read_training
from rayfbnn.kernels import choose
from rayfbnn.mcmc import schedule
from rayfbnn.mcmc.ladder.adaptation import Plan, first_settings
from rayfbnn.mcmc.ladder.bennett import bennett
from rayfbnn.mcmc.ladder.evidence import log_weights_of_hot
from rayfbnn.mcmc.ladder.measured import Measured, top_sums
from rayfbnn.mcmc.ladder.records import LadderSettings, LadderState
from rayfbnn.mcmc.tempering.annealing import normaliser
from rayfbnn.model.ladder.choosing import path_of
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.run.sampler import build_posterior
from rayfbnn.spec import RunSpec
from rayfbnn.state import Advance
from rayfbnn.streams import Streams
from tests.support.ladder.in_memory import Frozen, adapt, both_families, frozen, settings_of, warmed

_AT_ONCE = 50  # iterations between looks at the clock
_AGREE = 1.01


def main() -> None:
    """Run the ladders, and print what the gates ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="the folder of a table with its folder data")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--units", type=int, help="units of a single layer; the default network without it")
    parser.add_argument("--ladders", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=40, help="of frozen iterations")
    parser.add_argument("--annealing", type=int, default=150, help="iterations")
    parser.add_argument("--plain", action="store_true", help="then chains of the default schedule, as long")
    parser.add_argument("--evidence", type=int, default=0, help="runs from the prior to the hot level")
    given = parser.parse_args()
    with threadpool_limits(1), tempfile.TemporaryDirectory() as folder:
        _run(given, _spec(given, Path(folder)))


def _spec(given: argparse.Namespace, folder: Path) -> RunSpec:
    """Write the training cases of the split as a table, and return a configuration for it."""
    data = given.source / "data"
    table = np.loadtxt(data / "data.txt")
    inputs = np.loadtxt(data / "index_features.txt", dtype=int)
    target = int(np.loadtxt(data / "index_target.txt"))
    train = data / f"index_train_{given.split}.txt"
    rows = (
        np.loadtxt(train, dtype=int)
        if train.exists()
        else np.setdiff1d(
            np.arange(len(table)), np.loadtxt(data / f"index_test_{given.split}.txt", dtype=int)
        )
    )
    names = ",".join([*(f"x{i}" for i in range(len(inputs))), "y"])
    columns = table[rows][:, [*inputs, target]]
    np.savetxt(folder / "train.csv", columns, delimiter=",", header=names, comments="", fmt="%.17g")
    hidden = [] if given.units is None else [{"units": given.units, "activation": "tanh"}]
    keys = {
        "data": {"train": "train.csv", "targets": ["y"], "standardize": ["inputs", "targets"]},
        "model": {"kind": "real"},
        "dtype": "float32",
    } | ({"network": {"hidden": hidden}} if hidden else {})
    return RunSpec.from_dict(keys, base_dir=folder)


def _run(given: argparse.Namespace, spec: RunSpec) -> None:
    spec, data = read_training(spec)
    posterior = build_posterior(spec, data, device="cpu")
    advance, kernel = choose.advance_for(posterior)
    path, operations = path_of(posterior), spec.phase[-1].operations
    streams = partial(choose.streams_class("cpu"), given.seed)
    n_of_a = given.ladders // 2
    print(f"{posterior.n_cases} cases, {posterior.n_parameters} parameters, {kernel}, {path.ends}")
    clock = time.process_time
    began = clock()
    starts = streams(2**20 + np.arange(n_of_a, dtype=np.uint64))
    chains, tuning = warmed(spec.phase[:-1], posterior, starts, sigmas=spec.initial.sigmas, advance=advance)
    fits = posterior.log_likelihood(chains.position, chains.precisions)
    print(f"{clock() - began:6.1f} s  warm chains: log likelihood {np.round(fits, 1)}")
    plan, sums = Plan(), top_sums(path.log_precisions(chains.precisions))
    settings = first_settings(path.ends, plan, top=sums, n_chains=n_of_a, tuned=settings_of(tuning))
    state = both_families(
        path, operations, chains, settings, streams, n_annealing=given.annealing, advance=advance
    )

    def on_round(number: int, used: LadderSettings, measured: Measured, _: LadderState) -> None:
        _show_round(clock() - began, number, used, measured)

    state, settings, first = adapt(
        path,
        operations,
        state,
        settings,
        plan,
        streams,
        first=given.annealing + 1,
        advance=advance,
        on_round=on_round,
    )
    parts: list[Frozen] = []
    start = clock()
    while clock() - start < given.seconds:
        parts.append(frozen(path, operations, state, settings, streams, first, _AT_ONCE, advance=advance))
        state, first = parts[-1].state, first + _AT_ONCE
    seconds = clock() - start
    print(f"{clock() - began:6.1f} s  {len(parts) * _AT_ONCE} frozen iterations in {seconds:.1f} s")
    _show_frozen(parts, settings, state)
    noise = np.concatenate([part.top for part in parts])[:, :, 0] if posterior.model.noise else None
    likelihood = np.array(
        [
            posterior.log_likelihood(*draw)
            for part in parts
            for draw in zip(part.position, part.precisions, strict=True)
        ]
    )
    _show_top("ladders", likelihood, noise, seconds)
    if given.evidence:
        runs = streams(2**21 + np.arange(given.evidence, dtype=np.uint64))
        hot = normaliser(log_weights_of_hot(path, settings, runs, n_temperatures=300, advance=advance))
        print(f"log Z of the hot level {hot.log_value:.2f} +- {hot.standard_error:.2f}")
        print(f"of it, the scale of the data file takes {data.log_scale:.2f}")
    if given.plain:
        _plain(spec, posterior, advance, streams(2**22 + np.arange(given.ladders, dtype=np.uint64)), seconds)


def _show_round(seconds: float, number: int, settings: LadderSettings, measured: Measured) -> None:
    r_hat = measured.r_hat()
    means = np.array(measured.mean_measure)
    print(
        f"{seconds:6.1f} s  round {number}: {settings.n_levels} levels from {settings.levels[0]:.2f} to"
        f" {settings.levels[-1]:.2f}, barrier {sum(measured.mean_rejection):.1f}, largest rejection"
        f" {max(measured.mean_rejection):.2f}"
    )
    for level in sorted(
        {*range(0, settings.n_levels - 1, max(1, settings.n_levels // 6)), settings.n_levels - 1}
    ):
        print(
            f"          level {level:2d}  R-hat {r_hat[level]:.3f}  accepted"
            f" {measured.mean_accepted[level]:.2f}  A {np.round(means[0::2, level], 2)}"
            f"  B {np.round(means[1::2, level], 2)}"
        )


def _show_frozen(parts: list[Frozen], settings: LadderSettings, state: LadderState) -> None:
    measure, forward, reverse = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("measure", "forward", "reverse")
    )
    within, means = measure.var(axis=0).mean(axis=0), measure.mean(axis=0)
    r_hat = np.sqrt((within + means.var(axis=0, ddof=1)) / within)
    difference = means[0::2].mean(axis=0) - means[1::2].mean(axis=0)
    print("level  coordinate  noise   R-hat  A less B")
    for level, x in enumerate([*settings.levels, np.inf]):
        print(f"{level:5d}  {x:10.2f}  {np.exp(-x / 2):5.3f}  {r_hat[level]:6.3f}  {difference[level]:8.3f}")
    agreeing = int(np.argmax(r_hat > _AGREE)) if (r_hat > _AGREE).any() else settings.n_levels
    print(f"R-hat is below {_AGREE} at the {agreeing} hottest levels")
    for ladder in range(measure.shape[1]):
        found = bennett(forward[:, ladder], reverse[:, ladder])
        print(
            f"{'AB'[ladder % 2]} {ladder}: log Z {found.total:.2f} +- {found.standard_error:.2f} from the hot"
            f" level, mean measure at the top {means[ladder, -1]:.3f}, {int(state.trips[ladder])} round trips"
        )


def _show_top(name: str, likelihood: Array, noise: Array | None, seconds: float) -> None:
    """Print R-hat and effective draws of (n_draws, n_chains) values at the top."""
    for what, values in (("log likelihood", likelihood), ("log noise precision", noise)):
        if values is not None:
            series = np.ascontiguousarray(values.T)
            r_hat, ess = (float(getattr(array_stats, of)(series)) for of in ("rhat", "ess"))
            print(f"{name}: {what}: R-hat {r_hat:.3f}, ESS {ess:.0f} ({ess / seconds:.2f} a second)")


def _plain(
    spec: RunSpec, posterior: SampledPosterior, advance: Advance, streams: Streams, seconds: float
) -> None:
    """Run chains of the default schedule for as long, after their own warm-up."""
    state, tuning = warmed(spec.phase[:-1], posterior, streams, sigmas=spec.initial.sigmas, advance=advance)
    iteration = schedule.build_iteration(
        spec.phase[-1].operations,
        target=posterior,
        updates=posterior.updates,
        advance=advance,
        tuning=tuning,
    )
    likelihood, noise, start, number = [], [], time.process_time(), 10**6
    while time.process_time() - start < seconds:
        number += 1
        state, _ = iteration(state, streams.at(iteration=number))
        likelihood.append(posterior.log_likelihood(state.position, state.precisions))
        noise.append(np.log(state.precisions[:, -1]))
    _show_top("plain chains", np.array(likelihood), np.array(noise), seconds)


if __name__ == "__main__":
    main()
