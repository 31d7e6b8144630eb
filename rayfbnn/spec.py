"""What a configuration can say: frozen, validated records that round-trip through TOML and JSON.

`RunSpec.from_toml`, `from_dict` and `from_json` raise ConfigError: `key.path: what is wrong, got value;
what would be right`. Built directly from Python the records raise pydantic's own ValidationError.
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from rayfbnn.architecture import ACTIVATIONS, MODEL_KINDS, LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.errors import ConfigError
from rayfbnn.operations import (
    Heatbath,
    Hybrid,
    Metropolis,
    Negate,
    Operation,
    Repeat,
    SampleNoise,
    SampleSigmas,
)

_MAX_WORD = 2**32 - 1  # seeds, chains and iterations are words of the random streams' key and counter
_MAX_UPDATES = 100_000  # in one iteration; each holds its place in memory once `repeat` is written out
_MAX_DEPTH = 20  # of tables and arrays in one another; Python's own recursion limit gives no key
_SCALE_RANGE = (1e-12, 1e12)  # of a width; its square times any n must stay inside float32's range
_ALPHA_RANGE = (1e-6, 1e6)  # below, a precision's logarithm overflows; above, it is infinity in all but name

# What would be right, for every key there is; the end of every message.
_RIGHT = {
    "seed": f"a whole number from 0 to {_MAX_WORD}",
    "chains": "a whole number of at least 1, such as 16",
    "chains_per_batch": "a whole number of at least 1, such as 8",
    "draws_per_block": "a whole number of at least 1, such as 50",
    "dtype": '"float32" or "float64"',
    "device": '"cpu" or "gpu"',
    "data": "a table with train, inputs and targets",
    "train": 'the file of training cases, such as "train.csv"',
    "inputs": 'a list of at least one column name, such as ["x1", "x2"]',
    "targets": 'a list of at least one column name, such as ["y1"]',
    "standardize": 'a list of "inputs", "targets", both or neither',
    "model": "a table with kind, and noise or classes",
    "kind": " or ".join(f'"{kind}"' for kind in MODEL_KINDS),
    "noise": 'the prior of the noise, such as "0.1:0.2"',
    "classes": "a whole number of at least 2",
    "network": "a table with hidden and priors",
    "hidden": 'a list of layers, such as [{ units = 16, activation = "tanh" }], or []',
    "units": "a whole number from 1 to 1000000",
    "activation": "one of " + ", ".join(f'"{name}"' for name in ACTIVATIONS),
    "priors": 'a table of priors, such as ih0 = "1:0.2"',
    "initial": "a table with sigmas = 0.5 or from_prior = true",
    "sigmas": "a positive number, such as 0.5",
    "from_prior": "true or false",
    "phase": "at least one [[phase]] with iterations and operations",
    "iterations": f"a whole number from 1 to {_MAX_WORD}",
    "keep": 'true, false or "warmup"',
    "operations": 'a list of at least one operation, such as [{ op = "heatbath" }]',
    "op": "one of {ops}",
    "decay": "a number of at least 0 and below 1",
    "steps": "a whole number of at least 1, such as 64",
    "stepsize": "a positive number, such as 0.3",
    "window": "a whole number from 1 to steps + 1",
    "partitions": "a whole number of at least 1",
    "stepsize_jitter": "a positive number (alpha of a Gamma) or a negative one (decades)",
    "times": "a whole number of at least 1",
}
_RIGHT_PRIOR = 'a prior in FBM\'s notation, such as "0.5:0.2"'
_RIGHT_ELEMENT = {
    "inputs": "a column name",
    "targets": "a column name",
    "standardize": '"inputs" or "targets"',
    "hidden": 'a layer, such as { units = 16, activation = "tanh" }',
    "phase": "a table with iterations and operations",
    "operations": 'a table, such as { op = "heatbath" }',
}


def _number_as_text(value: object) -> object:
    """`bo = 1` means `bo = "1"`: a prior that is a width alone may be written as a number."""
    return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


PriorText = Annotated[str, BeforeValidator(_number_as_text)]
Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, le=_MAX_WORD)]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class _RepeatConfig(_Record):
    times: int
    operations: tuple[AnyOperation, ...]
    op: Literal["repeat"]


_OPERATION_TYPES: dict[str, Any] = {
    kind.op: kind for kind in (SampleSigmas, SampleNoise, Heatbath, Negate, Hybrid, Metropolis, Repeat)
}
_OPERATION_NAMES = tuple(_OPERATION_TYPES)
_OPERATION_KEYS = {
    op: [field.name for field in dataclasses.fields(kind) if field.name != "op"]
    for op, kind in _OPERATION_TYPES.items()
}
_OPERATIONS = {op: TypeAdapter(kind) for op, kind in _OPERATION_TYPES.items() if kind is not Repeat}
_RIGHT["op"] = _RIGHT["op"].format(ops=", ".join(f'"{name}"' for name in _OPERATION_NAMES))


def _operation(value: object) -> Operation:
    """The operation that a table with `op` describes.

    By hand rather than as a union: pydantic reports a wrong value in a union once for every member.
    """
    if isinstance(value, Operation):
        return value
    if not isinstance(value, dict):
        raise PydanticCustomError("operation", 'must be a table such as { op = "heatbath" }')
    op = value.get("op")
    if op is None:
        raise _wrong_field("missing", "op", value)
    if op not in _OPERATION_NAMES:
        raise _wrong_field(PydanticCustomError("operation_name", "unknown"), "op", op)
    known = ["op", *_OPERATION_KEYS[op]]
    for key in value:
        if key not in known:
            raise _wrong_field(
                PydanticCustomError("unknown_key", "unknown", {"known": known}), key, value[key]
            )
    text = json.dumps(value)
    if op == "repeat":
        repeat = _RepeatConfig.model_validate_json(text)
        return Repeat(repeat.times, repeat.operations)
    operation: Operation = _OPERATIONS[op].validate_json(text, strict=True)
    return operation


def _wrong_field(kind: str | PydanticCustomError, key: str, value: object) -> ValidationError:
    return ValidationError.from_exception_data(
        "operation", [InitErrorDetails(type=kind, loc=(key,), input=value)]
    )


def _operation_table(operation: Operation) -> dict[str, Any]:
    """The table that `_operation` reads, `op` first and what is None left out."""
    if isinstance(operation, Repeat):
        inner = [_operation_table(each) for each in operation.operations]
        return {"op": operation.op, "times": operation.times, "operations": inner}
    fields = {key: getattr(operation, key) for key in _OPERATION_KEYS[operation.op]}
    return {"op": operation.op, **{key: value for key, value in fields.items() if value is not None}}


AnyOperation = Annotated[Operation, PlainValidator(_operation), PlainSerializer(_operation_table)]
_RepeatConfig.model_rebuild()


class DataSpec(_Record):
    """Which file holds the training cases and which of its columns are what.

    train is as written, relative to the configuration file; RunSpec.train_path is where it lies.
    """

    train: Name
    inputs: Annotated[tuple[Name, ...], Field(min_length=1)]
    targets: Annotated[tuple[Name, ...], Field(min_length=1)]
    standardize: tuple[Literal["inputs", "targets"], ...] = ()


class ModelConfig(_Record):
    """How targets depend on outputs: real (noise), binary, or class (classes)."""

    kind: Literal["real", "binary", "class"]
    noise: PriorText | None = None
    classes: Annotated[int, Field(ge=2, le=100_000)] | None = None


class LayerConfig(_Record):
    """One hidden layer."""

    units: Annotated[int, Field(ge=1, le=1_000_000)]
    activation: Literal["tanh", "softplus", "softplus0", "identity", "sigmoid", "relu"]


class NetworkConfig(_Record):
    """Hidden layers, and for each group of parameters that is present its prior in FBM's notation.

    "-" is the same as leaving a group out. With one hidden layer ih, bh, th, ho mean ih0, bh0, th0, ho0.
    """

    hidden: tuple[LayerConfig, ...]
    priors: dict[str, PriorText]

    @model_validator(mode="after")
    def _canonical(self) -> Self:
        aliases = {"ih": "ih0", "bh": "bh0", "th": "th0", "ho": "ho0"} if len(self.hidden) == 1 else {}
        named: dict[str, str] = {}
        for name, text in self.priors.items():
            group = aliases.get(name, name)
            if group in named:
                raise ConfigError(f"network.priors.{name}: is another name of {group}; give one of the two")
            named[group] = text
        present = {group: text for group, text in named.items() if text != "-"}
        self.priors.clear()
        self.priors.update(present)
        return self


class InitialSpec(_Record):
    """Where chains start: every free sigma at one value and parameters zero, or a draw from the prior."""

    sigmas: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    from_prior: bool = False

    @model_validator(mode="before")
    @classmethod
    def _one_of_two(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if value.get("from_prior") is True and value.get("sigmas") is not None:
            raise ConfigError("initial: has both sigmas and from_prior = true; it must have one of the two")
        return {**value, "sigmas": 0.5} if not value.get("from_prior") and "sigmas" not in value else value


class PhaseSpec(_Record):
    """A number of iterations of the same operations, and what becomes of their draws.

    keep: true (one draw an iteration), false, or "warmup" (kept apart from the posterior's draws)
    """

    iterations: Count
    operations: Annotated[tuple[AnyOperation, ...], Field(min_length=1)]
    keep: bool | Literal["warmup"] = True


class RunSpec(_Record):
    """Everything that determines a run's draws, bit for bit, besides the data themselves."""

    seed: Annotated[int, Field(ge=0, le=_MAX_WORD)] = 1
    chains: Count = 16
    chains_per_batch: Count = 8
    draws_per_block: Count = 50
    dtype: Literal["float32", "float64"] = "float32"
    device: Literal["cpu", "gpu"] = "cpu"
    data: DataSpec
    model: ModelConfig
    network: NetworkConfig
    initial: InitialSpec = InitialSpec(sigmas=0.5)
    phase: Annotated[tuple[PhaseSpec, ...], Field(min_length=1)]
    _base_dir: Path = PrivateAttr(default_factory=Path)

    @staticmethod
    def from_toml(path: str | Path, overrides: Sequence[str] = ()) -> RunSpec:
        """Read a configuration file, with `key.path=value` overrides laid over it."""
        path = Path(path)
        try:
            raw = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
        except OSError as exc:
            raise ConfigError(f"{path}: cannot be read: {exc.strerror}; give a TOML file") from exc
        except UnicodeDecodeError as exc:
            raise ConfigError(f"{path}: byte {exc.start} is not UTF-8; TOML files are UTF-8 text") from exc
        except (tomllib.TOMLDecodeError, RecursionError) as exc:
            raise ConfigError(f"{path}: is not valid TOML: {exc}") from exc
        return RunSpec.from_dict(raw, overrides, base_dir=path.parent)

    @staticmethod
    def from_dict(
        raw: Mapping[str, Any], overrides: Sequence[str] = (), *, base_dir: str | Path = "."
    ) -> RunSpec:
        """Validate a configuration given as nested dictionaries, with overrides laid over it."""
        plain = _plain(raw, key="", depth=0)
        for override in overrides:
            _override(plain, override)
        try:
            # As JSON: pydantic's strict mode then takes arrays for tuples but still no "16" for 16.
            spec = RunSpec.model_validate_json(json.dumps(plain))
        except ValidationError as exc:
            raise ConfigError("\n".join(_messages(exc))) from exc
        spec._base_dir = Path(base_dir)
        return spec

    @staticmethod
    def from_json(text: str, *, base_dir: str | Path = ".") -> RunSpec:
        """Read what `to_json` wrote."""
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise ConfigError(f"configuration: is not valid JSON: {exc}") from exc
        if not isinstance(raw, dict):
            raise ConfigError(f"configuration: must be a JSON object, got {_short(raw)}")
        return RunSpec.from_dict(raw, base_dir=base_dir)

    def to_dict(self) -> dict[str, Any]:
        """Every key with its value, defaults included, as plain dictionaries, lists, strings and numbers."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    def to_toml(self) -> str:
        return _to_toml(self.to_dict())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunSpec) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.to_json())

    @property
    def train_path(self) -> Path:
        """Where the training cases lie: data.train, relative to the configuration file's folder."""
        return self._base_dir / self.data.train

    @property
    def kept_draws(self) -> int:
        """Draws of each chain in the posterior."""
        return sum(phase.iterations for phase in self.phase if phase.keep is True)

    @property
    def warmup_draws(self) -> int:
        """Draws of each chain kept apart, as warm-up."""
        return sum(phase.iterations for phase in self.phase if phase.keep == "warmup")

    @property
    def total_iterations(self) -> int:
        return sum(phase.iterations for phase in self.phase)

    def with_iterations(self, iterations: int) -> RunSpec:
        """The same run with its last phase `iterations` long."""
        raw = self.to_dict()
        raw["phase"][-1]["iterations"] = iterations
        return RunSpec.from_dict(raw, base_dir=self._base_dir)

    def network_spec(self, n_targets: int | None = None) -> NetworkSpec:
        """The network, its outputs as the data model needs; n_targets is len(data.targets) unless given."""
        return NetworkSpec(
            inputs=len(self.data.inputs),
            outputs=self.model_spec().n_outputs(len(self.data.targets) if n_targets is None else n_targets),
            hidden=tuple(LayerSpec(layer.units, layer.activation) for layer in self.network.hidden),
            priors={name: _parse_prior(name, text) for name, text in self.network.priors.items()},
        )

    def model_spec(self) -> ModelSpec:
        noise = None if self.model.noise is None else PriorSpec.parse(self.model.noise, key="model.noise")
        return ModelSpec(self.model.kind, noise, self.model.classes)

    def check_data(self, n_cases: int) -> None:
        """Raise ConfigError for what only the number of training cases can show."""
        for key, operation in _all_operations(self):
            if isinstance(operation, Hybrid) and operation.partitions > n_cases:
                raise ConfigError(
                    f"{key}.partitions: more than there are training cases, got {operation.partitions}; "
                    f"it must be at most {n_cases}"
                )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_data_spec(self)
        _check_model(self)
        _check_network(self)
        _check_phases(self)
        return self


def differences(stored: RunSpec, asked: RunSpec) -> list[str]:
    """Every key in which two specs differ, with both values; nothing is ignored."""
    old, new = _flat(stored.to_dict(), ""), _flat(asked.to_dict(), "")
    keys = list(dict.fromkeys([*old, *new]))
    return [
        f"{key}: was {_short(old[key]) if key in old else 'absent'}, "
        f"now {_short(new[key]) if key in new else 'absent'}"
        for key in keys
        if key not in old or key not in new or old[key] != new[key]
    ]


def _flat(value: Any, key: str) -> dict[str, Any]:
    if isinstance(value, dict):
        items = [(f"{key}.{name}" if key else name, inner) for name, inner in value.items()]
    elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        items = [(f"{key}[{index}]", inner) for index, inner in enumerate(value)]
    else:
        return {key: value}
    return {name: leaf for path, inner in items for name, leaf in _flat(inner, path).items()}


# From anything a caller may hold, and from overrides, to plain dictionaries; and back to TOML.


def _plain(value: Any, *, key: str, depth: int) -> Any:
    """The same as dictionaries with text keys, lists, text, numbers, booleans and None."""
    if depth > _MAX_DEPTH:
        raise ConfigError(f"{key[:80]}: nested more than {_MAX_DEPTH} deep; no configuration needs that")
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_none=True)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {name: inner for name, inner in dataclasses.asdict(value).items() if inner is not None}
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise ConfigError(f"{key or 'configuration'}: keys must be text, got {_short(name)}")
        return {
            name: _plain(inner, key=f"{key}.{name}" if key else name, depth=depth + 1)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(inner, key=f"{key}[{i}]", depth=depth + 1) for i, inner in enumerate(value)]
    if value is None or isinstance(value, str | int | float):
        return value
    right = _RIGHT.get(re.split(r"[.\[]", key)[-1], "text, a number, true or false, a list or a table")
    raise ConfigError(f"{key or 'configuration'}: must be {right}, got {_short(value)}")


