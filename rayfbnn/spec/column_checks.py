"""Checks the columns that [data] names, without a table."""

from __future__ import annotations

from rayfbnn.data.dataset import INPUTS_TOGETHER
from rayfbnn.errors import ConfigError
from rayfbnn.model.likelihood.registry import DATA_MODELS
from rayfbnn.spec.model_keys import ModelKeys
from rayfbnn.spec.sections import DataSpec


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
    if data.censored is not None and data.censored in (*data.targets, *(data.inputs or ())):
        raise ConfigError(f'data.censored: "{data.censored}" is also an input or a target')
    for name, levels in (data.ordered or {}).items():
        for place, level in enumerate(levels):
            if level in levels[:place]:
                raise ConfigError(f'data.ordered.{name}: "{level}" is listed twice')
    if "targets" in data.standardize and not DATA_MODELS[model.kind].is_real:
        raise ConfigError(
            f'data.standardize: only real targets can be standardised, got "targets" with model.kind = '
            f'"{model.kind}"; leave "targets" out'
        )
