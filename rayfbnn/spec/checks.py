"""Checks of a configuration that need more than one key."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from rayfbnn.errors import ConfigError
from rayfbnn.mcmc.operations import (
    AUTO,
    HybridMarginal,
    Operation,
    RandomGrid,
    Repeat,
    SampleSigmas,
    SimulatedTempering,
    Tunable,
    automatic,
    inner_operations,
)
from rayfbnn.model.architecture import (
    LAYER_ACTIVATIONS,
    PRIOR_ACTIVATIONS,
    NetworkSpec,
    PriorSpec,
    why_outputs_stay,
)
from rayfbnn.spec.connections import check_connections
from rayfbnn.spec.messages import MAX_WORD, RIGHT, nearest, short

if TYPE_CHECKING:
    from rayfbnn.spec.records import RunSpec

_MAX_UPDATES = 100_000  # in one iteration; each holds its place in memory once `repeat` is written out
_SCALE_RANGE = (1e-12, 1e12)  # of a width; its square times any n must stay inside float32's range
_ALPHA_RANGE = (1e-6, 1e6)  # below, a precision's logarithm overflows; above, it is infinity in all but name


def check_problem(spec: RunSpec) -> None:
    """Raise ConfigError for the first thing about data, model and network that makes no sense as a whole."""
    _check_data_spec(spec)
    _check_model(spec)
    _check_network(spec)


def check_schedule(spec: RunSpec) -> None:
    """Raise ConfigError for the first thing about the phases that makes no sense for the problem."""
    _check_phases(spec)
    _check_marginal(spec)


def _check_data_spec(spec: RunSpec) -> None:
    for key in ("inputs", "targets", "standardize"):
        seen: set[str] = set()
        for name in getattr(spec.data, key):
            if name in seen:
                raise ConfigError(f'data.{key}: has a name twice, got "{name}"; name each once')
            seen.add(name)
    for name in spec.data.targets:
        if name in spec.data.inputs:
            raise ConfigError(f'data.targets: names an input, got "{name}"; a column is an input or a target')
    if "targets" in spec.data.standardize and spec.model.kind not in ("real", "heteroscedastic"):
        raise ConfigError(
            f'data.standardize: only real targets can be standardised, got "targets" with model.kind = '
            f'"{spec.model.kind}"; leave "targets" out'
        )


def _check_model(spec: RunSpec) -> None:
    kind, noise, classes = spec.model.kind, spec.model.noise, spec.model.classes
    if kind == "real" and noise is None:
        raise ConfigError(f"model.noise: missing; real targets need {RIGHT['noise']}")
    if kind != "real" and noise is not None:
        raise ConfigError(f'model.noise: only real targets have noise, got "{noise}"; leave it out')
    if kind == "class" and classes is None:
        raise ConfigError("model.classes: missing; class targets need the number of classes, such as 3")
    if kind != "class" and classes is not None:
        raise ConfigError(f"model.classes: only class targets have classes, got {classes}; leave it out")
    if kind == "class" and len(spec.data.targets) != 1:
        names = ", ".join(spec.data.targets)
        raise ConfigError(f"data.targets: class models have exactly one target, got {names}")
    if spec.model.noise_floor is not None:
        if kind != "heteroscedastic":
            raise ConfigError(
                "model.noise_floor: only heteroscedastic targets have one,"
                f" got {spec.model.noise_floor:g}; leave it out"
            )
        low, high = _SCALE_RANGE
        if not low <= spec.model.noise_floor <= high:
            raise ConfigError(
                f"model.noise_floor: out of range, got {spec.model.noise_floor:g};"
                f" it must be from {low:g} to {high:g}"
            )
    _check_hazard(spec)
    if noise is not None:
        prior = PriorSpec.parse(noise, key="model.noise")
        if prior.scaled:
            raise ConfigError(f'model.noise: x (scaling) is for weights, got "{noise}"; leave out the x')
        _check_range("model.noise", noise, prior, n_sources=1)


def _check_hazard(spec: RunSpec) -> None:
    """What survival targets need, and other targets must not have."""
    model = spec.model
    given = {"hazard": model.hazard, "time_points": model.time_points, "log_time": model.log_time}
    if model.kind != "survival":
        for key, value in given.items():
            if value is not None:
                raise ConfigError(
                    f"model.{key}: only survival targets have a hazard, got {short(value)}; leave it out"
                )
        return
    if len(spec.data.targets) != 1:
        names = ", ".join(spec.data.targets)
        raise ConfigError(f"data.targets: survival models have exactly one target, got {names}")
    if model.hazard is None:
        raise ConfigError(f"model.hazard: missing; survival targets need {RIGHT['hazard']}")
    if model.hazard == "constant":
        for key in ("time_points", "log_time"):
            if given[key] is not None:
                raise ConfigError(
                    f"model.{key}: a constant hazard does not depend on time, got {short(given[key])};"
                    ' leave it out, or use hazard = "piecewise"'
                )
        return
    if model.time_points is None:
        raise ConfigError(f"model.time_points: missing; a piecewise hazard needs {RIGHT['time_points']}")
    for before, after in itertools.pairwise(model.time_points):
        if not before < after:
            raise ConfigError(f"model.time_points: must increase, got {after:g} after {before:g}")
    low, high = _SCALE_RANGE
    for time in model.time_points:
        if not low <= time <= high:
            raise ConfigError(
                f"model.time_points: {time:g} is out of range; from {low:g} to {high:g} are right"
            )
    if "time" in spec.data.inputs:
        raise ConfigError(
            'data.inputs: "time" is the name of the input that a piecewise hazard adds; rename the column'
        )


def _check_network(spec: RunSpec) -> None:
    network = spec.network_spec()
    _check_layers(network)
    groups = network.possible_groups()
    full = replace(network, omitted={}, connections={}).possible_groups()
    _check_omitted(network, full)
    check_connections(network, full)
    possible = [*groups, *network.possible_adjustments()]
    for name, text in spec.network.priors.items():
        key = f"network.priors.{name}"
        if name not in possible:
            raise ConfigError(
                f'{key}: no such group in this network, got "{text}"{nearest(name, possible)}; '
                f"the possible groups are {', '.join(possible)}"
            )
        if name in groups:
            _check_range(key, text, network.priors[name], n_sources=groups[name][0])
    _check_adjustments(network)
    present = network.priors
    last = len(network.hidden) - 1
    for layer in range(last + 1):
        feeding = [f"ih{layer}"] + [f"h{earlier}h{layer}" for earlier in range(layer)]
        consuming = [f"ho{layer}"] + [f"h{layer}h{later}" for later in range(layer + 1, last + 1)]
        _need_one(present, feeding, f"nothing feeds hidden layer {layer}")
        if not any(other.product == layer for other in network.hidden):
            _need_one(present, consuming, f"nothing uses hidden layer {layer}")
    outgoing = [f"ho{layer}" for layer in range(last + 1)]
    _need_one(present, [*outgoing, "io", "bo"], "nothing feeds the outputs")
    if "ti" in present:
        from_inputs = [f"ih{layer}" for layer in range(last + 1)] + ["io"]
        _need_one(present, from_inputs, "ti offsets inputs that nothing uses")


def input_numbers(names: tuple[str, ...], inputs: tuple[str, ...], *, key: str) -> tuple[int, ...]:
    """The places of inputs given by name, in order."""
    for place, name in enumerate(names):
        if name not in inputs or name in names[:place]:
            twice = " twice" if name in inputs else ""
            raise ConfigError(
                f'{key}: must name inputs, each once, got "{name}"{twice}{nearest(name, inputs)}; '
                f"they are {', '.join(inputs)}"
            )
    return tuple(sorted(inputs.index(name) for name in names))


def _check_omitted(network: NetworkSpec, full: Mapping[str, tuple[int, ...]]) -> None:
    for name, omitted in network.omitted.items():
        key = f"network.omit.{name}"
        possible = [group for group in full if group == "io" or group.startswith("ih")]
        if name not in possible:
            raise ConfigError(f"{key}: only weights from the inputs leave some out: {', '.join(possible)}")
        if name not in network.priors:
            raise ConfigError(f"{key}: the group has no prior; give one in network.priors.{name}")
        if len(omitted) == network.inputs:
            raise ConfigError(f'{key}: leaves no input; give the group the prior "-" instead')


def _check_layers(network: NetworkSpec) -> None:
    for number, layer in enumerate(network.hidden):
        key = f"network.hidden[{number}]"
        if layer.groups is not None and layer.activation not in LAYER_ACTIVATIONS:
            raise ConfigError(
                f"{key}.groups: only {' and '.join(LAYER_ACTIVATIONS)} layers have groups, "
                f'got "{layer.groups}" with {layer.activation}; leave it out'
            )
        try:
            _ = layer.subgroups
        except ValueError as exc:
            raise ConfigError(f'{key}.groups: {exc}, got "{layer.groups}"') from None
        if layer.product is None:
            continue
        if layer.product >= number:
            earlier = "; leave it out" if number == 0 else f", from 0 to {number - 1}"
            raise ConfigError(f"{key}.product: must be an earlier hidden layer{earlier}, got {layer.product}")
        units = network.hidden[layer.product].units
        if units not in (1, layer.units):
            raise ConfigError(
                f"{key}.product: hidden layer {layer.product} has {units} units, which cannot multiply "
                f"{layer.units}; it must have as many, or one"
            )


def adjustment_alpha(text: str, *, key: str) -> float:
    """The alpha of a layer's adjustments, all that their prior has: its mean is one."""
    low, high = _ALPHA_RANGE
    try:
        alpha = float(text)
    except ValueError:
        alpha = math.nan
    if not low <= alpha <= high:
        raise ConfigError(
            f'{key}: adjustments have an alpha alone, got "{text}"; it must be a number from {low:g} to '
            f'{high:g}, such as 3, or "-" for none'
        )
    return alpha