def _override(raw: dict[str, Any], text: str) -> None:
    """Lay `key.path=value` over a raw configuration; phase.0.keep and phase[0].keep are the same."""
    path, equals, value = text.partition("=")
    parts = re.findall(r"[^.\[\]\s]+", path)
    if not equals or not parts:
        raise ConfigError(f'override: is not an assignment, got "{text}"; it must be key.path=value')
    here: Any = raw
    for position, part in enumerate(parts):
        key = ".".join(parts[: position + 1])
        if isinstance(here, list):
            if not re.fullmatch(r"-?\d+", part) or not -len(here) <= int(part) < len(here):
                raise ConfigError(
                    f'{key}: no such element, got "{part}"; there are {len(here)}, counted from 0'
                )
            where: int | str = int(part)
        elif isinstance(here, dict):
            where = part
        else:
            raise ConfigError(
                f"{key}: {'.'.join(parts[:position])} is {_short(here)}, which has no keys in it"
            )
        if position == len(parts) - 1:
            here[where] = _override_value(key, value.strip())
        else:
            here = here.setdefault(where, {}) if isinstance(here, dict) else here[where]


def _override_value(key: str, text: str) -> Any:
    """The value as TOML, or the text itself where it is no TOML: 0.5:0.2 and train.csv need no quotes."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    if list(parsed) != ["value"]:
        raise ConfigError(f"{key}: has more than one line, got {_short(text)}; it must be one value")
    value = parsed["value"]
    # 10:20:30 is a time of day in TOML and a prior here.
    return text if isinstance(value, datetime.date | datetime.time) else _plain(value, key=key, depth=0)


def _to_toml(spec: dict[str, Any]) -> str:
    """TOML of a RunSpec's dictionary: scalars, then a table for each section, then [[phase]] tables."""
    tables = {name: value for name, value in spec.items() if isinstance(value, dict)}
    lines = [
        f"{name} = {_toml_value(value)}"
        for name, value in spec.items()
        if name not in tables and name != "phase"
    ]
    for name, table in tables.items():
        inner = {key: value for key, value in table.items() if isinstance(value, dict)}
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {_toml_value(value)}" for key, value in table.items() if key not in inner]
        for key, subtable in inner.items():
            lines += ["", f"[{name}.{key}]"]
            lines += [f"{leaf} = {_toml_value(value)}" for leaf, value in subtable.items()]
    for phase in spec["phase"]:
        lines += ["", "[[phase]]", *(f"{key} = {_toml_value(value)}" for key, value in phase.items())]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(inner) for inner in value) + "]"
    # A JSON string is a TOML string, but for the one control character that JSON lets through.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# Checks that need more than one key.


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
    if "targets" in spec.data.standardize and spec.model.kind != "real":
        raise ConfigError(
            f'data.standardize: only real targets can be standardised, got "targets" with model.kind = '
            f'"{spec.model.kind}"; leave "targets" out'
        )


