"""The schedule of a configuration in words: what its phases do, cost and have found."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING

from rayfbnn.describe.kernels import describe_kernels
from rayfbnn.mcmc.operations import (
    AUTO,
    Dynamic,
    Heatbath,
    Hybrid,
    HybridMarginal,
    HybridMax,
    Metropolis,
    Metropolis1,
    Negate,
    Operation,
    RadialHeatbath,
    RandomGrid,
    Repeat,
    Rescale,
    SampleNoise,
    SampleSigmas,
    SimulatedTempering,
    Slice1,
    TemperedTransition,
    Tunable,
    automatic,
    inner_operations,
    unrolled,
)
from rayfbnn.mcmc.schedule import gradient_evaluations
from rayfbnn.mcmc.tuning.measuring import Tuning, extreme_tunings
from rayfbnn.model.marginal.output_layer import feeds_outputs
from rayfbnn.run.sampler import acceptance_by_operation
from rayfbnn.spec import PhaseSpec, RunSpec
from rayfbnn.store.rounds import rounds

if TYPE_CHECKING:
    from rayfbnn.store.store import Store


def describe_schedule(spec: RunSpec, store: Store | None) -> list[str]:
    """Lines about each phase and about all of them; of a store with what it was begun with and has found."""
    start = "a draw from the prior" if spec.initial.from_prior else f"all sigmas at {spec.initial.sigmas:g}"
    lines = [f"Schedule of each of {spec.chains} chains, from {start}", *describe_kernels(spec, store)]
    costs = _costs(spec, store)
    for number, phase in enumerate(spec.phase, start=1):
        cost = costs[number - 1]
        each = tuple(round(n / phase.iterations) for n in cost)
        text = f"{_from_to(cost)} gradient evaluations ({_from_to(each)} an iteration)"
        lines.append(f"  phase {number}: {phase.iterations} iterations, {_kept(phase)}; {text}")
        lines += [f"    {line}" for line in _tuning(spec, number - 1)]
        accepted = {} if store is None else acceptance_by_operation(store, number - 1)
        lines += [f"    {line}" for line in _operations(phase.operations, accepted)]
        lines += [f"    note: {note}" for note in _notes(spec, phase)]
    for who, n in (("a chain:", 1), ("in all: ", spec.chains)):
        total = tuple(n * sum(each) for each in zip(*costs, strict=True))
        text = f"{_from_to(total)} gradient evaluations, {n * spec.kept_draws:,} draws kept"
        lines.append(f"  {who} {text}")
    if any(least < most for least, most in costs):
        lines.append("  from the shortest to the longest of automatic trajectories, until they are found")
    return lines


def _costs(spec: RunSpec, store: Store | None) -> list[tuple[int, int]]:
    """The least and the most gradient evaluations of each phase, for a chain.

    Where automatic lengths are not known yet, those of the shortest and of the longest trajectories. For a
    store whose tuning has begun both are what its rounds took, and what they have found for what is to come.
    """
    n_done, settings = (0, {}) if store is None else store.tuning.latest()
    costs = []
    for number, phase in enumerate(spec.phase):
        own = [each for each in rounds(spec) if each.phase == number]
        if store is None or n_done == 0:
            tunings = extreme_tunings(phase.operations, is_measured=bool(own))
            least, most = (gradient_evaluations(phase.operations, tuning=each) for each in tunings)
            costs.append((least * phase.iterations, most * phase.iterations))
            continue
        total = 0
        for each in own:
            known = each.number <= n_done
            tuning = store.tuning.at(each.first) if known else Tuning(settings, is_measured=True)
            total += (each.last - each.first + 1) * gradient_evaluations(phase.operations, tuning=tuning)
        if not own:
            total = phase.iterations * gradient_evaluations(phase.operations, tuning=Tuning(settings))
        costs.append((total, total))
    return costs


def _from_to(numbers: tuple[int, ...]) -> str:
    return " to ".join(f"{number:,}" for number in dict.fromkeys(numbers))


def _tuning(spec: RunSpec, number: int) -> list[str]:
    """Where automatic settings come from."""
    own = [each for each in rounds(spec) if each.phase == number]
    if own:
        length = own[0].last - own[0].first + 1
        return [f"finds automatic settings, in {len(own)} rounds of {length} iterations of all chains"]
    return ["with automatic settings as found before"] if automatic(spec.phase[number].operations) else []


def describe_tuning(store: Store) -> str:
    """What a run has found so far for its automatic operations; nothing for a run without any."""
    log = store.tuning
    if not log.rounds:
        return ""
    n_finished, settings = log.latest()
    lines = [f"tuning: {n_finished} of {len(log.rounds)} rounds"]
    for operation, found in settings.items():
        last = [each.number for each in log.rounds[:n_finished] if operation in each.operations][-10:]
        what = f"  {operation.op}: {found.steps} steps, stepsize {found.stepsize:.4g}"
        if found.scales:
            what += f" times {_scales(store.spec, operation, found.scales)}"
        if last:
            accepted = [log.read(number).mean_acceptance(operation) for number in last]
            what += f", accepted {sum(accepted) / len(accepted):.2f} in the last {len(last)} rounds"
        lines.append(what)
    return "\n".join(lines) + "\n"


def _scales(spec: RunSpec, operation: Tunable, scales: tuple[float, ...]) -> str:
    """Each group's factor; where outputs are integrated out, precisions that move along come last."""
    names = [group.name for group in spec.network.groups()]
    if isinstance(operation, HybridMarginal) and "outputs" in operation.over:
        names = [name for name in names if not feeds_outputs(name)]
    pairs = zip_longest(names, scales, fillvalue="a precision that moves along")
    return ", ".join(f"{name} {scale:.3g}" for name, scale in pairs)