def _check_adjustments(network: NetworkSpec) -> None:
    adjusted = {group.adjustments for group in network.groups()}
    for name in network.adjustments:
        if name not in adjusted:
            raise ConfigError(
                f"network.priors.{name}: there are no weights or biases that it could adjust; leave it out"
            )


def _need_one(present: Mapping[str, PriorSpec], groups: list[str], problem: str) -> None:
    if not any(group in present for group in groups):
        raise ConfigError(f"network.priors: {problem}; give a prior for {' or '.join(groups)}")


def _check_range(key: str, text: str, prior: PriorSpec, *, n_sources: int) -> None:
    low, high = _SCALE_RANGE
    if not low <= prior.width <= high:
        raise ConfigError(f'{key}: width out of range, got "{text}"; it must be from {low:g} to {high:g}')
    low, high = _ALPHA_RANGE
    if not all(low <= alpha <= high or math.isinf(alpha) for alpha in prior.alphas):
        raise ConfigError(
            f'{key}: alpha out of range, got "{text}"; it must be from {low:g} to {high:g}, '
            "or left out for infinity"
        )
    try:
        is_finite = 1e-30 < prior.mean_precision(n_sources) < 1e30
    except OverflowError:
        is_finite = False
    if not is_finite:
        raise ConfigError(
            f"{key}: scaled by {n_sources} source units the precision leaves the range 1e-30 to 1e30, "
            f'got "{text}"; use a larger alpha or no x'
        )


