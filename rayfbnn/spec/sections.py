"""The sections of a configuration that are kept as they are written: [data], [initial] and [[phase]]."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from rayfbnn.errors import ConfigError
from rayfbnn.spec.messages import MAX_WORD
from rayfbnn.spec.operations import AnyOperation, Record
from rayfbnn.spec.ranges import SCALE_RANGE


def _number_as_text(value: object) -> object:
    """Read `bo = 1` as `bo = "1"`: a prior that is only a width may be written as a number."""
    return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


PriorText = Annotated[str, BeforeValidator(_number_as_text)]
Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, le=MAX_WORD)]
FileName = Annotated[str, Field(min_length=1, max_length=4000, pattern=r"^[^\x00]*$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class DataSpec(Record):
    """The training cases, and which of their columns are inputs and targets.

    train        path of the file as written; RunSpec.train_path is where it is. It may be left out where the
                 cases are given to a verb as `data`
    inputs       columns that the network sees, by name or by pattern ("x*"); left out, all but the targets
    exclude      columns that are no inputs, by name or by pattern
    targets      names of the columns that are predicted
    censored     column that says which times are censored, where targets are times
    categorical  columns, by name or by pattern, whose cells are levels although they are numbers
    ordered      column -> its levels in their order; the network is given their places, from 0
    missing      "indicator" if missing inputs are to be replaced by the median, with an input that says so
    standardize  which of inputs and targets are shifted and scaled to mean 0 and standard deviation 1;
                 "inputs together" are shifted each, and all divided by one number, as is right where they
                 are in one unit, such as pixels
    parts        number of parts into which the cases are divided; "auto" is replaced by a number when the
                 cases have been read. Left out, or 1, the cases are one whole
    shuffle      whether the cases are put into a random order, which their number alone decides; left out,
                 they are where there are several parts
    """

    train: FileName | None = None
    inputs: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    exclude: tuple[Name, ...] | None = None
    targets: Annotated[tuple[Name, ...], Field(min_length=1)]
    censored: Name | None = None
    categorical: tuple[Name, ...] | None = None
    ordered: dict[Name, Annotated[tuple[Name, ...], Field(min_length=2)]] | None = None
    missing: Literal["indicator"] | None = None
    standardize: tuple[Literal["inputs", "inputs together", "targets"], ...] = ()
    parts: Annotated[int, Field(ge=1, le=MAX_WORD)] | Literal["auto"] | None = None
    shuffle: bool | None = None


class InitialSpec(Record):
    """The state that chains start from.

    sigmas      the value of every free sigma, with all parameters zero; 0.5 if nothing is written
    from_prior  True for a draw from the prior instead
    shared      True if all chains of the run start from the same draw, which follows from the seed alone
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
            raise ConfigError("initial: has both sigmas and from_prior = true; it must have one of the two")
        if value.get("shared") is True and value.get("from_prior") is not True:
            raise ConfigError(
                "initial.shared: is for from_prior = true alone; chains that start from given sigmas share"
                " their start anyway"
            )
        if value.get("from_prior") is not True and value.get("sigmas") is None:
            return {**value, "sigmas": 0.5}
        return value


class PhaseSpec(Record):
    """A number of iterations of the same operations, and whether their draws are kept.

    keep  True for one posterior draw an iteration, False for none, "warmup" for draws that are stored apart
          from those of the posterior
    """

    iterations: Count
    operations: Annotated[tuple[AnyOperation, ...], Field(min_length=1)]
    keep: bool | Literal["warmup"] = True
