"""The keys that each section of a configuration can have. Messages about unknown keys list them."""

from __future__ import annotations

from dataclasses import fields

from rayfbnn.model.architecture import LayerSpec
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
    }
    keys |= {("methods", name): _keys_of(record) for name, record in APPROXIMATION_KEYS.items()}
    for name in RUNS:
        keys |= {("methods", name): ("phase",), ("methods", name, "phase"): _keys_of(PhaseSpec)}
    return keys


def _keys_of(record: type[StrictModel]) -> tuple[str, ...]:
    return tuple(field.alias or name for name, field in record.model_fields.items())
