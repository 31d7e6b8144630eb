"""The sections [data], [initial] and [[phase]] of a configuration, operations, and ranges of numbers."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from rayfbnn.errors import ConfigError, visible_name
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import OPERATIONS
from rayfbnn.model.architecture import PriorSpec
from rayfbnn.numerals import read_number
from rayfbnn.spec.messages import MAX_WORD, OPERATION_NAMES

_MAX_WHOLE = 2**31 - 1  # compiled code counts steps in 32 bits


class StrictModel(BaseModel):
    """A frozen table. All its keys are known, and its values have the right type: "16" is not 16."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


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
    kind, table = _KINDS[op], _TABLES[op]
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
    values = {key: getattr(operation, key) for key in _TABLES[operation.op].model_fields}
    return {"op": operation.op} | {
        key: [_plain(item) for item in value] if isinstance(value, tuple) else value
        for key, value in values.items()
        if value is not None
    }


def _plain(item: object) -> object:
    return _operation_table(item) if isinstance(item, Operation) else item


AnyOperation = Annotated[Operation, PlainValidator(_operation), PlainSerializer(_operation_table)]


def _table_of(kind: type[Operation]) -> type[StrictModel]:
    """Return the pydantic record that checks the types of an operation's settings."""
    types = get_type_hints(kind, localns={"Operation": AnyOperation}, include_extras=True)
    keys: dict[str, Any] = {
        field.name: (types[field.name], ... if field.default is dataclasses.MISSING else field.default)
        for field in dataclasses.fields(kind)
    }
    return create_model(kind.__name__, __base__=StrictModel, **keys)


_KINDS = {kind.op: kind for kind in OPERATIONS}
_TABLES = {kind.op: _table_of(kind) for kind in OPERATIONS}


SCALE_RANGE = (1e-12, 1e12)  # of a width; its square times any n must stay inside float32's range
_ALPHA_RANGE = (1e-6, 1e6)  # below, a precision's logarithm overflows; above, alpha is practically infinite


def check_prior(key: str, text: str, prior: PriorSpec, *, n_sources: int) -> None:
    """Raise ConfigError naming `key` if a prior's width, alphas or scaled mean precision are out of range.

    text  the prior as written, for the message
    """
    low, high = SCALE_RANGE
    if not low <= prior.width <= high:
        raise ConfigError(f'{key}: width out of range, got "{text}"; it must be from {low:g} to {high:g}')
    other = prior.rectified if prior.mixture is None else prior.mixture[1]
    if other is not None and not low <= other <= high:
        raise ConfigError(f'{key}: number out of range, got "{text}"; it must be from {low:g} to {high:g}')
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
            f"{key}: scaling for {n_sources} source units takes the mean precision out of the range 1e-30 to "
            f'1e30, got "{text}"; use a larger alpha or no x'
        )


def adjustment_alpha(text: str, *, key: str) -> float:
    """Return the alpha of a layer's adjustments. They have only an alpha, because their mean is one."""
    low, high = _ALPHA_RANGE
    try:
        alpha = read_number(text)
    except ValueError:
        alpha = math.nan
    if not low <= alpha <= high:
        raise ConfigError(
            f'{key}: adjustments have only an alpha, got "{text}"; it must be a number from {low:g} to '
            f'{high:g}, such as 3, or "-" for none'
        )
    return alpha


def _number_as_text(value: object) -> object:
    """Read 1 as "1": a prior that is only a width, or a mark of missing values, may be a number."""
    return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


