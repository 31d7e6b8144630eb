"""The sections [data] and [model] of a configuration as written, which say how a table is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from rayfbnn.data.encoding import Encoding
from rayfbnn.errors import visible_name
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.model.likelihood.registry import DATA_MODELS, ModelKind

MAX_WORD = 2**32 - 1  # seeds, chains and iterations are words of the random streams' key and counter


class StrictModel(BaseModel):
    """A frozen table. All its keys are known, and its values have the right type: "16" is not 16.

    The description of a field says in words which values are right; messages end with it.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", defer_build=True)

    def filled(self, **values: Any) -> Self:
        """Return a copy with values that were left out; they do not count as written (`model_fields_set`)."""
        kept = {name: getattr(self, name) for name in type(self).model_fields}  # without cached properties
        return self.model_construct(_fields_set=self.model_fields_set, **kept | values)


def _number_as_text(value: object) -> object:
    """Read 1 as "1": a prior that is only a width, or a mark of missing values, may be a number."""
    return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Name = Annotated[str, Field(min_length=1, description="a column name"), AfterValidator(visible_name)]
_Names = Annotated[tuple[Name, ...], Field(min_length=1)]
_Level = Annotated[Name, Field(description="the text of a level")]
_Mark = Annotated[
    str, Field(min_length=1, description="a text or a number"), BeforeValidator(_number_as_text)
]
_Scaled = Annotated[
    Literal["inputs", "inputs together", "targets"],
    Field(description='"inputs", "inputs together" or "targets"'),
]
PriorText = Annotated[str, BeforeValidator(_number_as_text)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, description="a positive number, such as 0.5")]
_FileName = Annotated[str, Field(min_length=1, max_length=4000, pattern=r"^[^\x00]*$")]


def is_pattern(name: str) -> bool:
    """Return True if a name in a configuration is a pattern for several columns."""
    return any(character in name for character in "*?[")


class DataSpec(StrictModel):
    """The training cases, and which of their columns are inputs and targets; docs/data.md explains the keys.

    train is a path as written; RunSpec.train_path is its place. It may be left out if the cases are given to
    a verb as `data`. parts = "auto" is replaced by a number once the cases have been read.
    """

    train: _FileName | None = Field(
        default=None, description='the file of training cases, such as "train.csv"'
    )
    inputs: _Names | None = Field(
        default=None,
        description='a list of at least one column name or pattern, such as ["x1", "x2"] or ["x*"]',
    )
    exclude: tuple[Name, ...] | None = Field(
        default=None, description='a list of column names or patterns, such as ["id", "date*"]'
    )
    targets: _Names = Field(description='a list of at least one column name, such as ["y1"]')
    censored: Name | None = Field(default=None, description='the name of a column, such as "censored"')
    event: Name | None = Field(default=None, description='the name of a column, such as "died"')
    exposure: Name | None = Field(default=None, description='the name of a column, such as "days"')
    transform: Annotated[dict[Name, Literal["log"]], Field(min_length=1)] | None = Field(
        default=None, description='a table of targets on a log scale, such as { price = "log" }'
    )
    categorical: tuple[Name, ...] | None = Field(
        default=None, description='a list of column names or patterns, such as ["zip"]'
    )
    ordered: dict[Name, Annotated[tuple[_Level, ...], Field(min_length=2)]] | None = Field(
        default=None,
        description='a table of columns with their levels in order, such as size = ["S", "M", "L"]',
    )
    missing: Literal["indicator"] | None = Field(default=None, description='"indicator", or left out')
    unknown: Literal["refuse", "ignore"] | None = Field(default=None, description='"refuse" or "ignore"')
    missing_marks: tuple[_Mark, ...] | None = Field(
        default=None,
        description='a list of texts or numbers that mark missing values, such as ["-999", "?"], or []',
    )
    decimal: Literal[".", ","] | None = Field(default=None, description='"." or ","')
    separator: Literal[",", ";", "\t", "|", " "] | None = Field(
        default=None, description='one of ",", ";", "|", "\\t" for a tab, and " " for blanks'
    )
    header: _Names | Literal[False] | None = Field(
        default=None, description='a list of column names, such as ["x1", "x2", "y"], or false'
    )
    skip_rows: int | None = Field(default=None, ge=0, le=MAX_WORD, description="a whole number of at least 0")
    standardize: tuple[_Scaled, ...] = Field(
        default=(), description='a list of "inputs" or "inputs together", and "targets", or of some of these'
    )
    parts: Annotated[int, Field(ge=1, le=MAX_WORD)] | Literal["auto"] | None = Field(
        default=None, description='a whole number of at least 1, "auto", or left out'
    )
    shuffle: bool | None = Field(default=None, description="true or false")

    @property
    def censoring(self) -> str | None:
        """The column that tells censored times from events."""
        return self.censored or self.event


KEYS_OF_NEW_CASES = ("unknown", "missing_marks", "decimal", "separator", "header", "skip_rows")
"""The keys of [data] that say how new cases are read. A store may read them by other values than its own."""


class ModelKeys(StrictModel):
    """The keys of [model] as written. `read_model` makes the data model's `ModelSpec` from them.

    Both exist because the keys keep the text of the configuration, such as a prior "0.5:2". A store records
    this text, and `to_toml` writes it back. `ModelSpec` holds the values in use.

    The keys depend on the kind: each data model names its own (`DataModel.settings`). If the number of
    classes is left out, it is the number of labels in the training cases. A piecewise hazard also has
    time_points, and log_time = true if the network gets the logarithm of the time. Counts without dispersion
    may say so, because default priors bring one.
    """

    kind: ModelKind = Field(description=" or ".join(f'"{kind}"' for kind in DATA_MODELS))
    noise: PriorText | None = Field(
        default=None, description='the prior of the noise, such as "0.1:0.2" (in sghmc "none" or "estimate")'
    )
    dispersion: PriorText | None = Field(
        default=None, description='the prior of the dispersion, such as "0.3:0.5", or "none"'
    )
    classes: int | None = Field(default=None, ge=2, le=100_000, description="a whole number of at least 2")
    hazard: Literal["constant", "piecewise"] | None = Field(
        default=None, description='"constant" or "piecewise"'
    )
    time_points: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = Field(
        default=None, description="the increasing times at which the hazard changes, such as [0.5, 1, 2]"
    )
    log_time: bool | None = Field(default=None, description="true or false")
    noise_floor: Positive | None = Field(default=None, description="a positive number, such as 0.01")

    @property
    def data_model(self) -> type[DataModel]:
        """The class of the data model."""
        return DATA_MODELS[self.kind]

    @property
    def n_labels(self) -> int | None:
        """The number of labels of a target; None if the configuration does not say."""
        return self.data_model.n_labels or self.classes


class TableSpec(Protocol):
    """The parts of a configuration that reading a table needs; `RunSpec` has them."""

    @property
    def data(self) -> DataSpec:
        """The section [data]."""

    @property
    def model_keys(self) -> ModelKeys:
        """The section [model]."""

    @property
    def dtype(self) -> Literal["float32", "float64"]:
        """The dtype of the network's arithmetic."""

    @property
    def train_path(self) -> Path | None:
        """The file of the training cases, if there is one."""

    @property
    def encoding(self) -> Encoding | None:
        """The record of the encoding of the columns; None before `resolved`."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, if they are known without the training cases."""

    @property
    def data_model(self) -> DataModel:
        """The data model, if it is known."""

    def resolved(self, encoding: Encoding | None) -> Self:
        """Return the configuration completed by the encoding of the training cases."""
