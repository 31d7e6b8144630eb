"""The network that [network] describes, its connections, and checks."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rayfbnn.data.keys import DataSpec
from rayfbnn.data.paths import check_on_disk, read_at_most
from rayfbnn.errors import ConfigError, DataError, at_most_ten
from rayfbnn.memory import bytes_text
from rayfbnn.model.architecture import PRIOR_ACTIVATIONS, NetworkSpec, PriorSpec, destination
from rayfbnn.model.connections import Connections, ConnectionTable, Generated
from rayfbnn.numerals import read_number
from rayfbnn.spec.messages import nearest, short
from rayfbnn.spec.model_keys import adjustment_alpha, check_prior
from rayfbnn.spec.written import NetworkKeys

_COLUMNS = ("source", "destination", "weight")
_MAX_WEIGHT = 10_000_000
_MOST_BYTES, _MOST_ROWS = 32_000_000, 1_000_000  # of a file: no store holds so many connections
_KINDS = {
    "dense": ("sources", "destinations"),
    "conv1d": ("size", "channels", "filters", "window", "stride", "padding"),
    "conv2d": ("size", "channels", "filters", "window", "stride", "padding"),
    "pool1d": ("size", "channels", "window", "stride", "padding"),
    "pool2d": ("size", "channels", "window", "stride", "padding"),
    "channels": ("size", "channels"),
}
_DEFAULTS = {"channels": 1, "stride": 1, "padding": 0}


def with_tables(raw: dict[str, Any], base_dir: Path) -> dict[str, Any]:
    """Replace every file of connections by its lists source, destination and weight, and return `raw`.

    A store then has the whole configuration, and can be resumed on machines without the file.
    """
    network = raw.get("network")
    connections = network.get("connections") if isinstance(network, dict) else None
    if not isinstance(connections, dict):
        return raw
    for name, keys in connections.items():
        if isinstance(keys, dict) and "file" in keys:
            key = f"network.connections.{name}"
            if len(keys) > 1 or not isinstance(keys["file"], str):
                raise ConfigError(f"{key}: a file takes its name and no other keys, got {short(keys)}")
            check_on_disk(keys["file"], f"{key}.file")
            path = base_dir / keys["file"]
            if not os.path.isfile(path):  # a pipe would wait, and a device has no end
                raise ConfigError(f"{key}.file: no such file: {short(keys['file'])}")
            content = read_at_most(path, _MOST_BYTES)
            if content is None or content.count(b"\n") > _MOST_ROWS or content.startswith(b"\x1f\x8b"):
                most = f"{bytes_text(_MOST_BYTES)} or {_MOST_ROWS} rows"
                raise ConfigError(
                    f"{key}.file: {path} has more than {most} or is compressed; use a generator"
                )
            connections[name] = _read(path, key=f"{key}.file")
    return raw


def _read(path: Path, *, key: str) -> dict[str, list[int]]:
    """Read the columns source, destination and weight of a CSV or Parquet file; biases have no source."""
    try:
        from rayfbnn.data.frames import read_table

        table = read_table(path, DataSpec(targets=("weight",)))
        columns = {name: table.column(name).tolist() for name in table.names}
    except DataError as exc:
        raise ConfigError(f"{key}: {exc}") from exc
    wrong = [name for name in columns if name not in _COLUMNS]
    if wrong or not {"destination", "weight"} <= set(columns):
        names = ", ".join(at_most_ten(columns)) or "none"
        raise ConfigError(f"{key}: {path}: columns must be source, destination and weight, got {names}")
    return {
        name: [_whole(value, f"{key}: {path}: column {name}") for value in columns[name]] for name in columns
    }


def _whole(value: Any, where: str) -> int:
    try:
        number = read_number(value) if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (0 <= number <= _MAX_WEIGHT and number == int(number)):
        raise ConfigError(f"{where}: must be whole numbers, counted from 0, got {short(value)}")
    return int(number)


def connections_of(keys: Mapping[str, Any], *, key: str) -> Connections:
    """Return the connections that a table of the configuration describes; ConfigError names `key`."""
    if "generator" not in keys:
        return _table(keys, key=key)
    kind = keys["generator"]
    if not isinstance(kind, str) or kind not in _KINDS:
        hint = nearest(kind, _KINDS) if isinstance(kind, str) else ""
        raise ConfigError(f"{key}.generator: must be one of {', '.join(_KINDS)}, got {short(kind)}{hint}")
    known = _KINDS[kind]
    for name in keys:
        if name != "generator" and name not in known:
            raise ConfigError(
                f"{key}.{name}: unknown key{nearest(name, known)}; the keys of {kind} are {', '.join(known)}"
            )
    values = {**_DEFAULTS, **keys}
    for name in known:
        if name not in values:
            raise ConfigError(f"{key}.{name}: missing; {kind} needs it")
    if kind == "dense":
        n_sources, filters = (_count(values[name], f"{key}.{name}") for name in known)
        return Generated("dense", (1, n_sources), filters=filters)
    is_flat = kind != "channels" and kind.endswith("1d")
    grid = _pair(values["size"], f"{key}.size", is_flat=is_flat or isinstance(values["size"], int))
    channels = _count(values["channels"], f"{key}.channels")
    if kind == "channels":
        return Generated("channels", grid, channels)
    generated = Generated(
        "convolution" if kind.startswith("conv") else "pooling",
        grid,
        channels,
        _count(values["filters"], f"{key}.filters") if kind.startswith("conv") else 1,
        window=_pair(values["window"], f"{key}.window", is_flat=is_flat),
        stride=_pair(values["stride"], f"{key}.stride", is_flat=is_flat),
        padding=_pair(values["padding"], f"{key}.padding", is_flat=is_flat, low=0),
    )
    if min(generated.places) < 1:
        raise ConfigError(
            f"{key}.window: is larger than the size with its padding, got {short(values['window'])}"
        )
    if any(padding >= window for padding, window in zip(generated.padding, generated.window, strict=True)):
        raise ConfigError(f"{key}.padding: must be smaller than the window, got {short(values['padding'])}")
    return generated


def _table(keys: Mapping[str, Any], *, key: str) -> ConnectionTable:
    for name in keys:
        if name not in _COLUMNS:
            raise ConfigError(
                f"{key}.{name}: unknown key{nearest(name, (*_COLUMNS, 'file', 'generator'))}; connections "
                "have a file, a generator, or lists source, destination and weight"
            )
    columns: dict[str, tuple[int, ...]] = {}
    for name in _COLUMNS:
        values = keys.get(name, [])
        if not isinstance(values, list | tuple):
            raise ConfigError(f"{key}.{name}: must be a list of whole numbers, got {short(values)}")
        columns[name] = tuple(_whole(value, f"{key}.{name}") for value in values)
    n = len(columns["weight"])
    if n == 0 or len(columns["destination"]) != n or len(columns["source"]) not in (0, n):
        lengths = ", ".join(f"{name} {len(values)}" for name, values in columns.items())
        raise ConfigError(f"{key}: needs at least one connection and lists of one length, got {lengths}")
    return ConnectionTable(columns["destination"], columns["weight"], columns["source"])


def _count(value: Any, key: str, *, low: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= 1_000_000:
        raise ConfigError(f"{key}: must be a whole number of at least {low}, got {short(value)}")
    return value


def _pair(value: Any, key: str, *, is_flat: bool, low: int = 1) -> tuple[int, int]:
    """Return rows and columns. One dimension takes a number; two take a pair, or one number for both."""
    if is_flat:
        return (0 if low == 0 else 1), _count(value, key, low=low)
    pair = [value, value] if isinstance(value, int) else value
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise ConfigError(f"{key}: must be two whole numbers, such as [3, 3], got {short(value)}")
    return _count(pair[0], key, low=low), _count(pair[1], key, low=low)


def check_connections(network: NetworkSpec, full: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ConfigError if configured connections do not fit the network or their priors.

    full  the shape of each group if it is fully connected
    """
    for name, connections in network.connections.items():
        key = f"network.connections.{name}"
        if name not in full or name[0] == "t":
            groups = [group for group in full if group[0] != "t"]
            raise ConfigError(
                f"{key}: no such group{nearest(name, groups)}; it may be {', '.join(at_most_ten(groups))}"
            )
        if name not in network.priors:
            raise ConfigError(f"{key}: the group has no prior; give one in network.priors.{name}")
        prior, prior_key = network.priors[name], f"network.priors.{name}"
        if prior.scaled:
            raise ConfigError(f"{prior_key}: configured connections have no x (scaling); leave out the x")
        if math.isfinite(prior.alphas[1]):
            raise ConfigError(
                f"{prior_key}: configured connections have no alpha of source units, "
                f'got {prior.alphas[1]:g}; leave it empty, as in "0.5:2::4"'
            )
        if name in network.omitted:
            raise ConfigError(
                f"network.omit.{name}: the group has configured connections; leave the inputs out of those"
            )
        _check_fit(connections, full[name], key)
    for name in network.adjustments:
        for group in network.connections:
            if f"a{destination(group)}" == name:
                raise ConfigError(
                    f"network.priors.{name}: a layer cannot have both adjustments and configured "
                    f"connections into it ({group}); leave one of them out"
                )


