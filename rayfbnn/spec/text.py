"""Turns the text of a configuration (TOML files, overrides) into plain dictionaries, and these into TOML."""

from __future__ import annotations

import dataclasses
import datetime
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rayfbnn.data.paths import check_on_disk, near_paths, read_at_most
from rayfbnn.data.raw_table import toml_key, toml_value
from rayfbnn.errors import ConfigError
from rayfbnn.memory import bytes_text
from rayfbnn.spec.messages import right_value, short
from rayfbnn.spec.written import SECTIONS

_MAX_DEPTH = 20  # of nested tables and arrays; Python's own recursion limit would not name a key
_MOST_BYTES = 500_000  # of a TOML file or an override; tomllib reads this in a second
_MOST_KEYS = 10_000  # of a table; lists may have more elements
_SURROGATE = re.compile("[\ud800-\udfff]")  # a Python text can hold half of a pair, but a file cannot
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+"""
# A key is at the start of a line, or after a bracket or a comma.
_DEEP_KEY = re.compile(
    rf"(?:^|[\[{{,])[ \t]*+({_PART}(?:\.[ \t]*+{_PART}){{{_MAX_DEPTH},}}+)", re.MULTILINE | re.ASCII
)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file; ConfigError if it cannot be read."""
    check_on_disk(path, "configuration")
    try:
        content = read_at_most(path, _MOST_BYTES)
        if content is None:
            raise ConfigError(
                f"{path}: has more than {bytes_text(_MOST_BYTES)}, the limit for a configuration; name"
                ' columns by patterns such as "x*", and put connections into a separate file'
            )
        return _tables(content.decode("utf-8-sig"), str(path))
    except (OSError, ValueError) as exc:
        if isinstance(exc, UnicodeDecodeError):
            raise ConfigError(f"{path}: byte {exc.start} is not UTF-8; TOML files are UTF-8 text") from exc
        if isinstance(exc, OSError):
            hint = "" if os.path.lexists(path) else near_paths(path, [".toml"])
            raise ConfigError(f"{path}: cannot be read: {exc.strerror}{hint}; give a TOML file") from exc
        raise ConfigError(f"{path}: is not valid TOML: {exc}") from exc


def _tables(text: str, where: str) -> dict[str, Any]:
    """Return the tables of a TOML text; ValueError if it is not TOML, ConfigError for a key of many parts.

    The memory that tomllib takes grows with the square of the number of parts of a key.
    """
    if deep := _DEEP_KEY.search(text):
        raise ConfigError(
            f"{where}: the key {short(deep[1])} has more than {_MAX_DEPTH} parts; no configuration is nested"
            " that deeply"
        )
    try:
        return tomllib.loads(text)
    except RecursionError as exc:
        raise ValueError(f"nested too deep: {exc}") from exc


def plain(value: Any, *, key: str = "", depth: int = 0) -> Any:
    """Return a value as dictionaries with text keys, lists, text, numbers, booleans and None.

    Records of a configuration, such as PhaseSpec and the operations, become dictionaries. ConfigError names
    the key of anything that a TOML file cannot hold.
    """
    if depth > _MAX_DEPTH:
        raise ConfigError(f"{key[:80]}: nested more than {_MAX_DEPTH} deep; no configuration needs that")
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, int) and abs(value) < 2**63:  # a TOML file has no larger integers
        return value
    if isinstance(value, str) and not _SURROGATE.search(value):
        return value
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_none=True, by_alias=True)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {name: inner for name, inner in dataclasses.asdict(value).items() if inner is not None}
    if isinstance(value, Mapping):
        if len(value) > _MOST_KEYS:
            raise ConfigError(
                f"{key or 'configuration'}: has {len(value)} keys; it must have at most {_MOST_KEYS}"
            )
        for name in value:
            if not isinstance(name, str):
                raise ConfigError(f"{key or 'configuration'}: keys must be text, got {short(name)}")
        return {
            name: plain(inner, key=f"{key}.{name}" if key else name, depth=depth + 1)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain(inner, key=f"{key}[{i}]", depth=depth + 1) for i, inner in enumerate(value)]
    raise ConfigError(f"{key or 'configuration'}: must be {_right_value(key)}, got {short(value)}")


def _right_value(key: str) -> str:
    parts = [int(part) if part.isdecimal() else part for part in re.findall(r"[^.\[\]]+", key)]
    place, right = right_value(parts, SECTIONS)
    is_known = parts and place == tuple(parts)
    return right if is_known else "text, a number, true or false, a list or a table"


def override(raw: dict[str, Any], text: str) -> None:
    """Replace one value of a configuration, in place, as "key.path=value" says.

    The key paths phase.0.keep and phase[0].keep mean the same.
    """
    if len(text) > _MOST_BYTES:
        raise ConfigError(f"override: {short(text)} has {len(text)} characters, more than {_MOST_BYTES}")
    path, equals, value = text.partition("=")
    parts = re.findall(r"[^.\[\]\s]+", path)
    if not equals or not parts:
        raise ConfigError(f"override: must be key.path=value, got {short(text)}")
    if len(parts) > _MAX_DEPTH:
        raise ConfigError(
            f"override: {short(path)} has {len(parts)} parts; no configuration is nested more than"
            f" {_MAX_DEPTH} deep"
        )
    container: Any = raw
    for position, part in enumerate(parts):
        key = ".".join(parts[: position + 1])
        if isinstance(container, list):
            if not re.fullmatch(r"-?[0-9]{1,9}", part) or not -len(container) <= int(part) < len(container):
                raise ConfigError(
                    f"{key}: must be the number of an element below {len(container)}, counted from 0,"
                    f' got "{part}"'
                )
            where: int | str = int(part)
        elif isinstance(container, dict):
            where = part
        else:
            raise ConfigError(f"{key}: {'.'.join(parts[:position])} is {short(container)}, which has no keys")
        if position == len(parts) - 1:
            container[where] = _override_value(key, value.strip())
        else:
            container = container.setdefault(where, {}) if isinstance(container, dict) else container[where]


def _override_value(key: str, text: str) -> Any:
    """Return the value of a TOML text, or the text itself: 0.5:0.2 and train.csv need no quotes."""
    try:
        parsed = _tables(f"value = {text}", "override")
    except ValueError:
        return text
    if list(parsed) != ["value"]:
        raise ConfigError(f"{key}: has more than one line, got {short(text)}; it must be one value")
    value = parsed["value"]
    # 10:20:30 is a time of day in TOML and a prior here.
    return text if isinstance(value, datetime.date | datetime.time) else plain(value, key=key)


def to_toml(spec: dict[str, Any]) -> str:
    """Return a configuration as TOML: single values, then a table for each section, then the phases."""
    tables = {name: value for name, value in spec.items() if isinstance(value, dict)}
    lines = [
        f"{name} = {toml_value(value)}"
        for name, value in spec.items()
        if name not in tables and name != "phase"
    ]
    for name, table in tables.items():
        inner = {key: value for key, value in table.items() if isinstance(value, dict)}
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {toml_value(value)}" for key, value in table.items() if key not in inner]
        for key, subtable in inner.items():
            lines += ["", f"[{name}.{key}]"]
            lines += [f"{toml_key(leaf)} = {toml_value(value)}" for leaf, value in subtable.items()]
    for phase in spec.get("phase", ()):
        lines += ["", "[[phase]]", *(f"{key} = {toml_value(value)}" for key, value in phase.items())]
    return "\n".join(lines) + "\n"