def check_gradient(spec: RunSpec) -> None:
    """Raise ConfigError if a layer has units that no operation of a run can sample by their gradient."""
    for layer, config in enumerate(spec.network.hidden):
        if config.activation in PRIOR_ACTIVATIONS:
            raise ConfigError(
                f"network.hidden[{layer}].activation: {config.activation} units are for draws from the prior "
                f'and cannot be sampled by their gradient, got "{config.activation}"; use `rayfbnn prior`, '
                'or units such as "tanh"'
            )


def _check_phases(spec: RunSpec) -> None:
    if spec.phase[-1].keep is not True:
        raise ConfigError(
            f"phase[{len(spec.phase) - 1}].keep: the last phase must be kept, got "
            f"{short(spec.phase[-1].keep)}; it must be true (or left out)"
        )
    if spec.total_iterations > MAX_WORD:
        raise ConfigError(f"phase: {spec.total_iterations} iterations in all; it must be at most {MAX_WORD}")
    for index, phase in enumerate(spec.phase):
        n_updates = _count_updates(phase.operations)
        if n_updates > _MAX_UPDATES:
            raise ConfigError(
                f"phase[{index}].operations: one iteration has {n_updates} updates with repeats written out; "
                f"it must be at most {_MAX_UPDATES}: use more iterations instead"
            )
    _check_groups_of_operations(spec)
    _check_automatic(spec)


