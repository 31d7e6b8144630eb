"""Describes the schedule of a configuration: phases, costs, kernels, ladders, and a forecast of the time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from rayfbnn.arrays import gpu_is_available
from rayfbnn.data import read_dataset
from rayfbnn.kernels import choose
from rayfbnn.kernels.cuda.advance import GRAPHS, LAUNCHES
from rayfbnn.kernels.cuda.build import shared_memory_of_device
from rayfbnn.mcmc.automatic import extreme_tunings
from rayfbnn.mcmc.heatbath import Heatbath, Negate
from rayfbnn.mcmc.hybrid_marginal import HybridMarginal
from rayfbnn.mcmc.model_updates import Rescale, SampleSigmas
from rayfbnn.mcmc.operation import (
    Operation,
    TrajectoryOperation,
    Tunable,
    Tuning,
    automatic,
    gradient_evaluations,
    with_inner,
)
from rayfbnn.memory import bytes_text
from rayfbnn.model.output_layer import feeds_outputs
from rayfbnn.numerals import duration, plain
from rayfbnn.run.hardware import kernel_name
from rayfbnn.run.sampler import acceptance_by_operation, build_posterior
from rayfbnn.spec import PhaseSpec, RunSpec
from rayfbnn.store.creation import planned_size
from rayfbnn.store.rounds import Round, level_words, rounds
from rayfbnn.streams import Streams

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.store.store import Store
    from rayfbnn.timing.steps import Forecast


_SMALL_SHARE, _RARELY_ACCEPTED = 0.01, 0.05  # shares of proposals that are accepted
_ROUNDS_SHOWN = 10  # the acceptance rate shown is the mean over this number of the last rounds


def describe_schedule(spec: RunSpec, store: Store | None) -> list[str]:
    """Describe each phase and the whole schedule, one item a line.

    With a store the lines also give the kernel that its run started with, and the acceptance rates so far.
    """
    start = "a draw from the prior" if spec.initial.from_prior else f"all sigmas at {spec.initial.sigmas:g}"
    start = "one draw from the prior, the same for all," if spec.initial.shared else start
    lines = [f"Schedule: each of {spec.chains} chains starts from {start}", *describe_kernels(spec, store)]
    costs = [_cost(spec, number, store) for number in range(len(spec.phase))]
    for number, (phase, cost) in enumerate(zip(spec.phase, costs, strict=True)):
        per_iteration = tuple(round(n / phase.iterations) for n in cost)
        lines.append(
            f"  phase {number + 1}: {_iterations(phase.iterations)}, {_kept(phase)};"
            f" {_from_to(cost)} gradient evaluations ({_from_to(per_iteration)} per iteration)"
        )
        rates = {} if store is None else acceptance_by_operation(store, number)
        details = [
            *_tuning(spec, number),
            *_describe_operations(phase.operations, rates),
            *(f"note: {note}" for note in _notes(spec, phase)),
            *(_notes_on_rates(rates) if phase.keep is True else ()),
        ]
        lines += [f"    {line}" for line in details]
    for who, n in (("per chain:", 1), ("in all:", spec.chains)):
        total = tuple(n * sum(bound) for bound in zip(*costs, strict=True))
        lines.append(f"  {who:10} {_from_to(total)} gradient evaluations, {n * spec.kept_draws:,} draws kept")
    if any(least < most for least, most in costs):
        lines.append("  Automatic lengths are not known yet: ranges go from the shortest to the longest.")
    return lines


def _describe_operations(
    operations: tuple[Operation, ...], rates: Mapping[Operation, float]
) -> Iterator[str]:
    """Describe each operation in one line, with the operations inside it indented below.

    rates  acceptance rates of operations, where they are known
    """
    for operation in operations:
        rate = f" (acceptance rate {_rate(rates[operation])})" if operation in rates else ""
        yield f"{operation.description()}{rate}"
        yield from (f"  {line}" for line in _describe_operations(operation.inner, rates))


def _rate(share: float) -> str:
    if share == 0:
        return "0: none accepted"
    return f"{share:.2f}" if share >= _SMALL_SHARE else f"one in {1 / share:,.0f}"


def _notes_on_rates(rates: Mapping[Operation, float]) -> Iterator[str]:
    if any(isinstance(operation, Rescale) and rate < _RARELY_ACCEPTED for operation, rate in rates.items()):
        yield (
            "note: rescale is for scales that the data leave open; where the data determine a scale, as with"
            " little noise, almost every factor is rejected. This does no harm: the other operations move"
            " such a scale, and a proposal costs one energy"
        )


def _cost(spec: RunSpec, number: int, store: Store | None) -> tuple[int, int]:
    """Return the least and the most gradient evaluations of one phase, for one chain.

    They differ while automatic lengths are not known. Once the tuning of a store has begun, both are the cost
    of the rounds so far plus the cost of the remaining rounds with the current settings.
    """
    phase = spec.phase[number]
    own_rounds = _rounds_of(spec, number)
    n_done, settings = (0, {}) if store is None else store.tuning.latest()
    if store is None or n_done == 0:
        least, most = (
            phase.iterations * gradient_evaluations(phase.operations, tuning=tuning)
            for tuning in extreme_tunings(phase.operations, is_measured=bool(own_rounds))
        )
        return least, most
    parts = [(phase.iterations, Tuning(settings))]
    if own_rounds:
        parts = [
            (
                one.last - one.first + 1,
                store.tuning.at(one.first) if one.number <= n_done else Tuning(settings, is_measured=True),
            )
            for one in own_rounds
        ]
    total = sum(n * gradient_evaluations(phase.operations, tuning=tuning) for n, tuning in parts)
    return total, total


def _rounds_of(spec: RunSpec, number: int) -> list[Round]:
    return [tuning_round for tuning_round in rounds(spec) if tuning_round.phase == number]


def _from_to(numbers: tuple[int, ...]) -> str:
    return " to ".join(f"{number:,}" for number in dict.fromkeys(numbers))


def _iterations(n: int) -> str:
    return f"{n:,} iteration{'s' if n > 1 else ''}"


def _tuning(spec: RunSpec, number: int) -> list[str]:
    if own_rounds := _rounds_of(spec, number):
        length = own_rounds[0].last - own_rounds[0].first + 1
        text = f"{len(own_rounds)} rounds of {_iterations(length)} of all chains"
        return [f"automatic settings are found here, in {text}"]
    is_automatic = automatic(spec.phase[number].operations)
    return ["automatic settings are those found in an earlier phase"] if is_automatic else []


def describe_tuning(store: Store) -> str:
    """Describe the settings found so far by a run; "" for a run without automatic operations."""
    log = store.tuning
    if not log.rounds:
        return ""
    n_finished, tuned = log.latest()
    lines = [f"tuning: {n_finished} of {len(log.rounds)} rounds finished"]
    for operation, settings in tuned.items():
        finished = [
            tuning_round.number
            for tuning_round in log.rounds[:n_finished]
            if operation in tuning_round.operations
        ]
        parts = [f"{operation.op}: {settings.steps} steps", f"stepsize {plain(settings.stepsize, 4)}"]
        if settings.scales:
            parts[-1] += f" scaled by {_scales(store.spec, operation, settings.scales)}"
        if last := finished[-_ROUNDS_SHOWN:]:
            rates = [log.read(number)[operation].mean_acceptance for number in last]
            parts.append(f"acceptance rate {sum(rates) / len(rates):.2f} in the last {len(last)} rounds")
        lines.append(f"  {', '.join(parts)}")
    return "\n".join(lines) + "\n"


def describe_rounds(store: Store) -> str:
    """Describe the verdicts of a run in rounds, one line for each round; "" for any other run."""
    verdicts = [verdict for verdict in store.verdicts.all() if verdict.draws or verdict.seconds]
    return "".join(
        f"round {number}: {verdict.draws} draws in each chain, predictions {verdict.predictions},"
        f" hyperparameters {verdict.hyperparameters}"
        + (f"; then {verdict.next_iterations} iterations\n" if verdict.next_iterations else "\n")
        for number, verdict in enumerate(verdicts, start=1)
    )


def _scales(spec: RunSpec, operation: Tunable, scales: tuple[float, ...]) -> str:
    """Return the name of each group with its factor.

    If outputs are integrated out, the precisions that move along with the parameters come last.
    """
    names = [group.name for group in spec.network.groups()]
    if isinstance(operation, HybridMarginal) and "outputs" in operation.over:
        names = [name for name in names if not feeds_outputs(name)]
    names += ["a precision that moves along"] * (len(scales) - len(names))
    return ", ".join(f"{name} {plain(scale, 3)}" for name, scale in zip(names, scales, strict=True))


def _kept(phase: PhaseSpec) -> str:
    if phase.keep == "warmup":
        return "one draw per iteration kept as warm-up"
    return "one draw per iteration kept" if phase.keep else "no draws kept"


def _notes(spec: RunSpec, phase: PhaseSpec) -> Iterator[str]:
    updates = with_inner(phase.operations)
    kinds = {type(update) for update in updates}
    n_free = sum(math.isfinite(min(group.prior.alphas[:2])) for group in spec.network.groups())
    if phase.keep is True and n_free and SampleSigmas not in kinds:
        yield "no sample-sigmas: draws are conditional on the current sigmas of the weights"
    for inexact in dict.fromkeys((update.op, update.bias) for update in updates if not update.is_exact):
        if phase.keep is True:
            yield f"{inexact[0]} never rejects: {inexact[1]}"
    if any(isinstance(update, TrajectoryOperation) for update in updates) and Heatbath not in kinds:
        yield "no heatbath: the momentum is never refreshed"
    is_persistent = any(isinstance(update, Heatbath) and update.decay > 0 for update in updates)
    if is_persistent and Negate not in kinds:
        yield "heatbath with decay but no negate: the momentum reverses whenever a trajectory is accepted"


Over = tuple[Literal["outputs", "precisions"], ...]


def describe_kernels(spec: RunSpec, store: Store | None) -> Iterator[str]:
    """Yield lines that name the kernels of each kind of leapfrog step.

    With a store the lines name the kernels that its run started with, otherwise the kernels that this machine
    would use. On a GPU the choice depends on its memory, so it is certain only on a machine with a GPU.
    """
    current = kernel_name(spec)
    recorded = name = current if store is None else store.root.kernel
    if not choose.is_available(name):
        name += f"; not available on this machine, which would use {current}"
    operations = [update for phase in spec.phase for update in with_inner(phase.operations)]
    overs = tuple(dict.fromkeys(one.over for one in operations if isinstance(one, HybridMarginal)))
    marginal = dict.fromkeys(overs, name)
    if name in (LAUNCHES, GRAPHS):
        marginal = dict.fromkeys(overs, LAUNCHES)
        dataset = _dataset(spec, store) if gpu_is_available() else None
        if dataset is not None:
            name, marginal = device_kernels(spec, dataset, overs, recorded, shared_memory_of_device())
    yield f"  leapfrog steps: {name}"
    for over, marginal_name in marginal.items():
        yield f"  leapfrog steps of hybrid-marginal over {' and '.join(over)}: {marginal_name}"
    integrators = [one.integrator for one in operations if isinstance(one, TrajectoryOperation)]
    for integrator in dict.fromkeys(integrators):
        if integrator != "leapfrog":
            yield f"  {integrator} steps: {choose.ARRAY_CODE[spec.device]}"


def _dataset(spec: RunSpec, store: Store | None) -> Dataset | None:
    if store is not None:
        return store.data
    path = spec.train_path
    return read_dataset(spec) if path is not None and path.exists() else None


def device_kernels(
    spec: RunSpec, dataset: Dataset, overs: Iterable[Over], recorded: str, max_shared_bytes: int
) -> tuple[str, dict[Over, str]]:
    """Return the names of the kernels on a GPU: for the posterior, and for hybrid-marginal over `overs`.

    recorded          name of the kernel that the run started with
    max_shared_bytes  shared memory of a thread block on the GPU
    """
    posterior = build_posterior(spec, dataset, device="cpu")
    choice = partial(choose.advance_for, device="gpu", recorded=recorded, max_shared_bytes=max_shared_bytes)
    streams = Streams(spec.seed, np.zeros(1, dtype=np.uint64))
    state = posterior.initial_state(streams, sigmas=1.0)
    targets = {over: posterior.marginal(over).given(state, streams) for over in overs}
    return choice(posterior)[1], {over: choice(target)[1] for over, target in targets.items()}


_HELD = {
    "noise": "noise, held at one value at each level and drawn at the last, which is the posterior",
    "powers": "powers of the likelihood; the last level has power 1 and is the posterior",
}


def describe_ladder(spec: RunSpec, store: Store | None) -> list[str]:
    """Describe the levels, the two families and the phases of ladders, one item a line.

    With a store the lines also give the levels that the adaptation has found so far.
    """
    ladder, phases = spec.ladder, spec.phase
    assert ladder is not None
    held, kind = len(phases) - 4, spec.ladder_ends.kind
    levels = f"{'up to ' if ladder.levels == 'auto' else ''}{ladder.most_levels} levels"
    warmup = sum(phase.iterations for phase in phases[: held + 1])
    is_t = kind == "powers" and spec.model.noise is not None
    why = [
        "  not levels of noise, because t noise has them with one alpha of common and targets, not with both"
    ]
    what = "noise of the hottest level" if kind == "noise" else "power of the hottest level"
    hot = "found by the adaptation" if ladder.hot == "auto" else plain(ladder.hot, 3)
    together = min(spec.chains, spec.chains_per_batch)
    return [
        f"Ladder: {spec.chains} ladders of {levels}: {_HELD[kind]}",
        *(why if is_t else []),
        f"  {what}: {hot}",
        f"  from chains: ladders 0, 2, ... ({spec.chains // 2}), each from a chain of its own",
        f"  from the prior: ladders 1, 3, ... ({spec.chains // 2}), each annealed from draws of its own",
        f"  batches of {together} ladders, with {'up to ' if ladder.levels == 'auto' else ''}"
        f"{together * ladder.most_levels:,} chains at all levels",
        f"  phases 1 to {held + 1}: {warmup:,} iterations of the default schedule, in the former's chains",
        f"  phase {held + 2}: {ladder.annealing:,} iterations, in which the latter are annealed",
        f"  phase {held + 3}: {ladder.adaptation:,} iterations in rounds ({len(ladder.rounds)}), each with"
        " new levels, stepsizes and lengths",
        f"  phase {held + 4}: {phases[-1].iterations:,} iterations; the draw of the last level is kept",
        "  operations at every level, before neighbours exchange their states:",
        *(f"    {operation.description()}" for operation in phases[-1].operations),
        *([] if store is None else [f"  {line}" for line in _found(store)]),
    ]


def _found(store: Store) -> list[str]:
    rounds = store.tuning.ladder_rounds()
    planned = sum(one.of == "ladders" for one in store.tuning.rounds)
    finished = sum(one.of_levels is not None for one in rounds)
    if not rounds:
        return ["levels: not known yet"]
    settings = rounds[-1].settings
    lines = [
        f"levels after {finished} of {planned} rounds: {settings.n_levels},"
        f" {level_words(store.spec, settings)}",
        f"steps: {settings.steps[0]} at the hottest level, {settings.steps[-1]} at the last",
    ]
    measured = rounds[-1].of_levels
    if measured is not None:
        rejection, accepted = measured.means(measured.rejection), measured.means(measured.accepted)
        lines.append(
            f"last round: rejection of exchanges {min(rejection):.2f} to {max(rejection):.2f}, acceptance of"
            f" trajectories {min(accepted):.2f} to {max(accepted):.2f}, R-hat over the ladders"
            f" {_r_hat(measured.r_hat())}"
        )
    return lines


def _r_hat(values: tuple[float, ...]) -> str:
    first, last = (
        f"{value:.2f}" if math.isfinite(value) else "infinite" for value in (values[0], values[-1])
    )
    return f"{first} at the hottest level, {last} at the last"


_LARGE_STORE = 100e6  # bytes


def describe_forecast(spec: RunSpec, forecast: Forecast) -> str:
    """Return the time of a run or a fit in one line, as an upper limit if it may end early."""
    timing = None if spec.fit is None else spec.fit.timing()
    is_most = forecast.first_verdict is not None if timing is None else timing.is_most
    verdict = forecast.first_verdict
    rest = "" if timing is None or timing.n_densities else ", without the evidence"
    if verdict is not None:
        rest = f" and {duration(verdict)} before the first verdict, after which it may end"
    workers = f"{forecast.workers} worker{'s' if forecast.workers > 1 else ''}"
    start = f", except for {duration(forecast.start)} to start workers" if forecast.start else ""
    return (
        f"Time: {'at most ' if is_most else ''}about {duration(forecast.seconds)} with {workers},"
        f" {duration(forecast.before_draws)} of it before the first draw{rest}"
        f" (measured on this machine{start})"
    )


def describe_large_store(spec: RunSpec) -> str:
    """Return the size of a store that will be large, with an option that makes it smaller; otherwise ""."""
    _, n_bytes = planned_size(spec, 1)
    if n_bytes < _LARGE_STORE:
        return ""
    option, shorter = _shorter(spec)
    _, fewer = planned_size(shorter, 1)
    at_most = "at most " if spec.has_open_length else ""
    return (
        f"Store: {at_most}about {bytes_text(n_bytes)}, because each draw has all parameters of the network\n"
        f"    {bytes_text(fewer):>20}  {option}\n"
    )


def _shorter(spec: RunSpec) -> tuple[str, RunSpec]:
    """Return the option that makes a run's last phase a quarter as long, and the run with it.

    If the schedule is the default one, its tuning becomes shorter too.
    """
    n = max(1, spec.phase[-1].iterations // 4)
    if "phase" in spec.written():
        return f"--set phase[{len(spec.phase) - 1}].iterations={n}", spec.with_iterations(n)
    keys = {**spec.written(), "iterations": n}
    return f"--set iterations={n}", RunSpec.from_dict(keys).resolved(spec.encoding)
