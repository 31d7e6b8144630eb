"""What a configuration amounts to, in words: the text of `rayfbnn show`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
import scipy.special

from rayfbnn.architecture import GroupSpec, LayerSpec, PriorSpec
from rayfbnn.arrays import gpu_is_available
from rayfbnn.kernels import choose
from rayfbnn.kernels.cuda import shared_memory_of_device
from rayfbnn.mcmc.schedule import gradient_evaluations
from rayfbnn.mcmc.tuning import Tuning, extreme_tunings
from rayfbnn.operations import (
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
from rayfbnn.run.data import read_dataset
from rayfbnn.run.rounds import rounds
from rayfbnn.run.sampler import acceptance_by_operation, build_posterior
from rayfbnn.spec import PhaseSpec, RunSpec
from rayfbnn.streams import Streams

if TYPE_CHECKING:
    from rayfbnn.run.data import Dataset
    from rayfbnn.run.store import Store

Over = tuple[Literal["outputs", "precisions"], ...]


def describe(spec: RunSpec, *, store: Store | None = None) -> str:
    """The network, every prior spelled out, the schedule and what it costs, and the defaults taken.

    store  of a run with this specification, if there is one
    """
    parts = [_network(spec), _priors(spec), _data(spec), _schedule(spec, store), _defaults(spec)]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _network(spec: RunSpec) -> list[str]:
    network = spec.network_spec()
    layers = [f"{network.inputs} inputs"]
    layers += [_layer(layer) for layer in network.hidden]
    layers += [f"{network.outputs} output{'s' if network.outputs > 1 else ''}"]
    groups = [
        f"  {group.name:<6}{_what(group.name):<44}{_size(group):>16}{_which(spec, group)}"
        for group in network.groups()
    ]
    return [
        f"Network: {' - '.join(layers)}, {network.n_parameters} parameters",
        *groups,
    ]


def _layer(layer: LayerSpec) -> str:
    groups = "" if layer.groups is None else f" (groups {layer.groups})"
    product = "" if layer.product is None else f" times hidden layer {layer.product}"
    return f"{layer.units} {layer.activation}{groups}{product}"


def _size(group: GroupSpec) -> str:
    return f"{group.shape[0]} x {group.shape[1]} = {group.size}" if group.is_weights else str(group.size)


def _which(spec: RunSpec, group: GroupSpec) -> str:
    """What there is to say of a group that is not fully connected."""
    if group.name in spec.network.connections:
        keys = spec.network.connections[group.name]
        return f" configured ({keys.get('generator', 'a table')})"
    return f" without {', '.join(spec.network.omit[group.name])}" if group.omitted else ""


def _what(name: str) -> str:
    """A group in words: "weights, inputs to hidden layer 0" for ih0."""
    layer = {"i": "inputs", "o": "outputs"}
    ends = [layer.get(end, f"hidden layer {end[1:]}") for end in re.findall(r"h\d+|[io]", name)]
    match name[0]:
        case "t":
            return f"offsets of {ends[0]}"
        case "b":
            return f"biases of {ends[0]}"
        case _:
            # ho2 is FBM's name for hidden layer 2 to the outputs: the number belongs to the h.
            source, destination = ends if len(ends) == 2 else (f"hidden layer {name[2:]}", "outputs")
            return f"weights, {source} to {destination}"


def _priors(spec: RunSpec) -> list[str]:
    lines = ["Priors (sigma = 1/sqrt(precision); a precision of shape alpha/2 and the mean given)"]
    for group in spec.network_spec().groups():
        lower = "source unit" if group.is_weights else None
        text = spec.network.priors[group.name]
        lines += _prior(group.name, text, group.prior, group.shape[0], unit=lower, parameter="parameter")
    for name, alpha in spec.network_spec().adjustments.items():
        low, high = sigma_range(alpha, 1.0)
        layer = "the outputs" if name == "ao" else f"hidden layer {name[2:]}"
        lines.append(f'  {name:<6}"{spec.network.priors[name]}": adjustments of {layer}, mean precision 1')
        lines.append(f"        sigma of all into a unit: alpha {alpha:g}, times 5-95 % from {low} to {high}")
    noise = spec.model_spec().noise
    if noise is not None:
        assert spec.model.noise is not None
        lines += _prior("noise", spec.model.noise, noise, 1, unit="target", parameter="case")
    return lines


def _prior(
    name: str, text: str, prior: PriorSpec, n_sources: int, *, unit: str | None, parameter: str
) -> Iterator[str]:
    omega = prior.mean_precision(n_sources)
    common, by_unit, by_parameter = prior.alphas
    scaling = f" (scaled for {n_sources} source units)" if prior.scaled else ""
    yield f'  {name:<6}"{text}": width {prior.width:g}, mean precision {omega:.6g}{scaling}'
    if math.isinf(common):
        yield f"        common sigma fixed at {omega**-0.5:.4g}"
    else:
        low, high = sigma_range(common, omega)
        yield f"        common sigma: alpha {common:g}, 5-95 % from {low} to {high}"
    if unit is not None and math.isfinite(by_unit):
        low, high = sigma_range(by_unit, 1.0)
        yield f"        sigma of each {unit}: alpha {by_unit:g}, 5-95 % from {low} to {high} times the common"
    if math.isfinite(by_parameter):
        yield f"        each {parameter}: t distribution with {by_parameter:g} degrees of freedom"
    else:
        yield f"        each {parameter}: Gaussian"


def sigma_range(alpha: float, mean_precision: float) -> tuple[str, str]:
    """The 5 % and 95 % points of sigma = precision**(-1/2), precision ~ Gamma(alpha/2, mean mean_precision).

    As text, because for the alphas of Neal's examples (0.001) the upper one exceeds any float.
    """
    shape = alpha / 2
    points = []
    for probability in (0.95, 0.05):
        quantile = float(scipy.special.gammaincinv(shape, probability))
        if quantile > 1e-300:
            log_quantile = math.log(quantile)
        else:  # where P(shape, x) = x**shape / Gamma(shape + 1) to all digits
            log_quantile = (math.log(probability) + math.lgamma(shape + 1)) / shape
        # rate = shape / mean_precision
        log_sigma = -(log_quantile - math.log(shape / mean_precision)) / 2
        points.append(_number_from_log(log_sigma))
    return points[0], points[1]


def _number_from_log(log_value: float) -> str:
    """exp(log_value) with three digits, whatever its size."""
    if abs(log_value) < 600:
        return f"{math.exp(log_value):.3g}"
    exponent = math.floor(log_value / math.log(10))
    return f"{math.exp(log_value - exponent * math.log(10)):.2f}e{exponent:+d}"


def _data(spec: RunSpec) -> list[str]:
    model = spec.model
    kind: str = model.kind
    if model.kind == "class":
        kind += f", {model.classes} classes"
    elif model.kind == "survival":
        kind += f", {model.hazard} hazard"
    pieces = []
    if model.time_points:
        first = "log time" if model.log_time else "time"
        listed = ", ".join(f"{time:g}" for time in model.time_points)
        pieces = [f"  hazard constant between the times {listed}; the network's first input is the {first}"]
    standardized = " and ".join(spec.data.standardize) or "nothing"
    power = f"the likelihood to the power {1 / spec.temperature:.4g}"
    tempered = [f"  temperature {spec.temperature:g}: {power}"] if spec.temperature != 1 else []
    return [
        f"Data: {spec.data.train}",
        f"  inputs {', '.join(spec.data.inputs)}; targets {', '.join(spec.data.targets)} ({kind}); "
        f"standardised: {standardized}",
        *pieces,
        *tempered,
    ]


def _schedule(spec: RunSpec, store: Store | None) -> list[str]:
    start = "a draw from the prior" if spec.initial.from_prior else f"all sigmas at {spec.initial.sigmas:g}"
    lines = [f"Schedule of each of {spec.chains} chains, from {start}", *_kernels(spec, store)]
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
        if last:
            accepted = [log.read(number).mean_acceptance(operation) for number in last]
            what += f", accepted {sum(accepted) / len(accepted):.2f} in the last {len(last)} rounds"
        lines.append(what)
    return "\n".join(lines) + "\n"


def _kernels(spec: RunSpec, store: Store | None) -> Iterator[str]:
    """What runs the leapfrog steps: of a store what it was begun with, else what would on this machine.

    On a device the choice depends on its memory: where there is one here, it is that which is made here.
    """
    here = choose.name_for(
        spec.network_spec(), spec.model_spec(), n_targets=len(spec.data.targets), device=spec.device
    )
    name = here if store is None else store.root.kernel
    if not choose.is_available(name):
        name += f"; not to be had here, where it is {here}"
    done = [each for phase in spec.phase for each in unrolled(phase.operations)]
    done += [inner for each in done for inner in unrolled(inner_operations(each))]
    overs = tuple(dict.fromkeys(each.over for each in done if isinstance(each, HybridMarginal)))
    marginal = dict.fromkeys(overs, name)
    if name == choose.DEVICE:
        marginal = dict.fromkeys(overs, "CUDA where the state fits on the chip, plain CuPy elsewhere")
        dataset = _dataset(spec, store) if gpu_is_available() else None
        if dataset is not None:
            name, marginal = device_kernels(spec, dataset, overs, shared_memory_of_device())
    yield f"  leapfrog steps: {name}"
    for over, found in marginal.items():
        yield f"  leapfrog steps of hybrid-marginal over {' and '.join(over)}: {found}"
    if any(getattr(each, "integrator", "leapfrog") != "leapfrog" for each in done):
        yield f"  fourth-order steps: {choose.PLAIN if spec.device == 'cpu' else choose.PLAIN_ON_DEVICE}"


def _dataset(spec: RunSpec, store: Store | None) -> Dataset | None:
    if store is not None:
        return store.data
    return read_dataset(spec) if spec.train_path.exists() else None


def device_kernels(
    spec: RunSpec, dataset: Dataset, overs: Iterable[Over], max_shared_bytes: int
) -> tuple[str, dict[Over, str]]:
    """What a device of so much shared memory runs the posterior with, and each of `overs`."""
    posterior = build_posterior(spec, dataset, device="cpu")
    advance, name = choose.on_device(posterior, max_shared_bytes=max_shared_bytes)
    streams = Streams(spec.seed, np.zeros(1, dtype=np.uint64))
    state = posterior.initial_state(streams, sigmas=1.0)
    targets = {over: posterior.marginal(over).given(state, streams) for over in overs}
    return name, {over: choose.marginal_name(target, advance, name) for over, target in targets.items()}


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
            case Hybrid() | HybridMax():
                if isinstance(operation, HybridMax):
                    parts = [f"{operation.op}: at most {operation.max_steps} {operation.integrator} steps"]
                    parts += [f"stepsize {operation.stepsize:g}"]
                else:
                    parts = [f"{operation.op}: {_steps(operation)} {operation.integrator} steps"]
                    parts += [_stepsize(operation)]
                parts += _jitter(operation.stepsize_jitter)
                if isinstance(operation, HybridMax):
                    parts.append(f"ending after {operation.max_ok} acceptable states")
                elif operation.window > 1:
                    parts.append(f"windows of {operation.window} states")
                if operation.jump > 1:
                    parts.append(f"looking at every {operation.jump} steps")
                if operation.partitions > 1:
                    parts.append(f"{operation.partitions} partial gradients a step")
                lines.append(", ".join(parts))
            case HybridMarginal():
                parts = [f"{operation.op} over {' and '.join(operation.over)}: {_steps(operation)} steps"]
                parts += [_stepsize(operation), *_jitter(operation.stepsize_jitter)]
                if operation.window > 1:
                    parts.append(f"windows of {operation.window} states")
                if operation.jump > 1:
                    parts.append(f"looking at every {operation.jump} steps")
                if operation.partitions > 1:
                    parts.append(f"{operation.partitions} partial gradients a step")
                lines.append(", ".join(parts))
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
                what = {"sigmas": "each sigma and its parameters", "layers": "layers, in against out"}
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


def _steps(operation: Tunable) -> str:
    return "automatic" if operation.steps == AUTO else str(operation.steps)


def _stepsize(operation: Tunable) -> str:
    return "automatic stepsize" if operation.stepsize == AUTO else f"stepsize {operation.stepsize:g}"


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
    n_free = sum(math.isfinite(min(group.prior.alphas[:2])) for group in spec.network_spec().groups())
    if phase.keep is True and n_free and SampleSigmas not in kinds:
        yield "no sample-sigmas: draws are given the sigmas of the weights as they stand"
    if phase.keep is True and Dynamic in kinds:
        yield "dynamic is never rejected: draws are biased by the error of the trajectories"
    if kinds & {Hybrid, HybridMarginal, HybridMax, Dynamic} and Heatbath not in kinds:
        yield "no heatbath: the momentum is never drawn anew"
    persistent = any(isinstance(each, Heatbath) and each.decay > 0 for each in done)
    if persistent and Negate not in kinds:
        yield "heatbath with decay but no negate: the momentum reverses whenever a trajectory is accepted"


def _defaults(spec: RunSpec) -> list[str]:
    """Settings that the configuration left out, with their values."""
    taken = [
        f"{name} = {getattr(spec, name)}"
        for name in ("seed", "chains", "chains_per_batch", "draws_per_block", "dtype", "device")
        if name not in spec.model_fields_set
    ]
    if "standardize" not in spec.data.model_fields_set:
        taken.append("data.standardize = []")
    if "phase" not in spec.model_fields_set:
        taken.append(f"phases, the last of iterations = {spec.phase[-1].iterations}")
    if "initial" not in spec.model_fields_set:
        taken.append(f"initial.sigmas = {spec.initial.sigmas}")
    return [f"Defaults taken: {', '.join(taken)}"] if taken else []