def _check_model(spec: RunSpec) -> None:
    kind, noise, classes = spec.model.kind, spec.model.noise, spec.model.classes
    if kind == "real" and noise is None:
        raise ConfigError(f"model.noise: missing; real targets need {_RIGHT['noise']}")
    if kind != "real" and noise is not None:
        raise ConfigError(f'model.noise: only real targets have noise, got "{noise}"; leave it out')
    if kind == "class" and classes is None:
        raise ConfigError("model.classes: missing; class targets need the number of classes, such as 3")
    if kind != "class" and classes is not None:
        raise ConfigError(f"model.classes: only class targets have classes, got {classes}; leave it out")
    if kind == "class" and len(spec.data.targets) != 1:
        names = ", ".join(spec.data.targets)
        raise ConfigError(f"data.targets: class models have exactly one target, got {names}")
    if noise is not None:
        prior = PriorSpec.parse(noise, key="model.noise")
        if prior.scaled:
            raise ConfigError(f'model.noise: x (scaling) is for weights, got "{noise}"; leave out the x')
        _check_range("model.noise", noise, prior, n_sources=1)


def _check_network(spec: RunSpec) -> None:
    network = spec.network_spec()
    possible = network.possible_groups()
    for name, text in spec.network.priors.items():
        key = f"network.priors.{name}"
        if name not in possible:
            raise ConfigError(
                f'{key}: no such group in this network, got "{text}"{_nearest(name, possible)}; '
                f"the possible groups are {', '.join(possible)}"
            )
        _check_range(key, text, network.priors[name], n_sources=possible[name][0])
    present = network.priors
    last = len(network.hidden) - 1
    for layer in range(last + 1):
        feeding = [f"ih{layer}"] + ([f"h{layer - 1}h{layer}"] if layer > 0 else [])
        consuming = [f"ho{layer}"] + ([f"h{layer}h{layer + 1}"] if layer < last else [])
        _need_one(present, feeding, f"nothing feeds hidden layer {layer}")
        _need_one(present, consuming, f"nothing uses hidden layer {layer}")
    outgoing = [f"ho{layer}" for layer in range(last + 1)]
    _need_one(present, [*outgoing, "io", "bo"], "nothing feeds the outputs")
    if "ti" in present:
        from_inputs = [f"ih{layer}" for layer in range(last + 1)] + ["io"]
        _need_one(present, from_inputs, "ti offsets inputs that nothing uses")


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