def _check_fit(connections: Connections, shape: tuple[int, ...], key: str) -> None:
    is_bias, n_destinations = len(shape) == 1, shape[-1]
    if isinstance(connections, ConnectionTable):
        if is_bias and connections.sources:
            raise ConfigError(f"{key}.source: biases have no sources; leave it out")
        if not is_bias and not connections.sources:
            raise ConfigError(f"{key}.source: missing; weights lead from source units")
        for name, units, n in (
            ("source", connections.sources, shape[0]),
            ("destination", connections.destinations, n_destinations),
        ):
            if units and max(units) >= n:
                raise ConfigError(f"{key}.{name}: there are {n} units, counted from 0, got {max(units)}")
        return
    if (connections.kind == "channels") != is_bias:
        right = "channels or a table" if is_bias else "a table, dense, conv1d, conv2d, pool1d or pool2d"
        raise ConfigError(f"{key}.generator: this group may have {right}, got {connections.kind}")
    if not is_bias and connections.n_sources != shape[0]:
        raise ConfigError(
            f"{key}: size and channels make {connections.n_sources} source units; the layer has {shape[0]}"
        )
    if connections.n_destinations != n_destinations:
        raise ConfigError(
            f"{key}: leads to {connections.n_destinations} units; the layer has {n_destinations}"
        )


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
    for name in network.adjustments:
        if all(group.adjustments != name for group in network.groups()):
            raise ConfigError(f"network.priors.{name}: has no weights or biases to adjust; leave it out")


def _check_paths(network: NetworkSpec) -> None:
    """Raise ConfigError if something feeds nothing, or is fed by nothing."""
    n_layers = len(network.hidden)
    needed = {}
    for layer in range(n_layers):
        earlier = [f"h{number}h{layer}" for number in range(layer)]
        needed[f"nothing feeds hidden layer {layer}"] = [f"ih{layer}", *earlier]
        if not any(other.product == layer for other in network.hidden):
            later = [f"h{layer}h{number}" for number in range(layer + 1, n_layers)]
            needed[f"nothing uses hidden layer {layer}"] = [f"ho{layer}", *later]
    to_outputs = [f"ho{layer}" for layer in range(n_layers)]
    needed["nothing feeds the outputs"] = [*to_outputs, "io", "bo"]
    if "ti" in network.priors:
        needed["ti offsets inputs that nothing uses"] = [*(f"ih{layer}" for layer in range(n_layers)), "io"]
    for problem, groups in needed.items():
        if not any(group in network.priors for group in groups):
            ways = " or ".join(at_most_ten(groups))
            raise ConfigError(f"network.priors: {problem}; give a prior for {ways}")
