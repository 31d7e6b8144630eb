"""Checks of the names in a configuration: the keys of its sections, and the columns of [data]."""

from __future__ import annotations

from dataclasses import fields

from rayfbnn.data.dataset import INPUTS_TOGETHER
from rayfbnn.errors import ConfigError, at_most_ten
from rayfbnn.model.architecture import LayerSpec
from rayfbnn.model.likelihood.registry import DATA_MODELS
from rayfbnn.spec.ladder import LadderSpec
from rayfbnn.spec.methods import APPROXIMATION_KEYS, METHODS, RUNS
from rayfbnn.spec.model_keys import ModelKeys
from rayfbnn.spec.network_keys import NetworkKeys
from rayfbnn.spec.operations import StrictModel
from rayfbnn.spec.sections import DataSpec, InitialSpec, PhaseSpec


def known_keys(whole: type[StrictModel]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return the keys of each section, such as ("network", "hidden").

    whole  the record of the whole configuration; its section is ()
    """
    keys: dict[tuple[str, ...], tuple[str, ...]] = {
        (): _keys_of(whole),
        ("data",): _keys_of(DataSpec),
        ("model",): _keys_of(ModelKeys),
        ("network",): _keys_of(NetworkKeys),
        ("network", "hidden"): tuple(field.name for field in fields(LayerSpec)),
        ("initial",): _keys_of(InitialSpec),
        ("phase",): _keys_of(PhaseSpec),
        ("methods",): METHODS,
        ("ladder",): _keys_of(LadderSpec),
    }
    keys |= {("methods", name): _keys_of(record) for name, record in APPROXIMATION_KEYS.items()}
    for name in RUNS:
        keys |= {("methods", name): ("phase",), ("methods", name, "phase"): _keys_of(PhaseSpec)}
    return keys


def _keys_of(record: type[StrictModel]) -> tuple[str, ...]:
    return tuple(field.alias or name for name, field in record.model_fields.items())


def check_columns(data: DataSpec, model: ModelKeys) -> None:
    """Raise ConfigError for a column that is listed twice, or for settings that exclude each other."""
    for key in ("inputs", "exclude", "targets", "categorical", "standardize"):
        names = getattr(data, key) or ()
        for place, name in enumerate(names):
            if name in names[:place]:
                raise ConfigError(f'data.{key}: "{name}" is listed twice')
    if {"inputs", INPUTS_TOGETHER} <= set(data.standardize):
        raise ConfigError(
            f'data.standardize: inputs are standardised one by one or together, got "inputs" and'
            f' "{INPUTS_TOGETHER}"; give only one'
        )
    for name in data.targets:
        if name in (data.inputs or ()):
            raise ConfigError(f'data.targets: "{name}" is also an input; a column is an input or a target')
    _check_other_columns(data)
    _check_transform(data, model)
    for name, levels in (data.ordered or {}).items():
        for place, level in enumerate(levels):
            if level in levels[:place]:
                raise ConfigError(f'data.ordered.{name}: "{level}" is listed twice')
    if "targets" in data.standardize and not DATA_MODELS[model.kind].is_real:
        raise ConfigError(
            f'data.standardize: only real targets can be standardised, got "targets" with model.kind = '
            f'"{model.kind}"; leave "targets" out'
        )


def _check_other_columns(data: DataSpec) -> None:
    """Raise ConfigError for a column beside inputs and targets that is one of these too."""
    if data.censored is not None and data.event is not None:
        raise ConfigError(
            f'data.event: says the opposite of data.censored, got "{data.event}" with data.censored ='
            f' "{data.censored}"; give only one of them'
        )
    for key in ("censored", "event", "exposure"):
        column = getattr(data, key)
        if column is not None and column in (*data.targets, *(data.inputs or ())):
            raise ConfigError(f'data.{key}: "{column}" is also an input or a target')


def _check_transform(data: DataSpec, model: ModelKeys) -> None:
    """Raise ConfigError unless data.transform names real targets."""
    for name in data.transform or {}:
        if name not in data.targets:
            possible = ", ".join(at_most_ten(data.targets))
            raise ConfigError(f'data.transform: "{name}" is not a target; name one of {possible}')
        if not DATA_MODELS[model.kind].is_real:
            raise ConfigError(
                f'data.transform: only real targets have a log scale, got "{name}" with model.kind ='
                f' "{model.kind}"; leave it out'
            )
