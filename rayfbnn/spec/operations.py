"""Reads the tables of a configuration with the key `op` as operations, and writes them back."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    create_model,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import OPERATIONS

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
OPERATION_NAMES = tuple(_KINDS)
