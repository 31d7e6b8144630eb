"""The configuration as written: each key with its type, and its right values in words."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Self,
    TypeAlias,
    get_args,
    get_type_hints,
)

from pydantic import Field, PlainSerializer, PlainValidator, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from rayfbnn.approximate.approximation import one_of, right_values
from rayfbnn.approximate.registry import APPROXIMATIONS
from rayfbnn.data.keys import MAX_WORD, DataSpec, ModelKeys, Name, Positive, PriorText, StrictModel
from rayfbnn.errors import ConfigError
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import OPERATIONS
from rayfbnn.model.architecture import ACTIVATIONS, LAYER_ACTIVATIONS, PRIOR_ACTIVATIONS, LayerSpec
from rayfbnn.spec.messages import OPERATION_NAMES, Right, short

_MAX_WHOLE = 2**31 - 1  # compiled code counts steps in 32 bits


def _operation(value: object) -> Operation:
    """Read the operation that a table with `op` describes.

    The record is looked up by name instead of declared as a union, because pydantic reports a wrong value in
    a union once for every member.
    """
    if isinstance(value, Operation):
        return value
    if not isinstance(value, dict):
        raise PydanticCustomError("operation", 'must be a table such as { op = "heatbath" }')
    op = value.get("op")
    if op is None:
        raise _wrong_field("missing", "op", value)
    if op not in OPERATION_NAMES:
        raise _wrong_field(PydanticCustomError("operation_name", "unknown"), "op", op)
    kind, table = _KINDS[op], _table_of(op)
    settings = {key: setting for key, setting in value.items() if key != "op"}
    known = ["op", *table.model_fields]
    for key, setting in settings.items():
        if key not in known:
            raise _wrong_field(PydanticCustomError("unknown_key", "unknown", {"known": known}), key, setting)
        if isinstance(setting, int) and abs(setting) > _MAX_WHOLE:
            too_large = PydanticCustomError("operation", f"must be at most {_MAX_WHOLE}")
            raise _wrong_field(too_large, key, setting)
    record = table.model_validate_json(json.dumps(settings))
    return kind(**{key: getattr(record, key) for key in table.model_fields})


def _wrong_field(kind: str | PydanticCustomError, key: str, value: object) -> ValidationError:
    return ValidationError.from_exception_data(
        "operation", [InitErrorDetails(type=kind, loc=(key,), input=value)]
    )


def _operation_table(operation: Operation) -> dict[str, Any]:
    """Return the table that `_operation` reads: `op` first, and without the keys that are None."""
    values = {key: getattr(operation, key) for key in _table_of(operation.op).model_fields}
    return {"op": operation.op} | {
        key: [_plain(item) for item in value] if isinstance(value, tuple) else value
        for key, value in values.items()
        if value is not None
    }


def _plain(item: object) -> object:
    return _operation_table(item) if isinstance(item, Operation) else item


_AnyOperation = Annotated[
    Operation,
    PlainValidator(_operation),
    PlainSerializer(_operation_table),
    Field(description='a table, such as { op = "heatbath" }'),
]


@cache
def _table_of(op: str) -> type[StrictModel]:
    """Return the keys of an operation; making a model takes pydantic a millisecond or two."""
    kind = _KINDS[op]
    types = get_type_hints(kind, localns={"Operation": _AnyOperation}, include_extras=True)
    keys: dict[str, Any] = {
        field.name: (types[field.name], ... if field.default is dataclasses.MISSING else field.default)
        for field in dataclasses.fields(kind)
    }
    return create_model(kind.__name__, __base__=StrictModel, **keys)


_KINDS = {kind.op: kind for kind in OPERATIONS}


# The right values of each key of an operation: of the key, and of the elements of a list.
_OF_OPERATIONS = {
    "op": Right("one of " + ", ".join(f'"{name}"' for name in OPERATION_NAMES)),
    "groups": Right(
        'a list of groups with precisions, such as ["ih0", "noise"]', 'the name of a group, such as "ih0"'
    ),
    "operations": Right(
        'a list of at least one operation, such as [{ op = "heatbath" }]',
        'a table, such as { op = "heatbath" }',
    ),
    "over": Right('a list of "outputs", "precisions" or both', '"outputs" or "precisions"'),
    "inverse_temperatures": Right(
        "a list of numbers that begins with 1 and descends, such as [1, 0.5, 0.2]", "a number from 0 to 1"
    ),
    "log_weights": Right("a list of one number for each of inverse_temperatures", "a number"),
    "decay": Right("a number of at least 0 and below 1"),
    "steps": Right('a whole number of at least 1, such as 64 (or "auto" in hybrid and hybrid-marginal)'),
    "stepsize": Right('a positive number, such as 0.3 (or "auto" in hybrid, hybrid-marginal and sghmc)'),
    "window": Right("a whole number from 1 to steps + 1"),
    "partitions": Right("a whole number of at least 1"),
    "order": Right('"cyclic", with partitions > 1, or left out'),
    "permuted": Right("true or false"),
    "max_steps": Right("a whole number of at least 1"),
    "max_ok": Right("a whole number of at least 1"),
    "jump": Right("a whole number that divides the number of steps"),
    "integrator": Right(
        '"leapfrog", "two-stage" or "fourth-order" (in sghmc "splitting", "euler" or "langevin")'
    ),
    "batch": Right("a whole number of cases of at least 1, such as 100, or left out"),
    "friction": Right("a number of at least 0, such as 1.0"),
    "noise": Right('the prior of the noise, such as "0.1:0.2" (in sghmc "none" or "estimate")'),
    "level": Right('"lower" or "upper", or left out for both'),
    "random": Right("true or false"),
    "direction": Right('"random" or "persistent"'),
    "acceptance": Right('"metropolis" or "barker"'),
    "doubling": Right("true or false"),
    "along": Right('"sigmas" or "incoming"'),
    "stepsize_jitter": Right("a positive number (alpha of a Gamma) or a negative one (decades)"),
    "scaling": Right('"auto", with stepsize = "auto" (hybrid, hybrid-marginal and sghmc), or left out'),
    "times": Right("a whole number of at least 1"),
}

_Count = Annotated[int, Field(ge=1, le=MAX_WORD)]
SCALE_RANGE = (1e-12, 1e12)  # of a width; its square times any n must stay inside float32's range


class InitialSpec(StrictModel):
    """The state that chains start from.

    sigmas      the value of every free sigma, with all parameters zero; 0.5 by default
    from_prior  True for a draw from the prior instead
    shared      True if all chains of the run start from the same draw, which depends only on the seed
    """

    sigmas: float | None = Field(
        default=None,
        ge=SCALE_RANGE[0],
        le=SCALE_RANGE[1],
        description="a number from 1e-12 to 1e12, such as 0.5",
    )
    from_prior: bool = Field(default=False, description="true or false")
    shared: bool = Field(default=False, description="true or false")

    @model_validator(mode="before")
    @classmethod
    def _one_of_two(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if value.get("from_prior") is True and value.get("sigmas") is not None:
            raise ConfigError("initial: sigmas and from_prior = true exclude each other; give only one")
        if value.get("shared") is True and value.get("from_prior") is not True:
            raise ConfigError(
                "initial.shared: applies only with from_prior = true; chains that start from given sigmas"
                " share their start anyway"
            )
        if value.get("from_prior") is not True and value.get("sigmas") is None:
            return {**value, "sigmas": 0.5}
        return value


class PhaseSpec(StrictModel):
    """A number of iterations of the same operations, and whether their draws are kept.

    keep  True for one posterior draw per iteration, False for none, "warmup" for draws that are stored apart
          from the posterior draws
    """

    iterations: _Count = Field(description=f"a whole number from 1 to {MAX_WORD}")
    operations: tuple[_AnyOperation, ...] = Field(
        min_length=1, description=_OF_OPERATIONS["operations"].words
    )
    keep: bool | Literal["warmup"] = Field(default=True, description='true, false or "warmup"')


class LadderSpec(StrictModel):
    """A ladder of levels for each chain of the run, between which states are exchanged.

    levels      number of levels of a ladder, from the hottest to the posterior; "auto" lets the adaptation
                choose as many as it needs, at most 64
    hot         noise of the hottest level in standard deviations of the targets, or the power of the
                likelihood there if the targets have no noise; "auto" lets the adaptation find it
    warmup      iterations of the phase that tunes the default schedule, which half of the ladders start with;
                by default as many as in a run without ladder
    annealing   iterations that bring the levels of the other half from the prior to their noise, while the
                chains of the first half continue
    adaptation  iterations that find the levels and the stepsizes; they are not kept
    """

    levels: Annotated[int, Field(ge=3, le=500)] | Literal["auto"] = Field(
        default="auto", description='a whole number from 3 to 500, or "auto"'
    )
    hot: Positive | Literal["auto"] = Field(
        default="auto", description='a positive number, such as 0.5, or "auto"'
    )
    warmup: _Count | None = Field(
        default=None, description=f"a whole number from 1 to {MAX_WORD}, or left out"
    )
    annealing: int = Field(default=200, ge=4, le=MAX_WORD, description=f"a whole number from 4 to {MAX_WORD}")
    adaptation: int = Field(
        default=800, ge=8, le=MAX_WORD, description=f"a whole number from 8 to {MAX_WORD}"
    )

    @property
    def most_levels(self) -> int:
        """The most levels that a ladder may get; the store has room for so many."""
        return 64 if self.levels == "auto" else self.levels

    @property
    def n_measuring(self) -> int:
        """Iterations of annealing's phase that measure the noise of the chains before annealing begins."""
        return max(1, self.annealing // 10)

    @property
    def rounds(self) -> tuple[int, ...]:
        """The iterations of each round of the adaptation, each round about half as long again as the last."""
        lengths: list[int] = []
        left = self.adaptation
        while left >= 2.5 * (length := int(16 * 1.5 ** len(lengths))):
            lengths.append(length)
            left -= length
        return (*lengths, left)


DEFAULT_HIDDEN = (LayerSpec(units=8, activation="tanh"),)
"""The layer if the training cases are not known, or are few, or if priors are written without layers."""
_Layer = Annotated[LayerSpec, Field(description='a layer, such as { units = 16, activation = "tanh" }')]
_OF_LAYERS = {
    "units": Right("a whole number from 1 to 1000000"),
    "activation": Right(
        "one of "
        + ", ".join(f'"{name}"' for name in ACTIVATIONS + LAYER_ACTIVATIONS)
        + " (and for draws from the prior "
        + ", ".join(f'"{name}"' for name in PRIOR_ACTIVATIONS)
        + ")"
    ),
    "groups": Right('"i // n" or "i % n" with n a divisor of the units'),
    "product": Right("the number of an earlier hidden layer, from 0"),
}


class NetworkKeys(StrictModel):
    """The keys of [network] as written. `read_network` makes the `NetworkSpec` from them; see `ModelKeys`.

    hidden       the hidden layers; by default those of spec/defaults.py
    priors       group of parameters -> its prior in FBM's notation; adjustments (ah0, ao) have an alpha
                 instead. A group with the prior "-" is left out, as if it were not named. Without this key
                 (`has_default_priors`), a configuration has the priors of spec/defaults.py
    omit         group of weights from the inputs -> names of the inputs that it does not connect
    connections  group of weights or biases -> its configured connections (spec/network_keys.py)

    FBM's short names of groups are replaced by the full names: ih, bh, th and ah belong to layer 0, and ho to
    the last layer; hh is h0h1, hh2 is h1h2, h1o is ho1.
    """

    hidden: tuple[_Layer, ...] = Field(
        default=DEFAULT_HIDDEN,
        max_length=200,  # any two of them may be connected
        description='a list of layers, such as [{ units = 16, activation = "tanh" }], or []',
    )
    priors: dict[str, PriorText] = Field(default={}, description='a table of priors, such as ih0 = "1:0.2"')
    omit: dict[str, tuple[Annotated[Name, Field(description="an input's name")], ...]] = Field(
        default={}, description='a table of inputs left out, such as ih0 = ["x1"]'
    )
    connections: dict[str, dict[str, Any]] = Field(
        default={},
        description='a table of configured connections, such as ih0 = { file = "connections.csv" }',
    )

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


RUNS = ("hmc", "sghmc")
"""The methods that are runs of Markov chains with phases of their own."""

METHODS = (*RUNS, *APPROXIMATIONS)
"""The names of all methods, in the order in which messages list them."""

_Phases = Annotated[
    tuple[Annotated[PhaseSpec, Field(description="a table with iterations and operations")], ...],
    Field(min_length=1, max_length=1000),
]
_PHASES = "at least one [[phase]] with iterations and operations, and at most 1000"


class PhasesKeys(StrictModel):
    """[[methods.hmc.phase]] and [[methods.sghmc.phase]]: the phases of a run of Markov chains."""

    phase: _Phases = Field(description=_PHASES)


if TYPE_CHECKING:
    Method: TypeAlias = str
    MethodsSpec: TypeAlias = StrictModel
else:
    Method = Literal[METHODS]
    MethodsSpec = create_model(
        "MethodsSpec",
        __base__=StrictModel,
        **dict.fromkeys(RUNS, (PhasesKeys | None, Field(None, description="a table with phase"))),
        **{
            name: (
                kind | None,
                Field(None, description=f"a table of settings, such as starts = {kind.starts}"),
            )
            for name, kind in APPROXIMATIONS.items()
        },
    )
    """[methods]: a table for each method; a method without one has its defaults."""


class Written(StrictModel):
    """All keys of a configuration, with the defaults that depend on no other key."""

    seed: int = Field(default=1, ge=0, le=MAX_WORD, description=f"a whole number from 0 to {MAX_WORD}")
    chains: _Count = Field(default=8, description="a whole number of at least 1, such as 16")
    chains_per_batch: _Count = Field(default=8, description="a whole number of at least 1, such as 8")
    draws_per_block: _Count | None = Field(
        default=None, description="a whole number of at least 1, such as 50"
    )
    dtype: Literal["float32", "float64"] = Field(default="float32", description='"float32" or "float64"')
    device: Literal["cpu", "gpu"] = Field(default="cpu", description='"cpu" or "gpu"')
    temperature: float = Field(
        default=1.0, ge=1e-6, le=1e6, description="a number from 1e-6 to 1e6; 1 is the posterior itself"
    )
    data: DataSpec = Field(description="a table with train and targets")
    model_keys: ModelKeys = Field(
        alias="model", description="a table with kind, and noise or dispersion or classes or hazard"
    )
    network_keys: NetworkKeys = Field(
        default=NetworkKeys(), alias="network", description="a table with hidden and priors"
    )
    initial: InitialSpec = Field(
        default=InitialSpec(sigmas=0.5), description="a table with sigmas = 0.5 or from_prior = true"
    )
    iterations: _Count | None = Field(default=None, description=f"a whole number from 1 to {MAX_WORD}")
    phase: _Phases = Field(default=(), description=_PHASES)
    method: Method | None = Field(default=None, description=one_of(METHODS))
    methods: MethodsSpec = Field(
        default=MethodsSpec(), description="a table of methods, such as bbb = { steps = 8000 }"
    )
    ladder: LadderSpec | None = Field(default=None, description="a table of settings, such as levels = 24")


def _right_values(record: type[StrictModel]) -> dict[str, Right]:
    return {
        field.alias or name: Right(field.description or "", _right_elements(field.annotation))
        for name, field in record.model_fields.items()
    }


def _right_elements(annotation: Any) -> str:
    """Return the description of the elements of a list, or of the values of a table; "" if there is none."""
    words = ""
    for part in get_args(annotation):
        words = part.description or words if isinstance(part, FieldInfo) else _right_elements(part) or words
    return words


SECTIONS: Mapping[tuple[str, ...], Mapping[str, Right]] = {
    (): _right_values(Written),
    ("data",): _right_values(DataSpec),
    ("model",): _right_values(ModelKeys),
    ("network",): _right_values(NetworkKeys),
    ("network", "hidden"): _OF_LAYERS,
    ("initial",): _right_values(InitialSpec),
    ("phase",): _right_values(PhaseSpec),
    ("operations",): _OF_OPERATIONS,
    ("methods",): _right_values(MethodsSpec),
    **{("methods", name): _right_values(PhasesKeys) for name in RUNS},
    **{("methods", name, "phase"): _right_values(PhaseSpec) for name in RUNS},
    **{
        ("methods", name): {key: Right(words) for key, words in right_values(kind).items()}
        for name, kind in APPROXIMATIONS.items()
    },
    ("ladder",): _right_values(LadderSpec),
}
"""Each section of a configuration, such as ("network", "hidden"), with its keys and their right values."""