def _kept(phase: PhaseSpec) -> str:
    if phase.keep == "warmup":
        return "kept as warm-up"
    return "one draw kept each" if phase.keep else "not kept"


def _operations(
    operations: tuple[Operation, ...], accepted: Mapping[Operation, float] | None = None
) -> list[str]:
    """Each in a line, with the share of its proposals accepted where that is known."""
    lines: list[str] = []
    accepted = accepted or {}
    for operation in operations:
        match operation:
            case SimulatedTempering() | TemperedTransition():
                levels = ", ".join(f"{b:g}" for b in operation.inverse_temperatures)
                lines.append(f"{operation.op}: inverse temperatures {levels}, at each")
                lines += [f"  {line}" for line in _operations(operation.operations)]
            case Repeat():
                lines.append(f"repeat {operation.times} times")
                lines += [f"  {line}" for line in _operations(operation.operations, accepted)]
            case Hybrid():
                parts = [f"{operation.op}: {_steps(operation)} {operation.integrator} steps"]
                lines.append(", ".join(parts + _tunable(operation)))
            case HybridMarginal():
                parts = [f"{operation.op} over {' and '.join(operation.over)}: {_steps(operation)} steps"]
                lines.append(", ".join(parts + _tunable(operation)))
            case HybridMax():
                parts = [f"{operation.op}: at most {operation.max_steps} {operation.integrator} steps"]
                parts += [f"stepsize {operation.stepsize:g}", *_jitter(operation.stepsize_jitter)]
                parts.append(f"ending after {operation.max_ok} acceptable states")
                lines.append(", ".join(parts + _jumps_and_partitions(operation)))
            case Dynamic():
                parts = [f"dynamic: {operation.steps} {operation.integrator} steps"]
                parts += [f"stepsize {operation.stepsize:g}", *_jitter(operation.stepsize_jitter)]
                if operation.partitions > 1:
                    order = " in random order" if operation.permuted else ""
                    parts.append(f"{operation.partitions} partial gradients a step{order}")
                lines.append(", ".join([*parts, "not corrected"]))
            case Metropolis():
                parts = [f"metropolis: stepsize {operation.stepsize:g}", *_jitter(operation.stepsize_jitter)]
                lines.append(", ".join(parts))
            case Metropolis1() | Slice1():
                parts = [
                    f"{operation.op}: stepsize {operation.stepsize:g}",
                    *_jitter(operation.stepsize_jitter),
                ]
                if isinstance(operation, Slice1):
                    doubled = f"doubled to at most {1 << (operation.max_steps.bit_length() - 1)}"
                    most = doubled if operation.doubling else f"of at most {operation.max_steps}"
                    parts.append(f"intervals {most} stepsizes")
                parts.append("one parameter at random" if operation.random else "each parameter in turn")
                lines.append(", ".join(parts))
            case Rescale():
                what = {"sigmas": "each sigma and its parameters", "incoming": "all that leads into a layer"}
                lines.append(f"rescale: {what[operation.along]}, stepsize {operation.stepsize:g}")
            case RandomGrid():
                parts = [f"random-grid: stepsize {operation.stepsize:g}", "of the upper-level precisions"]
                lines.append(", ".join(parts) + _of_groups(operation.groups))
            case SampleSigmas():
                level = f": the {operation.level} levels" if operation.level else ""
                lines.append(operation.op + level + _of_groups(operation.groups))
            case Heatbath():
                lines.append("heatbath" + (f": decay {operation.decay:g}" if operation.decay else ""))
            case SampleNoise() | RadialHeatbath() | Negate():
                lines.append(operation.op)
        if operation in accepted:
            lines[-1] += f"; accepted {accepted[operation]:.2f}"
    return lines


