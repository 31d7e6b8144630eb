"""The sections of a configuration that are kept as written: [data], [initial] and [[phase]]."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from rayfbnn.errors import ConfigError, visible_name
from rayfbnn.spec.messages import MAX_WORD
from rayfbnn.spec.operations import AnyOperation, StrictModel
from rayfbnn.spec.ranges import SCALE_RANGE


def _number_as_text(value: object) -> object:
    """Read 1 as "1": a prior that is only a width, or a mark of missing values, may be a number."""
    return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


PriorText = Annotated[str, BeforeValidator(_number_as_text)]
Name = Annotated[str, Field(min_length=1), AfterValidator(visible_name)]  # as tables have them
Mark = Annotated[str, Field(min_length=1), BeforeValidator(_number_as_text)]
MOST_PHASES = 1000
Count = Annotated[int, Field(ge=1, le=MAX_WORD)]
FileName = Annotated[str, Field(min_length=1, max_length=4000, pattern=r"^[^\x00]*$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class DataSpec(StrictModel):
    """The training cases, and which of their columns are inputs and targets.

    train        path of the file as written; RunSpec.train_path is its place. It may be left out if the cases
                 are given to a verb as `data`
    inputs       columns that the network sees, by name or by pattern ("x*"); by default all but the targets
    exclude      columns that are not inputs, by name or by pattern
    targets      names of the columns that are predicted
    censored     column that says which times are censored, if targets are times
    event        the opposite of censored: column that says which times are those of an event
    exposure     column of positive numbers that multiply the means of counts
    transform    target -> "log" if the network models its logarithm
    categorical  columns, by name or by pattern, with numbers that are levels
    ordered      column -> its levels in order; the network gets their places, from 0
    missing      "indicator" to replace missing inputs by the median, and to add an input that marks them
    unknown      "refuse" (the default) or "ignore" levels of new cases that no training case had; if ignored,
                 all inputs of the column are 0
    missing_marks  texts and numbers that mark a missing value in any column, such as ["-999", "?"]; [] if
                 there are none
    decimal      the decimal mark of a CSV file, "." or ","
    separator    the separator of a CSV file: "," (the default), ";", "|", a tab, or " " for blanks
    header       the names of the columns of a CSV file that has no header; False for x1, x2, ...
    skip_rows    number of lines to skip at the start of a CSV file, before the header
    standardize  which of inputs and targets are shifted and scaled to mean 0 and standard deviation 1;
                 "inputs together" shifts each input and divides all by one number, which is right for inputs
                 in one unit, such as pixels
    parts        number of parts of the cases; "auto" is replaced by a number once the cases have been read.
                 If it is 1 or left out, the cases are not divided
    shuffle      whether the cases are put into a random order, which depends only on their number; by
                 default they are if there are several parts
    """

    train: FileName | None = None
    inputs: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    exclude: tuple[Name, ...] | None = None
    targets: Annotated[tuple[Name, ...], Field(min_length=1)]
    censored: Name | None = None
    event: Name | None = None
    exposure: Name | None = None
    transform: Annotated[dict[Name, Literal["log"]], Field(min_length=1)] | None = None
    categorical: tuple[Name, ...] | None = None
    ordered: dict[Name, Annotated[tuple[Name, ...], Field(min_length=2)]] | None = None
    missing: Literal["indicator"] | None = None
    unknown: Literal["refuse", "ignore"] | None = None
    missing_marks: tuple[Mark, ...] | None = None
    decimal: Literal[".", ","] | None = None
    separator: Literal[",", ";", "\t", "|", " "] | None = None
    header: Annotated[tuple[Name, ...], Field(min_length=1)] | Literal[False] | None = None
    skip_rows: Annotated[int, Field(ge=0, le=MAX_WORD)] | None = None
    standardize: tuple[Literal["inputs", "inputs together", "targets"], ...] = ()
    parts: Annotated[int, Field(ge=1, le=MAX_WORD)] | Literal["auto"] | None = None
    shuffle: bool | None = None

    def as_written(self) -> dict[str, Any]:
        """Return the keys that were given, without those filled in."""
        written: dict[str, Any] = self.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        return written


KEYS_OF_NEW_CASES = ("unknown", "missing_marks", "decimal", "separator", "header", "skip_rows")
"""The keys of [data] that say how new cases are read. A store may read them by other values than its own."""


class InitialSpec(StrictModel):
    """The state that chains start from.

    sigmas      the value of every free sigma, with all parameters zero; 0.5 by default
    from_prior  True for a draw from the prior instead
    shared      True if all chains of the run start from the same draw, which depends only on the seed
    """

    sigmas: Annotated[float, Field(ge=SCALE_RANGE[0], le=SCALE_RANGE[1])] | None = None
    from_prior: bool = False
    shared: bool = False

    @model_validator(mode="before")
    @classmethod
    def _one_of_two(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if value.get("from_prior") is True and value.get("sigmas") is not None:
            raise ConfigError("initial: sigmas and from_prior = true exclude each other; give only one")
        if value.get("shared") is True and value.get("from_prior") is not True:
            raise ConfigError(
                "initial.shared: applies only with from_prior = true; chains that start from given sigmas"
                " share their start anyway"
            )
        if value.get("from_prior") is not True and value.get("sigmas") is None:
            return {**value, "sigmas": 0.5}
        return value


class PhaseSpec(StrictModel):
    """A number of iterations of the same operations, and whether their draws are kept.

    keep  True for one posterior draw per iteration, False for none, "warmup" for draws that are stored apart
          from the posterior draws
    """

    iterations: Count
    operations: Annotated[tuple[AnyOperation, ...], Field(min_length=1)]
    keep: bool | Literal["warmup"] = True