def _parse_prior(name: str, text: str) -> PriorSpec:
    return PriorSpec.parse(text, key=f"network.priors.{name}", two_levels=name[0] in "bt")


def _check_phases(spec: RunSpec) -> None:
    if spec.phase[-1].keep is not True:
        raise ConfigError(
            f"phase[{len(spec.phase) - 1}].keep: the last phase must be kept, got "
            f"{_short(spec.phase[-1].keep)}; it must be true (or left out)"
        )
    if spec.total_iterations > _MAX_WORD:
        raise ConfigError(f"phase: {spec.total_iterations} iterations in all; it must be at most {_MAX_WORD}")
    for index, phase in enumerate(spec.phase):
        n_updates = _count_updates(phase.operations)
        if n_updates > _MAX_UPDATES:
            raise ConfigError(
                f"phase[{index}].operations: one iteration has {n_updates} updates with repeats written out; "
                f"it must be at most {_MAX_UPDATES}: use more iterations instead"
            )
    for key, operation in _all_operations(spec):
        if isinstance(operation, SampleNoise) and spec.model.kind != "real":
            raise ConfigError(
                f'{key}.op: only real targets have noise, got "sample-noise" with model.kind = '
                f'"{spec.model.kind}"; use "sample-sigmas" or leave it out'
            )


