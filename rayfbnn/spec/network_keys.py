"""The section [network] of a configuration, checked as a whole, with the network that it describes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rayfbnn.errors import ConfigError, at_most_ten
from rayfbnn.model.architecture import PRIOR_ACTIVATIONS, LayerSpec, NetworkSpec, PriorSpec
from rayfbnn.spec.connections import check_connections, connections_of
from rayfbnn.spec.defaults import DEFAULT_HIDDEN
from rayfbnn.spec.messages import nearest, short
from rayfbnn.spec.operations import StrictModel
from rayfbnn.spec.ranges import adjustment_alpha, check_prior
from rayfbnn.spec.sections import Name, PriorText

MOST_LAYERS = 200  # hidden layers; any two of them may be connected


class NetworkKeys(StrictModel):
    """The keys of [network] as written. `read_network` makes the `NetworkSpec` from them.

    Both exist because the keys keep the text of the configuration, with names of columns and priors such as
    "x0.5:2". A store records this text, and `to_toml` writes it back. `NetworkSpec` holds the values in use.

    hidden       the hidden layers; by default those of spec/defaults.py
    priors       group of parameters -> its prior in FBM's notation; adjustments (ah0, ao) have an alpha
                 instead. A group with the prior "-" is left out, as if it were not named. Without this key
                 (`has_default_priors`), a configuration has the priors of spec/defaults.py
    omit         group of weights from the inputs -> names of the inputs that it does not connect
    connections  group of weights or biases -> its configured connections (spec/connections.py)

    FBM's short names of groups are replaced by the full names: ih, bh, th and ah belong to layer 0, and ho to
    the last layer; hh is h0h1, hh2 is h1h2, h1o is ho1.
    """

    hidden: Annotated[tuple[LayerSpec, ...], Field(max_length=MOST_LAYERS)] = DEFAULT_HIDDEN
    priors: dict[str, PriorText] = Field(default_factory=dict)
    omit: dict[str, tuple[Name, ...]] = Field(default_factory=dict)
    connections: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @property
    def has_default_priors(self) -> bool:
        """True if the configuration leaves the priors out."""
        return "priors" not in self.model_fields_set

    @model_validator(mode="after")
    def _use_full_names(self) -> Self:
        full_names = short_names(len(self.hidden))
        for key in ("priors", "omit", "connections"):
            _rename_groups(getattr(self, key), full_names, key=f"network.{key}")
        for group in [group for group, text in self.priors.items() if text == "-"]:
            del self.priors[group]
        return self


def short_names(n_hidden: int) -> dict[str, str]:
    """Return FBM's short names of groups, each with its full name (FBM's net-spec.doc)."""
    if n_hidden == 0:
        return {}
    names = {name: f"{name}0" for name in ("ih", "bh", "th", "ah")} | {"ho": f"ho{n_hidden - 1}"}
    names |= {f"h{layer}o": f"ho{layer}" for layer in range(n_hidden)}
    names |= {f"hh{layer}": f"h{layer - 1}h{layer}" for layer in range(1, n_hidden)}
    return names | ({"hh": "h0h1"} if n_hidden > 1 else {})


def _rename_groups(table: dict[str, Any], full_names: Mapping[str, str], *, key: str) -> None:
    """Replace the short names in a table by full ones, in place; ConfigError if a group is named twice."""
    renamed: dict[str, Any] = {}
    for name, value in table.items():
        group = full_names.get(name, name)
        if group in renamed:
            other = next(earlier for earlier in table if full_names.get(earlier, earlier) == group)
            raise ConfigError(
                f"{key}.{name}: names the same group as {other}, got {short(value)}; give only one"
            )
        renamed[group] = value
    table.clear()
    table.update(renamed)


def read_network(
    keys: NetworkKeys, *, inputs: tuple[str, ...], n_outputs: int, added_input: str | None = None
) -> NetworkSpec:
    """Return the network that [network] describes.

    inputs       names of the network's inputs, in order
    added_input  the input that is added to the outputs and has no weights, if there is one

    Raises ConfigError, naming the key, for a prior, alpha, omitted input or connections that cannot be read.
    """
    is_adjustment = {name: name.startswith("a") for name in keys.priors}
    return NetworkSpec(
        inputs=len(inputs),
        outputs=n_outputs,
        hidden=keys.hidden,
        priors={
            name: PriorSpec.parse(text, key=f"network.priors.{name}", two_levels=name.startswith(("b", "t")))
            for name, text in keys.priors.items()
            if not is_adjustment[name]
        },
        adjustments={
            name: adjustment_alpha(text, key=f"network.priors.{name}")
            for name, text in keys.priors.items()
            if is_adjustment[name]
        },
        omitted={
            group: _input_numbers(names, inputs, key=f"network.omit.{group}")
            for group, names in _omitted(keys, added_input).items()
        },
        connections={
            group: connections_of(table, key=f"network.connections.{group}")
            for group, table in keys.connections.items()
        },
        added_input=None if added_input is None else inputs.index(added_input),
    )


def _omitted(keys: NetworkKeys, added_input: str | None) -> dict[str, tuple[str, ...]]:
    """Return the inputs that each group of weights omits: those of network.omit, and the added input."""
    if added_input is None:
        return keys.omit
    from_inputs = [name for name in keys.priors if name == "io" or name.startswith("ih")]
    for name in ("ti", *(set(keys.connections) & set(from_inputs))):
        if name in keys.priors:
            problem = "offsets of the inputs" if name == "ti" else "configured connections from the inputs"
            raise ConfigError(
                f"data.exposure: cannot be combined with {problem}, got network.priors.{name}; leave one out"
            )
    added = {name: (*keys.omit.get(name, ()), added_input) for name in from_inputs}
    return {**keys.omit, **{name: tuple(dict.fromkeys(names)) for name, names in added.items()}}


def _input_numbers(names: tuple[str, ...], inputs: tuple[str, ...], *, key: str) -> tuple[int, ...]:
    """Return the numbers of the named inputs, in increasing order."""
    for place, name in enumerate(names):
        if name not in inputs or name in names[:place]:
            problem = "is listed twice" if name in inputs else f"is not an input{nearest(name, inputs)}"
            raise ConfigError(f'{key}: "{name}" {problem}; the inputs are {", ".join(at_most_ten(inputs))}')
    return tuple(sorted(inputs.index(name) for name in names))


_MAX_PARAMETERS = 100_000_000  # each takes some 100 bytes of indices, gradients and momenta in every chain


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
    if network.n_parameters > _MAX_PARAMETERS:
        name, shape = max(
            ((group.name, group.shape) for group in network.groups()), key=lambda group: math.prod(group[1])
        )
        raise ConfigError(
            f"network: has {network.n_parameters} parameters, most of them in {name}"
            f" ({' x '.join(map(str, shape))}); it must have at most {_MAX_PARAMETERS}; use fewer units"
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
            raise ConfigError(
                f"{key}: only weights from the inputs can omit inputs: {', '.join(at_most_ten(possible))}"
            )
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
                f"the possible groups are {', '.join(at_most_ten(possible))}"
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
        raise ConfigError(f"network.priors: {problem}; give a prior for {' or '.join(at_most_ten(groups))}")