def _check_automatic(spec: RunSpec) -> None:
    """What is automatic in phases that are kept is found before them."""
    found = {op for number in spec.tuning_phases for op in automatic(spec.phase[number].operations)}
    for key, operation in all_operations(spec):
        if isinstance(operation, Tunable) and automatic((operation,)) and operation not in found:
            name = "steps" if operation.steps == AUTO else "stepsize"
            raise ConfigError(
                f'{key}.{name}: is found in phases before those that are kept, got "auto"; give a number, or'
                " an earlier phase with the same operation, letter by letter, and keep = false"
            )


def _check_groups_of_operations(spec: RunSpec) -> None:
    """The groups that an operation is restricted to have precisions that it can update."""
    network = spec.network_spec()
    there = [*network.priors, *(["noise"] if spec.model.noise is not None else [])]
    for key, operation in all_operations(spec):
        if not isinstance(operation, SampleSigmas | RandomGrid) or operation.groups is None:
            continue
        known = [*there, *network.adjustments] if isinstance(operation, SampleSigmas) else there
        for name in operation.groups:
            if name not in known:
                raise ConfigError(
                    f'{key}.groups: has no precisions for {operation.op}, got "{name}"{nearest(name, known)};'
                    f" the groups here are {', '.join(known)}"
                )


def _check_marginal(spec: RunSpec) -> None:
    of_other_temperatures = tuple(
        f"{key}." for key, operation in all_operations(spec) if isinstance(operation, SimulatedTempering)
    )
    for key, operation in all_operations(spec):
        if not (isinstance(operation, HybridMarginal) and "outputs" in operation.over):
            continue
        is_tempered = spec.temperature != 1 or key.startswith(of_other_temperatures)
        reason = why_outputs_stay(spec.network_spec(), spec.model_spec(), is_tempered=is_tempered)
        if reason:
            raise ConfigError(f'{key}.over: the outputs cannot be integrated out, got "outputs"; {reason}')


def _count_updates(operations: tuple[Operation, ...]) -> int:
    return sum(
        operation.times * _count_updates(operation.operations)
        if isinstance(operation, Repeat)
        else 1 + (1 + _count_updates(inside) if (inside := inner_operations(operation)) else 0)
        for operation in operations
    )


def all_operations(spec: RunSpec) -> Iterator[tuple[str, Operation]]:
    """Every operation of every phase with its key path, those inside a repeat too."""

    def below(key: str, operations: tuple[Operation, ...]) -> Iterator[tuple[str, Operation]]:
        for index, operation in enumerate(operations):
            here = f"{key}.operations[{index}]"
            yield here, operation
            inside = operation.operations if isinstance(operation, Repeat) else inner_operations(operation)
            yield from below(here, inside)

    for index, phase in enumerate(spec.phase):
        yield from below(f"phase[{index}]", phase.operations)