def _count_updates(operations: tuple[Operation, ...]) -> int:
    return sum(
        operation.times * _count_updates(operation.operations) if isinstance(operation, Repeat) else 1
        for operation in operations
    )


def _all_operations(spec: RunSpec) -> Iterator[tuple[str, Operation]]:
    def below(key: str, operations: tuple[Operation, ...]) -> Iterator[tuple[str, Operation]]:
        for index, operation in enumerate(operations):
            here = f"{key}.operations[{index}]"
            yield here, operation
            if isinstance(operation, Repeat):
                yield from below(here, operation.operations)

    for index, phase in enumerate(spec.phase):
        yield from below(f"phase[{index}]", phase.operations)


# From pydantic's errors to messages that name the key, the value, and what would be right.


def _messages(error: ValidationError) -> list[str]:
    """One line a wrong key, each once (a union reports its members one by one)."""
    wrong = error.errors(include_url=False)
    # A list is also called too short when its elements were wrong; only the elements are worth a line.
    inside = {details["loc"][:n] for details in wrong for n in range(len(details["loc"]))}
    return list(
        dict.fromkeys(
            _message(details)
            for details in wrong
            if not (details["type"] == "too_short" and details["loc"] in inside)
        )
    )


def _message(details: ErrorDetails) -> str:
    loc, kind, value = details["loc"], details["type"], details["input"]
    if kind in ("extra_forbidden", "unknown_key"):
        known = details["ctx"]["known"] if kind == "unknown_key" else _known_keys(loc[:-1])
        return (
            f"{_path(loc)}: unknown key{_nearest(str(loc[-1]), known)}; the keys here are {', '.join(known)}"
        )
    is_prior = loc[:2] == ("network", "priors") and len(loc) > 2
    if not is_prior:  # pydantic adds the name of a union's member, which is no key
        loc = tuple(part for part in loc if isinstance(part, int) or part in _RIGHT)
    key = _path(loc)
    if kind in ("value_error", "operation"):
        text = details["msg"].removeprefix("Value error, ")
        return f"{key}.{text}" if kind == "value_error" else f"{key}: {text}, got {_short(value)}"
    name = next((part for part in reversed(loc) if isinstance(part, str)), "")
    if is_prior:
        right = _RIGHT_PRIOR
    elif loc and isinstance(loc[-1], int):
        right = _RIGHT_ELEMENT[name]
    else:
        right = _RIGHT.get(name, "a table of keys")
    if kind == "missing":
        return f"{key}: missing; it must be {right}"
    hint = _nearest(value, _choices(name)) if isinstance(value, str) else ""
    return f"{key}: must be {right}, got {_short(value)}{hint}"


def _path(loc: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return text.removeprefix(".") or "configuration"


_SECTIONS: dict[tuple[str, ...], type[_Record]] = {
    (): RunSpec,
    ("data",): DataSpec,
    ("model",): ModelConfig,
    ("network",): NetworkConfig,
    ("network", "hidden"): LayerConfig,
    ("initial",): InitialSpec,
    ("phase",): PhaseSpec,
}


def _known_keys(loc: tuple[int | str, ...]) -> list[str]:
    section = tuple(part for part in loc if isinstance(part, str))
    return list(_SECTIONS[section].model_fields)


def _choices(name: str) -> tuple[str, ...]:
    return {"activation": ACTIVATIONS, "kind": MODEL_KINDS, "op": _OPERATION_NAMES}.get(name, ())


def _nearest(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
