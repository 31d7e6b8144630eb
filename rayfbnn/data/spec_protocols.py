"""The parts of a configuration that reading a table needs, as protocols; `RunSpec` satisfies them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from rayfbnn.data.encoding import Encoding
from rayfbnn.model.likelihood.data_model import DataModel


class ColumnKeys(Protocol):
    """The keys of the section `data` on the columns of a table."""

    def as_written(self) -> Mapping[str, Any]:
        """Return the keys that the configuration has, with their values."""

    @property
    def inputs(self) -> tuple[str, ...] | None:
        """Names and patterns of the inputs; None for all columns but the targets."""

    @property
    def exclude(self) -> tuple[str, ...] | None:
        """Names and patterns of columns that are not inputs."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the columns to predict."""

    @property
    def censored(self) -> str | None:
        """The column that says which times are censored."""

    @property
    def event(self) -> str | None:
        """The column that says which times are those of an event."""

    @property
    def exposure(self) -> str | None:
        """The column of exposures of counts."""

    @property
    def transform(self) -> Mapping[str, Literal["log"]] | None:
        """The targets on a log scale."""

    @property
    def categorical(self) -> tuple[str, ...] | None:
        """Names and patterns of inputs with levels in their cells."""

    @property
    def ordered(self) -> Mapping[str, tuple[str, ...]] | None:
        """The levels of inputs in their order."""

    @property
    def missing(self) -> Literal["indicator"] | None:
        """How missing inputs are replaced; None if they are an error."""

    @property
    def unknown(self) -> Literal["refuse", "ignore"] | None:
        """The treatment of levels that the training cases did not have; None for "refuse"."""

    @property
    def missing_marks(self) -> tuple[str, ...] | None:
        """Texts and numbers that mark missing values; None if nothing is said about them."""

    @property
    def decimal(self) -> str | None:
        """The decimal mark of CSV files; None for the point."""

    @property
    def separator(self) -> str | None:
        """The separator of CSV files; None for commas."""

    @property
    def header(self) -> tuple[str, ...] | Literal[False] | None:
        """The names of the columns of CSV files without a header; False for x1, x2, ..."""

    @property
    def skip_rows(self) -> int | None:
        """Number of lines to skip at the start of CSV files."""

    @property
    def standardize(self) -> tuple[str, ...]:
        """Which of inputs and targets are standardised."""

    @property
    def shuffle(self) -> bool | None:
        """True if the cases are put into a random order."""


class ModelKeys(Protocol):
    """The keys of the section `model` that labels depend on."""

    @property
    def kind(self) -> str:
        """The name of the data model."""

    @property
    def classes(self) -> int | None:
        """The number of classes, if the configuration gives it."""


class TableConfiguration(Protocol):
    """A configuration of the training cases and of their columns."""

    @property
    def data(self) -> ColumnKeys:
        """The section `data`."""

    @property
    def model_keys(self) -> ModelKeys:
        """The section `model`."""

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

    @property
    def targets_are_labels(self) -> bool:
        """True if the targets are labels."""

    @property
    def n_labels(self) -> int | None:
        """Number of labels of a target; None if it follows from the training cases."""

    def resolved(self, encoding: Encoding | None) -> Self:
        """Return the configuration completed by the encoding of the training cases."""
