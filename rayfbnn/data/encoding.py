"""The encoding of a table's columns as the inputs and targets of a network.

The encoding is learnt once from the training cases (learning.py), kept in the store, and applied to every
table of cases to predict (training.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Strict
from pydantic.dataclasses import dataclass

from rayfbnn.errors import visible_name

ColumnKind = Literal["number", "levels", "ordered", "missing", "exposure"]
# Stores have encodings, so these types bound what a damaged or forged one may hold.
_Name = Annotated[str, Strict(), Field(max_length=1_000_000), AfterValidator(visible_name)]
_Count = Annotated[int, Strict(), Field(ge=0, le=2**53)]
_Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]


def log_exposure(name: str) -> str:
    """Return the name of the input that is made from a column of exposures."""
    return f"log({name})"


@dataclass(frozen=True, config={"extra": "forbid"})
class InputColumn:
    """One column of a table, and its encoding as inputs of the network.

    name       the name of the column
    kind       "number": the value itself. "levels": an input of 0 or 1 for each level, "column=level".
               "ordered": the place of the level among the levels, from 0. "missing": only whether the value
               is missing, because all values that are present are equal. "exposure": the logarithm of the
               value, which has no weights and is added to the outputs
    levels     the levels as text, in order
    n_missing  number of training cases without a value. If there are any, the column has an additional input
               of 0 or 1, "column is missing". Where the value is missing, the other inputs are `median`, or 0
               for levels
    median     the median of the values in the training cases; None if no values are missing
    """

    name: _Name
    kind: ColumnKind = "number"
    levels: tuple[_Name, ...] = ()
    n_missing: _Count = 0
    median: _Number | None = None

    @property
    def value_names(self) -> tuple[str, ...]:
        """The names of the inputs that hold the value."""
        match self.kind:
            case "levels":
                return tuple(f"{self.name}={level}" for level in self.levels)
            case "missing":
                return ()
            case "exposure":
                return (log_exposure(self.name),)
        return (self.name,)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of all inputs made from the column."""
        return self.value_names + self.indicator_names

    @property
    def indicator_names(self) -> tuple[str, ...]:
        """The name of the input that marks missing values, or () if there is none."""
        return (f"{self.name} is missing",) if self.n_missing else ()

    @property
    def zero_one_names(self) -> tuple[str, ...]:
        """The names of the inputs that are 0 or 1; these are never standardised."""
        return self.input_names if self.kind == "levels" else self.indicator_names


@dataclass(frozen=True, config={"extra": "forbid"})
class Encoding:
    """The encoding of a table as inputs and targets.

    columns   the columns of the training table in order, except the targets and the column of censoring
    inputs    the columns used as inputs, in the order of the network's inputs
    constant  for each column left out because it is constant in the training cases, its value
    labels    for each target with labels, the labels of the numbers 0, 1, ...
    n_cases   number of training cases
    have_one_unit  whether the inputs look like readings in one unit, such as pixels
    """

    columns: tuple[_Name, ...]
    inputs: Annotated[tuple[InputColumn, ...], Field(min_length=1)]
    constant: dict[_Name, _Name] = Field(default_factory=dict)
    labels: dict[_Name, tuple[_Name, ...]] = Field(default_factory=dict)
    n_cases: _Count = 0
    have_one_unit: Annotated[bool, Strict()] = False

    @staticmethod
    def from_numbers(names: Sequence[str]) -> Encoding:
        """Return the encoding of columns of numbers that the network receives unchanged."""
        return Encoding(tuple(names), tuple(InputColumn(name) for name in names))

    def to_dict(self) -> dict[str, Any]:
        """Return the encoding as dictionaries, lists, text and numbers, for JSON."""
        document = asdict(self)
        if not self.have_one_unit:
            del document["have_one_unit"]
        return document

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the network's inputs that come from the table, in order."""
        return tuple(name for column in self.inputs for name in column.input_names)

    @property
    def unscaled_names(self) -> tuple[str, ...]:
        """The names of the inputs that are never standardised: those that are 0 or 1, and exposures."""
        return tuple(
            name
            for column in self.inputs
            for name in (column.value_names if column.kind == "exposure" else column.zero_one_names)
        )

    @property
    def source_names(self) -> tuple[str, ...]:
        """The columns that a table of cases to predict must have."""
        return tuple(column.name for column in self.inputs)

    @property
    def not_used(self) -> tuple[str, ...]:
        """The columns of the training table that are not constant and yet not inputs."""
        used = {*self.source_names, *self.constant}
        return tuple(name for name in self.columns if name not in used)
