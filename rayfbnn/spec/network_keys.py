"""The section [network] of a configuration, and the network that it describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rayfbnn.errors import ConfigError
from rayfbnn.model.architecture import LayerSpec, NetworkSpec, PriorSpec
from rayfbnn.spec.connections import connections_of
from rayfbnn.spec.default_network import DEFAULT_HIDDEN
from rayfbnn.spec.messages import nearest, short
from rayfbnn.spec.operations import StrictModel
from rayfbnn.spec.ranges import adjustment_alpha
from rayfbnn.spec.sections import Name, PriorText

MOST_LAYERS = 200  # hidden layers; any two of them may be connected


class NetworkKeys(StrictModel):
    """The keys of [network] as written. `read_network` makes the `NetworkSpec` from them.

    Both exist because the keys keep the text of the configuration, with names of columns and priors such as
    "x0.5:2". A store records this text, and `to_toml` writes it back. `NetworkSpec` holds the values in use.

    hidden       the hidden layers; by default those of spec/default_network.py
    priors       group of parameters -> its prior in FBM's notation; adjustments (ah0, ao) have an alpha
                 instead. A group with the prior "-" is left out, as if it were not named. Without this key
                 (`has_default_priors`), a configuration has the priors of spec/default_network.py
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


def read_network(keys: NetworkKeys, *, inputs: tuple[str, ...], n_outputs: int) -> NetworkSpec:
    """Return the network that [network] describes.

    inputs  names of the network's inputs, in order

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
            for group, names in keys.omit.items()
        },
        connections={
            group: connections_of(table, key=f"network.connections.{group}")
            for group, table in keys.connections.items()
        },
    )


def _input_numbers(names: tuple[str, ...], inputs: tuple[str, ...], *, key: str) -> tuple[int, ...]:
    """Return the numbers of the named inputs, in increasing order."""
    for place, name in enumerate(names):
        if name not in inputs or name in names[:place]:
            problem = "is listed twice" if name in inputs else f"is not an input{nearest(name, inputs)}"
            raise ConfigError(f'{key}: "{name}" {problem}; the inputs are {", ".join(inputs)}')
    return tuple(sorted(inputs.index(name) for name in names))
