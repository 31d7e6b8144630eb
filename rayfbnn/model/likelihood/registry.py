"""The list of all data models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from rayfbnn.model.architecture import ModelSpec
from rayfbnn.model.likelihood.binary import BinaryTargets
from rayfbnn.model.likelihood.class_ import ClassTargets
from rayfbnn.model.likelihood.count import CountTargets
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.model.likelihood.dispersed_count import DispersedCountTargets
from rayfbnn.model.likelihood.heteroscedastic import HeteroscedasticTargets
from rayfbnn.model.likelihood.real import RealTargets
from rayfbnn.model.likelihood.survival import SurvivalTargets

_ALL: tuple[type[DataModel], ...] = (
    RealTargets,
    BinaryTargets,
    ClassTargets,
    CountTargets,
    SurvivalTargets,
    HeteroscedasticTargets,
)

DATA_MODELS = {each.kind: each for each in _ALL}
"""Every data model by its kind, in the order of the lists in messages."""

if TYPE_CHECKING:
    ModelKind: TypeAlias = str
else:
    ModelKind = Literal[tuple(DATA_MODELS)]
    """The kinds, as a type for validating configurations."""


def data_model_from_spec(model: ModelSpec) -> DataModel:
    """Return the data model that a configuration asks for."""
    if model.dispersion is not None:
        return DispersedCountTargets.from_spec(model)
    return DATA_MODELS[model.kind].from_spec(model)