PriorText = Annotated[str, BeforeValidator(_number_as_text)]
Name = Annotated[str, Field(min_length=1), AfterValidator(visible_name)]  # as tables have them
Mark = Annotated[str, Field(min_length=1), BeforeValidator(_number_as_text)]
MOST_PHASES = 1000
Count = Annotated[int, Field(ge=1, le=MAX_WORD)]
FileName = Annotated[str, Field(min_length=1, max_length=4000, pattern=r"^[^\x00]*$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class DataSpec(StrictModel):
    """The training cases, and which of their columns are inputs and targets.

    train        path of the file as written; RunSpec.train_path is its place. It may be left out if the cases
                 are given to a verb as `data`
    inputs       columns that the network sees, by name or by pattern ("x*"); by default all but the targets
    exclude      columns that are not inputs, by name or by pattern
    targets      names of the columns that are predicted
    censored     column that says which times are censored, if targets are times
    event        the opposite of censored: column that says which times are those of an event
    exposure     column of positive numbers that multiply the means of counts
    transform    target -> "log" if the network models its logarithm
    categorical  columns, by name or by pattern, with numbers that are levels
    ordered      column -> its levels in order; the network gets their places, from 0
    missing      "indicator" to replace missing inputs by the median, and to add an input that marks them
    unknown      "refuse" (the default) or "ignore" levels of new cases that no training case had; if ignored,
                 all inputs of the column are 0
    missing_marks  texts and numbers that mark a missing value in any column, such as ["-999", "?"]; [] if
                 there are none
    decimal      the decimal mark of a CSV file, "." or ","
    separator    the separator of a CSV file: "," (the default), ";", "|", a tab, or " " for blanks
    header       the names of the columns of a CSV file that has no header; False for x1, x2, ...
    skip_rows    number of lines to skip at the start of a CSV file, before the header
    standardize  which of inputs and targets are shifted and scaled to mean 0 and standard deviation 1;
                 "inputs together" shifts each input and divides all by one number, which is right for inputs
                 in one unit, such as pixels
    parts        number of parts of the cases; "auto" is replaced by a number once the cases have been read.
                 If it is 1 or left out, the cases are not divided
    shuffle      whether the cases are put into a random order, which depends only on their number; by
                 default they are if there are several parts
    """

    train: FileName | None = None
    inputs: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    exclude: tuple[Name, ...] | None = None
    targets: Annotated[tuple[Name, ...], Field(min_length=1)]
    censored: Name | None = None
    event: Name | None = None
    exposure: Name | None = None
    transform: Annotated[dict[Name, Literal["log"]], Field(min_length=1)] | None = None
    categorical: tuple[Name, ...] | None = None
    ordered: dict[Name, Annotated[tuple[Name, ...], Field(min_length=2)]] | None = None
    missing: Literal["indicator"] | None = None
    unknown: Literal["refuse", "ignore"] | None = None
    missing_marks: tuple[Mark, ...] | None = None
    decimal: Literal[".", ","] | None = None
    separator: Literal[",", ";", "\t", "|", " "] | None = None
    header: Annotated[tuple[Name, ...], Field(min_length=1)] | Literal[False] | None = None
    skip_rows: Annotated[int, Field(ge=0, le=MAX_WORD)] | None = None
    standardize: tuple[Literal["inputs", "inputs together", "targets"], ...] = ()
    parts: Annotated[int, Field(ge=1, le=MAX_WORD)] | Literal["auto"] | None = None
    shuffle: bool | None = None

    def as_written(self) -> dict[str, Any]:
        """Return the keys that were given, without those filled in."""
        written: dict[str, Any] = self.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        return written


KEYS_OF_NEW_CASES = ("unknown", "missing_marks", "decimal", "separator", "header", "skip_rows")
"""The keys of [data] that say how new cases are read. A store may read them by other values than its own."""


class InitialSpec(StrictModel):
    """The state that chains start from.

    sigmas      the value of every free sigma, with all parameters zero; 0.5 by default
    from_prior  True for a draw from the prior instead
    shared      True if all chains of the run start from the same draw, which depends only on the seed
    """

    sigmas: Annotated[float, Field(ge=SCALE_RANGE[0], le=SCALE_RANGE[1])] | None = None
    from_prior: bool = False
    shared: bool = False

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

    iterations: Count
    operations: Annotated[tuple[AnyOperation, ...], Field(min_length=1)]
    keep: bool | Literal["warmup"] = True
