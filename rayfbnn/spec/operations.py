"""From a table with `op` to the operation it describes, and back."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, PlainSerializer, PlainValidator, TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from rayfbnn.mcmc.operations import Operation, Repeat, SimulatedTempering, TemperedTransition


class Record(BaseModel):
    """Frozen, with no keys but its own, and with no "16" for 16."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class _RepeatConfig(Record):
    times: int
    operations: tuple[AnyOperation, ...]
    op: Literal["repeat"]


class _SimulatedTemperingConfig(Record):
    inverse_temperatures: tuple[float, ...]
    log_weights: tuple[float, ...]
    operations: tuple[AnyOperation, ...]
    op: Literal["simulated-tempering"]


class _TemperedTransitionConfig(Record):
    inverse_temperatures: tuple[float, ...]
    operations: tuple[AnyOperation, ...]
    op: Literal["tempered-transition"]


# What has operations inside it is read by a record of its own, the rest as the dataclasses that they are.
_NESTED: dict[str, tuple[type[Record], Any]] = {
    Repeat.op: (_RepeatConfig, Repeat),
    SimulatedTempering.op: (_SimulatedTemperingConfig, SimulatedTempering),
    TemperedTransition.op: (_TemperedTransitionConfig, TemperedTransition),
}
_OPERATION_TYPES: dict[str, Any] = {kind.op: kind for kind in get_args(Operation)}
OPERATION_NAMES = tuple(_OPERATION_TYPES)
_OPERATION_KEYS = {
    op: [field.name for field in dataclasses.fields(kind) if field.name != "op"]
    for op, kind in _OPERATION_TYPES.items()
}
_OPERATIONS = {op: TypeAdapter(kind) for op, kind in _OPERATION_TYPES.items() if op not in _NESTED}


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
    if op not in OPERATION_NAMES:
        raise _wrong_field(PydanticCustomError("operation_name", "unknown"), "op", op)
    known = ["op", *_OPERATION_KEYS[op]]
    for key in value:
        if key not in known:
            raise _wrong_field(
                PydanticCustomError("unknown_key", "unknown", {"known": known}), key, value[key]
            )
    text = json.dumps(value)
    operation: Operation
    if op in _NESTED:
        record, kind = _NESTED[op]
        config = record.model_validate_json(text)
        operation = kind(**{key: getattr(config, key) for key in _OPERATION_KEYS[op]})
    else:
        operation = _OPERATIONS[op].validate_json(text, strict=True)
    return operation


def _wrong_field(kind: str | PydanticCustomError, key: str, value: object) -> ValidationError:
    return ValidationError.from_exception_data(
        "operation", [InitErrorDetails(type=kind, loc=(key,), input=value)]
    )


def _operation_table(operation: Operation) -> dict[str, Any]:
    """The table that `_operation` reads, `op` first and what is None left out."""
    fields = {key: getattr(operation, key) for key in _OPERATION_KEYS[operation.op]}
    if operation.op in _NESTED:
        fields["operations"] = [_operation_table(each) for each in fields["operations"]]
    fields = {key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()}
    return {"op": operation.op, **{key: value for key, value in fields.items() if value is not None}}


AnyOperation = Annotated[Operation, PlainValidator(_operation), PlainSerializer(_operation_table)]
for record, _ in _NESTED.values():
    record.model_rebuild()
