"""Describes a configuration in words, for `rayfbnn show`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import scipy.special

from rayfbnn.data import Dataset
from rayfbnn.describe.data import describe_data, describe_parts, describe_skewness, remarks
from rayfbnn.describe.schedule import describe_kernels, describe_ladder, describe_schedule
from rayfbnn.memory import bytes_text
from rayfbnn.model.architecture import GroupSpec, LayerSpec, PriorSpec, group_in_words, parameters_in_words
from rayfbnn.numerals import plain
from rayfbnn.output.lines import width_up_to
from rayfbnn.spec import RunSpec
from rayfbnn.store.creation import planned_size

if TYPE_CHECKING:
    from rayfbnn.approximate.approximation import Approximation
    from rayfbnn.store.store import Store


def describe(spec: RunSpec, *, store: Store | None = None, data: Dataset | None = None) -> str:
    """Describe the network, every prior, the data, the schedule with its cost, and the defaults used.

    store  the store of a run with this configuration, if any
    data   the training cases of a configuration, if they have been read
    """
    blocks = described(spec, store=store, data=data).values()
    return "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"


def described(
    spec: RunSpec, *, store: Store | None = None, data: Dataset | None = None
) -> dict[str, list[str]]:
    """Return the lines of `describe` by subject: network, priors, data, method, store, defaults."""
    targets = None if data is None else data.targets
    if store is not None and spec.n_parts > 1:
        targets = store.targets
    return {
        "network": _network(spec),
        "priors": _priors(spec),
        "data": [
            *describe_data(spec, store),
            *describe_skewness(spec, targets),
            *describe_parts(spec, targets),
            *([] if data is None else [f"  remark: {text}" for text in remarks(spec, data)]),
        ],
        "method": _describe_method(spec, store),
        "store": _size_of_store(spec) if spec.fit is None and store is None else [],
        "defaults": _defaults(spec),
    }


class Shown(str):
    """The text of `show`, with the configuration behind it for programs.

    Attributes
    ----------
    numbers
        The configuration with all defaults, the network with its groups of parameters, their priors, and the
        size of the store, as dictionaries and lists.
    """

    numbers: dict[str, Any]

    def to_json(self) -> str:
        """Return the numbers and the text as one JSON object; infinite alphas are null."""
        from rayfbnn.answers.judging.words import as_json

        return json.dumps(as_json(self.numbers | {"text": str(self)}))


def shown(text: str, spec: RunSpec, *, store: Store | None = None) -> Shown:
    """Return a text about a configuration or its store, with the numbers for programs."""
    network, (n_files, n_bytes) = spec.network, planned_size(spec, 1)
    groups, texts = network.groups(), spec.network_keys.priors
    priors = [(group.name, texts[group.name], group.prior, group.shape[0]) for group in groups]
    of_model = [(name, getattr(spec.model, name)) for name in ("noise", "dispersion")]
    priors += [(name, getattr(spec.model_keys, name), prior, 1) for name, prior in of_model if prior]
    result = Shown(text)
    result.numbers = {
        "configuration": spec.to_dict(),
        "network": {
            "inputs": network.inputs - (network.added_input is not None),
            "hidden": [asdict(layer) for layer in network.hidden],
            "outputs": network.outputs,
            "parameters": network.n_parameters,
            "groups": {group.name: {"shape": group.shape, "size": group.size} for group in groups},
        },
        "priors": {
            name: {"prior": text, **asdict(prior), "mean_precision": prior.mean_precision(n_sources)}
            for name, text, prior, n_sources in priors
        },
        "planned": {"files": n_files, "bytes": n_bytes, "draws": spec.kept_draws},
    }
    if store is not None:
        size = {"chains": store.n_chains, "draws": store.committed_draws}
        result.numbers["store"] = {"path": str(store.path), "kind": store.kind, **size}
    return result


def _network(spec: RunSpec) -> list[str]:
    network = spec.network
    layers = [f"{network.inputs - (network.added_input is not None)} inputs"]
    layers += [_layer(layer) for layer in network.hidden]
    layers += [f"{network.outputs} output{'s' if network.outputs > 1 else ''}"]
    padding = max(36, min(44, width_up_to(68) - 24))
    groups = [
        f"  {group.name:<6}{group_in_words(group.name):<{padding}}{_size(group):>16}{_omissions(spec, group)}"
        for group in network.groups()
    ]
    return [f"Network: {' - '.join(layers)}, {network.n_parameters:,} parameters", *groups]


def _layer(layer: LayerSpec) -> str:
    groups = "" if layer.groups is None else f" (groups {layer.groups})"
    product = "" if layer.product is None else f" times hidden layer {layer.product}"
    return f"{layer.units} {layer.activation}{groups}{product}"


def _size(group: GroupSpec) -> str:
    return f"{group.shape[0]} x {group.shape[1]} = {group.size}" if group.is_weights else str(group.size)


def _omissions(spec: RunSpec, group: GroupSpec) -> str:
    if group.name in spec.network.connections:
        keys = spec.network_keys.connections[group.name]
        return f" configured ({keys.get('generator', 'a table')})"
    omitted = spec.network_keys.omit.get(group.name, ())
    return f" without {', '.join(omitted)}" if omitted else ""


def _priors(spec: RunSpec) -> list[str]:
    lines = ["Priors (sigma = 1/sqrt(precision); a precision is Gamma with shape alpha/2 and the given mean)"]
    for group in spec.network.groups():
        unit = "source unit" if group.is_weights else None
        text = spec.network_keys.priors[group.name]
        lines += _prior(group.name, text, group.prior, group.shape[0], unit=unit, parameter="parameter")
        lines.append(f"        {_prior_in_words(group)}")
    for name, alpha in spec.network.adjustments.items():
        low, high = sigma_range(alpha, 1.0)
        layer = "the outputs" if name == "ao" else f"hidden layer {name[2:]}"
        lines.append(
            f'  {name:<6}"{spec.network_keys.priors[name]}": adjustments of {layer}, mean precision 1'
        )
        lines.append(
            f"        factor on the sigmas into each unit: alpha {alpha:g}, 5-95 % from {low} to {high}"
        )
    for name, parameter in (("noise", "case"), ("dispersion", None)):
        prior = getattr(spec.model, name)
        if prior is not None:
            text = getattr(spec.model_keys, name)
            lines += _prior(name, text, prior, 1, unit="target", parameter=parameter)
            lines.append(f"        {_targets_in_words(name, prior)}")
    return lines


def _prior(
    name: str, text: str, prior: PriorSpec, n_sources: int, *, unit: str | None, parameter: str | None = None
) -> Iterator[str]:
    omega = prior.mean_precision(n_sources)
    common, by_unit, by_parameter = prior.alphas
    scaling = f" (scaled for {n_sources} source units)" if prior.scaled else ""
    if prior.mixture is not None:
        probability, width = prior.mixture
        yield f'  {name:<5} "{text}": mixture of two Gaussians'
        widths = f"sigma {prior.width:g} with probability {probability:g}, else {width:g}"
        yield f"        each {parameter}: {widths}"
        return
    yield f'  {name:<5} "{text}": width {prior.width:g}, mean precision {plain(omega, 6)}{scaling}'
    if prior.rectified is not None:
        yield f"        common precision: modulus of a Normal(0, {prior.rectified:g}) variable"
    elif math.isinf(common):
        yield f"        common sigma fixed at {plain(omega**-0.5, 4)}"
    else:
        low, high = sigma_range(common, omega)
        yield f"        common sigma: alpha {common:g}, 5-95 % from {low} to {high}"
    if unit is not None and math.isfinite(by_unit):
        low, high = sigma_range(by_unit, 1.0)
        share = f"5-95 % from {low} to {high} times the common sigma"
        yield f"        sigma of each {unit}: alpha {by_unit:g}, {share}"
    if parameter is None:
        return
    if math.isfinite(by_parameter):
        yield f"        each {parameter}: t distribution with {by_parameter:g} degrees of freedom"
    else:
        yield f"        each {parameter}: Gaussian"


def sigma_range(alpha: float, mean_precision: float) -> tuple[str, str]:
    """Return the 5 % and 95 % points of sigma = 1/sqrt(precision).

    The precision is Gamma distributed with shape alpha/2 and the given mean. The points are text because
    the upper one exceeds the largest float for some alphas of Neal's examples (0.001).
    """
    shape = alpha / 2
    points = []
    for probability in (0.95, 0.05):
        quantile = float(scipy.special.gammaincinv(shape, probability))
        if quantile > 1e-300:
            log_quantile = math.log(quantile)
        else:  # P(shape, x) is x**shape / Gamma(shape + 1) to all digits here
            log_quantile = (math.log(probability) + math.lgamma(shape + 1)) / shape
        # rate = shape / mean_precision
        log_sigma = -(log_quantile - math.log(shape / mean_precision)) / 2
        points.append(_number_from_log(log_sigma))
    return points[0], points[1]


def _number_from_log(log_value: float) -> str:
    if abs(log_value) < 600:
        return plain(math.exp(log_value), 3)
    exponent = math.floor(log_value / math.log(10))
    return f"{math.exp(log_value - exponent * math.log(10)):.2f}e{exponent:+d}"


def _size_of_store(spec: RunSpec) -> list[str]:
    n_files, n_bytes = planned_size(spec, 1)
    at_most = "at most " if spec.has_open_length else ""
    return [
        f"Store: {at_most}about {n_files:,} files, {bytes_text(n_bytes)}, not counting the training cases"
    ]


def _defaults(spec: RunSpec) -> list[str]:
    used = [
        f"{name} = {getattr(spec, name)}"
        for name in ("seed", "chains", "chains_per_batch", "dtype", "device")
        if name not in spec.model_fields_set
    ]
    if spec.data.shuffle and "shuffle" not in spec.data.model_fields_set:
        used.append("data.shuffle = true")
    if "standardize" not in spec.data.model_fields_set:
        used.append(f"data.standardize = [{', '.join(spec.data.standardize)}]")
    for key in ("noise", "dispersion", "hazard"):
        value = getattr(spec.model_keys, key)
        if value is not None and key not in spec.model_keys.model_fields_set:
            used.append(f'model.{key} = "{value}"')
    if "hidden" not in spec.network_keys.model_fields_set:
        used.append("network.hidden")
    if spec.network_keys.has_default_priors:
        used.append("network.priors")
    if "phase" not in spec.model_fields_set:
        used.append(f"phases (the last with iterations = {spec.phase[-1].iterations})")
    if "initial" not in spec.model_fields_set:
        used.append(f"initial.sigmas = {spec.initial.sigmas}")
    return [f"Defaults used: {', '.join(used)}"] if used else []


def _describe_method(spec: RunSpec, store: Store | None) -> list[str]:
    if spec.ladder is not None:
        return [*describe_ladder(spec, store), *describe_kernels(spec, store)]
    return describe_schedule(spec, store) if spec.fit is None else _describe_fit(spec.fit)


def _describe_fit(approximation: Approximation) -> list[str]:
    lines = [
        f"Method: {approximation.name}, {approximation.title}",
        "  this is an approximation: its draws are not from the posterior",
        f"  {approximation.starts} starts of at most {approximation.n_steps} steps, then"
        f" {approximation.draws} independent draws each",
    ]
    for name, value in asdict(approximation).items():
        if name not in ("starts", "draws"):
            written = "all" if value is None else str(value).lower() if isinstance(value, bool) else value
            lines.append(f"  {name:<12}{written}")
    return lines


def _prior_in_words(group: GroupSpec) -> str:
    """Return a sentence such as "The weights from the inputs to hidden layer 0 share an unknown sigma."."""
    common, by_unit, by_parameter = map(math.isfinite, group.prior.alphas)
    if group.prior.mixture is not None:
        sigma = "come from a mixture of two Gaussians"
    else:
        is_known = not common and group.prior.rectified is None
        sigma = "have a known sigma" if is_known else "share an unknown sigma"
    sentence = f"The {parameters_in_words(group.name)} {sigma}."
    if group.is_weights and by_unit:
        source = "input" if group.name[0] == "i" else "unit"
        sentence += (
            f" Each {source} also has its own sigma around the shared one, so {source}s that carry no"
            " information can be turned off."
        )
    return sentence + (" Some may be much larger than the others." if by_parameter else "")


def _targets_in_words(name: str, prior: PriorSpec) -> str:
    """Return sentences about noise or dispersion, such as "The noise has an unknown sigma."."""
    common, by_target, by_case = map(math.isfinite, prior.alphas)
    sentence = f"The {name} has {'an unknown' if common else 'a known'} sigma"
    if name == "dispersion":
        sentence += (
            ", the standard deviation of a Gamma variable of mean 1 that multiplies the rate of each count"
        )
    sentence += "." + (" Each target also has its own sigma around it." if by_target else "")
    heavier = " Its tails are heavier than Gaussian ones." if by_case and name == "noise" else ""
    return sentence + heavier
