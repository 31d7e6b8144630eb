"""Checks that a network's layers, priors, omitted inputs and connections fit together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from rayfbnn.errors import ConfigError
from rayfbnn.model.architecture import PRIOR_ACTIVATIONS, NetworkSpec
from rayfbnn.spec.connections import check_connections
from rayfbnn.spec.messages import nearest
from rayfbnn.spec.ranges import check_prior

MAX_PARAMETERS = 100_000_000  # each takes some 100 bytes of indices, gradients and momenta in every chain


def check_network(network: NetworkSpec, prior_texts: Mapping[str, str]) -> None:
    """Raise ConfigError for the first setting of the network that makes no sense.

    prior_texts  group -> its prior as written, for the messages
    """
    _check_products(network)
    _check_size(network)
    full = replace(network, omitted={}, connections={}).possible_groups()
    _check_omitted(network, full)
    check_connections(network, full)
    _check_priors(network, prior_texts)
    _check_adjustments(network)
    _check_paths(network)


def check_gradient(network: NetworkSpec) -> None:
    """Raise ConfigError if a layer has units that no operation can sample by their gradient."""
    for number, layer in enumerate(network.hidden):
        if layer.activation in PRIOR_ACTIVATIONS:
            raise ConfigError(
                f"network.hidden[{number}].activation: {layer.activation} units are for draws from the prior "
                f'and cannot be sampled by their gradient, got "{layer.activation}"; use `rayfbnn prior`, '
                'or units such as "tanh"'
            )


def _check_size(network: NetworkSpec) -> None:
    if network.n_parameters > MAX_PARAMETERS:
        name, shape = max(
            ((group.name, group.shape) for group in network.groups()), key=lambda group: math.prod(group[1])
        )
        raise ConfigError(
            f"network: has {network.n_parameters} parameters, most of them in {name}"
            f" ({' x '.join(map(str, shape))}); it must have at most {MAX_PARAMETERS}; use fewer units"
        )


def _check_products(network: NetworkSpec) -> None:
    for number, layer in enumerate(network.hidden):
        if layer.product is None:
            continue
        key = f"network.hidden[{number}].product"
        if not 0 <= layer.product < number:
            earlier = "; leave it out" if number == 0 else f", from 0 to {number - 1}"
            raise ConfigError(f"{key}: must be an earlier hidden layer{earlier}, got {layer.product}")
        units = network.hidden[layer.product].units
        if units not in (1, layer.units):
            raise ConfigError(
                f"{key}: hidden layer {layer.product} has {units} units, which cannot multiply "
                f"{layer.units}; it must have the same number, or one"
            )


def _check_omitted(network: NetworkSpec, full: Mapping[str, tuple[int, ...]]) -> None:
    for name, omitted in network.omitted.items():
        key = f"network.omit.{name}"
        possible = [group for group in full if group == "io" or group.startswith("ih")]
        if name not in possible:
            raise ConfigError(f"{key}: only weights from the inputs can omit inputs: {', '.join(possible)}")
        if name not in network.priors:
            raise ConfigError(f"{key}: the group has no prior; give one in network.priors.{name}")
        if len(omitted) == network.inputs:
            raise ConfigError(f'{key}: omits every input; give the group the prior "-" instead')


def _check_priors(network: NetworkSpec, prior_texts: Mapping[str, str]) -> None:
    groups = network.possible_groups()
    possible = [*groups, *network.possible_adjustments()]
    for name, text in prior_texts.items():
        key = f"network.priors.{name}"
        if name not in possible:
            raise ConfigError(
                f'{key}: no such group in this network, got "{text}"{nearest(name, possible)}; '
                f"the possible groups are {', '.join(possible)}"
            )
        if name in groups:
            check_prior(key, text, network.priors[name], n_sources=groups[name][0])
    for group in network.groups():
        if group.prior.mixture is not None and group.adjustments is not None:
            raise ConfigError(
                f'network.priors.{group.name}: a mixture has no adjustments, got "{prior_texts[group.name]}"'
                f" with {group.adjustments}; leave one of them out"
            )


def _check_adjustments(network: NetworkSpec) -> None:
    adjusted = {group.adjustments for group in network.groups()}
    for name in network.adjustments:
        if name not in adjusted:
            raise ConfigError(f"network.priors.{name}: has no weights or biases to adjust; leave it out")


def _check_paths(network: NetworkSpec) -> None:
    """Check that something feeds each layer, and that something uses it."""
    n_layers = len(network.hidden)
    for layer in range(n_layers):
        feeding = [f"ih{layer}"] + [f"h{earlier}h{layer}" for earlier in range(layer)]
        _need_one(network, feeding, f"nothing feeds hidden layer {layer}")
        using = [f"ho{layer}"] + [f"h{layer}h{later}" for later in range(layer + 1, n_layers)]
        if not any(other.product == layer for other in network.hidden):
            _need_one(network, using, f"nothing uses hidden layer {layer}")
    to_outputs = [f"ho{layer}" for layer in range(n_layers)]
    _need_one(network, [*to_outputs, "io", "bo"], "nothing feeds the outputs")
    if "ti" in network.priors:
        from_inputs = [f"ih{layer}" for layer in range(n_layers)]
        _need_one(network, [*from_inputs, "io"], "ti offsets inputs that nothing uses")


def _need_one(network: NetworkSpec, groups: list[str], problem: str) -> None:
    if not any(group in network.priors for group in groups):
        raise ConfigError(f"network.priors: {problem}; give a prior for {' or '.join(groups)}")
