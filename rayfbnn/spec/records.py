"""The records of a configuration, and reading and writing them.

`RunSpec.from_toml`, `from_dict` and `from_json` raise ConfigError: `key.path: what is wrong, got value;
what would be right`. Built directly from Python the records raise pydantic's own ValidationError.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError, model_validator

from rayfbnn.errors import ConfigError
from rayfbnn.mcmc.operations import Dynamic, Hybrid, HybridMarginal, HybridMax
from rayfbnn.model.architecture import Activation, LayerSpec, ModelKind, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.spec.checks import (
    adjustment_alpha,
    all_operations,
    check_gradient,
    check_problem,
    check_schedule,
    input_numbers,
)
from rayfbnn.spec.connections import connections_of, with_tables
from rayfbnn.spec.defaults import KEPT_ITERATIONS, default_phases
from rayfbnn.spec.messages import MAX_WORD, messages, short
from rayfbnn.spec.operations import AnyOperation, Record
from rayfbnn.spec.text import override, plain, read_toml, to_toml


def _number_as_text(value: object) -> object:
    """`bo = 1` means `bo = "1"`: a prior that is a width alone may be written as a number."""
    return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


PriorText = Annotated[str, BeforeValidator(_number_as_text)]
Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, le=MAX_WORD)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class DataSpec(Record):
    """Which file holds the training cases and which of its columns are what.

    train is as written, relative to the configuration file; RunSpec.train_path is where it lies.
    """

    train: Name
    inputs: Annotated[tuple[Name, ...], Field(min_length=1)]
    targets: Annotated[tuple[Name, ...], Field(min_length=1)]
    standardize: tuple[Literal["inputs", "targets"], ...] = ()


class ModelConfig(Record):
    """How targets depend on outputs.

    real (noise), binary, class (classes), count, heteroscedastic (noise_floor, 0 if left out), or survival
    (hazard; where it is piecewise constant, time_points, and log_time if the network is given the log time)
    """

    kind: ModelKind
    noise: PriorText | None = None
    classes: Annotated[int, Field(ge=2, le=100_000)] | None = None
    hazard: Literal["constant", "piecewise"] | None = None
    time_points: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = None
    log_time: bool | None = None
    noise_floor: Positive | None = None


class LayerConfig(Record):
    """One hidden layer.

    groups: of softmax and normalize layers, "i // n" or "i % n". product: the earlier hidden layer whose
    units multiply these.
    """

    units: Annotated[int, Field(ge=1, le=1_000_000)]
    activation: Activation
    groups: str | None = None
    product: Annotated[int, Field(ge=0)] | None = None


class NetworkConfig(Record):
    """Hidden layers, and for each group of parameters that is present its prior in FBM's notation.

    "-" is the same as leaving a group out. FBM's short names are read: ih, bh, th, ah of layer 0, ho of the
    last layer, hh is h0h1, hh2 is h1h2, h1o is ho1. Adjustments (ah0, ao) have an alpha in place of a prior.
    omit         group of weights from the inputs -> names of the inputs that it leaves out
    connections  group of weights or biases -> its configured connections (spec/connections.py)
    """

    hidden: tuple[LayerConfig, ...]
    priors: dict[str, PriorText]
    omit: dict[str, tuple[Name, ...]] = Field(default_factory=dict)
    connections: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _canonical(self) -> Self:
        aliases = _short_names(len(self.hidden))
        for key in ("priors", "omit", "connections"):
            _use_full_names(getattr(self, key), aliases, key=f"network.{key}")
        for group in [group for group, text in self.priors.items() if text == "-"]:
            del self.priors[group]
        return self


def _use_full_names(table: dict[str, Any], aliases: Mapping[str, str], *, key: str) -> None:
    """Give every group in a table the name that is used here, in place; ConfigError if one has two."""
    named: dict[str, Any] = {}
    for name, value in table.items():
        group = aliases.get(name, name)
        if group in named:
            other = next(each for each in table if aliases.get(each, each) == group)
            raise ConfigError(
                f"{key}.{name}: is another name of {other}, got {short(value)}; give one of the two"
            )
        named[group] = value
    table.clear()
    table.update(named)


def _short_names(n_hidden: int) -> dict[str, str]:
    """FBM's other names of groups, each with the one that is used here (FBM's net-spec.doc)."""
    if n_hidden == 0:
        return {}
    names = {name: f"{name}0" for name in ("ih", "bh", "th", "ah")} | {"ho": f"ho{n_hidden - 1}"}
    names |= {f"h{layer}o": f"ho{layer}" for layer in range(n_hidden)}
    names |= {f"hh{layer}": f"h{layer - 1}h{layer}" for layer in range(1, n_hidden)}
    return names | ({"hh": "h0h1"} if n_hidden > 1 else {})


class InitialSpec(Record):
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
        if value.get("from_prior") is not True and value.get("sigmas") is None:
            return {**value, "sigmas": 0.5}
        return value


class PhaseSpec(Record):
    """A number of iterations of the same operations, and what becomes of their draws.

    keep: true (one draw an iteration), false, or "warmup" (kept apart from the posterior's draws)
    """

    iterations: Count
    operations: Annotated[tuple[AnyOperation, ...], Field(min_length=1)]
    keep: bool | Literal["warmup"] = True


class RunSpec(Record):
    """Everything that determines a run's draws, bit for bit, besides the data themselves.

    Without phases it gets those of defaults.py, the last of `iterations`, and is then as if they had been
    written.
    """

    seed: Annotated[int, Field(ge=0, le=MAX_WORD)] = 1
    chains: Count = 16
    chains_per_batch: Count = 8
    draws_per_block: Count = 50
    dtype: Literal["float32", "float64"] = "float32"
    device: Literal["cpu", "gpu"] = "cpu"
    temperature: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    data: DataSpec
    model: ModelConfig
    network: NetworkConfig
    initial: InitialSpec = InitialSpec(sigmas=0.5)
    iterations: Count | None = None
    phase: Annotated[tuple[PhaseSpec, ...], Field(min_length=1)] = ()
    _base_dir: Path = PrivateAttr(default_factory=Path)

    @staticmethod
    def from_toml(path: str | Path, overrides: Sequence[str] = ()) -> RunSpec:
        """Read a configuration file, with `key.path=value` overrides laid over it."""
        path = Path(path)
        return RunSpec.from_dict(read_toml(path), overrides, base_dir=path.parent)

    @staticmethod
    def from_dict(
        raw: Mapping[str, Any], overrides: Sequence[str] = (), *, base_dir: str | Path = "."
    ) -> RunSpec:
        """Validate a configuration given as nested dictionaries, with overrides laid over it."""
        keys: dict[str, Any] = plain(raw)
        for text in overrides:
            override(keys, text)
        keys = with_tables(keys, Path(base_dir))
        try:
            # As JSON: pydantic's strict mode then takes arrays for tuples but still no "16" for 16.
            spec = RunSpec.model_validate_json(json.dumps(keys))
        except ValidationError as exc:
            raise ConfigError("\n".join(messages(exc, _SECTIONS))) from exc
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
            raise ConfigError(f"configuration: must be a JSON object, got {short(raw)}")
        return RunSpec.from_dict(raw, base_dir=base_dir)

    def to_dict(self) -> dict[str, Any]:
        """Every key with its value, defaults included, as plain dictionaries, lists, strings and numbers."""
        found = self.model_dump(mode="json", exclude_none=True)
        for name in ("omit", "connections"):
            if not found["network"][name]:
                del found["network"][name]
        return found

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    def to_toml(self) -> str:
        return to_toml(self.to_dict())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunSpec) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.to_json())

    @property
    def train_path(self) -> Path:
        """Where the training cases lie: data.train, relative to the configuration file's folder."""
        return self._base_dir / self.data.train

    @cached_property
    def kept_draws(self) -> int:
        """Draws of each chain in the posterior."""
        return sum(phase.iterations for phase in self.phase if phase.keep is True)

    @property
    def warmup_draws(self) -> int:
        """Draws of each chain kept apart, as warm-up."""
        return sum(phase.iterations for phase in self.phase if phase.keep == "warmup")

    @property
    def tuning_phases(self) -> tuple[int, ...]:
        """The numbers of the phases that may tune: not kept, and before every phase that is."""
        n = next(number for number, phase in enumerate(self.phase) if phase.keep is True)
        return tuple(range(n))

    @cached_property
    def total_iterations(self) -> int:
        return sum(phase.iterations for phase in self.phase)

    def with_iterations(self, iterations: int) -> RunSpec:
        """The same run with its last phase `iterations` long; ConfigError if no phase may be so long."""
        raw = self.to_dict()
        raw["phase"][-1]["iterations"] = iterations
        return RunSpec.from_dict(raw, base_dir=self._base_dir)

    def network_spec(self, n_targets: int | None = None) -> NetworkSpec:
        """The network, its outputs as the data model needs; n_targets is len(data.targets) unless given.

        ConfigError names the key of a prior, an alpha, inputs left out or connections that are none.
        """
        return NetworkSpec(
            inputs=self.model_spec().n_inputs(len(self.data.inputs)),
            outputs=self.model_spec().n_outputs(len(self.data.targets) if n_targets is None else n_targets),
            hidden=tuple(
                LayerSpec(layer.units, layer.activation, layer.groups, layer.product)
                for layer in self.network.hidden
            ),
            priors={
                name: PriorSpec.parse(text, key=f"network.priors.{name}", two_levels=name[:1] in ("b", "t"))
                for name, text in self.network.priors.items()
                if name[:1] != "a"
            },
            adjustments={
                name: adjustment_alpha(text, key=f"network.priors.{name}")
                for name, text in self.network.priors.items()
                if name[:1] == "a"
            },
            omitted={
                group: input_numbers(names, self.network_inputs, key=f"network.omit.{group}")
                for group, names in self.network.omit.items()
            },
            connections={
                group: connections_of(keys, key=f"network.connections.{group}")
                for group, keys in self.network.connections.items()
            },
        )

    def model_spec(self) -> ModelSpec:
        """How targets depend on outputs, with the noise's prior read; ConfigError names model.noise."""
        noise = None if self.model.noise is None else PriorSpec.parse(self.model.noise, key="model.noise")
        return ModelSpec(
            self.model.kind,
            noise,
            self.model.classes,
            times=self.model.time_points or (),
            log_time=bool(self.model.log_time),
            noise_floor=self.model.noise_floor or 0.0,
        )

    @property
    def network_inputs(self) -> tuple[str, ...]:
        """Names of the network's inputs: those of the data, before them the time of a piecewise hazard."""
        return ("time",) * bool(self.model.time_points) + self.data.inputs

    def check_data(self, n_cases: int) -> None:
        """Raise ConfigError for what only the number of training cases can show."""
        for key, operation in all_operations(self):
            if not isinstance(operation, Hybrid | HybridMarginal | HybridMax | Dynamic):
                continue
            if operation.partitions > n_cases:
                raise ConfigError(
                    f"{key}.partitions: more than there are training cases, got {operation.partitions}; "
                    f"it must be at most {n_cases}"
                )

    def check_gradient(self) -> None:
        """Raise ConfigError for units that are for draws from the prior alone, such as step units."""
        check_gradient(self)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_problem(self)
        if not self.phase:
            phases = default_phases(
                self.network_spec(),
                self.model_spec(),
                is_tempered=self.temperature != 1,
                iterations=self.iterations or KEPT_ITERATIONS,
            )
            object.__setattr__(self, "phase", tuple(PhaseSpec(**phase) for phase in phases))
            object.__setattr__(self, "iterations", None)
        elif self.iterations is not None:
            raise ConfigError(
                "iterations: is of the schedule of a configuration without phases, got"
                f" {self.iterations} besides [[phase]]; give each phase its own, or leave the phases out"
            )
        check_schedule(self)
        return self


_RECORDS: dict[tuple[str, ...], type[Record]] = {
    (): RunSpec,
    ("data",): DataSpec,
    ("model",): ModelConfig,
    ("network",): NetworkConfig,
    ("network", "hidden"): LayerConfig,
    ("initial",): InitialSpec,
    ("phase",): PhaseSpec,
}
_SECTIONS = {path: tuple(record.model_fields) for path, record in _RECORDS.items()}


def differences(stored: RunSpec, asked: RunSpec) -> list[str]:
    """Every key in which two specs differ, with both values; nothing is ignored."""
    old, new = _flat(stored.to_dict(), ""), _flat(asked.to_dict(), "")
    keys = list(dict.fromkeys([*old, *new]))
    return [
        f"{key}: was {short(old[key]) if key in old else 'absent'}, "
        f"now {short(new[key]) if key in new else 'absent'}"
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