def _tunable(operation: Tunable) -> list[str]:
    """What is said of a trajectory after its number of steps."""
    is_found = operation.stepsize == AUTO
    parts = ["automatic stepsize" if is_found else f"stepsize {operation.stepsize:g}"]
    parts += ["automatic scales of groups"] if operation.scaling == AUTO else []
    parts += _jitter(operation.stepsize_jitter)
    if operation.window > 1:
        parts.append(f"windows of {operation.window} states")
    return parts + _jumps_and_partitions(operation)


def _jumps_and_partitions(operation: Tunable | HybridMax) -> list[str]:
    parts = [f"looking at every {operation.jump} steps"] if operation.jump > 1 else []
    if operation.partitions > 1:
        parts.append(f"{operation.partitions} partial gradients a step")
    return parts


def _steps(operation: Tunable) -> str:
    return "automatic" if operation.steps == AUTO else str(operation.steps)


def _of_groups(groups: tuple[str, ...] | None) -> str:
    return f" of {', '.join(groups)}" if groups else ""


def _jitter(jitter: float | None) -> list[str]:
    if jitter is None:
        return []
    return [f"jitter over {-jitter:g} decades" if jitter < 0 else f"jitter by Gamma of alpha {jitter:g}"]


def _notes(spec: RunSpec, phase: PhaseSpec) -> Iterator[str]:
    """What is allowed and yet seldom meant."""
    outer = unrolled(phase.operations)
    done = outer + tuple(inner for each in outer for inner in unrolled(inner_operations(each)))
    kinds = {type(operation) for operation in done}
    n_free = sum(math.isfinite(min(group.prior.alphas[:2])) for group in spec.network.groups())
    if phase.keep is True and n_free and SampleSigmas not in kinds:
        yield "no sample-sigmas: draws are given the sigmas of the weights as they stand"
    if phase.keep is True and Dynamic in kinds:
        yield "dynamic is never rejected: draws are biased by the error of the trajectories"
    if kinds & {Hybrid, HybridMarginal, HybridMax, Dynamic} and Heatbath not in kinds:
        yield "no heatbath: the momentum is never drawn anew"
    persistent = any(isinstance(each, Heatbath) and each.decay > 0 for each in done)
    if persistent and Negate not in kinds:
        yield "heatbath with decay but no negate: the momentum reverses whenever a trajectory is accepted"
